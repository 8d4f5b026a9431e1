"""A lab for each group of tests that needs real hosts: one VM host, one light host; or the fleet of an upgrade."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

import gdslab as labs
from gdslab import Lab, LabHost, state
from tests import groups
from tests.lab import builder_key, image, rollouts, upgrade
from tests.naming import unique

#: Callbacks for the end of the group of tests that uses the lab.
_finished: list[Callable[[], None]] = []
#: The lab of the current group.
_labs: list[Lab] = []


@pytest.fixture(scope="session", autouse=True)
def _ports() -> Iterator[None]:
    """A random first port: a lab doesn't know the ports of labs in other state folders."""
    start = random.randrange(state.FIRST_PORT["light"], state.LAST_PORT - 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_PORT", dict.fromkeys(state.FIRST_PORT, start))
        yield


@pytest.fixture(scope="module")
def lab() -> Lab:
    """The running lab of this group of tests, taken down after the group.

    GDSDEPLOY_KEEP_LAB=1 keeps it for the next run, which uses it again.
    """
    if not _labs:
        keep = os.environ.get("GDSDEPLOY_KEEP_LAB") == "1"
        running = Lab("test-kept" if keep else unique("test"))
        if not keep:
            _finished.append(lambda: labs.down(running))
        _finished.append(_labs.clear)
        _labs.append(running)
    running = labs.up(_labs[0].name, vms=1, lights=1)
    builder_key.give(running)
    return running


@pytest.fixture(scope="session")
def at_end() -> rollouts.AtEnd:
    return _finished.append


@pytest.fixture(scope="session")
def spare_hosts() -> dict[str, rollouts.Spare]:
    """System → the host that one file of tests leaves to the next of its group."""
    return {}


@pytest.fixture(scope="session")
def upgraded(tmp_path_factory: pytest.TempPathFactory, at_end: rollouts.AtEnd) -> upgrade.Fleet:
    """The fleet that goes from one stack to the next; its tests are one group, which begins with the rollout."""
    return upgrade.begin(tmp_path_factory.mktemp("locks"), at_end)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory, at_end: rollouts.AtEnd) -> image.Image:
    """The disk image of a VM host, and a lab that will boot it; their tests are one group."""
    return image.begin(tmp_path_factory.mktemp("image"), at_end)


@pytest.fixture(scope="session")
def golden_provision(golden: image.Image) -> image.Provision:
    """What was planned and done when the image was provisioned."""
    return golden.provision()


@pytest.fixture(scope="session")
def booted(golden: image.Image, golden_provision: image.Provision) -> LabHost:
    """The VM host that runs the provisioned image."""
    return golden.boot()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Take the lab down after the last test of its group."""
    yield
    if nextitem is None or groups.of(item.nodeid)[1] != groups.of(nextitem.nodeid)[1]:
        while _finished:
            _finished.pop()()


def pytest_sessionfinish() -> None:
    """Take the lab down after an interruption."""
    while _finished:
        _finished.pop()()


@pytest.fixture
def vm(lab: Lab) -> LabHost:
    """The running VM host."""
    host = lab.host("gpu1")
    host.wait_ssh(420)
    return host


@pytest.fixture
def light(lab: Lab) -> LabHost:
    """The running light host."""
    host = lab.host("build1")
    host.wait_ssh()
    return host
