"""What tells one machine from another: its boot, and a digest of its machine id."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Dict

from ..errors import HostError
from ..rootdir import read_text
from .present import boot_id

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
