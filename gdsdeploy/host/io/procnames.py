"""Names as the kernel writes them in /proc."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\([0-7]{3})")


def plain(text: str) -> str:
    """A name as the kernel escapes it in /proc: spaces and the like in octal."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text) if "\\" in text else text
