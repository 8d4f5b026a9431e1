"""Real libcufile releases at work on the stand-in GPU, looked at from outside: path, operations, bytes are theirs."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cufile.render import render
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.libcufile.counters import listed, remove, stat, within
from gdsdeploy.host.paths import WATCH_METRICS
from gdsdeploy.host.watch import service
from gdsdeploy.host.watch.look import Entry, Look, Watcher
from gdsdeploy.model.fleet import Profile
from tests.cufile import libraries
from tests.cufile.jobs import CONTAINER, REPOSITORY, Running, config, job
from tests.cufile.libraries import RELEASES
from tests.patience import SURELY, wait_for

#: A burst of alternating reads and writes may leave the first ones only in releases before 1.14: so these only read.
READS, SIZE = 40, 256 << 10
IPC = ("--ipc",)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One on a disk, and nothing of it stays."""
    assert os.statvfs(tmp_path).f_blocks
    yield tmp_path
    (tmp_path / "file").unlink(missing_ok=True)


def of(look: Look, running: Running) -> Entry:
    (entry,) = (entry for entry in look.programs if entry.program.pid == running.pid)
    return entry


def settled(watcher: Watcher, running: Running, operations: int) -> Entry:
    """What a look finds once all operations are counted: 1.16 and later are some milliseconds late."""
    end = time.monotonic() + SURELY
    while True:
        entry = of(watcher.look(), running)
        if sum(entry.route.operations.values()) >= operations or time.monotonic() > end:
            return entry
        time.sleep(0.05)


@pytest.mark.parametrize("version", RELEASES)
def test_what_a_release_counts_is_what_its_program_did(folder: Path, version: str) -> None:
    watcher = Watcher()
    with job(version, folder, config(3), *CONTAINER) as running:
        assert (running.opened, running.registered, running.inside) == (0, 0, 1)
        assert of(watcher.look(), running).route.path == counters.IDLE
        assert running.tell("read", READS, SIZE) == READS * SIZE
        entry = settled(watcher, running, READS)
        assert (entry.route.path, entry.route.operations) == (counters.COMPAT, {counters.COMPAT: READS})
        assert (entry.route.read, entry.route.written, entry.route.bounced) == (READS * SIZE, 0, READS * SIZE)
        assert entry.route.exact
        assert entry.program.nvidia_fs is False
        assert entry.program.level == 3
        assert [(file.path, file.direct) for file in entry.program.files] == [(str(folder / "file"), True)]
        # 1.9 to 1.13 have their release nowhere in the file.
        (release,) = entry.program.libraries.values()
        assert release == version or (not isinstance(release, str) and version.startswith(("1.9", "1.11", "1.13")))


@pytest.mark.parametrize("version", ["1.4.0.31", "1.16.1.26", "1.20.0.107"])
def test_the_file_of_a_profile_with_statistics_has_programs_counted(folder: Path, version: str) -> None:
    intent = {"os": "debian-13", "mode": "compat", "cufile_stats": 3, "cufile": {"logging": {"dir": "/tmp"}}}
    with job(version, folder, render("gds", Profile.model_validate(intent), version), *IPC) as running:
        assert running.tell("read", READS, SIZE) == READS * SIZE
        assert settled(Watcher(), running, READS).route.bounced == READS * SIZE


@pytest.mark.parametrize("version", ["1.15.1.6", "1.20.0.107"])
def test_writes_and_what_moved_since_the_last_look(folder: Path, version: str) -> None:
    watcher = Watcher()
    with job(version, folder, config(3), *IPC) as running:
        assert running.tell("read", READS, SIZE) == READS * SIZE
        settled(watcher, running, READS)
        assert running.tell("write", 10, SIZE) == 10 * SIZE
        settled(Watcher(), running, READS + 10)
        result = of(watcher.look(), running).route
        assert (result.recent, result.read, result.written) == (True, 0, 10 * SIZE)
        assert result.operations == {counters.COMPAT: 10}
        still = of(watcher.look(), running).route
        assert (still.recent, still.operations, still.rate(still.bounced)) == (False, {counters.COMPAT: READS + 10}, 0)


