"""Tests that start programs of this machine, and speak to them over loopback."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gdsdeploy.run import as_root
from gdslab import requirements
from tests import commandline
from tests.loopback import loopback_sshd
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.packages import REQUIREMENTS

# How long an example takes, or its making, says how busy this machine is and nothing about the code.
settings.register_profile("gdsdeploy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gdsdeploy")


def _lacking() -> str:
    """Programs that this machine has not, and Debian's packages that have them."""
    missing = requirements.missing(vms=False, lights=False, also=REQUIREMENTS)
    missing = [program for program in missing if program in REQUIREMENTS]
    return "".join(f"\n  {program.program}: package {program.package}" for program in missing)


def _named() -> Generator[None, object, object]:
    """Neither skip nor fail obscurely where programs are missing."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        lacking = _lacking()
        if lacking:
            pytest.fail(
                f"{error}\nthis machine lacks programs of tests (python -m tests.packages installs them):{lacking}"
            )
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from _named())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from _named())


@pytest.fixture
def no_signal_is_ignored() -> Iterator[None]:
    """Below nohup(1) programs inherit that SIGHUP is ignored, and in a shell's background SIGINT; so does a verb."""
    handlers = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture
def sshd() -> Iterator[Callable[..., loopback_sshd.Sshd]]:
    """Start servers: ``sshd("SetEnv PATH=/nowhere", …)``; each argument is a line of its configuration."""
    running: list[loopback_sshd.Sshd] = []
    folders: list[Path] = []

    def start(*lines: str) -> loopback_sshd.Sshd:
        # Accounts that are not root read what lies there, and another run of pytest keeps them from its own folders.
        folders.append(Path(tempfile.mkdtemp(prefix="gds-sshd-", dir="/tmp")))
        running.append(loopback_sshd.start(folders[-1], *lines))
        return running[-1]

    yield start
    for server in running:
        server.stop()
    for folder in folders:
        subprocess.run(as_root(["rm", "-rf", "--", str(folder)]), check=True)


@pytest.fixture
def make_fleet(sshd: Callable[..., loopback_sshd.Sshd], tmp_path: Path) -> Callable[..., LoopbackFleet]:
    """Make a fleet of this machine: name of a host → its entry in the fleet file."""
    return lambda **hosts: LoopbackFleet(tmp_path, sshd(), hosts)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> commandline.Run:
    return lambda *argv: (commandline.run(*argv), *capfd.readouterr())
