"""Conditions under which a host is changed at all; this resource never changes anything.

What runs beside the driver is looked at before anything is changed: a mismatch keeps programs from the GPUs.  So is
what others have installed of the stack.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..boot.present import expectation
from ..errors import HostError
from ..evidence.recorder import Recorder
from ..facts.document import Document
from ..facts.unknown import if_known
from ..kmod.flavour import flavour_of
from ..model.system import FABRIC, NVLSM, fits, services_of, system_of
from ..paths import IMAGE, IMEX_NODES, PCI
from ..rootdir import LoopError, inside
from ..subjects import foreign
from ..subjects.foreign import ForeignInstall, Locked, findings
from ..subjects.foreign_files import ForeignFacts, look
from ..subjects.packages import Package
from ..subjects.pci import PciFacts, identify
from . import imex, services
from .host import ManagedHost
from .model import Refusal, Resource
from .packages.managers import Installed, manager

#: Fabric Manager and IMEX guides: both have to be of the driver's version; Debian's persistenced is of another one.
_SAME = (FABRIC, imex.UNIT)


class Look(NamedTuple):
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


def companions(host: ManagedHost, installed: Mapping[str, Installed]) -> Look:
    """Look at the host; installed: what the package manager has.  An image has no hardware of its own."""
    recorder = Recorder(_SECONDS, host.root)
    for name in [] if host.exists(IMAGE) else recorder.names(PCI):
        identify(recorder, name)
    pci = PciFacts(Document(recorder.finish()))
    # As for the check driver.services.
    has_gpu = if_known(lambda: bool(pci.gpus), False)
    return Look(
        switches=pci.switches if has_gpu else (),
        bridges=pci.switch_bridges if has_gpu else (),
        installed={n: p.versions for n, p in installed.items() if n == NVLSM or services_of([n])},
        enabled=tuple(unit for unit in _SAME if services.observe(host, unit).links),
        masked=tuple(unit for unit in _SAME if _is_masked(host, unit)),
        has_nodes=bool(host.text(IMEX_NODES).strip()),
    )


def companion_refusals(look: Optional[Look], driver: str, locked: Mapping[str, str], nodes: List[str]) -> List[Refusal]:
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
    if imex.UNIT in units and not nodes and not look.has_nodes:
        message = f"the lock has IMEX, and this host has no addresses in {IMEX_NODES}"
        hint = "give its host an IMEX domain in the fleet file (imex: NAME), or write the file yourself"
        answers.append(Refusal("imex-nodes", message, hint))
    return answers


def _units(look: Look) -> List[Tuple[str, str]]:
    return [(name, unit) for name in sorted(look.installed) for unit in services_of([name])]


def _is_of(version: str, driver: str) -> bool:
    """Whether a package's version is this one of the driver's: 580.95.05-1, 3:580.95.05-1.el9."""
    return re.match(rf"(?:[0-9]+:)?{re.escape(driver)}(?![0-9]|\.[0-9])", version) is not None


def _is_masked(host: ManagedHost, unit: str) -> bool:
    """Whether an administrator's link to /dev/null is in the unit's place."""
    try:
        return host.real(services.path(unit)) == "/dev/null"
    except LoopError:
        return False


#: Beginning of the ids of refusals; the kind follows.
REFUSAL = "foreign."
#: Seconds for all programs that it asks.
_SECONDS = 60.0


def _foreign(
    host: ManagedHost, locked: Locked, installed: Mapping[str, Installed]
) -> Tuple[Tuple[ForeignInstall, ...], Tuple[str, ...]]:
    """What others have installed, in the order of the table, and why some kinds aren't known.

    installed: what the package manager has, so that it isn't asked again.
    """
    release = locked.kernel_release
    if not release:
        return (), ()
    recorder = Recorder(_SECONDS, host.root)
    try:
        look(recorder, release, lambda: host.kernel(release))
    except (OSError, ValueError, HostError) as error:
        recorder.gap("foreign", str(error))
    packages = {
        name: tuple(Package(version, "", "hi" if package.is_held else "ii") for version in package.versions)
        for name, package in installed.items()
    }
    return findings(ForeignFacts(Document(recorder.finish())).but(installed=packages), locked)


_MIB = 1 << 20


@dataclass(frozen=True)
class Desired:
    """What the lock was made for, and what it needs."""

    #: Operating system that was locked, as ``ID-VERSION_ID`` of os-release, without the minor version.
    os: str
    #: Architecture that was locked, as ``uname -m`` prints it.
    arch: str
    #: The host's package manager.
    manager: str = "apt"
    #: Directory to free MiB that its filesystem needs.
    free_mib: Dict[str, int] = field(default_factory=dict)
    #: Release of the locked kernel, where no flavour was asked for: a host whose kernel is of another flavour is
    #: refused.  Empty: not checked.
    unasked_kernel: str = ""
    #: Release of the locked kernel.  A host is refused if a driver, modules or libraries that others have installed
    #: would win.  Empty: not looked at.
    kernel_release: str = ""
    #: Package to its locked version.
    versions: Dict[str, str] = field(default_factory=dict)
    #: Addresses of the locked repositories.  Others with a driver are only named.
    repositories: List[str] = field(default_factory=list)
    #: Version of the locked driver.  A host is refused whose fabric manager or IMEX is of another one, and one with
    #: NVSwitches for which the lock has no fabric manager.  Empty: not checked.
    driver_version: str = ""
    #: IP addresses of the hosts in the host's IMEX domain.
    imex_nodes: List[str] = field(default_factory=list)
    #: The fleet that the lock is for.  A host with the lock of another fleet is refused.  Empty: not checked.
    fleet_id: str = ""
    #: The lock's serial.  With a fleet, a host with a lock of a higher serial is refused.  0 refuses none.
    lock_serial: int = 0


class Preflight(Resource[Desired]):
    """Refuses a host of another system, one without room, one with half-installed packages, and one whose kernel has
    another flavour than the locked one while its profile names none.  Refuses what others have installed of the stack
    where it would win over the lock's.  Refuses services that don't go with the locked driver.
    """

    name = "preflight"
    desired_type = Desired

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        chosen = manager(desired.manager)
        installed = chosen.installed(host) if desired.kernel_release or desired.driver_version else {}
        locked = Locked(desired.kernel_release, desired.versions, tuple(desired.repositories))
        return {
            "os": system_of(host.text("/etc/os-release")),
            "arch": os.uname().machine,
            "kernel": os.uname().release,
            "free_mib": {folder: _free(host, folder) for folder in desired.free_mib},
            "half_installed": chosen.half_installed(host),
            "spare": chosen.spare,
            "foreign": host.once(("foreign", locked.kernel_release), lambda: _foreign(host, locked, installed)),
            "lock": lock_of(host.root),
            "companions": companions(host, installed) if desired.driver_version else None,
        }

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        another = "give it another profile in the fleet file"
        refusals = []
        if not fits(desired.os, observed["os"]):
            message = f"this host runs {observed['os']}, but its profile was locked for {desired.os}"
            refusals.append(Refusal("os", message, another))
        if observed["arch"] != desired.arch:
            message = f"this host is {observed['arch']}, but its profile was locked for {desired.arch}"
            refusals.append(Refusal("arch", message, another))
        shortages = [
            f"{folder} has {observed['free_mib'][folder]} MiB free, {needed} are needed"
            for folder, needed in desired.free_mib.items()
            if observed["free_mib"][folder] < needed
        ]
        if shortages:
            message = f"there is no room for the installation: {'; '.join(shortages)}"
            refusals.append(Refusal("space", message, f"make room there (old kernels: {observed['spare']})"))
        others = [
            Refusal(REFUSAL + install.kind, foreign.sentence(install), foreign.way_out(install, desired.kernel_release))
            for install in observed["foreign"][0]
            if install.breaks
        ]
        others += companion_refusals(
            observed["companions"], desired.driver_version, desired.versions, desired.imex_nodes
        )
        return [
            *other_lock(desired.fleet_id, desired.lock_serial, observed["lock"]),
            *refusals,
            *_other_flavour(desired, observed["kernel"]),
            *observed["half_installed"],
            *others,
        ]

    def report(self, desired: Desired, observed: Any) -> Mapping[str, Any]:
        seen = {key: observed[key] for key in ("os", "arch", "free_mib")}
        installs, unknown = observed["foreign"]
        return {**seen, "foreign": {"installs": [install.to_json() for install in installs], "unknown": list(unknown)}}


def lock_of(root: str) -> Dict[str, Any]:
    """Fleet and serial of the lock that this host has, by its record; empty and 0: it has none, or an old one."""
    recorded = expectation(root)
    fleet_id, serial = recorded.get("fleet_id"), recorded.get("lock_serial")
    return {
        "fleet_id": fleet_id if isinstance(fleet_id, str) else "",
        "serial": serial if isinstance(serial, int) else 0,
    }


def other_lock(fleet_id: str, serial: int, present: Mapping[str, Any]) -> List[Refusal]:
    """A refusal of a lock that is another fleet's, or older than ``present``, the host's: it may be a replay.

    fleet_id, serial: as in :class:`Desired`.
    """
    if not fleet_id:
        return []
    if present["fleet_id"] not in ("", fleet_id):
        message = f"this host has a lock of the fleet {present['fleet_id']}, and this one is of {fleet_id}"
        return [Refusal("lock-fleet", message, "run gdsdeploy remove with the fleet file that it had before")]
    if 0 < serial < present["serial"]:
        message = f"this host has the lock with serial {present['serial']}, and this one is older: {serial}"
        hint = "get the newest lock; if you want the older one, pass --allow-older-lock"
        return [Refusal("lock-serial", message, hint)]
    return []


def _other_flavour(desired: Desired, running: str) -> List[Refusal]:
    """A refusal where the locked kernel would replace one of another flavour that no profile gave up.

    Debian's cloud kernel is left out: it is the default kernel with fewer drivers.
    """
    runs, locked = flavour_of(running), flavour_of(desired.unasked_kernel)
    if runs is None or locked is None or runs.vendor != locked.vendor:
        return []
    if runs.name in (locked.name, "cloud-" + locked.name):
        return []
    message = f"this host runs kernel {running} of flavour {runs.name}; its profile names no flavour, and"
    message += f" {desired.unasked_kernel} is locked"
    hint = f"write `kernel: {{flavour: {runs.name}}}` in its profile and run gdsdeploy lock; to replace the kernel,"
    return [Refusal("kernel-flavour", message, f"{hint} write `kernel: {{flavour: {locked.name}}}`")]


def _free(host: ManagedHost, folder: str) -> int:
    """MiB that are free for others than root, in ``folder`` or, before it is made, where it will be."""
    place = inside(host.root, folder)
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize // _MIB
