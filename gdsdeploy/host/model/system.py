"""Operating systems as profiles name them, from the ID and VERSION_ID of os-release.  Pure.

A system whose profiles use its own ID and VERSION_ID, and whose family has its own name, needs no entry here.

Services that have to be of the driver's version, or that some GPUs need.
"""

from __future__ import annotations

import re
from typing import Iterable, List

_FIELD = re.compile(r'^(ID|VERSION_ID)="?([^"\n]*)', re.MULTILINE)
#: ID of os-release → the system's name in a profile.
_NAMES = {"ol": "oracle", "amzn": "amazon"}
#: Systems that a profile names by the major release: 9.4 and 9.6 are one.  Their kernels follow the rules about RHEL's.
_RHEL_FAMILY = ("rhel", "rocky", "almalinux", "oracle")


def system_name(id: str, version_id: str) -> str:  # noqa: A002 - os-release's own word
    """As a profile names it: debian-13, or rocky-9.4 with its minor release."""
    return _NAMES.get(id, id) + "-" + version_id


def system_of(os_release: str) -> str:
    """The same, of the text of /etc/os-release."""
    fields = dict(_FIELD.findall(os_release))
    return system_name(fields.get("ID") or "unknown", fields.get("VERSION_ID") or "none")


def without_minor(name: str) -> str:
    """The name that profiles use: rocky-9 for rocky-9.4; other systems' names stay."""
    return name.split(".")[0] if name.split("-")[0] in _RHEL_FAMILY else name


def family_of(name: str) -> str:
    """The family by which compatibility rules speak about a system: rhel for rocky-9."""
    system = name.split("-")[0]
    return "rhel" if system in _RHEL_FAMILY else system


#: Class code of NVSwitch: bridge, other.
NVSWITCH = 0x068000
#: Pattern of a package's name in both repositories → its service.
SERVICES = (
    (re.compile(r"nvidia-persistenced"), "nvidia-persistenced.service"),
    (re.compile(r"nvidia-fabric-?manager(-\d+)?"), "nvidia-fabricmanager.service"),
    (re.compile(r"nvidia-imex(-\d+)?"), "nvidia-imex.service"),
)
FABRIC = "nvidia-fabricmanager.service"


def services_of(packages: Iterable[str]) -> List[str]:
    """The services that packages with these names bring."""
    names = list(packages)
    return [unit for pattern, unit in SERVICES if any(map(pattern.fullmatch, names))]
