"""Conditions under which a host is changed at all; this resource never changes anything."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping

from ..boot.present import expectation
from ..foreign import Locked
from ..kmod.flavour import flavour_of
from ..model.system import system_of
from ..rootdir import inside
from . import companions_look, foreign_look
from .host import ManagedHost
from .model import Refusal, Resource
from .packages.managers import manager

_MIB = 1 << 20
_NOT_ASKED: Mapping[str, Any] = {"installs": (), "unknown": ()}


@dataclass(frozen=True)
class Desired:
    """What the lock was made for: ``os`` such as debian-13, ``arch`` as ``uname -m`` says it.

    ``free_mib``: the space that the installation needs, by folder.  ``unasked_kernel``: the release of the locked
    kernel, where the profile leaves the kernel's flavour to its default; empty where it doesn't, or where the host's
    kernel isn't the host's to choose.  ``kernel_release``: of the locked kernel; empty: what others have installed
    isn't looked at.  ``versions``: package → version of the lock.  ``repositories``: addresses of the lock's.
    ``driver_version``: of the locked driver; empty: what runs beside it isn't looked at.  ``imex_nodes``: the addresses
    of the host's IMEX domain.  ``fleet_id`` and ``lock_serial``: of the lock; empty: whose lock the host has isn't
    looked at; 0: which of them is older isn't looked at.
    """

    os: str
    arch: str
    manager: str = "apt"
    free_mib: Dict[str, int] = field(default_factory=dict)
    unasked_kernel: str = ""
    kernel_release: str = ""
    versions: Dict[str, str] = field(default_factory=dict)
    repositories: List[str] = field(default_factory=list)
    driver_version: str = ""
    imex_nodes: List[str] = field(default_factory=list)
    fleet_id: str = ""
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
        return {
            "os": system_of(host.text("/etc/os-release")),
            "arch": os.uname().machine,
            "kernel": os.uname().release,
            "free_mib": {folder: _free(host, folder) for folder in desired.free_mib},
            "half_installed": chosen.half_installed(host),
            "spare": chosen.spare,
            "foreign": self._foreign(host, desired) if desired.kernel_release else _NOT_ASKED,
            "lock": lock_of(host.root),
            "companions": companions_look.observe(host, chosen.installed(host)) if desired.driver_version else None,
        }

    def _foreign(self, host: ManagedHost, desired: Desired) -> Any:
        locked = Locked(desired.kernel_release, desired.versions, tuple(desired.repositories))
        return foreign_look.observe(host, locked, manager(desired.manager).installed(host))

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        another = "give it another profile in the fleet file"
        refusals = []
        if desired.os not in (observed["os"], re.sub(r"\.[0-9]+$", "", observed["os"])):
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
        others = foreign_look.refusals(observed["foreign"], desired.kernel_release)
        others += companions_look.refusals(
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
        foreign = foreign_look.report(observed["foreign"])
        return {**{key: observed[key] for key in ("os", "arch", "free_mib")}, "foreign": foreign}


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
