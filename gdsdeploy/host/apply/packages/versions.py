"""How rpm orders versions; the controller and the host program share it.  For dpkg, see model/version_rules.py."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, Tuple, Union

#: The last hyphen begins the release; versions of packages have none, those in relations may.
_EVR = re.compile(r"^(?:([0-9]+):)?([^\s:-]+(?:-[^\s:-]+)*?)(?:-([^\s:-]+))?$")
#: What rpm compares, one after the other; everything else only separates.
_SEGMENT = re.compile(r"[0-9]+|[A-Za-z]+|[~^]")
#: What sorts before all else, even the end of a text; the end; what sorts after nothing but the end; letters; numbers.
_TILDE, _END, _CARET, _LETTERS, _NUMBER = range(5)
Segments = Tuple[Tuple[int, Union[int, str]], ...]


class Evr(NamedTuple):
    """Epoch, version and release, which sort as rpm sorts packages; without a release, that is empty."""

    epoch: int
    version: Segments
    release: Segments


@lru_cache(maxsize=65536)
def rpm(version: str) -> Evr:
    """A sort key with rpm's order for ``[EPOCH:]VERSION[-RELEASE]``; raises ValueError for other text."""
    match = _EVR.match(version)
    if match is None:
        raise ValueError(f"not an rpm version: {version!r}")
    return Evr(int(match[1] or 0), segments(match[2]), segments(match[3]) if match[3] else ())


def segments(text: str) -> Segments:
    """A sort key with the order of rpm's rpmvercmp for a version or a release: numbers sort by value."""
    return (*map(_segment, _SEGMENT.findall(text)), (_END, ""))


def _segment(word: str) -> Tuple[int, Union[int, str]]:
    if word.isdigit():
        return _NUMBER, int(word)
    return {"~": _TILDE, "^": _CARET}.get(word, _LETTERS), word
