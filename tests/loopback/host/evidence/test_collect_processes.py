"""Real programs with a real libcufile, found among all processes of this machine; and what watch must survive."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.evidence import NOTHING
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import HostFacts, UndecidedError, facts_from
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.model.finding import FAIL, PASS, Finding
from gdsdeploy.host.subjects import environment, processes
from gdsdeploy.host.subjects.cufile_json import Overlay
from gdsdeploy.host.subjects.processes import Identity, Program, Scan
from gdsdeploy.host.watch.look import Watcher
from gdsdeploy.zipapp import hostapp
from tests.cufile import libraries
from tests.unit.host.checks.changes import EXPECTATION

VERSION = "1.15.1.6"
FORCED = '{"properties": {"force_compat_mode": true}}'
#: Loads the library and waits until its input ends.
JOB = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
#: The same where a file is /etc/cufile.json, as in a container.
CONTAINED = 'mount --bind "$1" /etc/cufile.json && exec "$2" -c "$3" "$4"'


@contextmanager
def job(argv: list[str], **variables: str) -> Iterator[int]:
    """A running program that has loaded libcufile: its process id."""
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**path, **variables}) as started:
        assert started.stdout is not None
        assert started.stdin is not None
        try:
            assert started.stdout.readline() == b"ready\n"
            yield started.pid
        finally:
            started.stdin.close()


def collected() -> tuple[dict[str, Any], HostFacts]:
    recorder = Recorder()
    recorder.attempt("environment", lambda: environment.collect_environment(recorder, NOTHING), 60)
    recorder.attempt("processes", lambda: processes.collect_processes(recorder, NOTHING), 60)
    assert recorder.document["gaps"] == []
    return recorder.document, facts_from(recorder.document)


def one(facts: HostFacts, pid: int) -> Program:
    running = facts.processes.programs
    (match,) = (program for program in running if program.pid == pid)
    return match


def findings(document: dict[str, Any], pid: int, version: str = VERSION) -> dict[str, Finding]:
    """The checks about running programs, as if the job were the only one and every process had been read."""
    summary = document["processes"]["libcufile"]
    alone = {
        "programs": [row for row in summary["programs"] if row["pid"] == pid],
        "unread": 0,
        "more": False,
    }
    expectation = replace(EXPECTATION, libcufile_version=version, storage=[])
    files = {"/etc/cufile.json": "{}", **document["files"]}
    facts = facts_from({**document, "files": files, "processes": {"libcufile": alone}})
    return {finding.check: finding for finding in checks.run(facts, expectation)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real libcufile where NVIDIA's wheel installs it, beside the wheel's own record."""
    site = tmp_path_factory.mktemp("venv") / "lib" / "python3.11" / "site-packages"
    library = site / "nvidia" / "cu13" / "lib" / "libcufile.so.0"
    library.parent.mkdir(parents=True)
    shutil.copy(libraries.library(VERSION).path, library)
    (site / f"nvidia_cufile-{VERSION}.dist-info").mkdir()
    return library


