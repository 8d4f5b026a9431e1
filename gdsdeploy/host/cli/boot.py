"""``boot …``: what the next boot starts, and whether one is needed."""

from __future__ import annotations

from typing import Any

from ..boot import grub, needed
from .parsers import group


def add_parsers(commands: Any) -> None:
    """Add ``boot`` to the program's commands."""
    verbs = group(commands, "boot", "what the next boot starts, and whether one is needed")
    needed.add_parser(verbs)
    grub.add_parsers(verbs)
