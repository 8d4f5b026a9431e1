"""System calls that Python's os module doesn't have: cachestat, mincore, statx and fallocate, through the C library.

Numbers and layouts are those of the kernel's headers (linux/mman.h, linux/stat.h, asm/unistd.h), which are equal on
x86_64 and aarch64 except for statx's number.  The C library has statx since glibc 2.28.
Each function raises OSError as the call reports it; ENOSYS where the kernel or the C library doesn't have it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from dataclasses import dataclass
from typing import Any, Optional, Tuple

_CACHESTAT = 451
_STATX = {"x86_64": 332, "aarch64": 291}
_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000
_STATX_DIO_READ_ALIGN = 0x20000

_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Cachestat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")]


class _Statx(ctypes.Structure):
    """struct statx, 256 bytes; the names with an underscore aren't used."""

    _fields_ = [
        ("mask", ctypes.c_uint32),
        ("_to_mount_id", ctypes.c_uint8 * 140),
        ("mount_id", ctypes.c_uint64),
        ("memory_alignment", ctypes.c_uint32),
        ("offset_alignment", ctypes.c_uint32),
        ("_subvolume", ctypes.c_uint64),
        ("_atomic", ctypes.c_uint32 * 4),
        ("read_alignment", ctypes.c_uint32),
        ("_spare", ctypes.c_uint8 * 68),
    ]


@dataclass(frozen=True)
class Alignment:
    """The alignment that direct I/O on a file needs, in bytes; (0, 0): the file takes no direct I/O.

    ``read``: of the offsets of reads, where the kernel reports it separately (6.14 and later).
    """

    memory: int
    offset: int
    read: Optional[int]


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def cachestat(descriptor: int, offset: int, length: int) -> int:
    """How many pages of that part of a file are in the page cache; since Linux 6.5."""
    part, counts = _Range(offset, length), _Cachestat()
    _check(_libc.syscall(_CACHESTAT, descriptor, ctypes.byref(part), ctypes.byref(counts), 0))
    return int(counts.cache)


def mincore(descriptor: int, offset: int, length: int) -> int:
    """Like cachestat, by the call mincore, whose answer is valid for files that this user may write."""
    page = mmap.PAGESIZE
    begin = offset // page * page
    size = min(offset + length, os.fstat(descriptor).st_size) - begin
    if size <= 0:
        return 0
    pages = (size + page - 1) // page
    with mmap.mmap(descriptor, size, offset=begin, access=mmap.ACCESS_WRITE) as mapped:
        anchor = ctypes.c_char.from_buffer(mapped)
        try:
            vector = (ctypes.c_ubyte * pages)()
            _check(_libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size), vector))
        finally:
            # A mapping with a live pointer into it can't be closed.
            del anchor
    return sum(flags & 1 for flags in vector)


def nowait(descriptor: int, offset: int, length: int) -> int:
    """Like cachestat, by reads that succeed only from the page cache (RWF_NOWAIT, since Linux 4.14)."""
    pages, byte = 0, bytearray(1)
    # Backwards: a miss makes the kernel read ahead, and a quick disk delivers the next pages before their turn.
    for place in reversed(range(offset, offset + length, mmap.PAGESIZE)):
        with contextlib.suppress(BlockingIOError):
            pages += os.preadv(descriptor, [byte], place, os.RWF_NOWAIT)
    return pages


def direct_alignment(descriptor: int) -> Optional[Alignment]:
    """The kernel's alignment for direct I/O on this file (STATX_DIOALIGN, since Linux 6.1); None: it reports none."""
    status = _Statx()
    mask = ctypes.c_uint(_STATX_DIOALIGN | _STATX_DIO_READ_ALIGN)
    call, first = _statx()
    _check(call(*first, descriptor, b"", _AT_EMPTY_PATH, mask, ctypes.byref(status)))
    if not status.mask & _STATX_DIOALIGN:
        return None
    read = int(status.read_alignment) if status.mask & _STATX_DIO_READ_ALIGN else None
    return Alignment(int(status.memory_alignment), int(status.offset_alignment), read)


def _statx() -> Tuple[Any, Tuple[Any, ...]]:
    if hasattr(_libc, "statx"):
        return _libc.statx, ()
    number = _STATX.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return _libc.syscall, (ctypes.c_long(number),)


def preallocate(descriptor: int, offset: int, length: int) -> None:
    """Reserve space without writing to it, beyond the file's end as well (fallocate(2))."""
    _check(_libc.fallocate(descriptor, 0, ctypes.c_long(offset), ctypes.c_long(length)))
