"""Which boot this is, and what boots next; light, because every command of a rollout imports it.

What tells one machine from another: its boot, and a digest of its machine id.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from typing import Any, Dict

from ..errors import HostError
from ..paths import EXPECTATION
from ..rootdir import read_object, read_text
from .loader import loader

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NO_BOOT = {"default": "", "default_entry": "", "next": "", "next_entry": ""}


def boot_id(root: str = "/") -> str:
    """The kernel's random id of this boot."""
    return read_text(root, _BOOT_ID).strip()


def of_this_boot(path: str, root: str = "/") -> Dict[str, Any]:
    """The JSON object in a file, if its ``boot_id`` is that of this boot; else empty."""
    value = read_object(root, path)
    return value if value.get("boot_id") == boot_id(root) else {}


def expectation(root: str = "/") -> Dict[str, Any]:
    """The expectation that provision left; empty if there is none or it can't be read."""
    return read_object(root, EXPECTATION)


def lock_digest(root: str = "/") -> str:
    """The digest of the lock that this host was provisioned with; empty if it wasn't provisioned."""
    return str(expectation(root).get("lock_digest") or "")


def nvidia(root: str = "/") -> str:
    """Vendor and device of NVIDIA's devices, such as ``10de2330``, each kind once, sorted, separated by spaces."""
    # The second column of each line has vendor and device as eight digits.
    devices = re.findall(r"(?mi)^[0-9a-f]{4}\s(10de[0-9a-f]{4})\s", read_text(root, "/proc/bus/pci/devices"))
    return " ".join(sorted({device.lower() for device in devices}))


def now() -> str:
    """The time in UTC, in the format of RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def booting(root: str = "/") -> Dict[str, str]:
    """As ``Loader.kernels``, with a ``problem`` if that fails."""
    try:
        return {**loader(root).kernels(), "problem": ""}
    except HostError as error:
        return {**_NO_BOOT, "problem": error.message}


MACHINE_ID = "/etc/machine-id"
#: machine-id(5) asks programs not to show the id itself, but a keyed digest of it.
_APPLICATION = b"gdsdeploy: names of a fleet that are one machine"


def identity(root: str = "/") -> Dict[str, str]:
    """``boot_id``, and ``machine_id`` as :func:`machine_digest` has it."""
    return {"boot_id": boot_id(root), "machine_id": machine_digest(root)}


def machine_digest(root: str = "/") -> str:
    """64 hex digits that stand for /etc/machine-id; empty where it has no id."""
    try:
        text = read_text(root, MACHINE_ID).strip()
    except HostError:
        return ""
    if not re.match(r"[0-9a-f]{32}\Z", text):
        return ""
    return hmac.new(bytes.fromhex(text), _APPLICATION, hashlib.sha256).hexdigest()
