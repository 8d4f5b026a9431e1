"""Words for people: lists, aligned tables, and text that can't drive a terminal."""

from __future__ import annotations

import re
from typing import Any, Iterable, List, Match, Sequence


def first_few(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` of ``words``, and how many more there are."""
    rest = len(words) - most
    gap = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{gap}and {rest} more" if rest > 0 else "")


def span(seconds: float) -> str:
    """Seconds in words: ``8 s``, ``12 min``, ``1 h 05 min``, ``2 d 3 h``."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def count(number: int, noun: str) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


#: Control, format (bidirectional ones too) and separator characters, and surrogates; not line ends and tabs.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u2064\u2066-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def printable(text: str) -> str:
    """``text`` with its hidden characters as JSON writes them (``\\u001b``): JSON stays the same document."""
    return HIDDEN.sub(_escaped, text)


def line(text: str) -> str:
    """The same in one line: spaces stand for line ends and tabs."""
    return printable(re.sub("[\n\t]", " ", text))


def _escaped(match: Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4))


class Printable:
    """A text stream on which everything that is written is printable; for the rest, the stream that it wraps."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``; returns the number of characters that it had."""
        self._stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of ``lines``."""
        for text in lines:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> List[str]:
    """A line for each row.  All rows have the same number of cells; ``indent`` is put before each line."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [(indent + "  ".join(c.ljust(w) for c, w in zip(row, widths))).rstrip() for row in rows]
