"""How rpm orders versions; the controller and the host program share it.  For dpkg, see model/version_rules.py."""

from __future__ import annotations

import re
from functools import lru_cache, total_ordering
from itertools import zip_longest

_END, _CARET, _LETTERS, _NUMBER = 0, 1, 2, 3
#: The last hyphen begins the release; versions of packages have none, those in relations may.
_EVR = re.compile(r"^(?:([0-9]+):)?([^\s:-]+(?:-[^\s:-]+)*?)(?:-([^\s:-]+))?$")
#: What rpm compares, one after the other; everything else only separates.
_SEGMENT = re.compile(r"[0-9]+|[A-Za-z]+|[~^]")


@total_ordering
class Evr:
    """Epoch, version and release, ordered as rpm orders packages."""

    __slots__ = ("epoch", "release", "version")

    def __init__(self, epoch: int, version: str, release: str) -> None:
        self.epoch = epoch
        self.version = version
        self.release = release

    def compare(self, other: Evr, *, release: bool = True) -> int:
        """Negative, zero or positive; a missing release sorts before every other.  release: whether it counts."""
        order = self.epoch - other.epoch or vercmp(self.version, other.version)
        if order or not release:
            return order
        missing = bool(self.release) - bool(other.release)
        return missing or vercmp(self.release, other.release)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Evr) and self.compare(other) == 0

    def __lt__(self, other: Evr) -> bool:
        return self.compare(other) < 0

    # Equal versions may be spelled differently (1.0 and 1.00), so that only the epoch is sure to be the same.
    def __hash__(self) -> int:
        return hash(self.epoch)


@lru_cache(maxsize=65536)
def rpm(version: str) -> Evr:
    """A sort key with rpm's order for ``[EPOCH:]VERSION[-RELEASE]``; raises ValueError for other text."""
    match = _EVR.match(version)
    if match is None:
        raise ValueError(f"not an rpm version: {version!r}")
    return Evr(int(match[1] or 0), match[2], match[3] or "")


def vercmp(one: str, other: str) -> int:
    """Compare two version or release strings as rpm's rpmvercmp does: -1, 0 or 1.

    Numbers by value and before letters; ``~`` sorts before everything, even the end; ``^`` after the end only.
    """
    for a, b in zip_longest(_SEGMENT.findall(one), _SEGMENT.findall(other), fillvalue=""):
        if a == b:
            continue
        rank_a, rank_b = _rank(a), _rank(b)
        if rank_a != rank_b:
            return 1 if rank_a > rank_b else -1
        key_a, key_b = (int(a), int(b)) if rank_a == _NUMBER else (a, b)
        if key_a != key_b:
            return 1 if key_a > key_b else -1  # type: ignore[operator]
    return 0


def _rank(segment: str) -> int:
    if segment == "~":
        return -1
    if segment == "":
        return _END
    if segment == "^":
        return _CARET
    return _NUMBER if segment.isdigit() else _LETTERS
