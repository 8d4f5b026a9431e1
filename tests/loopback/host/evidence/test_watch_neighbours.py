"""Watching among hostile and strange neighbours: many processes, many mappings, ids that are used again, no rights."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.evidence import processes
from gdsdeploy.host.evidence.processes import Identity, Scan
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.watch.look import Watcher
from gdsdeploy.zipapp import hostapp
from tests.cufile import libraries

#: Maps libcufile, and 40,000 pages of which each is a mapping of its own.
MAPPINGS = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
pages = 40000
begin = libc.mmap(None, ctypes.c_size_t(pages * 4096), 3, 0x22, -1, ctypes.c_long(0))
for page in range(0, pages, 2):
    libc.mprotect(ctypes.c_void_p(begin + page * 4096), 4096, 1)
print("ready", flush=True)
sys.stdin.read()
"""
WAITS = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
#: Maps an ordinary file that is called like a segment, with the id of its own process as key: of a detached mount, a
#: path begins at its root.
DISGUISE = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
ctypes.CDLL(sys.argv[1])
assert libc.unshare(0x20000) == 0
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
assert libc.mount(b"tests", sys.argv[2].encode(), b"tmpfs", 0, None) == 0
name = "%s/SYSV%08x" % (sys.argv[2], os.getpid())
with open(name, "w+b") as file:
    file.write(bytes(32256))
    file.flush()
    kept = mmap.mmap(file.fileno(), 32256)
os.unlink(name)
assert libc.umount2(sys.argv[2].encode(), 2) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def started(code: str, *words: str) -> subprocess.Popen[bytes]:
    library = libraries.library("1.20.0.107").path
    argv = [sys.executable, "-c", code, str(library), *words]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def reason(pid: int) -> str:
    (entry,) = (entry for entry in Watcher().look().programs if entry.program.pid == pid)
    return entry.route.reason


def test_a_process_with_40000_mappings() -> None:
    with started(MAPPINGS) as process:
        assert Path(f"/proc/{process.pid}/maps").read_text().count("\n") > 20_000
        begin = time.process_time()
        assert reason(process.pid) == counters.STATISTICS_OFF
        assert time.process_time() - begin < 10
        process.kill()


def test_a_file_that_is_called_like_a_segment(tmp_path: Path) -> None:
    with started(DISGUISE, str(tmp_path)) as process:
        assert f" /SYSV{process.pid:08x} (deleted)" in Path(f"/proc/{process.pid}/maps").read_text()
        # Its inode is no segment's id, or another process's segment.
        assert reason(process.pid) in (counters.UNREADABLE, counters.NOT_ITS_OWN)
        process.kill()


def test_an_id_that_is_used_again_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = processes.identity
    calls: dict[int, int] = {}

    def later(folder: str, pid: int) -> Identity:
        calls[pid] = calls.get(pid, 0) + 1
        return identity(folder, pid)._replace(start=calls[pid])

    with started(WAITS) as process:
        assert process.pid in [entry.program.pid for entry in Watcher().look().programs]
        monkeypatch.setattr(processes, "identity", later)
        assert process.pid not in [entry.program.pid for entry in Watcher().look().programs]
        process.kill()


def test_10000_processes_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder like /proc: so many real ones would take all memory of a small machine."""
    text = "7f00-7f01 r-xp 00000000 08:01 7                   /usr/lib/libc.so.6\n" * 40
    for pid in range(1, 10_001):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a ) b) S " + "0 " * 18 + "5 0\n")
        (folder / "maps").write_text(text)
    monkeypatch.setattr(processes, "PROC", str(tmp_path))
    scan, recorder = Scan(1000, 60.0), Recorder()
    scan.look(recorder)
    assert recorder.document["processes"]["libcufile"]["programs"] == []
    assert not recorder.document["processes"]["libcufile"]["more"]
    reads: list[str] = []
    monkeypatch.setattr(processes, "mapped_files", lambda path: reads.append(path))
    scan.look(recorder)
    assert reads == []


def test_a_look_that_takes_too_long_says_so() -> None:
    recorder = Recorder()
    Scan(1000, 0.0).look(recorder)
    assert recorder.document["processes"]["libcufile"]["more"]


def test_another_user_sees_less_and_is_told() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, started(WAITS) as process:
        Path(folder).chmod(0o755)
        program = hostapp.keep(Path(folder))
        program.chmod(0o644)
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-I", "-S"]
        watch = ["watch", "--once", "--every", "0.2", "--json"]
        done = subprocess.run([*other, program, *watch], capture_output=True, text=True, check=False)
        process.kill()
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert process.pid not in [row["pid"] for row in document["processes"]]
    assert "could not be read: permission denied" in document["incomplete"]