@pytest.mark.parametrize(
    ("version", "level", "reason"),
    [
        ("1.4.0.31", 0, counters.STATISTICS_OFF), ("1.15.1.6", 0, counters.STATISTICS_OFF),
        ("1.20.0.107", 0, counters.STATISTICS_OFF), ("1.4.0.31", 1, counters.GPUS_NOT_COUNTED),
        ("1.15.1.6", 2, counters.GPUS_NOT_COUNTED), ("1.16.1.26", 1, "level-low"), ("1.20.0.107", 2, "level-low"),
    ],
)  # fmt: skip
def test_a_lower_level_counts_no_path(folder: Path, version: str, level: int, reason: str) -> None:
    with job(version, folder, config(level), *IPC) as running:
        assert running.tell("read", READS, SIZE) == READS * SIZE
        time.sleep(0.1)
        result = of(Watcher().look(), running)
        assert (result.route.path, result.route.reason, result.program.level) == (counters.NOT_COUNTED, reason, level)


def test_a_program_can_turn_its_statistics_on(folder: Path) -> None:
    with job("1.20.0.107", folder, config(0), *IPC) as running:
        watcher = Watcher()
        assert of(watcher.look(), running).route.reason == counters.STATISTICS_OFF
        assert running.tell("level", 3)[0] == 0
        assert running.tell("read", READS, SIZE) == READS * SIZE
        assert settled(watcher, running, READS).route.path == counters.COMPAT


def test_io_into_the_memory_of_the_host_has_no_path(folder: Path) -> None:
    with job("1.20.0.107", folder, config(3), *IPC) as running:
        assert running.tell("host", 10, 4096) == 40960
        time.sleep(0.1)
        assert of(Watcher().look(), running).route.reason == counters.GPUS_NOT_COUNTED


#: Takes the key of a process id and attaches it, as another user may.
SQUAT = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(int(sys.argv[1]), int(sys.argv[2]), 0o1644)
address = libc.shmat(number, None, 0)
ctypes.memmove(address, (10).to_bytes(4, "little"), 4)
if sys.argv[3:]:
    import subprocess
    sys.exit(subprocess.call(sys.argv[3:]))
