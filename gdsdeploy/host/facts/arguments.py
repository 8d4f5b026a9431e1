"""Arguments of the kernel that the boot loader has for the next boot, and parameters of loaded modules."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from ..boot import arguments
from ..boot.loader import grub_lines
from ..paths import ENTRY_FOLDERS, GRUB_FILES, parameter_path
from .document import Document
from .unknown import Maybe, Unknown

#: The arguments of each entry.
Entries = Tuple[Tuple[str, ...], ...]


def configured(document: Document, release: str) -> Maybe[Entries]:
    """The arguments of each entry of kernel ``release``; without such, of every kernel's."""
    for path in GRUB_FILES:
        lines = document.lines(path)
        if isinstance(lines, tuple):
            entry_words = grub_lines("\n".join(lines), release)
            if entry_words:
                return tuple(map(tuple, entry_words))
    entries: Dict[str, List[str]] = {}
    own: List[str] = []
    for folder in ENTRY_FOLDERS:
        names = document.names(folder)
        if isinstance(names, Unknown):
            return names
        for path in (f"{folder}/{name}" for name in names or () if _is_entry(name)):
            lines = document.lines(path)
            if isinstance(lines, Unknown):
                return lines
            text = "\n".join(lines or ())
            if "linux" in text:
                entries[path] = arguments.words_of(path, text)
                own += [path] if release in text else []
    if not entries:
        return Unknown("the boot loader's entries aren't in the evidence")
    return tuple(tuple(entries[path]) for path in own or entries)


def _is_entry(name: str) -> bool:
    return name.endswith(".conf") and "-0-rescue" not in name


def shown_parameters(document: Document, names: Iterable[str]) -> Mapping[str, Maybe[Optional[str]]]:
    """``MODULE.PARAMETER`` → its value; None: sysfs doesn't have it."""
    paths = ((name, parameter_path(name)) for name in names)
    return {name: document.line(path) if path else Unknown(f"{name} is no parameter") for name, path in paths}
