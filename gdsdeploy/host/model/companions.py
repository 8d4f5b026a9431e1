"""Services that have to be of the driver's version, or that some GPUs need."""

from __future__ import annotations

import re

#: Class code of NVSwitch: bridge, other.
NVSWITCH = 0x068000
#: Pattern of a package's name in both repositories → its service.
SERVICES = (
    (re.compile(r"nvidia-persistenced"), "nvidia-persistenced.service"),
    (re.compile(r"nvidia-fabric-?manager(-\d+)?"), "nvidia-fabricmanager.service"),
    (re.compile(r"nvidia-imex(-\d+)?"), "nvidia-imex.service"),
)
FABRIC = "nvidia-fabricmanager.service"
