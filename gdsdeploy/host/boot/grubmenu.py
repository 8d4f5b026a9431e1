"""GRUB's menu as grub.cfg has it: entries, the kernels that they start, and what a choice means.  Pure.

Entries are named by their ids, joined with ``>`` below submenus, as grub-set-default(8) takes them; positions and
titles change whenever a kernel is installed.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Dict, List, NamedTuple, Optional, Tuple

_KERNEL_FILE = re.compile(r"(?:vmlinuz|vmlinux|linux|kernel)-(\S+)")


class Entry(NamedTuple):
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


class _Menu:
    """A submenu, or the whole menu, while it is read."""

    def __init__(self, ids: Tuple[str, ...] = (), titles: Tuple[str, ...] = (), numbers: Tuple[int, ...] = ()) -> None:
        self.ids, self.titles, self.numbers = ids, titles, numbers
        self.count = 0


class _Block:
    """An open brace: a menu entry with its kernel, a submenu, or something else such as a function."""

    def __init__(self, menu: Optional[_Menu] = None, place: Optional[_Menu] = None) -> None:
        self.menu, self.place = menu, place
        self.kernel: List[str] = []


def entries(text: str) -> List[Entry]:
    """Every menu entry of a grub.cfg, in its order."""
    found: List[Entry] = []
    menus = [_Menu()]
    blocks: List[_Block] = []
    for line in text.splitlines():
        words = _words(line)
        if not words:
            continue
        if words[0] in ("menuentry", "submenu") and len(words) > 1:
            menu = menus[-1]
            ids, titles = (*menu.ids, _id(words)), (*menu.titles, words[1])
            place = _Menu(ids, titles, (*menu.numbers, menu.count))
            menu.count += 1
            if words[0] == "submenu":
                menus.append(place)
                blocks.append(_Block(menu=place))
            else:
                blocks.append(_Block(place=place))
        elif words[-1] == "{":
            blocks.append(_Block())
        elif words[0].startswith("linux") and blocks and blocks[-1].place is not None and not blocks[-1].kernel:
            blocks[-1].kernel = words[1:]
        if words[-1] == "}" and blocks:
            block = blocks.pop()
            if block.menu is not None:
                menus.pop()
            elif block.place is not None:
                found.append(_entry(block.place, block.kernel))
    return found


def resolve(found: List[Entry], wanted: str) -> Optional[Entry]:
    """The entry that GRUB takes for ``wanted``: numbers, ids or titles joined with ``>``; None when there is none."""
    parts = wanted.split(">")
    for entry in found:
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


def _entry(place: _Menu, kernel: List[str]) -> Entry:
    match = _KERNEL_FILE.fullmatch(os.path.basename(kernel[0])) if kernel else None
    recovery = "single" in kernel or "-recovery-" in place.ids[-1]
    release = match.group(1) if match else ""
    return Entry(">".join(place.ids), place.titles[-1], release, recovery, place.numbers, place.titles)


def _id(words: List[str]) -> str:
    for option in ("$menuentry_id_option", "--id"):
        if option in words[:-1]:
            return words[words.index(option) + 1]
    return words[1]


def _words(line: str) -> List[str]:
    """A line as GRUB's shell splits it, roughly; commands that end with ``;`` on one line do not matter here."""
    text = line.strip()
    if not text or text.startswith("#"):
        return []
    try:
        return shlex.split(text)
    except ValueError:
        # An open quote: text that goes over several lines, in a custom entry.
        return text.split()
