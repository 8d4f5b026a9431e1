"""Text for a terminal: what hosts, files and programs say is shown there, and never obeyed."""

from __future__ import annotations

import re
from typing import Any, Iterable, Match

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
