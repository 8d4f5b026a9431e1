"""Does each kind of direct I/O once, and looks into the page cache before and after.

*Trials.*  Reads start with an empty cache: the read used the pages that are there afterwards.  For writes that isn't
enough: a filesystem may write through the cache and drop the pages (Btrfs with checksums does).  So one page of the
written part is mapped and cached before: direct I/O has to remove it, while a write through the cache leaves it there,
and dropping skips mapped pages.

*The page cache.*  mincore has to prove on the file itself that it shows it: it must see data that was just read through
the cache, and must not see what was dropped.

*System calls* that Python's os module doesn't have go through the C library.  Numbers and layouts are those of the
kernel's headers (linux/mman.h, linux/stat.h).  Each raises OSError as the call reports it; ENOSYS where the kernel
doesn't have it.

The audit of one folder as a JSON object, made in its own process and within a time limit.

The object: ``folder``, ``seconds`` and either ``error`` (why nothing could be tried) or

    trials      name → {"result": see trials.py, "pages": used pages of the cache, "error": an errno's name}
    instrument  the call that showed the page cache; null: it doesn't there
    kept        how the scratch file was kept from staying behind
    alignment   {"memory", "offset", "read"} in bytes from the kernel (statx), null where it reports none
    flags       inode flags of a new file there, as in linux/fs.h; null where the filesystem shows none
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional

from ..io.mounts import id_of
from ..io.reading import flags_of
from ..process import TIMED_OUT, apart
from ..subjects.odirect import BUFFERED, BYPASSED, FELL_BACK, NOT_PROVEN, REFUSED, WRONG
from .scratch import reopened, scratch

_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000
_STATX_DIO_READ_ALIGN = 0x20000

_libc = ctypes.CDLL(None, use_errno=True)


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


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def cached_pages(descriptor: int, offset: int, length: int) -> int:
    """How many pages of that part of a file are in the page cache; right for files that this user may write.

    mincore is asked: it is in every kernel, and sees through overlay, where the younger cachestat sees nothing.
    """
    page = mmap.PAGESIZE
    begin = offset // page * page
    size = min(offset + length, os.fstat(descriptor).st_size) - begin
    if size <= 0 or length <= 0:
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


def direct_alignment(descriptor: int) -> Optional[Dict[str, Optional[int]]]:
    """What direct I/O on this file needs, in bytes (STATX_DIOALIGN, since Linux 6.1); None: the kernel reports none.

    ``memory`` and ``offset`` are 0 where the file takes no direct I/O.  ``read``: of the offsets of reads, where the
    kernel reports it separately (6.14 and later).
    """
    status = _Statx()
    mask = ctypes.c_uint(_STATX_DIOALIGN | _STATX_DIO_READ_ALIGN)
    _check(_libc.statx(descriptor, b"", _AT_EMPTY_PATH, mask, ctypes.byref(status)))
    if not status.mask & _STATX_DIOALIGN:
        return None
    read = int(status.read_alignment) if status.mask & _STATX_DIO_READ_ALIGN else None
    return {"memory": int(status.memory_alignment), "offset": int(status.offset_alignment), "read": read}


def preallocate(descriptor: int, offset: int, length: int) -> None:
    """Reserve space without writing to it, beyond the file's end as well (fallocate(2))."""
    _check(_libc.fallocate(descriptor, 0, ctypes.c_long(offset), ctypes.c_long(length)))


#: The call that shows the page cache.
INSTRUMENT = "mincore"
#: A journal or a background writer may hold pages once more.
_ATTEMPTS = 4


class Cache(NamedTuple):
    """The page cache of one file."""

    descriptor: int
    #: whether pages leave the cache when they are written back and dropped
    can_be_emptied: bool

    def pages(self, offset: int, length: int) -> int:
        """How many pages of that part are in the cache."""
        return cached_pages(self.descriptor, offset, length)

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
    """The cache of a file of ``length`` bytes; None where what was just read through it doesn't show in it."""
    os.pread(descriptor, length, 0)
    with contextlib.suppress(OSError):
        if cached_pages(descriptor, 0, length):
            return Cache(descriptor, Cache(descriptor, False).empty(length))
    return None


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
        right = bytes(memory[:size]) == expected[:size]
    if not right:
        desk.record(name, WRONG)
    elif size < len(expected):
        desk.record(name, NOT_PROVEN, error=f"{size} of {len(expected)} bytes came back")
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
        require_whole(done, length)
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


