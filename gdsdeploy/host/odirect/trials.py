"""Does each kind of direct I/O once, and looks into the page cache before and after.

Reads start with an empty cache: the read used the pages that are there afterwards.  For writes that isn't enough: a
filesystem may write through the cache and drop the pages (Btrfs with checksums does).  So one page of the written part
is mapped and cached before: direct I/O has to remove it, while a write through the cache leaves it there, and dropping
skips mapped pages.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, Optional

from .cache import Cache, cache_of, drop
from .scratch import reopened, scratch
from .syscalls import preallocate

#: Results of one piece of direct I/O.
BYPASSED = "bypassed"
BUFFERED = "buffered"
#: written through the cache, and dropped from it afterwards
FELL_BACK = "fell back"
REFUSED = "refused"
#: other bytes came back
WRONG = "wrong data"
NOT_PROVEN = "not proven"

PAGE = mmap.PAGESIZE
#: One piece of I/O; a write has one of its pages mapped.
PIECE = max(16 * 1024, 2 * PAGE)
#: Neither a multiple of any block size nor of a pointer's.
ODD = 100
TINY = 60
#: Errors with which a mount can't take part at all.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class NoDirectError(Exception):
    """The filesystem refuses O_DIRECT when the file is opened; the message is the error's name."""


@dataclass
class Desk:
    """The scratch file and its state; ``size``: its current bytes; ``naming``: see scratch.py."""

    plain: int
    direct: int
    cache: Optional[Cache]
    naming: str
    size: int = 0
    results: Dict[str, Dict[str, Any]] = field(default_factory=dict)

    def record(self, name: str, result: str, **details: Any) -> None:
        self.results[name] = {"result": result, **details}

    def refuse(self, name: str, error: OSError) -> None:
        self.record(name, REFUSED, error=_errno_name(error))


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))


@contextmanager
def buffer(length: int, shift: int = 0) -> Iterator[memoryview]:
    """Memory that begins at a page, or ``shift`` bytes beyond."""
    with mmap.mmap(-1, length + PAGE) as memory, memoryview(memory) as view, view[shift : shift + length] as part:
        yield part


