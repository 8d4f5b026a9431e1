"""Read what ``modprobe --show-depends`` prints: the one place that knows how Debian renames the driver's modules."""

from __future__ import annotations

import re
from typing import List


def files_of(shown: str) -> List[str]:
    """The files that would be loaded, in that order; the last one is the module itself."""
    return [line.split()[1] for line in shown.splitlines() if line.startswith("insmod ") and len(line.split()) > 1]


def replacement(shown: str) -> str:
    """The module that a rule ``install NAME modprobe -i OTHER …`` loads instead (Debian's alternatives); else empty."""
    lines = [line for line in shown.splitlines() if line.strip()]
    if not lines or not lines[-1].startswith("install "):
        return ""
    match = re.search(r"\bmodprobe\s+(?:-i|--ignore-install)\s+([A-Za-z0-9_-]+)", lines[-1])
    return match.group(1) if match else ""
