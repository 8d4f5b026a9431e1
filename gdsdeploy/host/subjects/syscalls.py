"""Bytes that a process moves between files and its own memory by system calls, whichever library makes them.

``/proc/PID/io`` has them: rchar and wchar are the bytes that read and write calls returned, read_bytes what the disk
had to give for them (proc(5)).  They're also those of pipes, of sockets and of /proc.  So they count only where a file
that the process has open on a data mount, or the size of the calls, speaks for it.  Reads by io_uring and by libaio
are in none of the counters of calls (fs/read_write.c counts only its own).

Seen on an H200 (KvikIO 26.10, libcufile 1.15 and 1.20, PyTorch 2.11): cuFile's compat mode reads by pread from a
descriptor for direct I/O, so rchar equals read_bytes; KvikIO's own reads by pread from a buffered one, so read_bytes is
0 for what is cached; PyTorch's files move their position; mapped files (safetensors) count nowhere.  How the reads of
P2PDMA are counted isn't known, so no byte of a process that may use it is taken from here.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..io.mounts import PSEUDO, Row

#: Folders of the system itself; a disk that is mounted below one may hold data.
SYSTEM = (
    *("/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/run/", "/sbin/", "/sys/", "/usr/"),
    *("/var/cache/", "/var/lib/", "/var/log/", "/var/run/"),
)
#: Programs and their libraries, wherever they are.
_CODE = re.compile(r"\.(py[co]?|so[.0-9]*|whl|egg|zip)( \(deleted\))?$")
#: Bytes of the smallest file on / that is data.
LEAST = 1 << 20
#: Descriptors of data files of one process, and paths that are mapped.
FILES_LIMIT, MAPPED_LIMIT = 64, 16
#: Bytes of a pipe, so the most that one read of it gives (pipe(7)).
PIPE = 65536
_IO = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
#: Share of the bytes of system calls by which a position, a disk or cuFile's own counters may differ from them.
TOLERANCE, OTHERWISE = 0.05, 0.1
#: Bytes between two looks that mean nothing: logs and the like.
LITTLE = 1 << 20


class Opened(NamedTuple):
    """A descriptor of a file on a data mount."""

    path: str
    mount: str
    filesystem: str
    #: major:minor of the filesystem
    number: str
    #: as open(2) takes them
    flags: int
    position: int
    descriptor: int

    @property
    def direct(self) -> bool:
        return bool(self.flags & os.O_DIRECT)


class Io(NamedTuple):
    """What a process has moved by system calls since its start, and its data files at that moment."""

    #: seconds of the host's monotonic clock
    at: float
    rchar: int
    wchar: int
    syscr: int
    syscw: int
    read_bytes: int
    write_bytes: int
    files: Tuple[Opened, ...]


class Moved(NamedTuple):
    """Bytes by system calls between two looks, as far as they may be those of data files."""

    read: int
    written: int
    #: whether positions of files, or the disk, account for them
    exact: bool
    #: whether most reads were for direct I/O, as those of cuFile's compat mode are
    direct: bool
    seconds: float


def is_data(path: str, row: Row) -> bool:
    """Whether a file may hold data for a GPU, by its place."""
    if PSEUDO.match(row.filesystem) or row.point == path or _CODE.search(path):
        return False
    return not path.startswith(SYSTEM) or row.point.startswith(SYSTEM)


def read_io(text: str, files: Sequence[Sequence[Any]]) -> Dict[str, Any]:
    """The record of a process's file ``io``.  files: rows of Opened."""
    values = dict(re.findall(r"(?m)^(\w+): (\d+)$", text))
    numbers = [int(values[name]) for name in _IO if name in values]
    return {"at": round(time.monotonic(), 6), "counts": numbers, "files": [list(file) for file in files]}


def from_record(record: Any) -> Optional[Io]:
    """What ``read_io`` gave; None for anything else."""
    try:
        files = tuple(Opened(*file) for file in record["files"])
        result = Io(float(record["at"]), *record["counts"], files)  # type: ignore[call-arg]
    except (TypeError, ValueError, KeyError):
        return None
    kinds = [str, str, str, str, int, int, int]
    right = all(list(map(type, file)) == kinds and min(file[4:]) >= 0 for file in files)
    counts = result[1:7]
    return result if right and all(type(count) is int and 0 <= count < 1 << 64 for count in counts) else None


def moved(now: Optional[Io], before: Optional[Io]) -> Optional[Moved]:
    """Between two looks at the same process; None where one isn't known."""
    if now is None or before is None or now.at <= before.at or now.rchar < before.rchar or now.wchar < before.wchar:
        return None
    read, surely_read = _one(now, before, "r", os.O_WRONLY)
    written, surely_written = _one(now, before, "w", os.O_RDONLY)
    exact = surely_read + surely_written >= (read + written) * (1 - TOLERANCE)
    is_direct = any(file.direct and file.flags & os.O_ACCMODE != os.O_WRONLY for file in (*now.files, *before.files))
    from_disk = now.read_bytes - before.read_bytes >= read / 2
    return Moved(read, written, exact, is_direct and from_disk, now.at - before.at)


def _one(now: Io, before: Io, way: str, other: int) -> Tuple[int, int]:
    """Bytes of reads or writes, and those that a position or the disk accounts for.  other: mode of files without."""
    size = getattr(now, way + "char") - getattr(before, way + "char")
    calls = getattr(now, "sysc" + way) - getattr(before, "sysc" + way)
    name = {"r": "read_bytes", "w": "write_bytes"}[way]
    disk = max(0, getattr(now, name) - getattr(before, name))
    old, new = ([file for file in io.files if file.flags & os.O_ACCMODE != other] for io in (before, now))
    if not old and not new:
        # Whatever it read between two looks by large calls was a file that it has closed again.
        return (size if size > calls * PIPE else 0), 0
    places = {(file.descriptor, file.path): file.position for file in old}
    steps = [file.position - places.get((file.descriptor, file.path), file.position) for file in new]
    surely = min(size, max(disk, sum(step for step in steps if step > 0)))
    # A program that waits with an open file gets nothing from it: what it reads is of a pipe or a socket.
    changed = [file[:1] + file[5:] for file in old] != [file[:1] + file[5:] for file in new]
    speaks = changed or size > calls * PIPE or any(file.direct for file in (*old, *new)) or disk >= size / 2
    return (size if speaks else 0), surely


def mapped_data(maps: Mapping[str, int], at: Any) -> List[List[str]]:
    """[path, mount point, filesystem] of data files that a process has mapped.  maps: path → bytes; at: Mounts.at."""
    rows = ((path, at(path)) for path, size in sorted(maps.items()) if size >= LEAST)
    return [[path, row.point, row.filesystem] for path, row in rows if row and is_data(path, row)][:MAPPED_LIMIT]
