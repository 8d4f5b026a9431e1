"""Each kind of direct I/O done once, with a look at the page cache before and after.

Reads begin with an empty cache: pages that are there afterwards were used.  For writes that is not enough, because a
filesystem may write through the cache and drop the pages (Btrfs with checksums does).  So one page of the written part
is mapped and in the cache before: direct I/O has to throw it out, while a write through the cache leaves it there, and
dropping passes over mapped pages.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional

from .cache import Cache, cache_of, drop
from .scratch import reopened, scratch
from .syscalls import preallocate

#: What became of one piece of direct I/O.
BYPASSED = "bypassed"
BUFFERED = "buffered"
#: written through the cache, and dropped from it afterwards
FELL_BACK = "fell back"
REFUSED = "refused"
#: other bytes came back
WRONG = "wrong data"
NOT_PROVEN = "not proven"

PAGE = mmap.PAGESIZE
#: One piece of I/O, a page of which is mapped where something is written.
PIECE = max(16 * 1024, 2 * PAGE)
#: Neither a multiple of any block size nor of a pointer's.
ODD = 100
TINY = 60
#: Why a mount cannot take part at all.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class NoDirectError(Exception):
    """The filesystem refuses O_DIRECT when the file is opened; the message is the error's name."""


@dataclass
class Desk:
    """The scratch file and what is known of it; ``size``: its bytes by now; ``kept``: see scratch.py."""

    plain: int
    direct: int
    cache: Optional[Cache]
    kept: str
    size: int = 0
    results: Dict[str, Dict[str, Any]] = field(default_factory=dict)


@contextmanager
def buffer(length: int, shift: int = 0) -> Iterator[memoryview]:
    """Memory that begins at a page, or ``shift`` bytes beyond."""
    with mmap.mmap(-1, length + PAGE) as memory:
        view = memoryview(memory)
        part = view[shift : shift + length]
        try:
            yield part
        finally:
            part.release()
            view.release()


def pattern(offset: int, length: int, seed: int) -> bytes:
    """Bytes that differ from place to place and from trial to trial."""
    words = range(offset // 8, (offset + length) // 8 + 1)
    text = b"".join((item * 2654435761 + seed * 40503 & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for item in words)
    return text[offset % 8 : offset % 8 + length]


def read(desk: Desk, name: str, offset: int, length: int, expected: bytes, shift: int = 0) -> None:
    """One direct read of what the buffered descriptor wrote."""
    cold = desk.cache is not None and desk.cache.empty(desk.size)
    with buffer(length, shift) as memory:
        try:
            got = os.preadv(desk.direct, [memory], offset)
        except OSError as error:
            _refused(desk, name, error)
            return
        right = bytes(memory[:got]) == expected
    if not right:
        desk.results[name] = {"result": WRONG}
    elif desk.cache is None:
        desk.results[name] = {"result": NOT_PROVEN}
    elif not cold:
        _judged(desk, name, BUFFERED if not desk.cache.can_be_emptied else NOT_PROVEN, desk.cache.pages(0, desk.size))
    else:
        pages = desk.cache.pages(0, desk.size)
        _judged(desk, name, BUFFERED if pages else BYPASSED, pages)


def write(desk: Desk, name: str, offset: int, length: int, shift: int = 0) -> None:
    """One direct write; its first whole page that is in the file is mapped and cached before."""
    anchor = -(-offset // PAGE) * PAGE
    data = pattern(offset, length, len(desk.results) + 1)
    cold = desk.cache is not None and desk.cache.empty(desk.size)
    with mmap.mmap(desk.plain, 0, access=mmap.ACCESS_READ) as mapped, buffer(length, shift) as memory:
        memory[:] = data
        touched = mapped[anchor] if anchor < desk.size else None
        held = touched is not None and desk.cache is not None and desk.cache.pages(anchor, 1) > 0
        try:
            done = os.pwritev(desk.direct, [memory], offset)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            _refused(desk, name, error)
            return
        desk.size = max(desk.size, offset + done)
        stayed = desk.cache.pages(anchor, 1) if desk.cache is not None else 0
        end = offset + length
        rest = desk.cache.pages(anchor + PAGE, end - anchor - PAGE) if desk.cache is not None else 0
    if os.pread(desk.plain, length, offset) != data:
        desk.results[name] = {"result": WRONG}
    elif desk.cache is None:
        desk.results[name] = {"result": NOT_PROVEN}
    elif not desk.cache.can_be_emptied:
        _judged(desk, name, BUFFERED, stayed + rest)
    elif not held:
        _judged(desk, name, BUFFERED if stayed + rest and cold else NOT_PROVEN, stayed + rest)
    else:
        result = BUFFERED if rest else FELL_BACK if stayed else BYPASSED
        _judged(desk, name, result, stayed + rest)


def _judged(desk: Desk, name: str, result: str, pages: int) -> None:
    desk.results[name] = {"result": result, "pages": pages}


def _refused(desk: Desk, name: str, error: OSError) -> None:
    desk.results[name] = {"result": REFUSED, "error": errno.errorcode.get(error.errno or 0, str(error))}


@contextmanager
def desk_in(folder: str, content: bytes) -> Iterator[Desk]:
    """A scratch file that holds ``content``, with its cache.  Raises OSError and NoDirectError."""
    with scratch(folder) as (plain, kept):
        os.pwrite(plain, content, 0)
        drop(plain)
        try:
            direct = reopened(plain, os.O_DIRECT)
        except OSError as error:
            raise NoDirectError(errno.errorcode.get(error.errno or 0, str(error))) from None
        try:
            yield Desk(plain, direct, cache_of(plain, len(content)), kept, len(content))
        finally:
            os.close(direct)


def ordinary(desk: Desk, content: bytes) -> None:
    """Reads and writes within a file, and beyond what it has."""
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
        desk.results["write into preallocated space"] = {
            "result": NOT_PROVEN,
            "error": "fallocate: " + errno.errorcode.get(error.errno or 0, str(error)),
        }
        return
    begin, desk.size = desk.size, desk.size + PIECE
    write(desk, "write into preallocated space", begin, PIECE)


def tiny(desk: Desk, content: bytes) -> None:
    """A file so small that its data may lie beside its name."""
    read(desk, "read of a tiny file", 0, PAGE, content)
    write(desk, "write to a tiny file", 0, PAGE)


#: (bytes of the file, what is done with it)
FILES = ((4 * PIECE, ordinary), (TINY, tiny))


def run(folder: str, see: Callable[[Desk], None]) -> Dict[str, Dict[str, Any]]:
    """Every trial, by name; ``see`` looks at each file before its trials.  Raises as ``desk_in`` does."""
    results: Dict[str, Dict[str, Any]] = {}
    steps: List[Any] = list(FILES)
    for length, work in steps:
        content = pattern(0, length, 0)
        with desk_in(folder, content) as desk:
            see(desk)
            try:
                work(desk, content)
            finally:
                results.update(desk.results)
    return results
