"""Settings for all tests: their order, and separate Ansible folders and labs for each process of each run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import lab as labs
from tests import groups, timing
from tests.naming import RUN


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
        # Sockets need short paths.
        os.environ[RUN] = tempfile.mkdtemp(prefix="gds-run-", dir="/tmp")
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
    with contextlib.suppress(OSError):  # It has none, or a process is still in it.
        _others().rmdir()
    timing.forget()
    run = Path(os.environ.pop(RUN))
    for note in sorted(run.glob("labs/*")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GDSDEPLOY_STATE_DIR", note.read_text())
            labs.down(labs.Lab(note.name))
    shutil.rmtree(run, ignore_errors=True)