def pattern(offset: int, length: int, seed: int) -> bytes:
    """Bytes that differ from place to place and from trial to trial."""
    words = range(offset // 8, (offset + length) // 8 + 1)
    text = b"".join((word * 2654435761 + seed * 40503 & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for word in words)
    return text[offset % 8 : offset % 8 + length]


def read(desk: Desk, name: str, offset: int, length: int, expected: bytes, shift: int = 0) -> None:
    """One direct read of data that the buffered descriptor wrote."""
    cold = desk.cache is not None and desk.cache.empty(desk.size)
    with buffer(length, shift) as memory:
        try:
            size = os.preadv(desk.direct, [memory], offset)
        except OSError as error:
            desk.refuse(name, error)
            return
        right = bytes(memory[:size]) == expected
    if not right:
        desk.record(name, WRONG)
    elif desk.cache is None:
        desk.record(name, NOT_PROVEN)
    else:
        pages = desk.cache.pages(0, desk.size)
        if cold:
            desk.record(name, BUFFERED if pages else BYPASSED, pages=pages)
        else:
            desk.record(name, NOT_PROVEN if desk.cache.can_be_emptied else BUFFERED, pages=pages)


def write(desk: Desk, name: str, offset: int, length: int, shift: int = 0) -> None:
    """One direct write; its first whole page that is in the file is mapped and cached before."""
    anchor = -(-offset // PAGE) * PAGE
    data = pattern(offset, length, len(desk.results) + 1)
    cold = desk.cache is not None and desk.cache.empty(desk.size)
    with mmap.mmap(desk.plain, 0, access=mmap.ACCESS_READ) as mapped, buffer(length, shift) as memory:
        memory[:] = data
        touched = mapped[anchor] if anchor < desk.size else None
        is_cached = touched is not None and desk.cache is not None and desk.cache.pages(anchor, 1) > 0
        try:
            done = os.pwritev(desk.direct, [memory], offset)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            desk.refuse(name, error)
            return
        desk.size = max(desk.size, offset + done)
        stayed = desk.cache.pages(anchor, 1) if desk.cache is not None else 0
        end = offset + length
        rest = desk.cache.pages(anchor + PAGE, end - anchor - PAGE) if desk.cache is not None else 0
    pages = stayed + rest
    if os.pread(desk.plain, length, offset) != data:
        desk.record(name, WRONG)
    elif desk.cache is None:
        desk.record(name, NOT_PROVEN)
    elif not desk.cache.can_be_emptied:
        desk.record(name, BUFFERED, pages=pages)
    elif not is_cached:
        desk.record(name, BUFFERED if pages and cold else NOT_PROVEN, pages=pages)
    else:
        desk.record(name, BUFFERED if rest else FELL_BACK if stayed else BYPASSED, pages=pages)


@contextmanager
def desk_in(folder: str, content: bytes) -> Iterator[Desk]:
    """A scratch file that holds ``content``, with its cache.  Raises OSError and NoDirectError."""
    with scratch(folder) as (plain, naming):
        os.pwrite(plain, content, 0)
        drop(plain)
        try:
            direct = reopened(plain, os.O_DIRECT)
        except OSError as error:
            raise NoDirectError(_errno_name(error)) from None
        try:
            yield Desk(plain, direct, cache_of(plain, len(content)), naming, len(content))
        finally:
            os.close(direct)


def ordinary(desk: Desk, content: bytes) -> None:
    """Reads and writes within a file, and beyond its end."""
    second = PIECE
    read(desk, "read", second, PIECE, content[second : 2 * PIECE])
    read(desk, "read, unaligned offset", second + ODD, PIECE, content[second + ODD : second + ODD + PIECE])
    read(desk, "read, unaligned length", second, PIECE - ODD, content[second : 2 * PIECE - ODD])
    read(desk, "read, unaligned memory", second, PIECE, content[second : 2 * PIECE], shift=1)
    write(desk, "overwrite", 0, PIECE)
    write(desk, "overwrite, unaligned offset", ODD, PIECE)
    write(desk, "overwrite, unaligned length", second, PIECE - ODD)
    write(desk, "overwrite, unaligned memory", second, PIECE, shift=1)
    end = -(-desk.size // PAGE) * PAGE
    write(desk, "extending write", end - PAGE, PIECE)
    hole = -(-desk.size // PIECE) * PIECE + PIECE
    os.ftruncate(desk.plain, hole + 2 * PIECE)
    desk.size = hole + 2 * PIECE
    write(desk, "write into a hole", hole, PIECE)
    try:
        preallocate(desk.plain, desk.size, PIECE)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        desk.record("write into preallocated space", NOT_PROVEN, error="fallocate: " + _errno_name(error))
        return
    begin, desk.size = desk.size, desk.size + PIECE
    write(desk, "write into preallocated space", begin, PIECE)


def tiny(desk: Desk, content: bytes) -> None:
    """A file so small that its data may lie beside its name."""
    read(desk, "read of a tiny file", 0, PAGE, content)
    write(desk, "write to a tiny file", 0, PAGE)


#: (bytes of the file, its trials)
FILES = ((4 * PIECE, ordinary), (TINY, tiny))


def run(folder: str, inspect: Callable[[Desk], None]) -> Dict[str, Dict[str, Any]]:
    """Every trial, by name; ``inspect`` gets each file before its trials.  Raises as ``desk_in`` does."""
    results: Dict[str, Dict[str, Any]] = {}
    for length, work in FILES:
        content = pattern(0, length, 0)
        with desk_in(folder, content) as desk:
            inspect(desk)
            work(desk, content)
            results.update(desk.results)
    return results
