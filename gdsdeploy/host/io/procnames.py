"""Names as the kernel writes them in /proc."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """A name as the kernel escapes it in /proc: spaces and the like in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