def test_a_program_with_its_own_configuration(wheel: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text("// mine\n" + FORCED)
    argv = [sys.executable, "-c", JOB, str(wheel)]
    with job(argv, CUFILE_ENV_PATH_JSON=str(own), PASSWORD="hunter2") as pid:
        document, facts = collected()
    program = one(facts, pid)
    assert program.name.startswith("python")
    assert program.unit.startswith("/")
    assert program.container is False
    assert program.libraries == {str(wheel): VERSION}
    assert program.variables == {"CUFILE_ENV_PATH_JSON": str(own)}
    assert isinstance(program.overlay, Overlay)
    assert program.overlay.config == {"properties": {"force_compat_mode": True}}
    assert "hunter2" not in str(document)
    results = findings(document, pid)
    assert results["cufile.processes"].verdict == FAIL
    assert f"process {pid} (" in results["cufile.processes"].found
    assert any(str(own) in line for line in results["cufile.processes"].evidence)
    assert results["cufile.bundled"].verdict == PASS
    assert findings(document, pid, "1.20.0.107")["cufile.bundled"].verdict == FAIL


def test_a_relative_name_belongs_to_the_folder_of_the_program(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(FORCED)
    argv = ["env", "-C", str(tmp_path), sys.executable, "-c", JOB, str(wheel)]
    with job(argv, CUFILE_ENV_PATH_JSON="own.json") as pid:
        _, facts = collected()
    overlay = one(facts, pid).overlay
    assert isinstance(overlay, Overlay)
    assert overlay.config == {"properties": {"force_compat_mode": True}}


def test_a_program_without_one_passes(wheel: Path) -> None:
    with job([sys.executable, "-c", JOB, str(wheel)]) as pid:
        document, facts = collected()
    assert one(facts, pid).overlay is None
    results = findings(document, pid)
    assert (results["cufile.processes"].verdict, results["cufile.bundled"].verdict) == (PASS, PASS)


def test_a_program_with_other_files(wheel: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own: another /etc/cufile.json, and a link there that leads to a file of the host."""
    root = tmp_path / "etc.json"
    root.write_text(FORCED)
    place = Path("/etc/cufile.json")
    is_new = not place.exists()
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINED, "sh", str(root), sys.executable]
    if is_new:
        place.touch()
    try:
        with job([*argv, JOB, str(wheel)]) as pid:
            document, facts = collected()
    finally:
        if is_new:
            place.unlink()
    program = one(facts, pid)
    assert (program.container, program.base_path) == (False, f"/proc/{pid}/root/etc/cufile.json")
    assert program.base == {"properties": {"force_compat_mode": True}}
    assert program.libraries == {str(wheel): VERSION}
    assert findings(document, pid)["cufile.processes"].verdict == FAIL


def test_a_library_that_was_replaced_has_no_version(wheel: Path, tmp_path: Path) -> None:
    copy = tmp_path / "libcufile.so.1.15.1"
    shutil.copy(wheel, copy)
    with job([sys.executable, "-c", JOB, str(copy)]) as pid:
        copy.unlink()
        _, facts = collected()
    assert one(facts, pid).libraries == {f"{copy} (deleted)": "1.15.1"}


def test_a_program_that_only_has_another_library_is_not_among_them(tmp_path: Path) -> None:
    other = tmp_path / "libcufile_rdma.so.1"
    shutil.copy("/bin/true", other)
    code = JOB.replace("ctypes.CDLL(sys.argv[1])", "m = mmap.mmap(os.open(sys.argv[1], 0), 0, prot=1)")
    with job([sys.executable, "-c", "import mmap, os; " + code, str(other)]) as pid:
        _, facts = collected()
    running = facts.processes.programs
    assert pid not in {program.pid for program in running}


def test_the_search_is_bounded(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PROGRAMS_LIMIT", 0)
    with job([sys.executable, "-c", JOB, str(wheel)]):
        _, facts = collected()
    with pytest.raises(UndecidedError, match="too many"):
        _ = facts.processes.complete


def test_the_file_of_this_programs_own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(FORCED)
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(own))
    _, facts = collected()
    assert isinstance(facts.cufile.overlay, Overlay)
    assert facts.cufile.overlay.config == {"properties": {"force_compat_mode": True}}


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


def started(code: str, *words: str) -> AbstractContextManager[int]:
    """The process id of this interpreter with ``code``, which gets a library and these words."""
    return job([sys.executable, "-c", code, str(libraries.library("1.20.0.107").path), *words])


def reason(pid: int) -> str:
    (entry,) = (entry for entry in Watcher().look().programs if entry.program.pid == pid)
    return entry.route.reason


def test_a_process_with_40000_mappings() -> None:
    with started(MAPPINGS) as pid:
        assert Path(f"/proc/{pid}/maps").read_text().count("\n") > 20_000
        begin = time.process_time()
        assert reason(pid) == counters.STATISTICS_OFF
        assert time.process_time() - begin < 10


def test_a_file_that_is_called_like_a_segment(tmp_path: Path) -> None:
    with started(DISGUISE, str(tmp_path)) as pid:
        assert f" /SYSV{pid:08x} (deleted)" in Path(f"/proc/{pid}/maps").read_text()
        # Its inode is no segment's id, or another process's segment.
        assert reason(pid) in (counters.UNREADABLE, counters.NOT_ITS_OWN)


def test_an_id_that_is_used_again_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = processes.identity
    calls: dict[int, int] = {}

    def later(folder: str, pid: int) -> Identity:
        calls[pid] = calls.get(pid, 0) + 1
        return identity(folder, pid)._replace(start=calls[pid])

    with started(JOB) as pid:
        assert pid in [entry.program.pid for entry in Watcher().look().programs]
        monkeypatch.setattr(processes, "identity", later)
        assert pid not in [entry.program.pid for entry in Watcher().look().programs]


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
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, started(JOB) as pid:
        Path(folder).chmod(0o755)
        program = hostapp.keep(Path(folder))
        program.chmod(0o644)
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-I", "-S"]
        watch = ["watch", "--once", "--every", "0.2", "--json"]
        done = subprocess.run([*other, program, *watch], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert pid not in [row["pid"] for row in document["processes"]]
    assert "could not be read: permission denied" in document["incomplete"]
