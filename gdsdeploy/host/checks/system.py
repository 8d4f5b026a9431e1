"""The operating system."""

from __future__ import annotations

from ..facts import HostFacts, known
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed


@check(
    "os.release",
    "the host runs the operating system that the lock was resolved for",
    expects="{os} on {arch}",
    prevents="packages and modules of one release on a host of another, after an upgrade or a mix-up",
)
def release(facts: HostFacts, expectation: Expectation) -> Answer:
    name, machine = known(facts.os.name), known(facts.os.machine)
    found = f"{name} on {machine}"
    if name == expectation.os and machine == expectation.arch:
        return passed(found)
    return failed(found, f"Give this host a profile for {name}, or reinstall it with {expectation.os}")