"""


@pytest.mark.parametrize("version", ["1.4.0.31", "1.20.0.107"])
def test_a_segment_of_another_process_blocks_the_statistics(folder: Path, version: str) -> None:
    """In a namespace of its own the program has process id 2, as a successor in a container may."""
    flags = (*CONTAINER, sys.executable, "-c", SQUAT, "2", "32256")
    with job(version, folder, config(3), *flags) as running:
        assert running.inside == 2
        assert (running.opened, running.tell("read", 4, SIZE)) == (0, 4 * SIZE)
        result = of(Watcher().look(), running).route
        assert (result.path, result.reason) == (counters.NOT_COUNTED, counters.KEY_TAKEN)


def test_a_segment_of_another_maker_is_not_the_process_s_own() -> None:
    """A process that maps libcufile, and a segment with its key that its parent has made."""
    library = libraries.library("1.20.0.107").path
    child = (
        "import ctypes, os, sys; ctypes.CDLL(sys.argv[1]); libc = ctypes.CDLL(None);"
        " libc.shmat.restype = ctypes.c_void_p; print(os.getpid(), flush=True);"
        " libc.shmat(int(sys.stdin.readline()), None, 0); print('on', flush=True); sys.stdin.read()"
    )
    libc = ctypes.CDLL(None)
    with subprocess.Popen(
        [sys.executable, "-c", child, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        number = libc.shmget(pid, 32256, 0o3644)
        try:
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "on\n"
            (entry,) = (entry for entry in Watcher().look().programs if entry.program.pid == pid)
            assert (entry.route.path, entry.route.reason) == (counters.NOT_COUNTED, counters.NOT_ITS_OWN)
            assert stat(number).creator == os.getpid()
        finally:
            remove(number)
            process.kill()


def test_a_library_that_was_replaced_while_it_runs(folder: Path) -> None:
    copy = folder / "libcufile.so.0"
    copy.write_bytes(libraries.library("1.20.0.107").path.read_bytes())
    with job("1.20.0.107", folder, config(3), *IPC, library=copy) as running:
        copy.unlink()
        assert running.tell("read", 3, SIZE) == 3 * SIZE
        entry = settled(Watcher(), running, 3)
        assert entry.program.libraries == {f"{copy} (deleted)": "1.20.0.107"}
        assert entry.route.path == counters.COMPAT


def test_dead_segments_are_collected_and_no_other(folder: Path) -> None:
    with job("1.20.0.107", folder, config(3), *IPC) as running, Path(f"/proc/{running.pid}/ns/ipc").open() as opened:
        namespace = f"/proc/self/fd/{opened.fileno()}"

        def collected() -> int:
            return within(namespace, counters.collect_statistics)

        # One whose creator lives, one of another size, and one with another key than its creator.
        make = "import ctypes, os; n = ctypes.CDLL(None).shmget({}, {}, 0o1644); print(n)"
        enter = ["nsenter", f"--ipc=/proc/{running.pid}/ns/ipc", sys.executable, "-c"]
        subprocess.run([*enter, make.format("os.getpid()", 4096)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*enter, make.format("7", 32256)], check=True, stdout=subprocess.DEVNULL)
        assert collected() == 0
        running.process.kill()
        running.process.wait()
        assert within(namespace, lambda: len(counters.dead_segments())) == 1
        assert (collected(), collected()) == (1, 0)
        left = within(namespace, lambda: listed(Path("/proc/sysvipc/shm").read_text()))
        assert sorted(segment.size for segment in left) == [4096, 32256]


def test_the_verb_that_collects() -> None:
    argv = ["unshare", "--ipc", sys.executable, "-m", "gdsdeploy.host", "watch", "--collect"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "removed 0\n"
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"version": 1, "removed": 0}


def test_a_program_that_ends_while_others_are_looked_at(folder: Path) -> None:
    watcher = Watcher()
    with job("1.20.0.107", folder, config(3), *CONTAINER) as running:
        pid = running.pid
        assert any(entry.program.pid == pid for entry in watcher.look().programs)
        ended = os.pidfd_open(pid)
        running.process.kill()
        # unshare(1) ends before the program that it started.
        assert select.select([ended], [], [], 60)[0]
        os.close(ended)
        assert not any(entry.program.pid == pid for entry in watcher.look().programs)


def test_the_verb_prints_a_table_and_a_line_of_json(folder: Path) -> None:
    watch = [sys.executable, "-m", "gdsdeploy.host", "watch", "--once", "--every", "0.3"]
    with job("1.20.0.107", folder, config(3), *IPC) as running:
        assert running.tell("read", READS, SIZE) == READS * SIZE
        text = subprocess.run(watch, capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in text.splitlines() if f" {running.pid} " in line]
        assert "compat, before" in line
        assert "1.20.0.107" in line
        (output,) = subprocess.run([*watch, "--json"], capture_output=True, text=True, check=True).stdout.splitlines()
        document: dict[str, Any] = json.loads(output)
        (row,) = [row for row in document["processes"] if row["pid"] == running.pid]
        assert (row["path"], row["bounced_bytes"], row["bounce_rate"]) == ("compat", READS * SIZE, 0)


def test_nothing_is_left_in_the_shared_memory_of_the_machine(folder: Path) -> None:
    with job("1.20.0.107", folder, config(3), *IPC) as running:
        running.tell("read", 1, 4096)
        Watcher().look()
        rows = listed(Path("/proc/sysvipc/shm").read_text())
    assert running.pid not in [segment.key for segment in rows]


# -- ``watch --metrics`` beside a real libcufile at work: its series are what the program did, also when it has ended.


CHUNK = 256 << 10
#: The service; its sums go to a file of the test.
RUN = "import sys; from gdsdeploy.host.watch import service; service.run(sys.argv[1], 0.2, sys.argv[2])"


class Service:
    """The service, writing to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder / "metrics", folder / "state" / "watch.json"
        argv = [sys.executable, "-c", RUN, str(self.folder), str(self.state)]
        # One that was killed has left it.
        (self.folder / WATCH_METRICS).unlink(missing_ok=True)
        self.process = subprocess.Popen(argv, cwd=REPOSITORY)
        self.until("gdsdeploy_cufile_timestamp_seconds ")

    def text(self) -> str:
        return (self.folder / WATCH_METRICS).read_text()

    def until(self, words: str) -> str:
        """The metrics once they contain these words."""
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if (self.folder / WATCH_METRICS).exists() and words in self.text():
                return self.text()
            time.sleep(0.05)
        pytest.fail(f"{words} isn't in:\n{self.text() if (self.folder / WATCH_METRICS).exists() else 'no file'}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(300)


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
            assert running.tell("read", 30, CHUNK) == 30 * CHUNK
            service_.until('path="compat"} 30\n')
            time.sleep(0.4)
            assert running.tell("write", 7, CHUNK) == 7 * CHUNK
            service_.until('path="compat"} 7\n')
            assert number(service_.text(), 'gdsdeploy_cufile_processes statistics="counted"') >= 1
        ended = 'gdsdeploy_cufile_processes statistics="counted"'
        assert wait_for(lambda: number(service_.text(), ended) == 0)
        text = service_.text()
        assert number(text, 'gdsdeploy_cufile_operations_total direction="read",path="compat"') == 30
        assert number(text, 'gdsdeploy_cufile_bytes_total direction="read"') == 30 * CHUNK
        assert number(text, 'gdsdeploy_cufile_bounced_bytes_total direction="write"') == 7 * CHUNK
    finally:
        assert service_.end() == 0
    assert list(service_.folder.iterdir()) == [], "what it exported goes with it"


def test_a_restart_goes_on_and_counts_nothing_twice(folder: Path) -> None:
    first = Service(folder)
    with job("1.20.0.107", folder, config(3), *CONTAINER) as running:
        running.tell("read", 30, CHUNK)
        first.until('path="compat"} 30\n')
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        running.tell("read", 5, CHUNK)
        second = Service(folder)
        try:
            second.until('path="compat"} 35\n')
            time.sleep(0.5)
            assert 'path="compat"} 35\n' in second.text()
        finally:
            second.end()


def test_killed_at_random_it_leaves_nothing_that_the_next_start_does_not_remove(folder: Path) -> None:
    rng = random.Random(50)
    segments = counters.dead_segments()
    argv = [sys.executable, "-c", RUN, str(folder / "metrics"), str(folder / "state" / "watch.json")]
    with job("1.20.0.107", folder, config(3), *CONTAINER) as running:
        # One that has counted, however long the others take to begin.
        first = Service(folder)
        running.tell("read", 3, CHUNK)
        first.until('path="compat"} 3\n')
        assert wait_for(first.state.exists)
        first.end(signal.SIGKILL)
        for _ in range(25):
            process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0, 0.6))
            process.kill()
            process.wait()
        assert running.tell("read", 3, CHUNK) == 3 * CHUNK
    last = Service(folder)
    assert last.end() == 0
    assert [path.name for path in (folder / "metrics").iterdir()] == []
    assert [path.name for path in (folder / "state").iterdir()] == ["watch.json"]
    assert counters.dead_segments() == segments


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    argv = [sys.executable, "-m", "gdsdeploy.host", "watch", "--metrics", "--folder", str(tmp_path / "file" / "x")]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
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
