"""Two runs that change one host: by flock while one works, by a lease between the calls of one run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.host.apply import lock
from gdsdeploy.host.errors import ApplyError, BusyError


class Clock:
    """time.time() that a test sets."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(lock.time, "time", clock)
    return clock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "apply.lock")


def test_two_at_once(path: str) -> None:
    with lock.hold(who="alice", path=path), pytest.raises(BusyError, match="alice is changing this host") as caught:
        lock.hold(who="bob", path=path).__enter__()
    assert (caught.value.kind, caught.value.exit_code) == ("busy", 52)
    with lock.hold(who="bob", path=path):
        pass
    assert Path(path).read_text() == ""


def test_a_run_keeps_the_host_between_its_calls(path: str, clock: Clock) -> None:
    with lock.hold("run-1", "alice", path):
        pass
    clock.now += lock.LEASE - 1
    with pytest.raises(BusyError, match="alice is changing this host since") as caught, lock.hold("", "bob", path):
        pytest.fail("alice has it")
    free = time.strftime("%H:%M:%S", time.localtime(clock.now + 1))
    assert caught.value.hint.endswith(f"if it was killed, the host is free at {free}")
    with pytest.raises(BusyError), lock.hold("run-2", "bob", path):
        pytest.fail("alice has it")
    with lock.hold("run-1", "alice", path):
        assert json.loads(Path(path).read_text())["since"] == Clock.now
    clock.now += lock.LEASE - 1
    with pytest.raises(BusyError), lock.hold("", "bob", path):
        pytest.fail("each call makes the lease anew")


def test_a_lease_ends_by_itself(path: str, clock: Clock) -> None:
    with lock.hold("run-1", "alice", path):
        pass
    clock.now += lock.LEASE + 1
    with lock.hold("run-2", "bob", path):
        assert json.loads(Path(path).read_text())["who"] == "bob"


def test_a_lease_does_not_outlive_a_clock_that_is_set_back(path: str, clock: Clock) -> None:
    with lock.hold("run-1", "alice", path):
        pass
    clock.now -= 86_400
    with lock.hold("run-2", "bob", path):
        pass


def test_release(path: str, clock: Clock) -> None:
    with lock.hold("run-1", "alice", path), pytest.raises(BusyError):
        lock.release("run-1", path)
    assert lock.release("run-2", path) is False
    with pytest.raises(BusyError), lock.hold("run-2", "bob", path):
        pytest.fail("only its own run ends a lease")
    assert lock.release("run-1", path) is True
    with lock.hold("run-2", "bob", path):
        pass
    assert lock.release("run-1", path) is False


def test_a_failed_call_keeps_the_lease_of_its_run(path: str, clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError), lock.hold("run-1", "alice", path):
        raise ZeroDivisionError
    with pytest.raises(BusyError), lock.hold("", "bob", path):
        pytest.fail("its run may go on")


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"until": "soon"}', "\xff", '{"run": "x", "until": 1e400}'])
def test_a_lock_file_with_something_else_in_it_is_free(path: str, text: str) -> None:
    Path(path).parent.mkdir()
    Path(path).write_text(text, encoding="latin-1")
    with lock.hold("", "bob", path):
        assert json.loads(Path(path).read_text())["who"] == "bob"


def test_a_link_in_its_place_is_not_followed(path: str, tmp_path: Path) -> None:
    Path(path).parent.mkdir()
    Path(path).symlink_to(tmp_path / "victim")
    with pytest.raises(ApplyError, match=r"apply\.lock: Too many levels of symbolic links"), lock.hold(path=path):
        pytest.fail("followed")
    assert not (tmp_path / "victim").exists()
