"""What one process with libcufile does: its own counters, its files, and whether nvidia-fs is open.

All of it is read from outside; see docs/watch.md.
"""

from __future__ import annotations

import errno
import os
import re
import time
from functools import lru_cache
from itertools import islice
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..io.reading import plain_name
from ..libcufile import counters, route, segments
from ..libcufile.segments import Segment
from .recorder import read_all

#: Open files of one process that are looked at, and files that are recorded.
DESCRIPTORS_LIMIT, FILES_LIMIT = 8192, 16
#: Seconds by which the times of a process and of its segment may differ without meaning anything.
TOLERANCE = 2.0
#: Of linux/time.h; Python has it from 3.7 on.
_CLOCK_BOOTTIME = 7
NVIDIA_FS = "/dev/nvidia-fs"
#: Descriptors of standard input, output and error.
STANDARD = frozenset(("0", "1", "2"))
#: Bytes of the list of segments; the usual limit of 4,096 segments has 800 KiB.
SEGMENTS_LIMIT = 16 << 20
#: Bytes of a libcufile that are searched for its release; 1.20 has 4 MiB.
LIBRARY_LIMIT = 32 << 20
#: Files whose release is remembered.
RELEASES_LIMIT = 1024
_RELEASE = re.compile(rb"(?<=\0)1\.\d{1,3}\.\d{1,3}\.\d{1,5}(?=\0)")
#: Files that were searched: (device, inode, time of the last change, size) → release.
_RELEASES: Dict[Tuple[int, int, int, int], Optional[str]] = {}


class Identity(NamedTuple):
    """A process, and not another one that gets its id later."""

    pid: int
    #: clock ticks after the boot
    start: int


def identity(folder: str, pid: int) -> Identity:
    """Of the process whose folder in /proc that is; raises OSError when it has ended, ValueError for no such file."""
    with open(folder + "/stat", "rb") as file:
        # Its name may have spaces and parentheses.
        fields = read_all(file, 4096).rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("it has no start time")
    return Identity(pid, int(fields[19]))


def age(process: Identity) -> float:
    """Seconds since its start."""
    with open("/proc/uptime", "rb") as file:
        return float(file.read(64).split()[0]) - process.start / _ticks()


def inside_pid(folder: str) -> int:
    """The process id in the process's own namespace, which is the key of its statistics."""
    with open(folder + "/status", "rb") as file:
        lines = read_all(file, 65536).split(b"\n")
    (line,) = [line for line in lines if line.startswith(b"NSpid:")]
    return int(line.split()[-1])


def statistics(folder: str, process: Identity, mapped: Sequence[Tuple[int, int]]) -> Dict[str, Any]:
    """``{"counters": …}``, or ``{"reason": an id of route.REASONS}``.

    mapped: (key, id) of each segment that the process has mapped.
    """
    try:
        key = inside_pid(folder)
        ids = [number for at, number in mapped if at == key]
        begin = _boot_time() + process.start / _ticks()
        namespace = folder + "/ns/ipc"

        def read() -> Dict[str, Any]:
            return _own(process.pid, key, ids, begin)

        if os.readlink(namespace) == os.readlink("/proc/self/ns/ipc"):
            return read()
        return segments.within(namespace, read)
    except (OSError, ValueError) as error:
        return {"reason": route.UNREADABLE, "error": f"{type(error).__name__}: {error}"}


def _own(pid: int, key: int, ids: Sequence[int], begin: float) -> Dict[str, Any]:
    """In the process's namespace of IPC.  begin: when it started, in seconds since 1970."""
    for number in ids:
        segment = segments.stat(number)
        made_by_it = (segment.key, segment.creator) == (key, pid) and segment.changed >= begin - TOLERANCE
        if not made_by_it or not segment.attached:
            return {"reason": route.NOT_ITS_OWN}
        if segment.size not in counters.sizes():
            return {"reason": counters.UNKNOWN_LAYOUT, "size": segment.size}
        content = segments.read(number, segment.size)
        result = counters.decode(content)
        if isinstance(result, str):
            return {"reason": result, "size": segment.size, "version": int.from_bytes(content[:4], "little")}
        return {"counters": counters.as_record(result), "at": round(time.monotonic(), 6)}
    try:
        segments.find(key)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return {"reason": route.STATISTICS_OFF}
        raise
    return {"reason": route.KEY_TAKEN}


