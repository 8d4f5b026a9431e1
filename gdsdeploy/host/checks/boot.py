"""What the next boot loads."""

from __future__ import annotations

from ..facts import HostFacts, UndecidedError, known
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

UNIT = "systemd-modules-load.service"
PEERMEM, PEERMEM_UNIT = "nvidia_peermem", "gds-peermem.service"


@check(
    "boot.autoload",
    "the modules are loaded at boot, the driver before what links against it",
    expects="nvidia first, then the rest of the stack, in modules-load.d",
    prevents="a host that works until its first reboot because nothing loads nvidia-fs",
)
def autoload(facts: HostFacts, expectation: Expectation) -> Answer:
    # It comes after the RDMA core, so a unit loads it.
    names = [name for name in expectation.modules() if name != PEERMEM]
    expected = " before ".join(names) + " in modules-load.d"
    expected += f", nvidia-peermem by {PEERMEM_UNIT}" if expectation.rdma == "peermem" else ""
    hint = "Provision the host again: it writes /etc/modules-load.d/gdsdeploy.conf"
    listed, forbidden = known(facts.boot.autoloaded), known(facts.boot.forbidden)
    missing = [name for name in names if name not in listed]
    if missing:
        return failed("modules-load.d lacks {}".format(", ".join(missing)), hint, expected=expected)
    order = [name for name in listed if name in names]
    if order[0] != "nvidia":
        return failed("the order is {}".format(", ".join(order)), hint, expected=expected)
    denied = [name for name in names if name in forbidden]
    if denied:
        what = "modprobe.d or the kernel's command line forbids {}".format(", ".join(denied))
        return failed(what, f"Take it out: grep -r {denied[0]} /etc/modprobe.d /proc/cmdline", expected=expected)
    unit = known(facts.boot.units).get(UNIT)
    if unit is None:
        raise UndecidedError(f"systemd says nothing about {UNIT}")
    if expectation.own_kernel and unit.get("ActiveState") == "failed":
        what = f"{UNIT} failed at this boot"
        return failed(what, f"Read why: systemctl status {UNIT}", expected=expected)
    if expectation.rdma == "peermem" and not _peermem(facts):
        return failed(f"nothing loads nvidia-peermem: {PEERMEM_UNIT} is not enabled", hint, expected=expected)
    return passed(", ".join(order), expected=expected)


def _peermem(facts: HostFacts) -> bool:
    """Whether the next boot loads it; one that is in modules-load.d comes too early for OFED, but comes."""
    unit = known(facts.boot.units).get(PEERMEM_UNIT)
    if unit is None and PEERMEM not in known(facts.boot.autoloaded):
        raise UndecidedError(f"systemd says nothing about {PEERMEM_UNIT}")
    return PEERMEM in known(facts.boot.autoloaded) or (unit or {}).get("UnitFileState") == "enabled"
