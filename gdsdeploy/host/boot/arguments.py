"""Arguments of the kernel: words that are compared, put into texts of a boot loader, and taken out again.  Pure.

The kernel reads ``-`` and ``_`` in a name as one (parameq in kernel/params.c).  Of a parameter that stands there twice
the last value counts, except for those of REPEATABLE.

Which kernel arguments are gdsdeploy's, in ``/var/lib/gdsdeploy/boot-arguments.json``.

::

    {"version": 1, "arguments": [WORD], "exceptions": {PATH: [WORD]}, "left": {"boot_id": ID, "arguments": [WORD]}}

``exceptions``: files that had a word before gdsdeploy set it elsewhere; it stays there.
``left``: what was taken out in this boot, whose kernel still has it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ..errors import ApplyError
from ..io.reading import kernel_number, kernel_switch
from ..model import schema
from ..rootdir import read_text
from . import bls

PATH = "/var/lib/gdsdeploy/boot-arguments.json"
VERSION = 1
#: systemd-boot counts attempts in the names of entries: NAME+LEFT-DONE.conf.
_COUNTER = re.compile(r"\+\d+(-\d+)?(?=\.conf\Z)")


@dataclass(frozen=True)
class Left:
    """See the module."""

    boot_id: str = ""
    arguments: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class ArgumentRecord:
    """See the module."""

    arguments: List[str] = field(default_factory=list)
    exceptions: Dict[str, List[str]] = field(default_factory=dict)
    left: Left = field(default_factory=Left)
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"not a record of version {VERSION}")

    def ours(self, path: str, words: List[str]) -> List[str]:
        """Those of ``words`` in the file ``path`` that gdsdeploy has set."""
        return [word for word in self.arguments if word in words and word not in self.exceptions.get(key(path), ())]

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"


def key(path: str) -> str:
    """What stays of the name of an entry while its attempts are counted."""
    return _COUNTER.sub("", path)


def read(root: str = "/") -> ArgumentRecord:
    """The record of a host; empty where there is none.  Raises ApplyError where it is damaged."""
    text = read_text(root, PATH)
    if not text:
        return ArgumentRecord()
    try:
        return schema.read(ArgumentRecord, json.loads(text), "record")
    except (ValueError, RecursionError) as error:
        hint = f"look at it, and take the arguments out of the boot loader yourself: mv {PATH} {PATH}.damaged"
        raise ApplyError(f"{PATH}: the record of kernel arguments can't be read: {error}", hint, "io") from None


#: A name, and a value without anything that has a meaning in a shell, in grub.cfg or in the kernel's own splitting.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(=[A-Za-z0-9_.,:=@/+%~-]*)?\Z")
#: What decides which system boots, from where, and who gets a shell: never part of a fleet file.
FORBIDDEN: FrozenSet[str] = frozenset(
    {
        *("BOOT_IMAGE", "root", "rootflags", "rootfstype", "rootdelay", "rootwait", "ro", "rw", "resume"),
        *("resume_offset", "init", "rdinit", "initrd", "noinitrd", "single", "emergency", "rescue", "S", "s", "boot"),
    }
)
FORBIDDEN_PREFIXES = ("rd.", "systemd.", "luks.")
#: Each occurrence counts, beside those of others.
REPEATABLE: FrozenSet[str] = frozenset(
    {
        *("pci", "console", "earlycon", "earlyprintk", "initcall_blacklist", "modprobe.blacklist", "dyndbg"),
        *("memmap", "hugepages", "hugepagesz"),
    }
)
_OPTIONS = re.compile(r"options(?:[ \t]|\Z)")


def objection(word: str) -> str:
    """Why ``word`` can't be an argument that gdsdeploy sets; empty if it can."""
    if not _WORD.match(word):
        return "an argument is one word of letters, digits and _.,:=@/+%~- without blanks or quotes"
    key = word.partition("=")[0]
    if key in FORBIDDEN or key.startswith(FORBIDDEN_PREFIXES):
        return "it decides which system boots, which gdsdeploy leaves to the boot loader"
    return ""


def name(word: str) -> str:
    """The name of an argument, as the kernel compares it."""
    return word.partition("=")[0].replace("-", "_")


def same(word: str, other: str) -> bool:
    """Whether two words are one argument with one value."""
    return name(word) == name(other) and word.partition("=")[1:] == other.partition("=")[1:]


