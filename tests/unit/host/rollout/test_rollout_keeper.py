"""Who keeps a host, as a rollout's status says it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gdsdeploy.host.apply import lock

NOBODY = {"run": "", "who": "", "works": False}
ANNA = {"run": "run-1", "who": "anna"}


def test_nobody_where_nothing_was_ever_applied(tmp_path: Path) -> None:
    path = tmp_path / "run/apply.lock"
    assert lock.holder(str(path)) == NOBODY
    assert not path.parent.exists()


def test_a_run_keeps_the_host_between_its_calls_until_it_lets_go(tmp_path: Path) -> None:
    path = str(tmp_path / "apply.lock")
    with lock.hold("run-1", "anna", path):
        assert lock.holder(path) == {**ANNA, "works": True}
    assert lock.holder(path) == {**ANNA, "works": False}
    assert lock.release("run-1", path)
    assert lock.holder(path) == NOBODY


def test_a_single_call_keeps_it_while_it_works(tmp_path: Path) -> None:
    path = str(tmp_path / "apply.lock")
    with lock.hold("", "anna", path):
        assert lock.holder(path) == {"run": "", "who": "anna", "works": True}
    assert lock.holder(path) == NOBODY


def test_looking_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock is taken for a look: who comes just then is not refused."""
    path = str(tmp_path / "apply.lock")
    with lock.hold("run-1", "anna", path):
        pass
    monkeypatch.setattr(lock.fcntl, "flock", lambda *_: pytest.fail("a look takes a lock"))
    lock.holder(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"run": "run-1", "who": "anna", "pid": 2**22 + 1, "until": 0.0},  # killed
        {"run": "run-1", "who": "anna", "pid": os.getpid(), "until": 1.0},  # its lease is over
        {"run": "run-1", "who": "anna", "pid": os.getpid(), "until": 1e12},  # before the clock was set back
        {},
    ],
)
def test_who_is_gone_keeps_nothing(tmp_path: Path, entry: dict[str, object]) -> None:
    path = tmp_path / "apply.lock"
    path.write_text(json.dumps(entry))
    assert lock.holder(str(path)) == NOBODY
