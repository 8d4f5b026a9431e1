"""Which file a module name means: the order in which depmod prefers files, and modprobe's own configuration.

depmod(8) keeps one file for each module name.  Between files of equal rank the order of the directory listing decides,
and only an existing modules.dep shows the outcome.
"""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

from .. import process
from ..errors import HostError
from .inputs import Inputs
from .module import name_of

#: In order of precedence; a file hides those of the same name in later folders (depmod.d(5), modprobe.d(5)).
_FOLDERS = ("/etc/{}.d", "/run/{}.d", "/usr/local/lib/{}.d", "/usr/lib/{}.d", "/lib/{}.d")
_TIMEOUT = 600.0


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
        ranked = sorted(files, key=lambda file: (self.rank(file), file))
        best = [file for file in ranked if self.rank(file) == self.rank(ranked[0])]
        chosen = present if present in best else best[0]
        return Choice(chosen, tuple(file for file in ranked if file != chosen), len(best) == 1)


def read_order(inputs: Inputs, release: str) -> Order:
    """Read the depmod.d folders."""
    search: List[str] = []
    overrides: Dict[str, str] = {}
    for words in _lines(inputs, "depmod"):
        if words[0] == "search":
            search += [folder.rstrip("/") for folder in words[1:] if folder.rstrip("/") not in search]
        elif words[0] == "override" and len(words) == 4 and _release_matches(words[2], release):
            overrides[words[1].replace("-", "_")] = words[3].rstrip("/")
    return Order(tuple(search or ["updates", "built-in"]), overrides)


def override_line(name: str, release: str, folder: str) -> str:
    """A line for depmod.d that makes ``folder`` win for one module on one kernel.

    depmod reads the release as an extended regular expression and drops backslashes, so brackets quote.
    """
    pattern = re.sub(r"[.+]", r"[\g<0>]", release)
    return f"override {name} ^{pattern}$ {folder}\n"


def run_depmod(root: str, release: str, error: Type[HostError], hint: str) -> None:
    """Write modules.dep and its like for kernel ``release``; raises ``error`` with depmod's first line."""
    base = [] if root == "/" else ["-b", root]
    done = process.run(["depmod", *base, "-a", release], _TIMEOUT)
    if done.status != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
        raise error(f"depmod failed for kernel {release}: {lines[0]}", hint)


def read_renames(inputs: Inputs) -> Dict[str, str]:
    """Module names that modprobe.d turns into others: ``alias`` and ``install … modprobe … -i other``.

    Debian's driver packages install nvidia.ko as nvidia-current-open.ko and map the name back in this way.
    """
    renames: Dict[str, str] = {}
    for words in _lines(inputs, "modprobe"):
        if words[0] == "alias" and len(words) == 3 and not set("*?[:") & set(words[1]):
            renames.setdefault(_name(words[1]), _name(words[2]))
        elif words[0] == "install" and len(words) > 2:
            target = _redirected(words[2:])
            if target:
                renames[_name(words[1])] = _name(target)
    return renames


def read_dependencies(text: str) -> Dict[str, List[str]]:
    """modules.dep: file → the files loaded before it, all relative to the kernel's folder."""
    parts = (line.partition(":") for line in text.splitlines())
    return {file: needs.split() for file, separator, needs in parts if separator}


def _name(text: str) -> str:
    return text.replace("-", "_")


def _redirected(words: Sequence[str]) -> Optional[str]:
    """The module that the last modprobe of an install line loads, if it ignores further install lines (-i)."""
    starts = [place for place, word in enumerate(words) if os.path.basename(word) == "modprobe"]
    rest = words[starts[-1] + 1 :] if starts else []
    names = [word for word in rest if not word.startswith(("-", "$", ">", "&", ";", "|"))]
    return names[0] if names and ("-i" in rest or "--ignore-install" in rest) else None


def _release_matches(pattern: str, release: str) -> bool:
    try:
        return pattern == "*" or re.search(pattern, release) is not None
    except re.error:
        return False


def _lines(inputs: Inputs, program: str) -> Iterator[List[str]]:
    """Words of every line of a program's configuration folders, in the order in which it reads them."""
    files: Dict[str, str] = {}
    for pattern in _FOLDERS:
        folder = pattern.format(program)
        for name in fnmatch.filter(inputs.names(folder), "*.conf"):
            files.setdefault(name, folder)
    for name, folder in sorted(files.items()):
        text = inputs.text(f"{folder}/{name}")
        # As libkmod does: a backslash joins lines, and otherwise vanishes.
        for line in re.sub(r"\\(.)", r"\1", text.replace("\\\n", "")).splitlines():
            words = line.split("#", 1)[0].split()
            if words:
                yield words
