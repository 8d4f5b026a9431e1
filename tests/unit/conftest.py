from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import loopback_sshd
import pytest
from hypothesis import HealthCheck, settings
from loopback_fleet import LoopbackFleet

# How long an example takes, or its making, says how busy this machine is and nothing about the code.
settings.register_profile("gdsdeploy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gdsdeploy")


@pytest.fixture
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., loopback_sshd.Sshd]]:
    """Start servers: ``sshd("SetEnv PATH=/nowhere", …)``; each argument is a line of its configuration."""
    running: list[loopback_sshd.Sshd] = []

    def start(*lines: str) -> loopback_sshd.Sshd:
        running.append(loopback_sshd.start(tmp_path_factory.mktemp("sshd"), *lines))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def made(sshd: Callable[..., loopback_sshd.Sshd], tmp_path: Path) -> Callable[..., LoopbackFleet]:
    """Make a fleet of this machine: name of a host → its entry in the fleet file."""
    return lambda **hosts: LoopbackFleet(tmp_path, sshd(), hosts)
