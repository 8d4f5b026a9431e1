"""GRUB's menu in grub.cfg: entries, the kernels that they start, and what a choice means.  Pure.

Entries are named by ids, joined with ``>`` below submenus, as grub-set-default(8) takes them; positions and titles
change with every installed kernel.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Tuple

_KERNEL_FILE = re.compile(r"(?:vmlinuz|vmlinux|linux|kernel)-(\S+)")


class MenuEntry(NamedTuple):
    """A menu entry that can be booted."""

    #: ids (titles where there is no id) from the outermost submenu on, joined with ``>``
    path: str
    title: str
    #: of the Linux kernel it starts; empty for anything else
    release: str
    recovery: bool
    #: position at each level, as GRUB counts
    numbers: Tuple[int, ...]
    titles: Tuple[str, ...]


@dataclass
class _Block:
    """An open brace: ``kind`` is menuentry, submenu, or empty for something else such as a function."""

    kind: str = ""
    ids: Tuple[str, ...] = ()
    titles: Tuple[str, ...] = ()
    numbers: Tuple[int, ...] = ()
    #: words after ``linux``
    kernel: List[str] = field(default_factory=list)
    #: entries and submenus of a submenu so far
    count: int = 0


def entries(text: str) -> List[MenuEntry]:
    """Every menu entry of a grub.cfg, in its order."""
    listed: List[MenuEntry] = []
    root = _Block("submenu")
    blocks: List[_Block] = []
    for words in filter(None, map(_words, text.splitlines())):
        if words[0] in ("menuentry", "submenu") and len(words) > 1:
            menu = next((block for block in reversed(blocks) if block.kind == "submenu"), root)
            place = (*menu.ids, _id(words)), (*menu.titles, words[1]), (*menu.numbers, menu.count)
            blocks.append(_Block(words[0], *place))
            menu.count += 1
        elif words[-1] == "{":
            blocks.append(_Block())
        elif words[0].startswith("linux") and blocks and blocks[-1].kind == "menuentry" and not blocks[-1].kernel:
            blocks[-1].kernel = words[1:]
        if words[-1] == "}" and blocks:
            block = blocks.pop()
            if block.kind == "menuentry":
                listed.append(_entry(block))
    return listed


def resolve(menu: List[MenuEntry], choice: str) -> Optional[MenuEntry]:
    """The entry that GRUB takes for ``choice``: numbers, ids or titles joined with ``>``; None when there is none."""
    parts = choice.split(">")
    for entry in menu:
        # A submenu alone means its first entry.
        if len(entry.numbers) >= len(parts) and not any(entry.numbers[len(parts) :]):
            ids = entry.path.split(">")
            levels = zip(parts, entry.numbers, ids, entry.titles)
            if all(part in (str(number), name, title) for part, number, name, title in levels):
                return entry
    return None


def environment(text: str) -> Dict[str, str]:
    """The variables of a grubenv file."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _entry(block: _Block) -> MenuEntry:
    match = _KERNEL_FILE.fullmatch(os.path.basename(block.kernel[0])) if block.kernel else None
    recovery = "single" in block.kernel or "-recovery-" in block.ids[-1]
    release = match.group(1) if match else ""
    return MenuEntry(">".join(block.ids), block.titles[-1], release, recovery, block.numbers, block.titles)


def _id(words: List[str]) -> str:
    for option in ("$menuentry_id_option", "--id"):
        if option in words[:-1]:
            return words[words.index(option) + 1]
    return words[1]


# Hosts of a fleet have the same menu.
_split = functools.lru_cache(1024)(shlex.split)


def _words(line: str) -> List[str]:
    """A line as GRUB's shell splits it, roughly; commands that end with ``;`` on one line don't matter here."""
    text = line.strip()
    # Only these have quotes that matter, and shlex takes ten times as long.
    if text.startswith(("menuentry", "submenu", "linux")):
        try:
            return list(_split(text))
        except ValueError:
            # An open quote: text that goes over several lines, in a custom entry.
            pass
    return [] if text.startswith("#") else text.split()
