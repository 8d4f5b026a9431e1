"""Accounts of a host lead none of root's writing elsewhere: each writer, while ``nobody`` plants what it can."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event as EventClass
from pathlib import Path

import pytest

from gdsdeploy.host import __main__, process
from gdsdeploy.host.apply import lock
from gdsdeploy.host.apply.files import FOLDER, File, entry
from gdsdeploy.host.apply.gate import _leftovers
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.build.kbuild import Log, place as place_modules
from gdsdeploy.host.errors import ApplyError, CannotTellError, HostError
from gdsdeploy.host.evidence import NOTHING
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.gate import gate
from gdsdeploy.host.io import atomic
from gdsdeploy.host.libcufile import probe
from gdsdeploy.host.secure_boot.signing import make_key
from gdsdeploy.host.subjects import gdscheck, processes

NOBODY = 65534
SECRET = "root's own\n"
ROUNDS = 30

FORK = multiprocessing.get_context("fork")


def plant(folder: Path, victim: Path, name: str, pid: int, ready: EventClass) -> None:
    """As nobody: links under every name that can be guessed, then, for ever, under each name that appears."""
    os.chdir(folder)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    guessed = {name, f".{name}.gdsdeploy-new", f"{name}.new", f"{name}.lock"}
    guessed |= {f"{name}.{near}.new" for near in range(pid - 20, pid + 300)}
    planted = {Path(place) for place in guessed}
    for path in planted:
        path.symlink_to(victim)
    ready.set()
    while True:
        for path in Path().iterdir():
            if path not in planted or not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.rename("taken")
                with contextlib.suppress(OSError):
                    path.symlink_to(victim)


@dataclass
class Hostile:
    """A folder that ``nobody`` works in, and a file of root's that may not change."""

    folder: Path
    victim: Path

    @contextlib.contextmanager
    def attack(self, name: str) -> Iterator[None]:
        """Plant for a file ``name`` while the block runs; everything that can be guessed is there when it begins."""
        ready = FORK.Event()
        process = FORK.Process(target=plant, args=(self.folder, self.victim, name, os.getpid(), ready))
        process.start()
        try:
            assert ready.wait(300)
            yield
        finally:
            process.kill()
            process.join()

    def untouched(self) -> bool:
        """Whether the victim is as it was."""
        stat = self.victim.stat()
        return (self.victim.read_text(), stat.st_mode & 0o7777, stat.st_uid, stat.st_nlink) == (SECRET, 0o600, 0, 1)


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    base = Path(tempfile.mkdtemp(prefix="gds-local-", dir="/tmp"))
    base.chmod(0o755)
    attacker = Hostile(base / "theirs", base / "roots" / "victim")
    attacker.folder.mkdir()
    os.chown(attacker.folder, NOBODY, NOBODY)
    attacker.victim.parent.mkdir(mode=0o755)
    attacker.victim.write_text(SECRET)
    attacker.victim.chmod(0o600)
    yield attacker
    shutil.rmtree(base)


def metrics(place: Path) -> None:
    """The whole of ``gate run``: nothing is expected of this host, which closes the gate."""
    run, settings = place.parents[1] / "roots" / "run", place.parents[1] / "roots" / "gate.json"
    settings.write_text(gate.Settings(file="", metrics=str(place.parent)).to_json())
    words = ["--quiet", "--run-folder", str(run), "--state-folder", str(run), "--settings", str(settings)]
    __main__.main(["gate", "run", *words, "--expectation", "/nonexistent"])


def opened(place: Path) -> None:
    record = gate.Record(gate.OPEN, "fine", "pass", "x", "2026-01-01T00:00:00Z", 0.1)
    other = place.parents[1] / "roots"
    settings = gate.Settings(file=str(place), metrics=str(other / "metrics"))
    _, problems = gate.publish(record, settings, *[str(other / "run")] * 2)
    if problems:
        raise OSError(problems)


def configured(place: Path) -> None:
    ManagedHost(root=str(place.parent)).write(File.of(f"/{place.name}", "x\n"))


def locked(place: Path) -> None:
    with lock.hold(path=str(place)):
        pass


def module(place: Path) -> None:
    place_modules([(__file__, str(place), {})])


def rebooted(place: Path) -> None:
    os.close(atomic.open_descriptor(str(place)))


def logged(place: Path) -> None:
    Log(str(place)).note("x")


def folder(place: Path) -> None:
    ManagedHost(root=str(place.parent)).write(File("/deep/er", FOLDER))


def keyed(place: Path) -> None:
    make_key(str(place.parent / "made.key"), str(place.parent / "made.der"), "test", 1)


def copied(place: Path) -> None:
    atomic.copy(__file__, str(place))


def linked(place: Path) -> None:
    atomic.link(str(place), "/dev/null", (0, 0))


