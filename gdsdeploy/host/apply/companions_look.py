"""What runs beside the driver, looked at before anything is changed: a mismatch keeps programs from the GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

from ..io import reading
from ..model.companions import FABRIC, NVSWITCH, services_of
from ..paths import IMAGE, IMEX_NODES, PCI
from ..rootdir import LoopError, inside, list_folder
from . import services
from .host import ManagedHost
from .model import Refusal
from .packages.managers import Installed

IMEX = "nvidia-imex.service"
NVLSM = "nvlsm"
#: Fabric Manager and IMEX guides: both have to be of the driver's version; Debian's persistenced is of another one.
_SAME = (FABRIC, IMEX)
#: Fourth-generation NVSwitches are no PCI functions: ConnectX-7 functions with this word in their VPD lead to them.
#: Fabric Manager's own start script looks for it; Bottlerocket's and Canonical's tools do too.
_BRIDGE, _VPD_BYTES = b"SW_MNG", 4096
#: Class of GPUs.
_DISPLAY = "0x03"


@dataclass(frozen=True)
class Look:
    """Of a host with GPUs, ``switches``: NVSwitches, and ``bridges``: what leads to those of the fourth generation.

    Both are PCI addresses.

    ``installed``: package → versions.  ``enabled``: units that start at boot.  ``masked``: units that can't start.
    ``has_nodes``: IMEX's file has some.
    """

    switches: Tuple[str, ...]
    bridges: Tuple[str, ...]
    installed: Mapping[str, Tuple[str, ...]]
    enabled: Tuple[str, ...]
    masked: Tuple[str, ...]
    has_nodes: bool


def observe(host: ManagedHost, installed: Mapping[str, Installed]) -> Look:
    """Look at the host; installed: what the package manager has.  An image has no hardware of its own."""
    functions = [] if host.exists(IMAGE) else list_folder(host.root, PCI)
    kinds = {name: (_line(host, name, "vendor"), _line(host, name, "class")) for name in functions}
    if not any(vendor == "0x10de" and kind.startswith(_DISPLAY) for vendor, kind in kinds.values()):
        # As for the check driver.services.
        kinds = {}
    return Look(
        switches=tuple(name for name, kind in kinds.items() if kind == ("0x10de", f"{NVSWITCH:#08x}")),
        bridges=tuple(
            name for name, kind in kinds.items() if kind == ("0x15b3", "0x020700") and _is_bridge(host, name)
        ),
        installed={n: p.versions for n, p in installed.items() if n == NVLSM or services_of([n])},
        enabled=tuple(unit for unit in _SAME if services.observe(host, unit).links),
        masked=tuple(unit for unit in _SAME if _is_masked(host, unit)),
        has_nodes=bool(host.text(IMEX_NODES).strip()),
    )


def refusals(look: Optional[Look], driver: str, locked: Mapping[str, str], nodes: List[str]) -> List[Refusal]:
    """What of the lock and the host doesn't go together.

    driver: its locked version.  locked: package → version.  nodes: the host's IMEX domain.
    """
    if look is None:
        return []
    answers: List[Refusal] = []
    again = "companions in the fleet file, and run gdsdeploy lock"
    units = set(services_of(locked))
    fits = {unit for name, unit in _units(look) if any(_is_of(version, driver) for version in look.installed[name])}
    fabric, companion = [*look.switches, *look.bridges], "nvlink5" if look.bridges else "fabricmanager"
    if fabric and FABRIC not in units | fits:
        message = f"this host has NVSwitches ({fabric[0]}), and the lock has no fabric manager for driver {driver}"
        answers.append(Refusal("fabric-manager", message, f"add {companion} to the profile's {again}"))
    elif look.bridges and NVLSM not in locked and NVLSM not in look.installed:
        message = f"this host's NVSwitches ({look.bridges[0]}) need {NVLSM}, which the lock doesn't have"
        answers.append(Refusal(NVLSM, message, f"add nvlink5 to the profile's {again}"))
    for name, unit in _units(look):
        if unit in _SAME and unit in look.enabled and unit not in units | fits:
            versions = ", ".join(look.installed[name])
            message = f"{name} {versions} starts at boot here, and driver {driver} needs one of its own version"
            hint = f"add it to the profile's {again}; or disable it: systemctl disable {unit}"
            answers.append(Refusal("companion-version", message, hint))
    for unit in look.masked:
        if unit in units and (fabric if unit == FABRIC else nodes):
            message = f"{unit} is masked, and this host needs it"
            answers.append(Refusal("masked", message, f"run systemctl unmask {unit}, or take it out of the fleet file"))
    if IMEX in units and not nodes and not look.has_nodes:
        message = f"the lock has IMEX, and this host has no addresses in {IMEX_NODES}"
        hint = "give its host an IMEX domain in the fleet file (imex: NAME), or write the file yourself"
        answers.append(Refusal("imex-nodes", message, hint))
    return answers


def _units(look: Look) -> List[Tuple[str, str]]:
    return [(name, unit) for name in sorted(look.installed) for unit in services_of([name])]


def _is_of(version: str, driver: str) -> bool:
    """Whether a package's version is this one of the driver's: 580.95.05-1, 3:580.95.05-1.el9."""
    return re.match(rf"(?:[0-9]+:)?{re.escape(driver)}(?![0-9]|\.[0-9])", version) is not None


def _line(host: ManagedHost, function: str, name: str) -> str:
    return host.text(f"{PCI}/{function}/{name}").strip()


def _is_masked(host: ManagedHost, unit: str) -> bool:
    """Whether an administrator's link to /dev/null is in the unit's place."""
    try:
        return host.real(services.path(unit)) == "/dev/null"
    except LoopError:
        return False


def _is_bridge(host: ManagedHost, function: str) -> bool:
    try:
        return _BRIDGE in reading.beginning(inside(host.root, f"{PCI}/{function}/vpd"), _VPD_BYTES)
    except OSError:
        # Many functions have no VPD, or none that can be read.
        return False
