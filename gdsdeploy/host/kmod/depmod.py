"""Which file a module name means: the order in which depmod prefers files, and modprobe's own configuration.

depmod(8) keeps one file for each module name.  Its ``search`` lines rank folders, by default ``updates`` before all
others; ``override`` lines name one folder for one module.  Between files of equal rank the order of the directory
listing decides, so nobody can tell beforehand; only the modules.dep that is there says which it was.
"""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..rootdir import list_folder, read_text
from .module import name_of

#: In order of precedence; a file hides those of the same name in later folders (depmod.d(5), modprobe.d(5)).
_FOLDERS = ("/etc/{}.d", "/run/{}.d", "/usr/local/lib/{}.d", "/usr/lib/{}.d", "/lib/{}.d")


class Choice(NamedTuple):
    """Paths are relative to /lib/modules/<release>.  ``sure`` is False where only the directory order decides."""

    file: str
    others: Tuple[str, ...]
    sure: bool


@dataclass(frozen=True)
class Order:
    """depmod's configuration for one kernel release."""

    #: highest rank first; ``built-in`` stands for every folder that is not named
    search: Tuple[str, ...]
    #: module name → folder
    overrides: Dict[str, str]

    def rank(self, file: str) -> int:
        """The smaller the better."""
        name = name_of(file)
        if name in self.overrides and os.path.dirname(file) == self.overrides[name]:
            return -1
        for place, folder in enumerate(self.search):
            if folder != "built-in" and file.startswith(folder + "/"):
                return place
        return self.search.index("built-in") if "built-in" in self.search else len(self.search)

    def choose(self, files: Sequence[str], present: str = "") -> Choice:
        """The file that depmod takes from ``files`` of one module name; ``present`` is modules.dep's, if any."""
        ranked = sorted(files, key=lambda item: (self.rank(item), item))
        best = [item for item in ranked if self.rank(item) == self.rank(ranked[0])]
        file = present if present in best else best[0]
        return Choice(file, tuple(item for item in ranked if item != file), len(best) == 1)


def read_order(root: str, release: str) -> Order:
    """Read the depmod.d folders inside ``root``."""
    search: List[str] = []
    overrides: Dict[str, str] = {}
    for words in _lines(root, "depmod"):
        if words[0] == "search":
            search += [item.rstrip("/") for item in words[1:] if item.rstrip("/") not in search]
        elif words[0] == "override" and len(words) == 4 and _release_matches(words[2], release):
            overrides[words[1].replace("-", "_")] = words[3].rstrip("/")
    return Order(tuple(search or ["updates", "built-in"]), overrides)


def override_line(name: str, release: str, folder: str) -> str:
    """A line for depmod.d that makes ``folder`` win for one module on one kernel.

    depmod takes the release for an extended regular expression, in which the + of ``6.12.94+deb13`` has a meaning, and
    its reader of configuration files drops backslashes; so brackets quote.
    """
    return "override {} ^{}$ {}\n".format(name, re.sub(r"[.+]", r"[\g<0>]", release), folder)


def read_renames(root: str) -> Dict[str, str]:
    """Module names that modprobe.d turns into others: ``alias`` and ``install … modprobe … -i other``.

    Debian's driver packages install nvidia.ko as nvidia-current-open.ko and map the name back in this way.
    """
    renames: Dict[str, str] = {}
    for words in _lines(root, "modprobe"):
        if words[0] == "alias" and len(words) == 3 and not set("*?[:") & set(words[1]):
            renames.setdefault(_name(words[1]), _name(words[2]))
        elif words[0] == "install" and len(words) > 2:
            target = _installed(words[2:])
            if target:
                renames[_name(words[1])] = _name(target)
    return renames


def read_dependencies(text: str) -> Dict[str, List[str]]:
    """modules.dep: file → the files loaded before it, all relative to the kernel's folder."""
    found: Dict[str, List[str]] = {}
    for line in text.splitlines():
        file, separator, needs = line.partition(":")
        if separator:
            found[file] = needs.split()
    return found


def _name(text: str) -> str:
    return text.replace("-", "_")


def _installed(words: Sequence[str]) -> Optional[str]:
    """The module that the last modprobe of an install line loads, if it ignores further install lines (-i)."""
    if "modprobe" not in (os.path.basename(word) for word in words):
        return None
    start = max(place for place, word in enumerate(words) if os.path.basename(word) == "modprobe")
    rest = words[start + 1 :]
    names = [word for word in rest if not word.startswith(("-", "$", ">", "&", ";", "|"))]
    return names[0] if names and ("-i" in rest or "--ignore-install" in rest) else None


def _release_matches(pattern: str, release: str) -> bool:
    if pattern == "*":
        return True
    try:
        return re.search(pattern, release) is not None
    except re.error:
        return False


def _lines(root: str, program: str) -> Iterator[List[str]]:
    """Words of every line of a program's configuration folders, in the order in which it reads them."""
    files: Dict[str, str] = {}
    for pattern in _FOLDERS:
        folder = pattern.format(program)
        for name in fnmatch.filter(list_folder(root, folder), "*.conf"):
            files.setdefault(name, folder)
    for name, folder in sorted(files.items()):
        text = read_text(root, f"{folder}/{name}")
        # As libkmod does: a backslash joins lines, and otherwise vanishes.
        for line in re.sub(r"\\(.)", r"\1", text.replace("\\\n", "")).splitlines():
            words = line.split("#", 1)[0].split()
            if words:
                yield words
