"""What a text shows: causes in order, harmless lines, unknown ones, and the path that the text itself names.

An answer as a JSON object.

An answer for a terminal: the causes first, then what one command decides, then what was read.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple

from ..io.wording import joined
from ..io.wording import line as one_line
from .parts import OTHER, Line, Part, Setting

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


VERSION = 1


def as_document(answer: Answer) -> Dict[str, Any]:
    """``{"version", "path", "causes", "decide", "harmless", "notes", "unknown", "setting", "parts", "remarks"}``."""
    return {
        "version": VERSION,
        "path": answer.path,
        "causes": [_cause_row(cause) for cause in answer.causes],
        "decide": answer.decide or None,
        "harmless": [_quote_row(quote) for quote in answer.harmless],
        "notes": [_quote_row(quote) for quote in answer.notes],
        "unknown": [_quote_row(quote) for quote in answer.unknown],
        "setting": {
            subject: [{"value": value, "line": line.place, "text": line.text} for value, line in values.items()]
            for subject, values in answer.setting.shown.items()
        },
        "parts": [
            {"kind": part.kind, "file": part.file, "first": part.lines[0].number, "lines": len(part.lines)}
            for part in answer.parts
        ],
        "remarks": list(answer.remarks),
    }


def _cause_row(cause: CauseFound) -> Dict[str, Any]:
    return {
        "id": cause.id,
        "title": cause.title,
        "certainty": cause.certainty,
        "lines": [_quote_row(quote) for quote in cause.quotes],
        "fix": cause.fix,
        "reference": cause.reference,
        "decide": cause.decide or None,
        "path": cause.path or None,
    }


def _quote_row(quote: Quote) -> Dict[str, Any]:
    return {
        "file": quote.line.file,
        "line": quote.line.number,
        "text": quote.line.text,
        "means": quote.means or None,
        "count": quote.count,
    }


WIDTH = 100
#: Most characters quoted of a line.
QUOTED = 300
_PATHS = {
    "direct": "by this text, I/O takes a direct path",
    "compat": "by this text, I/O goes through CPU memory (compat mode)",
    "broken": "by this text, cuFile calls fail",
    "unknown": "",
}


def render(answer: Answer) -> str:
    """Lines of at most WIDTH characters, except for quotes and longer words."""
    lines: List[str] = []
    sure = [cause for cause in answer.causes if cause.certainty != POSSIBLE]
    possible = [cause for cause in answer.causes if cause.certainty == POSSIBLE]
    for number, cause in enumerate(sure, 1):
        lines += [*_cause(cause, f"{number}. "), ""]
    if not sure:
        lines += ["No line shows a cause." if answer.recognised else "Nothing in this text is known here.", ""]
    if possible:
        lines += ["Possible, but not shown:"]
        lines += [text for cause in possible for text in _cause(cause, "   ")] + [""]
    if answer.decide:
        lines += ["To decide, run:", *_wrapped(answer.decide, "   "), ""]
    if answer.unknown:
        lines += ["Errors without a known meaning:", *(text for quote in answer.unknown for text in _quote(quote)), ""]
    if answer.notes:
        lines += ["Also said:", *(text for quote in answer.notes for text in _quote(quote)), ""]
    if answer.harmless:
        lines += ["Harmless:", *(text for quote in answer.harmless for text in _quote(quote)), ""]
    return joined([*lines, *_read(answer)])


def _cause(cause: CauseFound, first: str) -> Iterator[str]:
    how = f" ({cause.certainty})" if cause.certainty == LIKELY else ""
    yield from _wrapped(f"{cause.title}{how} [{cause.id}]", first)
    for quote in cause.quotes:
        yield from _quote(quote)
    yield from _wrapped(cause.fix, "   do    ")
    yield from _wrapped(cause.reference, "   read  ")


def _quote(quote: Quote) -> Iterator[str]:
    count = f" ({quote.count} such lines)" if quote.count > 1 else ""
    yield f"   {one_line(quote.line.place)}: {one_line(quote.line.text[:QUOTED])}{count}"
    if quote.means:
        yield from _wrapped(quote.means, "      = ")


def _read(answer: Answer) -> Iterator[str]:
    if _PATHS[answer.path]:
        yield from _wrapped(_PATHS[answer.path], "Path: ")
    for remark in answer.remarks[:10]:
        yield from _wrapped(remark, "Note: ")
    shown = "; ".join(
        "{} {}".format(subject, " or ".join(values)) for subject, values in sorted(answer.setting.shown.items())
    )
    if shown:
        yield from _wrapped(shown, "Shown: ")
    kinds: Dict[str, int] = {}
    for part in answer.parts:
        kinds[part.kind] = kinds.get(part.kind, 0) + len(part.lines)
    counted = ", ".join(
        f"{kind} ({number} line{'' if number == 1 else 's'})" for kind, number in kinds.items() if kind != OTHER
    )
    yield from _wrapped(counted or "no part of a known kind", "Read: ")


def _wrapped(text: str, first: str) -> List[str]:
    indent = " " * max(4, len(first))
    wrapper = textwrap.TextWrapper(WIDTH, first, indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(one_line(text)) or [first.rstrip()]
