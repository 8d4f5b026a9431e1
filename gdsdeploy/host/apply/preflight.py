"""Conditions under which a host is changed at all; this resource never changes anything."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping

from ..rootdir import inside
from .host import ManagedHost
from .model import Refusal, Resource
from .packages.managers import manager

_MIB = 1 << 20
_RELEASE = re.compile(r'^(ID|VERSION_ID)="?([^"\n]*)', re.MULTILINE)


@dataclass(frozen=True)
class Desired:
    """What the lock was made for: ``os`` such as debian-13, ``arch`` as ``uname -m`` says it.

    ``free_mib``: the space that the installation needs, by folder.
    """

    os: str
    arch: str
    manager: str = "apt"
    free_mib: Dict[str, int] = field(default_factory=dict)


class Preflight(Resource[Desired]):
    """Refuses a host of another system, one without room, and one whose packages are half-installed."""

    name = "preflight"
    desired_type = Desired

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        chosen = manager(desired.manager)
        fields = dict(_RELEASE.findall(host.text("/etc/os-release")))
        return {
            "os": f"{fields.get('ID') or 'unknown'}-{fields.get('VERSION_ID') or 'none'}",
            "arch": os.uname().machine,
            "free_mib": {folder: _free(host, folder) for folder in desired.free_mib},
            "half_installed": chosen.half_installed(host),
            "spare": chosen.spare,
        }

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
        return [*refusals, *observed["half_installed"]]

    def report(self, desired: Desired, observed: Any) -> Mapping[str, Any]:
        return {key: observed[key] for key in ("os", "arch", "free_mib")}


def _free(host: ManagedHost, folder: str) -> int:
    """MiB that are free for others than root, in ``folder`` or, before it is made, where it will be."""
    place = inside(host.root, folder)
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize // _MIB
