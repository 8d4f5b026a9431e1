"""The store of modules that labs of one run share: built once, also when several processes ask at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from tests.lab.family_builds import Store

FORK = multiprocessing.get_context("fork")
#: Seconds for what takes a moment.
PATIENCE = 30.0


def take(folder: Path, name: str, log: Path, seconds: float) -> str:
    """Take a build that needs ``seconds``; returns what is in it.  Each build adds a line to ``log``."""

    def build(archive: Path) -> str:
        with log.open("a") as lines:
            lines.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        archive.write_text("modules")
        return f"key of {name}"

    result = Store(folder).take(name, build)
    return f"{result.archive.read_text()}, {result.key}"


def _report(answers: Connection, *argv: object) -> None:
    answers.send(take(*argv))  # type: ignore[arg-type]


def start(folder: Path, name: str, log: Path, seconds: float) -> tuple[ForkProcess, Connection]:
    """The same in a process of its own, which sends what it has got."""
    mine, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_report, args=(theirs, folder, name, log, seconds))
    process.start()
    return process, mine


def answer(connection: Connection) -> str:
    assert connection.poll(PATIENCE), "the process doesn't answer"
    text: str = connection.recv()
    return text


def began(log: Path) -> int:
    """The process that builds, as soon as there is one."""
    until = time.monotonic() + PATIENCE
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < until, "nobody builds"
        time.sleep(0.01)
    return int(log.read_text().split()[0])


def test_processes_that_ask_at_once_get_the_same_build(tmp_path: Path) -> None:
    log = tmp_path / "log"
    clients = [start(tmp_path / "store", "one", log, 0.5) for _ in range(4)]
    assert [answer(connection) for _, connection in clients] == ["modules, key of one"] * 4
    assert len(log.read_text().split()) == 1
    for process, _ in clients:
        process.join(PATIENCE)


def test_another_build_does_not_wait(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process, slow = start(tmp_path / "store", "one", log, PATIENCE)
    try:
        began(log)
        assert take(tmp_path / "store", "other", log, 0) == "modules, key of other"
        assert not slow.poll()
    finally:
        process.kill()
        process.join(PATIENCE)


def test_who_waits_builds_when_the_builder_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed, _ = start(tmp_path / "store", "one", log, PATIENCE)
    pid = began(log)
    waiting, connection = start(tmp_path / "store", "one", log, 0)
    assert not connection.poll(0.5), "it doesn't wait"
    os.kill(pid, signal.SIGKILL)
    assert answer(connection) == "modules, key of one"
    assert log.read_text().split() == [str(pid), str(waiting.pid)]
    for process in (killed, waiting):
        process.join(PATIENCE)


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(archive: Path) -> str:
        archive.write_text("half")
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        Store(tmp_path).take("one", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".one.lock"]
    assert take(tmp_path, "one", tmp_path / "log", 0) == "modules, key of one"


def test_who_holds_an_entry_may_fill_it_once(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_text("modules")
    with Store(tmp_path / "store").hold("one") as entry:
        assert entry.build is None
        assert entry.put(archive, "key") == entry.build
        with pytest.raises(OSError, match="not empty"):
            entry.put(archive, "another key")
    assert take(tmp_path / "store", "one", tmp_path / "log", 0) == "modules, key"
