from __future__ import annotations

from collections.abc import Callable, Iterator

import loopback_sshd
import pytest
from hypothesis import HealthCheck, settings

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