def holds(words: Sequence[str], argument: str) -> bool:
    """Whether a kernel with this command line has ``argument`` in effect.  What stands after ``--`` is init's."""
    words = words[: words.index("--")] if "--" in words else words
    if name(argument) in REPEATABLE:
        return any(same(word, argument) for word in words)
    values = [word for word in words if name(word) == name(argument)]
    return bool(values) and same(values[-1], argument)


def conflict(words: Sequence[str], argument: str) -> str:
    """The word that has another value for ``argument``; empty: none."""
    if name(argument) in REPEATABLE:
        return ""
    return next((word for word in words if name(word) == name(argument) and not same(word, argument)), "")


def without(words: Sequence[str], ours: Sequence[str]) -> List[str]:
    """``words`` without the last occurrence of each of ``ours``."""
    rest = list(words)
    for word in ours:
        if word in rest:
            del rest[len(rest) - 1 - rest[::-1].index(word)]
    return rest


def parameters(arguments: Sequence[str]) -> Dict[str, str]:
    """``module.parameter`` → value of the arguments that set a parameter of a module."""
    pairs = (word.partition("=") for word in arguments)
    return {key.replace("-", "_"): value for key, sign, value in pairs if sign and re.match(r"[\w-]+\.\w+\Z", key)}


def same_value(shown: str, value: str) -> bool:
    """Whether a parameter that sysfs shows as ``shown`` has ``value``; the kernel shows booleans as Y and N."""
    if shown in ("Y", "N") and kernel_switch(value) is not None:
        return kernel_switch(shown) == kernel_switch(value)
    return shown == value or kernel_number(shown) == kernel_number(value) is not None


# A text is an entry of the Boot Loader Specification, with lines ``options …``, or /etc/kernel/cmdline.


def is_entry(path: str) -> bool:
    """Whether the file ``path`` is an entry; otherwise all of its text is arguments."""
    return path.endswith(".conf")


def words_of(path: str, text: str) -> List[str]:
    """The arguments in the text of ``path``."""
    lines = [line for line in text.splitlines() if _has_arguments(path)(line)]
    return [word for line in lines for word in line.split()[1 if is_entry(path) else 0 :]]


def insert(path: str, text: str, words: Sequence[str]) -> Optional[str]:
    """The text with ``words`` behind its arguments; None where no line has arguments."""
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if _has_arguments(path)(line.rstrip("\r\n"))]
    if not places:
        return None
    body, end = _split(lines[places[-1]])
    lines[places[-1]] = body + "".join(f" {word}" for word in words) + end
    return "".join(lines)


def take_out(path: str, text: str, words: Sequence[str]) -> str:
    """The text without the last occurrence of each of ``words``; every other byte stays."""
    lines = text.splitlines(keepends=True)
    for word in words:
        pattern = re.compile(rf"(?:^|[ \t]){re.escape(word)}(?=\s|$)")
        for number in reversed(range(len(lines))):
            body, end = _split(lines[number])
            matches = list(pattern.finditer(body)) if _has_arguments(path)(body) else []
            if matches:
                lines[number] = body[: matches[-1].start()] + body[matches[-1].end() :] + end
                break
    return "".join(lines)


def _has_arguments(path: str) -> Callable[[str], bool]:
    if is_entry(path):
        return lambda line: bool(_OPTIONS.match(line))
    return lambda line: bool(line.strip()) and not line.lstrip().startswith("#")


def _split(line: str) -> Tuple[str, str]:
    body = line.rstrip("\r\n")
    return body, line[len(body) :]


def unmet(words: Sequence[str], arguments: Sequence[str]) -> List[str]:
    """Those of ``arguments`` that a kernel with this command line doesn't have."""
    return [argument for argument in arguments if not holds(words, argument)]


def differing(shown: Mapping[str, Optional[str]], values: Mapping[str, str]) -> List[str]:
    """Names in ``values`` whose parameter is shown with another value; None: it isn't there, which tells nothing."""
    pairs = ((key, shown.get(key)) for key in sorted(values))
    return [key for key, text in pairs if text is not None and not same_value(text, values[key])]


def grub_lines(config: str, release: str) -> List[List[str]]:
    """The arguments of each entry that update-grub makes for kernel ``release``; without such, for every kernel.

    Entries for recovery are left out, and where update-grub's entries have ids, so are those of other writers.
    """
    entries = [entry for entry in bls.menu_entries(config) if entry.release and not entry.recovery]
    entries = [entry for entry in entries if entry.is_made] or entries
    return [list(entry.words) for entry in entries if entry.release == release] or [list(e.words) for e in entries]
