"""Real programs with a real libcufile, found among all processes of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.evidence import NOTHING, processes
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import HostFacts, Unknown, facts_from
from gdsdeploy.host.facts.environment import Overlay
from gdsdeploy.host.facts.processes import Program
from gdsdeploy.host.model.finding import FAIL, PASS, Finding
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
    recorder.attempt("environment", lambda: processes.collect_environment(recorder, NOTHING), 60)
    recorder.attempt("processes", lambda: processes.collect_processes(recorder, NOTHING), 60)
    assert recorder.document["gaps"] == []
    return recorder.document, facts_from(recorder.document)


def one(facts: HostFacts, pid: int) -> Program:
    running = facts.processes.programs
    assert not isinstance(running, Unknown)
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
    """As in a container: another /etc/cufile.json, and a link there that leads to a file of the host."""
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
    assert (program.container, program.base_path) == (True, f"/proc/{pid}/root/etc/cufile.json")
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
    assert not isinstance(running, Unknown)
    assert pid not in {program.pid for program in running}


def test_the_search_is_bounded(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PROGRAMS_LIMIT", 0)
    with job([sys.executable, "-c", JOB, str(wheel)]):
        _, facts = collected()
    assert isinstance(facts.processes.complete, Unknown)
    assert "too many" in facts.processes.complete.reason


def test_the_file_of_this_programs_own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(FORCED)
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(own))
    _, facts = collected()
    assert isinstance(facts.cufile.overlay, Overlay)
    assert facts.cufile.overlay.config == {"properties": {"force_compat_mode": True}}
