"""The kernel's messages about faults, with their meanings: data/kernel_messages.json."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterable, Iterator, Tuple

from .. import data

NVIDIA, NVIDIA_FS, PEERMEM = "nvidia", "nvidia-fs", "nvidia-peermem"
#: Of a GPU's error: the GPU's PCI address and the number.
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,18})")
#: What the two modules' lines contain, and the kernel's about them.
_ABOUT = {
    NVIDIA: re.compile("NVRM"),
    NVIDIA_FS: re.compile("nvidia[-_]fs|nvfs"),
    PEERMEM: re.compile("peermem|nv_mem"),
}
#: nvidia-fs prints it first whenever it is loaded: what it printed before is over.
_LOADED_AGAIN = "nvidia_fs: Initializing nvfs driver module"


@dataclass(frozen=True)
class Meaning:
    """A row of the table; its schema describes the fields."""

    id: str
    module: str
    pattern: str
    sample: str
    what: str
    cause: str
    fault: bool
    fix: str
    source: str
    loading: bool = False


#: Of an Xid that the table doesn't have.
UNLISTED = Meaning(
    id="xid-unlisted",
    module=NVIDIA,
    pattern="",
    sample="",
    what="a number without an entry in gdsdeploy's table",
    cause="hardware",
    fault=True,
    fix="look the number up in NVIDIA's catalog of Xid errors; until then treat the GPU as faulty",
    source="",
)


@dataclass(frozen=True)
class Message:
    """A line about a fault, or about something that looks like one."""

    line: str
    meaning: Meaning
    #: ``Xid 79 on 0000:3b:00``; empty for other messages
    xid: str = ""

    @property
    def what(self) -> str:
        return f"{self.xid}: {self.meaning.what}" if self.xid else self.meaning.what


@lru_cache(maxsize=1)
def meanings() -> Tuple[Meaning, ...]:
    return data.rows("kernel_messages", Meaning)


def messages(lines: Iterable[str], module: str) -> Iterator[Message]:
    """The lines about faults that ``module`` printed, in their order; nvidia-fs's since it was last loaded."""
    lines = list(lines)
    if module == NVIDIA_FS:
        loads = [place for place, line in enumerate(lines) if _LOADED_AGAIN in line]
        lines = lines[loads[-1] :] if loads else lines
    table = [(re.compile(row.pattern), row) for row in meanings() if row.module == module]
    for line in filter(_ABOUT[module].search, lines):
        xid = XID.search(line) if module == NVIDIA else None
        label = f"Xid {xid.group(2)} on {xid.group(1)}" if xid else ""
        meaning = next((row for pattern, row in table if pattern.search(line)), UNLISTED if xid else None)
        if meaning is not None:
            yield Message(line, meaning, label)
