"""An answer for a terminal: the causes first, then what one command decides, then what was read."""

from __future__ import annotations

import textwrap
from typing import Dict, Iterator, List

from ..io.wording import joined
from ..io.wording import line as one_line
from .answer import LIKELY, POSSIBLE, Answer, CauseFound, Quote
from .parts import OTHER

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
