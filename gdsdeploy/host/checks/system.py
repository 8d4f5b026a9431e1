"""The operating system."""

from __future__ import annotations

from ..facts import HostFacts, require
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed, subject

subject("os")


@check(
    "os.release",
    "the host runs the operating system that the lock was resolved for",
    expects="{os} on {arch}",
    prevents="packages and modules of one release on a host with another, after an upgrade or a mix-up",
)
def release(facts: HostFacts, expectation: Expectation) -> Answer:
    name, machine = require(facts.os.name), require(facts.os.machine)
    running = f"{name} on {machine}"
    # A lock for rhel-9 fits every 9.x.
    if expectation.os in (name, name.rsplit(".", 1)[0]) and machine == expectation.arch:
        return passed(running)
    return failed(running, f"Give this host a profile for {name}, or reinstall it with {expectation.os}")