REFUSING = [opened, configured, locked, module, rebooted, logged, folder, keyed, copied, linked]


@pytest.mark.parametrize("kind", ["theirs", "group", "world"])
@pytest.mark.parametrize("writer", REFUSING, ids=lambda writer: writer.__name__)
def test_root_writes_nothing_into_a_folder_that_others_can_change(
    hostile: Hostile, writer: Callable[[Path], None], kind: str
) -> None:
    if kind != "theirs":
        os.chown(hostile.folder, 0, NOBODY if kind == "group" else 0)
        hostile.folder.chmod(0o775 if kind == "group" else 0o777)
    with hostile.attack("x"), pytest.raises((OSError, HostError)) as caught:
        writer(hostile.folder / "x")
    assert f"{hostile.folder} can be changed by others than root" in str(caught.value)
    assert hostile.untouched()
    assert [path for path in hostile.folder.iterdir() if path.lstat().st_uid == 0] == []


def test_metrics_go_into_a_folder_of_their_exporter_and_nowhere_else(hostile: Hostile) -> None:
    with hostile.attack("gdsdeploy.prom"):
        for _ in range(ROUNDS):
            metrics(hostile.folder / "gdsdeploy.prom")
            assert hostile.untouched()
    metrics(hostile.folder / "gdsdeploy.prom")
    written = hostile.folder / "gdsdeploy.prom"
    assert (written.is_symlink(), written.stat().st_mode & 0o777) == (False, 0o644)
    assert written.read_text().startswith("# HELP gdsdeploy_gate_open")
    assert [path.name for path in hostile.victim.parent.iterdir() if path.name not in ("run", "gate.json")] == [
        "victim"
    ]


def in_the_way(place: Path, kind: str, victim: Path) -> None:
    """Something at the path itself."""
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "hard link":
        place.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        (place / "in it").mkdir(parents=True)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_what_lies_at_the_path_is_replaced_or_stays_and_is_never_written_to(hostile: Hostile, kind: str) -> None:
    place = hostile.folder / "gdsdeploy.prom"
    in_the_way(place, kind, hostile.victim)
    metrics(place)
    if kind == "folder":
        assert [path.name for path in hostile.folder.rglob("*")] == ["gdsdeploy.prom", "in it"], "nothing is left over"
    else:
        assert place.is_file()
        assert not place.is_symlink()
    assert hostile.untouched()


def test_a_device_is_not_replaced(hostile: Hostile) -> None:
    place = hostile.victim.parent / "null"
    os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for write in (lambda: atomic.write(str(place), "new"), lambda: atomic.copy(str(hostile.victim), str(place))):
        with pytest.raises(OSError, match="this is a device"):
            write()
    assert stat.S_ISCHR(place.stat().st_mode)
    assert sorted(path.name for path in place.parent.iterdir()) == ["null", "victim"]


@pytest.mark.parametrize("part", ["textfile", "above/textfile"])
def test_a_folder_for_metrics_that_is_a_link_of_others_is_refused(hostile: Hostile, part: str) -> None:
    planted = hostile.folder / part.partition("/")[0]
    planted.symlink_to(hostile.victim.parent)
    os.lchown(planted, NOBODY, NOBODY)
    with pytest.raises(atomic.UnsafePathError, match="is a link in a folder that others than root can change"):
        atomic.write(str(hostile.folder / part / "gdsdeploy.prom"), "x", shared=True)
    assert [path.name for path in hostile.victim.parent.iterdir()] == ["victim"]


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
@pytest.mark.parametrize("writer", [locked, logged], ids=lambda writer: writer.__name__)
def test_in_a_folder_for_all_root_opens_no_file_that_others_have_left(
    hostile: Hostile, writer: Callable[[Path], None], kind: str
) -> None:
    os.chown(hostile.folder, 0, 0)
    hostile.folder.chmod(0o1777)
    place = hostile.folder / "x"
    in_the_way(place, kind, hostile.victim)
    if kind in ("link", "pipe"):
        os.lchown(place, NOBODY, NOBODY)
    with pytest.raises((ApplyError, HostError)):
        writer(place)
    assert hostile.victim.read_text() == SECRET
    assert hostile.victim.stat().st_mode & 0o7777 == 0o600


def test_in_a_folder_for_all_a_planted_link_is_replaced(hostile: Hostile) -> None:
    os.chown(hostile.folder, 0, 0)
    hostile.folder.chmod(0o1777)
    (hostile.folder / "x").symlink_to(hostile.victim)
    os.lchown(hostile.folder / "x", NOBODY, NOBODY)
    atomic.write(str(hostile.folder / "x"), "new")
    assert (hostile.folder / "x").read_text() == "new"
    assert hostile.untouched()


