"""Settings for all tests: their tier and order, and separate Ansible folders and labs for each process of each run."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import IO, Any

import pytest

import gdslab as labs
from tests import groups, timing
from tests.naming import RUN

ROOT = Path(__file__).parent
#: The folders of runs; sockets need short paths.
RUNS = Path("/tmp")
#: The file that a run holds locked as long as it lives.
_RUNNING: list[IO[str]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the second tier."""
    parser.addoption(
        "--machines", metavar="K/N", type=_shard,
        help="run the tests that boot machines or compile drivers: the share K of N shares, or all of them (1/1)",
    )  # fmt: skip


def _shard(text: str) -> frozenset[str]:
    """The groups of machines that --machines names."""
    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text)
    with contextlib.suppress(ValueError):
        if match:
            return groups.shard(int(match[1]), int(match[2]))
    raise argparse.ArgumentTypeError(f"{text!r} names no share; the first of four is 1/4, the last is 4/4")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules of the other tier, unless the command line names paths."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or not collection_path.match("test_*.py"):
        return None
    shard: frozenset[str] | None = config.getoption("--machines")
    group = groups.machines(collection_path.relative_to(ROOT).as_posix())
    selected = group is None if shard is None else group in shard
    return None if selected else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests into the order of their groups."""
    items.sort(key=lambda test: groups.of(test.nodeid)[0])


def worker(config: pytest.Config) -> str | None:
    """The name of this process among parallel ones; None without others."""
    worker_input = getattr(config, "workerinput", None)
    return worker_input["workerid"] if worker_input else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give this run a folder, and Ansible one for this process, in place of ~/.ansible."""
    if worker(config) is None:
        _clear_killed_runs()
        os.environ[RUN] = tempfile.mkdtemp(prefix="gds-run-", dir=RUNS)
        _RUNNING.append((Path(os.environ[RUN]) / "running").open("w"))
        fcntl.flock(_RUNNING[0], fcntl.LOCK_EX)
    os.environ["ANSIBLE_HOME"] = f"{os.environ[RUN]}/{worker(config) or 'ansible'}"


#: Processor shares, where there are control groups of version 1.
SHARES = Path("/sys/fs/cgroup/cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give the longest group priority among parallel processes; a test's children inherit it."""
    if worker(item.config) is None or os.geteuid() != 0:
        return
    timing.account(item.nodeid)
    longest = groups.of(item.nodeid)[1] == groups.LONGEST
    os.setpriority(os.PRIO_PROCESS, 0, 0 if longest else 5)
    if (SHARES / "cpu.shares").is_file():
        # A nice value counts only within a session, and each host of a lab has its own sessions.
        others = _others()
        others.mkdir(exist_ok=True)
        (others / "cpu.shares").write_text("512")
        ((SHARES if longest else others) / "cgroup.procs").write_text(str(os.getpid()))


def _others() -> Path:
    """The control group of all but the longest group of tests."""
    return SHARES / Path(os.environ[RUN]).name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests by group, and say how long they took; SIGTERM interrupts all processes, like Ctrl-C."""
    from tests.scheduling import Scheduler  # tests/host, a suite for users, comes here too, and they have no xdist

    config.pluginmanager.register(timing.Summary())
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    return Scheduler(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's folder, and labs that a process didn't take down."""
    if worker(config) is not None:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It is about to end.
    with contextlib.suppress(OSError):  # It has none, or a process is still in it.
        _others().rmdir()
    timing.forget()
    run = Path(os.environ.pop(RUN))
    _clear(run)


def _clear_killed_runs() -> None:
    """Remove what earlier runs left on disk because they were killed; their processes and mounts ended with them."""
    for running in RUNS.glob("gds-run-*/running"):
        with contextlib.suppress(OSError), running.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear(running.parent)


def _clear(run: Path) -> None:
    """Remove a run's folder, and its labs."""
    for note in sorted(run.glob("labs/*")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GDSDEPLOY_STATE_DIR", note.read_text())
            labs.down(labs.Lab(note.name))
    shutil.rmtree(run, ignore_errors=True)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a test a cache and a state of its own, in place of the user's."""
    for name in ("cache", "state"):
        monkeypatch.setenv(f"GDSDEPLOY_{name.upper()}_DIR", str(tmp_path / name))
