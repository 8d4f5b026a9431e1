"""Looks into the page cache: which pages of a file are in CPU memory.

An instrument has to prove on the file itself that it works: it must see data that was just read through the cache.
Otherwise it looks elsewhere (cachestat on overlay does), and the next one is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, Dict, Optional

from .syscalls import cachestat, mincore, nowait

#: Name → function of (descriptor, offset, length) that counts pages in the cache; in the order of preference.
INSTRUMENTS: Dict[str, Callable[[int, int, int], int]] = {
    "cachestat": cachestat,
    "mincore": mincore,
    "preadv2 RWF_NOWAIT": nowait,
}
#: A journal or a background writer may hold pages once more.
_ATTEMPTS = 4


@dataclass(frozen=True)
class Cache:
    """The page cache of one file, seen with one instrument."""

    descriptor: int
    instrument: str
    #: whether pages leave the cache when they are written back and dropped
    can_be_emptied: bool

    def pages(self, offset: int, length: int) -> int:
        """How many pages of that part are in the cache."""
        return INSTRUMENTS[self.instrument](self.descriptor, offset, length) if length > 0 else 0

    def empty(self, length: int) -> bool:
        """Write back and drop the first ``length`` bytes; whether all of them left the cache."""
        for _ in range(_ATTEMPTS):
            drop(self.descriptor)
            if not self.pages(0, length):
                return True
        return False


def drop(descriptor: int) -> None:
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def cache_of(descriptor: int, length: int) -> Optional[Cache]:
    """The cache of a file of ``length`` bytes, with the first instrument that works on it; None if none does."""
    for name, count in INSTRUMENTS.items():
        os.pread(descriptor, length, 0)
        try:
            if count(descriptor, 0, length):
                return Cache(descriptor, name, Cache(descriptor, name, False).empty(length))
        except (OSError, AttributeError):
            # The kernel or its sandbox has no such call.
            continue
    return None
