"""What the next boot loads."""

from __future__ import annotations

from typing import List

from ..expectation import Expectation
from ..facts import HostFacts, UndecidedError, known
from .registry import Answer, check, failed, passed

UNIT = "systemd-modules-load.service"


def wanted(expectation: Expectation) -> List[str]:
    """In-kernel names of the modules that have to be loaded at boot, in their order."""
    names = ["nvidia"]
    if expectation.rdma == "peermem":
        names.append("nvidia_peermem")
    if expectation.nvidia_fs_version:
        names.append("nvidia_fs")
    return names


@check(
    "boot.autoload",
    "the modules are loaded at boot, the driver before what links against it",
    expects="nvidia first, then the rest of the stack, in modules-load.d",
    prevents="a host that works until its first reboot because nothing loads nvidia-fs",
)
def autoload(facts: HostFacts, expectation: Expectation) -> Answer:
    names = wanted(expectation)
    expected = " before ".join(names) + " in modules-load.d"
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
        return failed(
            what, "Take it out: grep -r {} /etc/modprobe.d /proc/cmdline".format(denied[0]), expected=expected
        )
    unit = known(facts.boot.units).get(UNIT)
    if unit is None:
        raise UndecidedError("systemd says nothing about {}".format(UNIT))
    if unit.get("ActiveState") == "failed":
        what = "{} failed at this boot".format(UNIT)
        return failed(what, "Read why: systemctl status {}".format(UNIT), expected=expected)
    return passed(", ".join(order), expected=expected)