def test_the_logs_of_ubuntu_follow_no_link_of_the_group_that_may_change_their_folder(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(hostile.folder, 0, NOBODY)
    hostile.folder.chmod(0o775)
    monkeypatch.setattr(atomic, "_SHARED", (str(hostile.folder),))
    atomic.make_folder(str(hostile.folder / "gdsdeploy/kmod"))
    atomic.write(str(hostile.folder / "gdsdeploy/kmod/a.log"), "x")
    shutil.rmtree(hostile.folder / "gdsdeploy")
    (hostile.folder / "gdsdeploy").symlink_to(hostile.victim.parent)
    with pytest.raises(atomic.UnsafePathError, match="is a link in a folder"):
        atomic.write(str(hostile.folder / "gdsdeploy/kmod/a.log"), "x")
    assert [path.name for path in hostile.victim.parent.iterdir()] == ["victim"]


def test_links_of_root_are_followed_and_those_that_lead_round_are_an_error(hostile: Hostile) -> None:
    roots = hostile.victim.parent
    (roots / "real").mkdir()
    (roots / "relative").symlink_to("./real/../real")
    (roots / "round").symlink_to(roots / "round")
    atomic.write(str(roots / "relative" / "x"), "x")
    assert (roots / "real/x").read_text() == "x"
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        atomic.write(str(roots / "round" / "x"), "x")


def test_a_name_that_somebody_guessed_is_not_opened(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda _: "0" * 16)
    (hostile.folder / f".x.{'0' * 16}.gdsdeploy-new").symlink_to(hostile.victim)
    with pytest.raises(FileExistsError):
        atomic.write(str(hostile.folder / "x"), "new", shared=True)
    assert hostile.untouched()


def test_a_file_that_is_swapped_while_it_is_written_gives_nothing_else_its_mode(hostile: Hostile) -> None:
    with atomic.replacing(str(hostile.folder / "x"), shared=True) as file:
        file.write(b"new")
        (new,) = hostile.folder.iterdir()
        new.rename(hostile.folder / "taken")
        new.symlink_to(hostile.victim)
    assert hostile.untouched()


@pytest.mark.parametrize("kind", ["theirs", "below theirs", "world", "for all", "relative", "link"])
def test_root_runs_no_program_from_a_folder_of_others(
    hostile: Hostile, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hostile.folder
    if kind == "below theirs":
        folder = hostile.folder / "bin"
        folder.mkdir()
    if kind in ("world", "for all"):
        os.chown(hostile.folder, 0, 0)
        hostile.folder.chmod(0o777 if kind == "world" else 0o1777)
    (folder / "modprobe").write_text("#!/bin/sh\necho theirs\n")
    (folder / "modprobe").chmod(0o755)
    named = {"relative": ".", "link": str(hostile.victim.parent / "bin")}.get(kind, str(folder))
    if kind == "link":
        Path(named).symlink_to(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{named}:/usr/bin:/bin")
    assert "theirs" not in process.run(["modprobe", "--version"], 20).stdout
    assert process.search_path().startswith("/usr/bin:")
    assert str(folder) not in process.search_path()
    assert process.run(["sh", "-c", "command -v modprobe"], 20).stdout.strip() != f"{folder}/modprobe"


def test_a_file_of_others_that_never_ends_is_not_read_to_its_end(hostile: Hostile) -> None:
    place = hostile.folder / "gdsdeploy.prom"
    with place.open("wb") as file:
        file.truncate(4 << 40)
    begin = time.process_time()
    assert _leftovers(ManagedHost(check=True), [str(place)]) == [str(place)]
    assert time.process_time() - begin < 5


def test_a_file_that_others_exchange_for_a_pipe_is_not_waited_for(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, was = hostile.folder / "x", hostile.victim.stat()
    os.mkfifo(place)
    monkeypatch.setattr("gdsdeploy.host.apply.files.os.stat", lambda _: was)
    signal.alarm(10)
    try:
        with pytest.raises(CannotTellError, match="is not a file"):
            entry(str(place), str(place))
    finally:
        signal.alarm(0)


def test_a_folder_of_root_is_not_reached_by_a_link_of_others(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link may lead elsewhere by the time at which a program is started."""
    link = hostile.folder / "bin"
    link.symlink_to("/usr/bin")
    os.lchown(link, NOBODY, NOBODY)
    monkeypatch.setenv("PATH", f"{link}:/usr/sbin")
    monkeypatch.setenv("TMPDIR", str(link))
    assert __main__.main(["hello"]) == 0
    assert process.search_path().startswith("/usr/bin:/usr/sbin")
    assert os.environ["TMPDIR"] == "/usr/bin"


@pytest.mark.parametrize("kind", ["roots", "folder", "file", "writable", "link"])
def test_root_runs_and_loads_nothing_of_others_from_the_places_of_cuda(
    hostile: Hostile, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site may have its CUDA where the account of its software can change it."""
    folder = hostile.folder if kind in ("folder", "link") else hostile.victim.parent
    for name in ("gdscheck", "libcufile.so.0"):
        (folder / name).write_text("#!/bin/sh\necho ran\n")
        (folder / name).chmod(0o777 if kind == "writable" else 0o755)
        if kind == "file":
            os.chown(folder / name, NOBODY, NOBODY)
    if kind == "link":
        (hostile.victim.parent / "cuda").symlink_to(folder)
        folder = hostile.victim.parent / "cuda"
    monkeypatch.setattr(gdscheck, "GDSCHECKS", (f"{folder}/gdsch*",))
    monkeypatch.setattr(probe, "LIBRARIES", (f"{folder}/libcufile*",))
    recorder = Recorder()
    gdscheck.collect_programs(recorder, NOTHING)
    document = recorder.document
    assert document["listings"]["gdscheck"] == [f"{folder}/gdscheck"]
    assert ("gdscheck" in document["commands"]) == (kind == "roots")
    assert (probe.libraries() != []) == (kind == "roots")
    unsafe = [
        f"{folder}/gdscheck: users other than root can replace it, so root doesn't run it",
        f"{folder}/libcufile.so.0: users other than root can replace it, so root doesn't load it",
    ]
    assert [gap["reason"] for gap in document["gaps"]] == ([] if kind == "roots" else unsafe)


def as_nobody(work: Callable[[], None]) -> int:
    """The exit status of a process of ``nobody`` that does ``work``; 1 where it may not."""
    process = FORK.Process(target=_as_nobody, args=(work,))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _as_nobody(work: Callable[[], None]) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    try:
        work()
    except OSError:
        os._exit(1)


@pytest.mark.parametrize("left", ["", "by an older release"])
@pytest.mark.parametrize("writer", [locked, rebooted], ids=lambda writer: writer.__name__)
def test_others_cannot_hold_a_lock_of_root(hostile: Hostile, writer: Callable[[Path], None], left: str) -> None:
    """flock(2) takes a descriptor that only reads."""
    place = hostile.victim.parent / "x"
    if left:
        place.touch(0o644)
    writer(place)

    def hold() -> None:
        fcntl.flock(os.open(place, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)

    assert as_nobody(hold) == 1
    hostile.folder.joinpath("theirs").touch(0o644)
    place = hostile.folder / "theirs"
    assert as_nobody(hold) == 0, "this test sees who can"


@pytest.mark.parametrize("variable", ["TMPDIR", "TEMP", "TMP"])
def test_temporary_files_are_made_in_no_folder_of_others(
    hostile: Hostile, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner would put another folder, with another program in it, in the place of one that was just made."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(variable, str(hostile.folder))
    assert __main__.main(["hello"]) == 0
    assert tempfile.gettempdir() != str(hostile.folder)
    assert process.run(["printenv", variable], 20).stdout == ""
    os.chown(hostile.folder, 0, 0)
    hostile.folder.chmod(0o1777)
    for safe in (hostile.victim.parent, hostile.folder):
        monkeypatch.setenv(variable, str(safe))
        assert __main__.main(["hello"]) == 0
        assert process.run(["printenv", variable], 20).stdout == f"{safe}\n"


def test_a_folder_of_root_keeps_its_place(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{hostile.victim.parent}:/usr/bin")
    assert process.search_path().startswith(f"{hostile.victim.parent}:/usr/bin:")


#: As ``nobody``: maps a file by the name of the library, and waits.
_USES_CUFILE = """
import mmap, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
kept = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_configuration_that_others_name_is_read_with_their_rights(hostile: Hostile) -> None:
    """Its known sections are evidence, which somebody other than root may ask for."""
    library = hostile.folder / "libcufile.so.0"
    library.write_bytes(b"x" * 8192)
    library.chmod(0o644)
    texts = {"secret.json": 0o600, "open.json": 0o644}
    for name, mode in texts.items():
        (hostile.folder.parent / name).write_text('{"fs": {"generic": {"posix_unaligned_writes": true}}}')
        (hostile.folder.parent / name).chmod(mode)
    for name, mode in texts.items():
        path = str(hostile.folder.parent / name)
        argv = [sys.executable, "-c", _USES_CUFILE, str(library)]
        environment = {"CUFILE_ENV_PATH_JSON": path}
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            recorder = Recorder()
            processes.collect_processes(recorder, NOTHING)
            program.kill()
        assert (os.geteuid(), os.getegid()) == (0, 0)
        record = recorder.document["configs"][path]
        assert ("config" in record) == (mode == 0o644), record
