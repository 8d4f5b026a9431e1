"""Which boot this is, and what boots next; light, because every command of a rollout asks it."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Dict

from ..errors import HostError
from ..rootdir import read_text
from . import grub

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
EXPECTATION = "/etc/gdsdeploy/expectation.json"
_NO_BOOT = {"default": "", "default_entry": "", "next": "", "next_entry": ""}


def boot_id(root: str = "/") -> str:
    """Which boot this is."""
    return read_text(root, _BOOT_ID).strip()


def expectation(root: str = "/") -> Dict[str, Any]:
    """What the host should be, as provision left it; empty where it did not, or what it left cannot be read."""
    try:
        value = json.loads(read_text(root, EXPECTATION) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def lock_digest(root: str = "/") -> str:
    """Of the lock that this host was provisioned with; empty where it was not."""
    return str(expectation(root).get("lock_digest") or "")


def nvidia(root: str = "/") -> str:
    """Vendor and device of NVIDIA's devices, as in ``10de2330``, each kind once, sorted, with spaces between them."""
    # The second column of each line has vendor and device as eight digits.
    found = re.findall(r"(?mi)^[0-9a-f]{4}\s(10de[0-9a-f]{4})\s", read_text(root, "/proc/bus/pci/devices"))
    return " ".join(sorted({item.lower() for item in found}))


def now() -> str:
    """The time, in UTC as RFC 3339 has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def booting(root: str = "/") -> Dict[str, str]:
    """As ``boot.default_kernel``, with a ``problem`` where that cannot be told."""
    try:
        return {**grub.default_kernel(root), "problem": ""}
    except HostError as error:
        return {**_NO_BOOT, "problem": error.message}
