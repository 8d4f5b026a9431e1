"""One lab of its own for all tests that need real hosts: one VM host, one light host."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gdsdeploy import lab as labs
from gdsdeploy.lab import Host, Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The lab, up; taken down at the end unless GDSDEPLOY_KEEP_LAB is 1, which also reuses one that was kept."""
    keep = os.environ.get("GDSDEPLOY_KEEP_LAB") == "1"
    name = "test-kept" if keep else f"test-{os.getpid()}"
    try:
        yield labs.up(name, vms=1, lights=1)
    finally:
        if not keep:
            labs.down(Lab(name))


@pytest.fixture
def vm(lab: Lab) -> Host:
    """The VM host, answering."""
    host = lab.host("gpu1")
    host.wait_ssh(420)
    return host


@pytest.fixture
def light(lab: Lab) -> Host:
    """The light host, answering."""
    host = lab.host("build1")
    host.wait_ssh()
    return host
