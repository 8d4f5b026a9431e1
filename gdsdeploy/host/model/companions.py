"""Services that have to be of the driver's version, or that some GPUs need."""

from __future__ import annotations

import re
from typing import Iterable, List

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
