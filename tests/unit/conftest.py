"""Tests of this folder start no process and open no connection; those that do are in tests/loopback."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or its making, says how busy this machine is and nothing about the code.
settings.register_profile("gdsdeploy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gdsdeploy")

#: Events of Python's own audit, which nothing gets around, whatever it has imported and by whichever name.
REFUSED = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn", "subprocess.Popen",
    "socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg",
}  # fmt: skip
#: Whether a test of this folder runs, and what it did.
_watching = False
_did: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in REFUSED:
        _did.append(f"{event}{arguments!r}"[:200])
        pytest.fail(_complaint())


def _complaint() -> str:
    return f"a test of tests/unit does this, which belongs into tests/loopback: {_did[0]}"


# An audit hook stays until the process ends.
sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch over the test and its fixtures; pytest calls this hook for the tests of every folder."""
    global _watching
    _watching = item.path.is_relative_to(Path(__file__).parent)
    _did.clear()
    try:
        return (yield)
    finally:
        _watching = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail where the code took the refusal for an answer, or a thread had it."""
    result = yield
    if _did:
        pytest.fail(_complaint())
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Stop watching before the last test ends: fixtures of the session end with it, those of other folders too."""
    global _watching
    _watching = _watching and nextitem is not None
    return (yield)