def require_whole(done: int, length: int) -> None:
    """Raise OSError after a short write: without an error, it is that of a filesystem that filled up within it."""
    if done < length:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def desk_in(folder: str, content: bytes) -> Iterator[Desk]:
    """A scratch file that holds ``content``, with its cache.  Raises OSError and NoDirectError."""
    with scratch(folder) as (plain, naming):
        require_whole(os.pwrite(plain, content, 0), len(content))
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


#: The default of seconds for one mount: a slow disk writes its journal some thirty times.
SECONDS = 10.0
#: Name of an errno → its meaning for a file on a mount.
WORDS = {
    "EROFS": "it is mounted read-only",
    "ENOSPC": "it is full",
    "EDQUOT": "the quota there is used up",
    "EACCES": "only a user with write permission there can try it",
    "EPERM": "only a user with write permission there can try it",
    "ENOENT": "no file can be made there",
    "ESTALE": "its server doesn't have it any more",
}


#: Where a mount was covered, unmounted or mounted since the mounts were read.
ANOTHER_MOUNT = "another mount is there now"


def audit(folder: str, seconds: float = SECONDS, mount: str = "") -> Dict[str, Any]:
    """Try direct I/O in ``folder`` for at most ``seconds``; the module describes the result.  Never raises OSError.

    mount: as for in_process.
    """
    begin = time.monotonic()
    result = in_process(_audit, folder, seconds, "the trial", mount)
    return {"folder": folder, "seconds": round(time.monotonic() - begin, 3), **result}


def in_process(
    work: Callable[[str], Dict[str, Any]], folder: str, seconds: float, what: str, mount: str = ""
) -> Dict[str, Any]:
    """The result of ``work`` with ``folder`` in its own process, or {"error": why it has none}.

    what: its name in that error.  mount: the id of the mount that the folder has to lie on, empty for any.
    """

    def run() -> str:
        try:
            if not os.path.isdir(folder):
                return json.dumps(
                    {"error": "it isn't a folder" if os.path.exists(folder) else "there is no such folder"}
                )
            # What is mounted over it from here on doesn't matter.
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if mount and id_of(descriptor) != mount:
                return json.dumps({"error": ANOTHER_MOUNT})
            return json.dumps(work(f"/proc/self/fd/{descriptor}"))
        except OSError as error:
            name = _errno_name(error)
            return json.dumps({"error": f"{WORDS[name]} ({name})" if name in WORDS else name})

    output = apart(run, seconds)
    if output.status == TIMED_OUT:
        return {"error": f"it did not answer within {seconds:g} s"}
    if output.status != 0:
        return {"error": f"{what} ended early: {output.stderr.strip() or output.status}"}
    result: Dict[str, Any] = json.loads(output.stdout)
    return result


def _audit(folder: str) -> Dict[str, Any]:
    trials: Dict[str, Any] = {}
    result: Dict[str, Any] = {"trials": trials}
    try:
        for length, work in FILES:
            content = pattern(0, length, 0)
            with desk_in(folder, content) as desk:
                # The second, tiny file has nothing new.
                if not trials:
                    result["kept"] = desk.naming
                    result["instrument"] = INSTRUMENT if desk.cache else None
                    result["alignment"] = _optional(direct_alignment, desk.direct)
                    result["flags"] = _optional(flags_of, desk.plain)
                work(desk, content)
                trials.update(desk.results)
    except NoDirectError as error:
        return {"trials": {"open": {"result": REFUSED, "error": str(error)}}}
    return result


def _optional(read: Callable[[int], Any], descriptor: int) -> Any:
    """The JSON value that ``read`` returns; None where the system can't tell."""
    try:
        return read(descriptor)
    except OSError:
        return None
