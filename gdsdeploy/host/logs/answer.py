"""What a text shows: causes in order, harmless lines, unknown ones, and the path that the text itself names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from .parts import Line, Part
from .setting import Setting

#: How sure a cause is: a line names it; a line has it as its most usual cause; a line has it as one of several.
SHOWN, LIKELY, POSSIBLE = "shown", "likely", "possible"
CERTAINTIES = (SHOWN, LIKELY, POSSIBLE)
#: What the text says about the path of I/O.
DIRECT, COMPAT, BROKEN, UNKNOWN = "direct", "compat", "broken", "unknown"
PATHS = (DIRECT, COMPAT, BROKEN, UNKNOWN)


@dataclass(frozen=True)
class Quote:
    """A line, what it means, and how often the text has lines of the same kind."""

    line: Line
    means: str
    count: int = 1


@dataclass(frozen=True)
class CauseFound:
    """A cause, with the lines that show it."""

    #: a row of data/causes.json, ``compat.`` and a compatibility rule, ``kernel.`` and a kernel message, or
    #: ``cufile.`` and an error code
    id: str
    title: str
    quotes: Tuple[Quote, ...]
    fix: str
    reference: str
    certainty: str
    #: one command that decides whether it is this cause; may be empty
    decide: str = ""
    rank: int = 500
    #: as in KnownCause
    path: str = ""


@dataclass(frozen=True)
class Answer:
    """What all files together show."""

    parts: Tuple[Part, ...]
    setting: Setting
    #: the root cause first, possible ones last
    causes: Tuple[CauseFound, ...]
    harmless: Tuple[Quote, ...]
    #: lines of errors without a meaning here; at most judge.UNKNOWN_LINES
    unknown: Tuple[Quote, ...]
    #: what one command would decide, or what to add; empty where nothing is open
    decide: str
    #: one of PATHS
    path: str
    #: verdicts on reports of gdscheck, and their warnings
    remarks: Tuple[str, ...] = ()
    #: lines with a meaning that decide nothing
    notes: Tuple[Quote, ...] = ()

    @property
    def recognised(self) -> bool:
        """Whether anything in the text was recognised."""
        return bool(self.causes or self.harmless or self.notes or any(part.kind != "other" for part in self.parts))
