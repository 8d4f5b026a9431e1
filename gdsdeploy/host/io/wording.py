"""Words for people: lists, aligned tables, and text of others that stays one line and drives nothing."""

from __future__ import annotations

import re
from typing import Iterable, List, Sequence


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


#: Control, format (bidirectional ones too) and separator characters, surrogates, and what has no width: each line end
#: but ``\n``, and no tab.
HIDDEN = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
#: What CI systems obey in a log: GitHub's ``::name …::`` behind blanks, and ``##[``, ``##vso[`` anywhere in a line.
_COMMAND = r"^(\s*)(:)(?=:[\w-]+(?:[ \t].*)?::)|(#)(?=#\w*\[)"


def printable(text: str) -> str:
    """``text`` with what is hidden or a command as JSON writes it (``\\u001b``): JSON stays the same document."""
    # The patterns aren't even compiled for most texts.
    plain = text.isascii() and text.replace("\n", "").replace("\t", "").isprintable()
    shown = text if plain else re.sub(HIDDEN, lambda match: escaped(match[0]), text)
    if "::" not in shown and "##" not in shown:
        return shown
    return re.sub(_COMMAND, lambda match: (match[1] or "") + escaped(match[2] or match[3]), shown, flags=re.MULTILINE)


def line(text: str) -> str:
    """The same in one line, as every text of a host or a file has to be: spaces stand for line ends and tabs."""
    return printable(text.replace("\n", " ").replace("\t", " "))


def joined(lines: Iterable[str]) -> str:
    """The lines as one text; whatever one of them says, it stays one."""
    return "\n".join(map(line, lines))


def quoted(text: str) -> str:
    """A text of a host that may have several lines: each but the first stands behind a mark."""
    first, *rest = text.splitlines() or [""]
    lines = [each if each.startswith(("  | ", "  - ")) else f"  | {each.strip()}" for each in rest if each.strip()]
    return joined([first, *lines])


def escaped(text: str) -> str:
    """``text`` with every character as JSON can escape it."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4))


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> List[str]:
    """A line for each row.  All rows have the same number of cells; ``indent`` is put before each line."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [(indent + "  ".join(c.ljust(w) for c, w in zip(row, widths))).rstrip() for row in rows]


def wrapped(text: str, first: str, width: int) -> List[str]:
    """Lines of at most ``width`` characters, but for longer words; blanks stand in later ones in place of ``first``."""
    # A look, a check and an apply wrap nothing.
    import textwrap

    indent = " " * max(4, len(first))
    wrapper = textwrap.TextWrapper(width, first, indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(line(text))
