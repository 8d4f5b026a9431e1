"""``watch --probe`` with every real libcufile at work: bytes by process and file, and nothing of it stays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.watch import bpf, probe, table
from gdsdeploy.host.watch.symbols import NotALibraryError, offsets
from gdsdeploy.validate.watch import Watched
from gdsdeploy.zipapp import hostapp
from tests.cufile import libraries
from tests.cufile.job import SIZE as FILE
from tests.cufile.jobs import CONTAINER, Running, config, job
from tests.cufile.libraries import RELEASES

READS, WRITES, SIZE = 25, 10, 256 << 10
#: Calls that fail, at an offset before the file, and a read that the end of the file cuts.
FAILED, BEFORE, CUT = 7, -4096, 64 << 10
#: The breakpoint that the kernel puts where a probe is.
BREAKPOINT = 0xCC


def moves(running: Running) -> None:
    assert running.tell("read", READS, SIZE) == READS * SIZE
    assert running.tell("write", WRITES, SIZE) == WRITES * SIZE


def fails(running: Running) -> None:
    assert running.tell("read", FAILED, SIZE, BEFORE) < 0
    assert running.tell("write", FAILED, SIZE, BEFORE) < 0


def during(
    monkeypatch: pytest.MonkeyPatch, *running: Running, does: Callable[[Running], None] = moves
) -> dict[str, Any]:
    """What a probe says while each program works."""

    def work(_seconds: float) -> None:
        for each in running:
            does(each)

    monkeypatch.setattr(probe.time, "sleep", work)
    document = probe.probe(5.0)
    Watched.model_validate(json.loads(json.dumps(document)))
    return document


@pytest.mark.parametrize("version", RELEASES)
def test_bytes_of_each_release_by_file(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with job(version, tmp_path, config(0), *CONTAINER) as running:
        document = during(monkeypatch, running)
    (row,) = [row for row in document["processes"] if row["pid"] == running.pid]
    expected = {"calls": READS + WRITES, "read_bytes": READS * SIZE, "written_bytes": WRITES * SIZE}
    assert {name: row["probe"][name] for name in expected} == expected
    assert row["probe"]["posix_bytes"] == (READS + WRITES) * SIZE
    assert row["probe"]["failed"] == 0
    (file,) = row["probe"]["files"]
    assert file == {"path": str(tmp_path / "file"), "mount": file["mount"], "filesystem": "ext4", **expected}
    assert document["probe"]["hits"] >= 3 * (READS + WRITES)
    assert document["probe"]["refused"] == []


@pytest.mark.parametrize("version", RELEASES)
def test_what_failed_and_what_came_back_in_part(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(running: Running) -> None:
        fails(running)
        assert running.tell("read", 2, SIZE, FILE - CUT) == 2 * CUT
        assert running.tell("write", 1, SIZE) == SIZE

    with job(version, tmp_path, config(0), *CONTAINER) as running:
        document = during(monkeypatch, running, does=work)
    (row,) = [row for row in document["processes"] if row["pid"] == running.pid]
    moved, (file,) = row["probe"], row["probe"]["files"]
    assert (moved["calls"], moved["failed"]) == (2 * FAILED + 3, 2 * FAILED)
    assert (moved["read_bytes"], moved["written_bytes"]) == (2 * CUT, SIZE)
    assert file["calls"] == moved["calls"]
    assert (file["read_bytes"], file["written_bytes"]) == ((FAILED + 2) * SIZE, (FAILED + 1) * SIZE)


def test_the_text_about_calls_that_all_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with job("1.20.0.107", tmp_path, config(0), "--ipc") as running:
        document = during(monkeypatch, running, does=fails)
        row = next(row for row in document["processes"] if row["pid"] == running.pid)
        text = table.probe_lines("gpu1", {**document, "processes": [row]})
    (file,) = row["probe"]["files"]
    assert text[:2] == [
        f"gpu1 process {running.pid} ({row['program']}): 0 B read, 0 B written in 14 calls; 14 calls failed",
        f"    {file['path']} on {file['mount']} (ext4): 14 calls, which requested 1.8 MiB to read, 1.8 MiB to write",
    ]
    assert text[2].startswith(f"gpu1 {document['probe']['probes']} probes, ")


def test_a_return_probe_is_one_for_this_kernel_and_each_kind_has_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(bpf._UPROBE).with_name("format").joinpath("retprobe").read_text() == "config:0\n"
    assert bpf._RETURN == 1 << 0
    counts = {(1, probe.READ, 1): (1000, 0), (1, probe.PREAD, 1): (1000, 0), (1, probe.READ_RETURN, 0): (1000, 0)}
    monkeypatch.setattr(bpf.Counting, "counts", lambda _: counts)
    monkeypatch.setattr(probe.time, "sleep", lambda _: None)
    about = probe.probe(1.0)["probe"]
    assert (about["hits"], about["cost"]) == (3000, [0.002, 0.0219])


def test_sources_agree_and_two_programs_with_one_library_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        job("1.20.0.107", tmp_path / "a", config(3), "--ipc") as one,
        job("1.20.0.107", tmp_path / "b", config(3), "--ipc") as other,
    ):
        document = during(monkeypatch, one, one, other)
    rows = {row["pid"]: row for row in document["processes"]}
    for running, times in ((one, 2), (other, 1)):
        row = rows[running.pid]
        whole = times * (READS + WRITES) * SIZE
        assert row["probe"]["read_bytes"] + row["probe"]["written_bytes"] == whole
        assert row["probe"]["posix_bytes"] == whole
        # 1.16 and later count some milliseconds late.
        assert 0.97 * whole <= row["bounced_bytes"] <= whole


def breakpoint_of(pid: int) -> tuple[int, int]:
    """(address of cuFileRead in the process, its first byte in the file)"""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, flags, offset, *_, path = line.split(None, 5)
        if "libcufile.so" in path:
            data = Path(path).read_bytes()
            place = offsets(data, ["cuFileRead"], [])["cuFileRead"]
            begin, end = (int(word, 16) for word in addresses.split("-"))
            at = place - int(offset, 16)
            if "x" in flags and 0 <= at < end - begin:
                return begin + at, data[place]
    raise LookupError(pid)


def byte_at(pid: int, address: int) -> int:
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(address)
        return memory.read(1)[0]


def test_a_killed_watcher_leaves_no_probe(tmp_path: Path) -> None:
    chance = random.Random(22)
    with job("1.20.0.107", tmp_path, config(0), "--ipc") as running:
        address, original = breakpoint_of(running.pid)
        assert byte_at(running.pid, address) == original != BREAKPOINT
        hits = 0
        for _ in range(8):
            argv = [sys.executable, "-m", "gdsdeploy.host", "watch", "--probe", "30"]
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as watcher:
                end = time.monotonic() + 20
                while byte_at(running.pid, address) != BREAKPOINT and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(chance.random() / 20)
                hits += byte_at(running.pid, address) == BREAKPOINT
                watcher.send_signal(signal.SIGKILL)
            end = time.monotonic() + 20
            while byte_at(running.pid, address) == BREAKPOINT and time.monotonic() < end:
                time.sleep(0.01)
            assert byte_at(running.pid, address) == original
        assert hits == 8
        assert running.tell("read", 1, SIZE) == SIZE
    events = Path("/sys/kernel/tracing/uprobe_events")
    assert not events.exists() or events.read_text() == ""


def test_another_user_is_refused_with_the_reason() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        program = hostapp.keep(Path(folder))
        program.chmod(0o644)
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-I", "-S"]
        done = subprocess.run(
            [*other, program, "watch", "--probe", "0.2", "--json"], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    (reason,) = json.loads(done.stdout)["probe"]["refused"]
    assert reason.startswith("the kernel refuses probes: Operation not permitted")


@pytest.mark.parametrize("seconds", ["0", "61", "x", "nan", "-1"])
def test_a_probe_is_bounded(seconds: str) -> None:
    argv = [sys.executable, "-m", "gdsdeploy.host", "watch", "--probe", seconds]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "isn't a number of seconds from 0.2 to 60" in done.stderr


def test_a_handle_that_is_no_descriptor_names_no_file() -> None:
    pid = os.getpid()
    counts = {(pid, probe.READ, 0x7F0012345678): (3, 300), (pid, probe.PREAD, 5): (3, 300), (1, probe.READ, 1): (1, 1)}
    moved = probe._of(pid, {**counts, (pid, probe.READ_RETURN, 0): (2, 200), (pid, probe.READ_RETURN, 1): (1, 0)})
    assert (moved["calls"], moved["failed"], moved["read_bytes"], moved["posix_bytes"]) == (3, 1, 200, 300)
    (file,) = moved["files"]
    assert (file["path"], file["read_bytes"]) == (probe.UNKNOWN_FILE, 300)
    assert table._file_line(file) == "    unknown file: 3 calls, which requested 300 B to read, 0 B to write"
    closed = probe._of(pid, {(pid, probe.WRITE, probe.HANDLE << 32 | 999_999): (1, 7)})
    (file,) = closed["files"]
    assert (file["path"], file["written_bytes"], closed["written_bytes"]) == (probe.UNKNOWN_FILE, 7, 0)


def test_damaged_libraries_are_refused() -> None:
    data = libraries.library("1.20.0.107").path.read_bytes()
    names = (["cuFileRead", "cuFileWrite"], ["pread", "pwrite"])
    assert set(offsets(data, *names)) == {"cuFileRead", "cuFileWrite", "pread", "pwrite"}
    chance = random.Random(22)
    for broken in (b"", b"\x7fELF", data[:64], data[: len(data) // 2], b"\x7fELF\x02\x01" + bytes(4096)):
        with pytest.raises(NotALibraryError):
            offsets(broken, *names)
    for _ in range(20):
        damaged = bytearray(data)
        for at in (*range(16, 64), *range(len(data) - 1800, len(data))):
            if chance.random() < 0.05:
                damaged[at] = chance.randrange(256)
        try:
            places = offsets(bytes(damaged), *names)
        except NotALibraryError:
            continue
        assert all(0 <= place < len(data) for place in places.values())


def test_what_the_map_of_counts_is_closed_with() -> None:
    with bpf.Counting() as counting:
        assert counting.counts() == {}
        before = len(list(Path("/proc/self/fd").iterdir()))
    assert len(list(Path("/proc/self/fd").iterdir())) < before