def release(file: str) -> Optional[str]:
    """The one ``1.x.y.z`` that a libcufile has as a string; None: none, or several (so in 1.9 to 1.13).

    file: of /proc/PID/map_files, which is what the process runs, whatever has become of its name.  Raises OSError.
    """
    with open(file, "rb") as opened:
        state = os.fstat(opened.fileno())
        if state.st_size > LIBRARY_LIMIT:
            return None
        if len(_RELEASES) >= RELEASES_LIMIT:
            _RELEASES.clear()
        key = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
        if key not in _RELEASES:
            result = set(_RELEASE.findall(read_all(opened, LIBRARY_LIMIT)))
            _RELEASES[key] = result.pop().decode() if len(result) == 1 else None
        return _RELEASES[key]


def open_files(folder: str) -> Dict[str, Any]:
    """``nvidia_fs``: whether it has nvidia-fs open; None: not known.  ``files``: those that cuFile may have registered.

    libcufile opens a registered file by its name once more, so these are open at least twice: [path, mount point,
    filesystem, whether one of both is for direct I/O].  One that is only standard input, output or error isn't listed.
    """
    try:
        with os.scandir(folder + "/fd") as entries:
            names = [entry.name for entry in islice(entries, DESCRIPTORS_LIMIT + 1)]
    except OSError:
        return {"nvidia_fs": None, "files": []}
    targets: Dict[str, List[str]] = {}
    for name in names[:DESCRIPTORS_LIMIT]:
        try:
            targets.setdefault(os.readlink(f"{folder}/fd/{name}"), []).append(name)
        except OSError:
            continue
    is_open = any(target.startswith(NVIDIA_FS) for target in targets)
    twice = [
        path
        for path, numbers in targets.items()
        if len(numbers) > 1 and not STANDARD.issuperset(numbers) and _may_be_data(path)
    ]
    mounts = _mounts(folder) if twice else {}
    rows = [[path, *_mount(folder, targets[path], mounts)] for path in sorted(twice)[:FILES_LIMIT]]
    complete = is_open or len(names) <= DESCRIPTORS_LIMIT
    return {"nvidia_fs": is_open if complete else None, "files": [row for row in rows if row[1]]}


def _may_be_data(path: str) -> bool:
    return path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/"))


def _mounts(folder: str) -> Dict[str, Tuple[str, str]]:
    """Id of each mount that the process sees → (mount point, filesystem)."""
    try:
        with open(folder + "/mountinfo", "rb") as file:
            text = read_all(file, 4 << 20).decode("utf-8", "replace")
    except OSError:
        return {}
    rows = [(left.split(), right.split()) for left, _, right in (line.partition(" - ") for line in text.split("\n"))]
    return {left[0]: (plain_name(left[4]), right[0]) for left, right in rows if len(left) > 4 and right}


def _mount(folder: str, descriptors: Sequence[str], mounts: Dict[str, Tuple[str, str]]) -> List[Any]:
    """[mount point, filesystem, whether one descriptor is for direct I/O]"""
    point, direct = ("", ""), False
    for name in descriptors[:FILES_LIMIT]:
        try:
            with open(f"{folder}/fdinfo/{name}", "rb") as file:
                words = dict(line.split(None, 1) for line in read_all(file, 4096).split(b"\n")[:8] if b"\t" in line)
            flags = int(words.get(b"flags:", b"0"), 8)
        except (OSError, ValueError):
            continue
        direct = direct or bool(flags & os.O_DIRECT)
        point = mounts.get(words.get(b"mnt_id:", b"").decode().strip(), point)
    return [*point, direct]


def dead_segments() -> List[Segment]:
    """Statistics that processes which ended have left in this namespace of IPC; raises OSError.

    No process has the id of the creator, which is also the key, and none has mapped it.
    """
    with open("/proc/sysvipc/shm", "rb") as file:
        text = read_all(file, SEGMENTS_LIMIT).decode("ascii", "replace")
    return [segment for segment in segments.listed(text) if _is_dead(segment)]


def collect() -> int:
    """Remove them; returns their number.  Raises OSError, also for one of another user."""
    number = 0
    for segment in dead_segments():
        # Its id may be another segment's by now.
        if _is_dead(segments.stat(segment.id)):
            segments.remove(segment.id)
            number += 1
    return number


def _is_dead(segment: Segment) -> bool:
    if segment.size not in counters.sizes() or segment.key != segment.creator or segment.key < 1 or segment.attached:
        return False
    try:
        os.kill(segment.creator, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


@lru_cache(maxsize=1)
def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _boot_time() -> float:
    """When this kernel started, in seconds since 1970, by the clock as it is now."""
    return time.time() - time.clock_gettime(_CLOCK_BOOTTIME)
