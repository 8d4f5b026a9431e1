"""The lab ends no process that isn't its own, and stays in its own folders.  tests/lab/test_lab.py has the rest."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gdslab import lifecycle, process, state
from gdslab.errors import LabUnavailable
from gdslab.state import Lab


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def sleeper() -> Iterator[process.Process]:
    started = subprocess.Popen(["sleep", "60"])
    record = process.identify(started.pid)
    assert record is not None
    yield record
    process.stop(record)


@pytest.mark.parametrize("another", [{"start": 1}, {"boot": "00000000-0000-0000-0000-000000000000"}])
def test_a_number_that_another_process_has_is_never_signalled(
    sleeper: process.Process, another: dict[str, object]
) -> None:
    earlier = replace(sleeper, **another)  # type: ignore[arg-type]
    assert not process.alive(earlier)
    process.stop(earlier)
    assert process.alive(sleeper)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "Dev", "a b", "x" * 32])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(LabUnavailable, match="cannot name a lab"):
        Lab(name)


def test_state_of_another_version_is_not_guessed_at() -> None:
    lab = Lab("dev")
    lab.write({"release": "trixie", "hosts": []})
    (lab.directory / "lab.json").write_text('{"version": 2}')
    with pytest.raises(LabUnavailable, match="another version"):
        lab.hosts()


def test_purge_spares_what_a_lab_stands_on() -> None:
    used, unused = (state.cache_directory() / name / "root" for name in ("light", "older"))
    for folder in (used, unused):
        folder.mkdir(parents=True)
    lab = Lab("dev")
    lab.write({"release": "trixie", "hosts": []})
    lab.add_hosts("light", 1, used)
    assert lifecycle.purge() == [used.parent], "what stays"
    assert used.exists()
    assert not unused.exists()
