"""The shared memory in which a process keeps libcufile's statistics: a System V segment whose key is its process id.

The key is the id in the process's own namespace of process ids, and the segment is in its namespace of IPC.  Everyone
may read it, and every user may make a segment with any key: so only the segment that the process itself has mapped, and
has created, is its own.  Nothing here changes a segment, except ``remove``.
"""

from __future__ import annotations

import os
import struct
import threading
from functools import lru_cache
from typing import Any, Callable, List, NamedTuple, Tuple, TypeVar

T = TypeVar("T")
#: linux/shm.h, linux/ipc.h, linux/sched.h
_SHM_RDONLY, _IPC_RMID, _IPC_STAT, _CLONE_NEWIPC = 0o10000, 0, 2, 0x08000000
#: struct shmid_ds of 64-bit Linux: key, uid, gid, cuid, cgid; size, atime, dtime, ctime; cpid, lpid, nattch.
_PERMISSIONS, _REST = struct.Struct("=iIIII"), struct.Struct("=QqqqiiQ")
_REST_AT, _DS_SIZE = 48, 128
#: Bytes of the largest segment that is read.
LIMIT = 65536


class Segment(NamedTuple):
    """What the kernel knows about a segment."""

    id: int
    key: int
    size: int
    #: process id of its creator, as this program sees it
    creator: int
    #: user id of its creator
    user: int
    #: how many times it is mapped
    attached: int
    #: when it was created, or its owner was changed: seconds since 1970
    changed: int


@lru_cache(maxsize=1)
def _libc() -> Any:
    # Most hosts have no segment to read, and ctypes costs each start some milliseconds.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    return libc


def _check(result: int) -> int:
    if result == -1:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _shared(buffer: bytearray) -> Any:
    import ctypes

    return (ctypes.c_char * len(buffer)).from_buffer(buffer)


def stat(number: int) -> Segment:
    """The segment with this id, in this thread's namespace; raises OSError."""
    buffer = bytearray(_DS_SIZE)
    _check(_libc().shmctl(number, _IPC_STAT, _shared(buffer)))
    key, _uid, _gid, user, _cgid = _PERMISSIONS.unpack_from(buffer)
    size, _atime, _dtime, changed, creator, _last, attached = _REST.unpack_from(buffer, _REST_AT)
    return Segment(number, key, size, creator, user, attached, changed)


def find(key: int) -> int:
    """The id of the segment with this key, in this thread's namespace; raises OSError (ENOENT)."""
    return _check(_libc().shmget(key, 0, 0))


def read(number: int, size: int) -> bytes:
    """The content of a segment; raises OSError."""
    import ctypes

    libc = _libc()
    address = libc.shmat(number, None, _SHM_RDONLY)
    if address is None or address == ctypes.c_void_p(-1).value:
        _check(-1)
    try:
        return ctypes.string_at(address, min(size, LIMIT))
    finally:
        libc.shmdt(ctypes.c_void_p(address))


def remove(number: int) -> None:
    """Remove a segment; raises OSError."""
    _check(_libc().shmctl(number, _IPC_RMID, None))


def within(namespace: str, call: Callable[[], T]) -> T:
    """``call()`` in the IPC namespace that a file of /proc names; raises what it raises, and OSError.

    A thread of its own changes its namespace, and ends.
    """
    results: List[T] = []
    errors: List[OSError] = []

    def enter() -> None:
        try:
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _check(_libc().setns(descriptor, _CLONE_NEWIPC))
            finally:
                os.close(descriptor)
            results.append(call())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def listed(text: str) -> Tuple[Segment, ...]:
    """The segments of the text of /proc/sysvipc/shm; a line that isn't one is left out."""
    lines = text.split("\n")
    names = lines[0].split()
    segments = []
    for line in lines[1:]:
        row = dict(zip(names, line.split()))
        try:
            numbers = [int(row[name]) for name in ("shmid", "key", "size", "cpid", "cuid", "nattch", "ctime")]
        except (KeyError, ValueError):
            continue
        segments.append(Segment(*numbers))
    return tuple(segments)
