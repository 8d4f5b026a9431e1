"""The modules that the next boot loads."""

from __future__ import annotations

from typing import Mapping

from ..facts import HostFacts, UndecidedError, require
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed, subject

subject("boot", after="packages")

UNIT = "systemd-modules-load.service"
PEERMEM, PEERMEM_UNIT = "nvidia_peermem", "gds-peermem.service"


@check(
    "boot.autoload",
    "the modules are loaded at boot, the driver before what links against it",
    expects="nvidia first, then the rest of the stack, in modules-load.d",
    prevents="a host that works until its first reboot because nothing loads nvidia-fs",
    of_provision=True,
)
def autoload(facts: HostFacts, expectation: Expectation) -> Answer:
    # nvidia-peermem needs the RDMA core first, so a unit loads it.
    names = [name for name in expectation.modules() if name != PEERMEM]
    expected = " before ".join(names) + " in modules-load.d"
    expected += f", nvidia-peermem by {PEERMEM_UNIT}" if expectation.rdma == "peermem" else ""
    hint = "Provision the host again: it writes /etc/modules-load.d/gdsdeploy.conf"
    listed, forbidden = require(facts.boot.autoloaded), require(facts.boot.forbidden)
    missing = [name for name in names if name not in listed]
    if missing:
        return failed("modules-load.d lacks {}".format(", ".join(missing)), hint, expected=expected)
    order = [name for name in listed if name in names]
    if order[0] != "nvidia":
        return failed("the order is {}".format(", ".join(order)), hint, expected=expected)
    denied = [name for name in names if name in forbidden]
    if denied:
        remove = f"Remove it: grep -r {denied[0]} /etc/modprobe.d /proc/cmdline"
        where = "modprobe.d or the kernel's command line forbids {}".format(", ".join(denied))
        return failed(where, remove, expected=expected)
    unit = _unit(facts, UNIT)
    if expectation.own_kernel and unit.get("ActiveState") == "failed":
        return failed(f"{UNIT} failed at this boot", f"Read why: systemctl status {UNIT}", expected=expected)
    # In modules-load.d nvidia-peermem comes too early for OFED, but it comes.
    needs_unit = expectation.rdma == "peermem" and PEERMEM not in listed
    if needs_unit and _unit(facts, PEERMEM_UNIT).get("UnitFileState") != "enabled":
        return failed(f"nothing loads nvidia-peermem: {PEERMEM_UNIT} is not enabled", hint, expected=expected)
    return passed(", ".join(order), expected=expected)


def _unit(facts: HostFacts, name: str) -> Mapping[str, str]:
    """The properties of a unit; raises UndecidedError where systemd doesn't know it."""
    units = require(facts.boot.units)
    if name not in units:
        raise UndecidedError(f"systemd doesn't know {name}")
    return units[name]
