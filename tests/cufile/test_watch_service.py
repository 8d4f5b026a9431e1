"""``watch --metrics`` beside a real libcufile at work: its series are what the program did, also when it has ended."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.host.evidence import processes
from gdsdeploy.host.watch import service
from gdsdeploy.host.watch.service import FILE
from tests.cufile.jobs import CONTAINER, REPOSITORY, config, job

SIZE = 256 << 10
#: The service; its sums go to a file of the test.
RUN = "import sys; from gdsdeploy.host.watch import service; service.run(sys.argv[1], 0.2, sys.argv[2])"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One on a disk, and nothing of it stays."""
    yield tmp_path
    (tmp_path / "file").unlink(missing_ok=True)


class Service:
    """The service, writing to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder / "metrics", folder / "state" / "watch.json"
        argv = [sys.executable, "-c", RUN, str(self.folder), str(self.state)]
        # One that was killed has left it.
        (self.folder / FILE).unlink(missing_ok=True)
        self.process = subprocess.Popen(argv, cwd=REPOSITORY)
        self.until("gdsdeploy_cufile_timestamp_seconds ")

    def text(self) -> str:
        return (self.folder / FILE).read_text()

    def until(self, words: str) -> str:
        """The metrics once they contain these words."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if (self.folder / FILE).exists() and words in self.text():
                return self.text()
            time.sleep(0.05)
        pytest.fail(f"{words} isn't in:\n{self.text() if (self.folder / FILE).exists() else 'no file'}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


def number(text: str, series: str) -> int:
    """The sum of the samples of a series whose labels contain what is given."""
    name, _, labels = series.partition(" ")
    rows = re.findall(rf"^{name}\{{(.*)\}} (\d+)$", text, re.MULTILINE)
    return sum(int(value) for row, value in rows if labels in row)


@pytest.mark.parametrize("version", ["1.4.0.31", "1.15.1.6", "1.20.0.107"])
def test_the_series_are_what_the_program_did_also_when_it_has_ended(folder: Path, version: str) -> None:
    service_ = Service(folder)
    try:
        with job(version, folder, config(3), *CONTAINER) as running:
            assert running.tell("read", 30, SIZE) == 30 * SIZE
            service_.until('path="compat"} 30\n')
            time.sleep(0.4)
            assert running.tell("write", 7, SIZE) == 7 * SIZE
            service_.until('path="compat"} 7\n')
            assert number(service_.text(), 'gdsdeploy_cufile_processes statistics="counted"') >= 1
        time.sleep(0.6)
        text = service_.text()
        assert number(text, 'gdsdeploy_cufile_operations_total direction="read",path="compat"') == 30
        assert number(text, 'gdsdeploy_cufile_bytes_total direction="read"') == 30 * SIZE
        assert number(text, 'gdsdeploy_cufile_bounced_bytes_total direction="write"') == 7 * SIZE
        assert number(text, 'gdsdeploy_cufile_processes statistics="counted"') == 0
    finally:
        assert service_.end() == 0
    assert list(service_.folder.iterdir()) == [], "what it exported goes with it"


def test_a_restart_goes_on_and_counts_nothing_twice(folder: Path) -> None:
    first = Service(folder)
    with job("1.20.0.107", folder, config(3), *CONTAINER) as running:
        running.tell("read", 30, SIZE)
        first.until('path="compat"} 30\n')
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        running.tell("read", 5, SIZE)
        second = Service(folder)
        try:
            second.until('path="compat"} 35\n')
            time.sleep(0.5)
            assert 'path="compat"} 35\n' in second.text()
        finally:
            second.end()


def test_killed_at_random_it_leaves_nothing_that_the_next_start_does_not_remove(folder: Path) -> None:
    rng = random.Random(50)
    segments = processes.dead_segments()
    argv = [sys.executable, "-c", RUN, str(folder / "metrics"), str(folder / "state" / "watch.json")]
    with job("1.20.0.107", folder, config(3), *CONTAINER) as running:
        running.tell("read", 3, SIZE)
        for _ in range(25):
            process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0, 0.6))
            process.kill()
            process.wait()
        assert running.tell("read", 3, SIZE) == 3 * SIZE
    last = Service(folder)
    assert last.end() == 0
    assert [path.name for path in (folder / "metrics").iterdir()] == []
    assert [path.name for path in (folder / "state").iterdir()] == ["watch.json"]
    assert processes.dead_segments() == segments


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 9}', "\0" * 100, '{"version": 1, "owners": [[]]}'])
def test_a_damaged_file_of_sums_begins_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "watch.json"
    path.write_text(content)
    assert service.restored(str(path)).sums == {}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    argv = [sys.executable, "-m", "gdsdeploy.host", "watch", "--metrics", "--folder", str(tmp_path / "file" / "x")]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "metrics can't be written" in done.stderr
    assert str(tmp_path / "file" / "x") in done.stderr


def test_another_program_on_the_disk_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("old")
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setattr(service, "pods", lambda: os.utime(program, (1, 1)) or {})
    before = signal.getsignal(signal.SIGTERM)
    try:
        service.run(str(tmp_path / "metrics"), 0.0, str(tmp_path / "watch.json"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads((tmp_path / "watch.json").read_text())["owners"] == []
