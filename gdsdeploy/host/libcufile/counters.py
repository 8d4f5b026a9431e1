"""The counters that libcufile keeps in shared memory where ``profile.cufile_stats`` isn't 0, and their meaning.  Pure.

The segment begins with a version, which doesn't tell layouts apart: version and size together do.  The layouts are
data/cufile_counters.json, found by letting the printer of each release (1.4.0 to 1.20.0) name every slot.  All numbers
are little-endian and packed.  subjects/processes.py says which process may have written a segment.

Which way the I/O of a process went follows from its own counters.  The bytes are counted for each GPU and direction,
not for each way: what went through the memory of the host is exact where all operations took the same way, and else an
estimate by the number of operations.

The shared memory in which a process keeps libcufile's statistics: a System V segment whose key is its process id.

The key is the id in the process's own namespace of process ids, and the segment is in its namespace of IPC.  Everyone
may read it, and every user may make a segment with any key: so only the segment that the process itself has mapped, and
has created, is its own.  Nothing here changes a segment, except ``remove``.
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from .. import data

#: Why a segment gives no counters.
UNKNOWN_LAYOUT, LEVEL_LOW, MALFORMED = "unknown-layout", "level-low", "malformed"
#: Most GPUs of one segment: the largest layout has room for 105.
GPUS = 128


class Layout(NamedTuple):
    """Where the counters are in the segment of some releases: offsets in bytes."""

    version: int
    size: int
    #: releases in which it was seen
    releases: Tuple[str, ...]
    read_bytes: int
    write_bytes: int
    #: of the number of GPUs; the first one's UUID is 8 bytes later
    gpus: int
    stride: int
    #: counter → its offset from the UUID of its GPU
    read: Mapping[str, int]
    write: Mapping[str, int]


class Direction(NamedTuple):
    """Reads, or writes, between files and one GPU since the process opened cuFile."""

    #: operations
    n: int
    #: operations by their way; None: this release doesn't count that way on its own
    nvfs: Optional[int]
    p2pdma: Optional[int]
    #: through the memory of the host
    posix: int
    #: operations whose offset or size wasn't aligned
    unaligned: int
    errors: int
    bytes: int


class Gpu(NamedTuple):
    uuid: str
    read: Direction
    write: Direction


class Counters(NamedTuple):
    """What one process has counted.  The bytes are all it moved, also into the memory of the host."""

    version: int
    size: int
    read_bytes: int
    write_bytes: int
    gpus: Tuple[Gpu, ...]


@lru_cache(maxsize=1)
def layouts() -> Mapping[Tuple[int, int], Layout]:
    """(version, size) → layout."""
    return {(row.version, row.size): row for row in data.rows("cufile_counters", Layout)}


def sizes() -> Tuple[int, ...]:
    """Bytes of the segments of all known releases."""
    return tuple(sorted({layout.size for layout in layouts().values()}))


def releases(version: int, size: int) -> Optional[str]:
    """The first and the last release that has this layout, such as ``1.9.1 to 1.13.1``; None unless it has several."""
    layout = layouts().get((version, size))
    return None if layout is None or len(layout.releases) < 2 else f"{layout.releases[0]} to {layout.releases[-1]}"


def decode(segment: bytes) -> Union[Counters, str]:
    """The counters in a segment, or why it has none: UNKNOWN_LAYOUT, LEVEL_LOW or MALFORMED."""
    if len(segment) < 4:
        return UNKNOWN_LAYOUT
    version = _number(segment, 0, 4)
    # From 1.16 on, levels 1 and 2 leave it to the process itself.
    if version == 0 and len(segment) in sizes() and not any(segment):
        return LEVEL_LOW
    layout = layouts().get((version, len(segment)))
    if layout is None:
        return UNKNOWN_LAYOUT
    number = _number(segment, layout.gpus, 4)
    first = layout.gpus + 8
    if first + number * layout.stride > len(segment):
        return MALFORMED
    gpus = []
    for at in range(first, first + number * layout.stride, layout.stride):
        read, write = (_direction(segment, at, offsets) for offsets in (layout.read, layout.write))
        gpus.append(Gpu(_uuid(segment[at : at + 16]), read, write))
    totals = (_number(segment, layout.read_bytes), _number(segment, layout.write_bytes))
    return Counters(version, len(segment), *totals, tuple(gpus))


def _direction(segment: bytes, at: int, offsets: Mapping[str, int]) -> Direction:
    values: Dict[str, Any] = {name: _number(segment, at + offset) for name, offset in offsets.items()}
    return Direction(**{"nvfs": None, "p2pdma": None, **values})


def _uuid(raw: bytes) -> str:
    """As nvidia-smi prints it."""
    text = raw.hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _number(segment: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(segment[at : at + size], "little")


def as_record(counters: Counters) -> Dict[str, Any]:
    """As JSON values; ``from_record`` reads them."""
    gpus = [[gpu.uuid, list(gpu.read), list(gpu.write)] for gpu in counters.gpus]
    return {**counters._asdict(), "gpus": gpus}


def from_record(record: Any) -> Optional[Counters]:
    """The counters of a record; None if it isn't one, whatever it is."""
    try:
        gpus = tuple(Gpu(uuid, Direction(*read), Direction(*written)) for uuid, read, written in record["gpus"])
        counters = Counters(**{**record, "gpus": gpus})
    except (TypeError, ValueError, KeyError):
        return None
    numbers = [*counters[:4], *(value for gpu in gpus for one in gpu[1:] for value in _counted(one))]
    is_list = isinstance(record["gpus"], list) and len(gpus) <= GPUS and all(isinstance(gpu.uuid, str) for gpu in gpus)
    return counters if is_list and all(type(value) is int and 0 <= value < 1 << 64 for value in numbers) else None


def _counted(direction: Direction) -> List[Any]:
    """Its numbers; only a way that the release doesn't count on its own has none."""
    ways = [way for way in (direction.nvfs, direction.p2pdma) if way is not None]
    return [*ways, *direction._replace(nvfs=0, p2pdma=0)]


#: Ways of an operation.  DIRECT: not through the memory of the host, and the release doesn't count by which of both
#: (nvidia-fs before 1.15, P2PDMA before 1.14).  OTHER: no counter of a way has it.
NVIDIA_FS, P2PDMA, DIRECT, COMPAT, OTHER = "nvidia-fs", "p2pdma", "direct", "compat", "other"
WAYS = (NVIDIA_FS, P2PDMA, DIRECT, COMPAT, OTHER)
#: Further paths of a process.  IDLE: it has moved nothing between a file and a GPU.
MIXED, IDLE, NOT_COUNTED = "mixed", "idle", "not-counted"
#: POSIX: by system calls of the program or of a library above cuFile.  BOUNCED: by system calls, and it isn't known
#: whether cuFile made them.  MAPPED: it has files mapped, whose bytes nothing counts.
POSIX, BOUNCED, MAPPED = "posix", "bounced", "mapped"
PATHS = (*WAYS, MIXED, IDLE, NOT_COUNTED, POSIX, BOUNCED, MAPPED)

STATISTICS_OFF, KEY_TAKEN, NOT_ITS_OWN = "statistics-off", "key-taken", "not-its-own"
GPUS_NOT_COUNTED, UNREADABLE, NO_RECORD = "gpus-not-counted", "unreadable", "no-record"
NO_LIBRARY = "no-libcufile"
_START_AGAIN = "set profile.cufile_stats to 3 in the cufile.json that it reads, and start it again"
#: Reason why a process isn't counted → (what it means, what to do).
REASONS: Mapping[str, Tuple[str, str]] = {
    STATISTICS_OFF: (
        "statistics are off in this process, or it hasn't opened cuFile's driver yet",
        f"{_START_AGAIN}; gdsdeploy renders it where the fleet file has profile.cufile_stats: 3",
    ),
    LEVEL_LOW: ("its statistics have level 1 or 2, which no other process can read", _START_AGAIN),
    GPUS_NOT_COUNTED: (
        "it moved bytes, and none of them for a GPU: its statistics have level 1 or 2, or its memory is the host's",
        f"if its I/O is into memory of a GPU, {_START_AGAIN}",
    ),
    KEY_TAKEN: (
        "shared memory of another process has the key of its statistics, so it has none",
        "remove what has ended (ipcs -m, ipcrm -m ID), and start it again; give containers IPC namespaces of their own",
    ),
    NOT_ITS_OWN: (
        "the shared memory with its key wasn't made by this process in its lifetime: its numbers prove nothing",
        "look at who made it: ipcs -m -p; where the clock was set meanwhile, start the program again",
    ),
    UNKNOWN_LAYOUT: (
        "its libcufile keeps statistics in a layout that this gdsdeploy doesn't know",
        "install a newer gdsdeploy",
    ),
    MALFORMED: ("its statistics contradict themselves", "start it again; it may have written over its own memory"),
    UNREADABLE: ("its statistics can't be read", "run this as root of the host, with CAP_SYS_ADMIN for containers"),
    NO_LIBRARY: ("it hasn't loaded libcufile", "have it use cuFile for what a GPU reads"),
    NO_RECORD: ("this evidence has no record of its statistics", "collect it again with this gdsdeploy"),
}


class Observed(NamedTuple):
    """What is known about one process."""

    #: its counters, or a reason of REASONS
    now: Union[Counters, str]
    #: an earlier look at the same process, and the seconds since then
    before: Optional[Counters] = None
    seconds: float = 0.0


class Route(NamedTuple):
    """The way that I/O of one process took."""

    #: one of PATHS
    path: str
    #: NOT_COUNTED, POSIX, BOUNCED: why cuFile's own I/O isn't counted, an id of REASONS; else empty
    reason: str
    #: way → operations
    operations: Mapping[str, int]
    #: whether they are those since the earlier look; else all since it opened cuFile
    recent: bool
    #: bytes of these operations, and those that went through the memory of the host
    read: int
    written: int
    bounced: int
    #: whether ``bounced`` is exact
    exact: bool
    errors: int
    unaligned: int
    #: seconds of these operations; 0: not known
    seconds: float
    #: POSIX or BOUNCED where bytes took system calls beside cuFile's own counters, and those bytes
    beside: str = ""
    beside_bytes: int = 0

    def rate(self, amount: int) -> Optional[float]:
        """Bytes per second; None where it isn't known how long it took, 0 where nothing moved since."""
        if not self.recent:
            return 0.0 if self.seconds else None
        return amount / self.seconds if self.seconds else None


def route(observed: Observed) -> Route:
    """The way of the operations since the earlier look, or of all where there were none since."""
    now, seconds = observed.now, observed.seconds
    if now == NO_LIBRARY:
        return _nothing(IDLE, "", 0.0)
    if isinstance(now, str):
        return _nothing(NOT_COUNTED, now if now in REASONS else NO_RECORD, 0.0)
    since = difference(now, observed.before) if observed.before is not None and seconds > 0 else None
    seconds = seconds if since is not None else 0.0
    if since is not None:
        recent = _of(since.gpus, recent=True, seconds=seconds)
        if recent.operations:
            return recent
    whole = _of(now.gpus, recent=False, seconds=seconds)
    if whole.operations:
        return whole
    if now.read_bytes or now.write_bytes:
        return _nothing(NOT_COUNTED, GPUS_NOT_COUNTED, seconds)
    return _nothing(IDLE, "", seconds)._replace(errors=whole.errors)


def difference(now: Counters, before: Counters) -> Optional[Counters]:
    """What was counted between two looks; None where a counter fell, because the process began again."""
    if (now.version, now.size, [gpu.uuid for gpu in now.gpus]) != (
        before.version,
        before.size,
        [gpu.uuid for gpu in before.gpus],
    ):
        return None
    gpus = [
        Gpu(new.uuid, less(new.read, old.read), less(new.write, old.write)) for new, old in zip(now.gpus, before.gpus)
    ]
    totals = (now.read_bytes - before.read_bytes, now.write_bytes - before.write_bytes)
    values = [value for gpu in gpus for value in (*gpu.read, *gpu.write) if value is not None]
    return None if min([*totals, *values]) < 0 else Counters(now.version, now.size, *totals, tuple(gpus))


def less(new: Direction, old: Direction) -> Direction:
    """What one direction counted between two looks; a number is negative where a counter fell."""
    return Direction(*[None if a is None or b is None else a - b for a, b in zip(new, old)])  # type: ignore[arg-type]


def _of(gpus: Sequence[Gpu], *, recent: bool, seconds: float) -> Route:
    operations = dict.fromkeys(WAYS, 0)
    bounced, exact = 0, True
    directions: List[Direction] = [direction for gpu in gpus for direction in (gpu.read, gpu.write)]
    for direction in directions:
        ways = ways_of(direction)
        for way, number in ways.items():
            operations[way] += number
        exact = exact and ways.get(COMPAT, 0) in (0, sum(ways.values()))
        bounced += bounced_bytes(direction)
    used = {way: number for way, number in operations.items() if number}
    return Route(
        path=MIXED if len(used) > 1 else next(iter(used), IDLE),
        reason="",
        operations=used,
        recent=recent,
        read=sum(gpu.read.bytes for gpu in gpus),
        written=sum(gpu.write.bytes for gpu in gpus),
        bounced=bounced,
        exact=exact,
        errors=sum(direction.errors for direction in directions),
        unaligned=sum(direction.unaligned for direction in directions),
        seconds=seconds,
    )


def bounced_bytes(direction: Direction) -> int:
    """Bytes through the memory of the host: an estimate by operations, exact where all took the same way."""
    ways = ways_of(direction)
    through = ways.get(COMPAT, 0)
    return direction.bytes * through // sum(ways.values()) if through else 0


def ways_of(direction: Direction) -> Dict[str, int]:
    """Operations by way; those that no counter of the release has are DIRECT or OTHER."""
    counted = {NVIDIA_FS: direction.nvfs, P2PDMA: direction.p2pdma, COMPAT: direction.posix}
    ways = {way: number for way, number in counted.items() if number}
    rest = direction.n - sum(ways.values())
    if rest > 0:
        # Before 1.15 only the sum tells that nvidia-fs moved something.
        ways[OTHER if direction.nvfs is not None else DIRECT] = rest
    return ways


def _nothing(path: str, reason: str, seconds: float) -> Route:
    return Route(path, reason, {}, False, 0, 0, 0, True, 0, 0, seconds)


def route_words(path: str, reason: str, operations: Mapping[str, int], beside: str = "") -> str:
    """The path as people read it: ``compat``, ``mixed: 97 % nvidia-fs, 3 % compat``, ``not counted (level-low)``."""
    if path == NOT_COUNTED:
        return f"not counted ({reason})"
    if path != MIXED:
        return _NAMES.get(path, path)
    return f"mixed: {shares(operations)}" + (f"; and {beside}" if beside else "")


def shares(operations: Mapping[str, int]) -> str:
    """The share of each way: ``97 % nvidia-fs, 3 % compat``."""
    whole = max(1, sum(operations.values()))
    order = sorted(operations, key=lambda way: -operations[way])
    return ", ".join(f"{_percent(operations[way] / whole)} {_NAMES.get(way, way)}" for way in order)


_NAMES = {DIRECT: "direct (nvidia-fs or p2pdma)", OTHER: "not accounted for"}


def _percent(share: float) -> str:
    whole = round(share * 100)
    return "<1 %" if whole == 0 else ">99 %" if whole == 100 and share < 1 else f"{whole} %"


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


def stat(number: int) -> Segment:
    """The segment with this id, in this thread's namespace; raises OSError."""
    import ctypes

    buffer = ctypes.create_string_buffer(_DS_SIZE)
    _check(_libc().shmctl(number, _IPC_STAT, buffer))
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
    # Most hosts have no container with statistics.
    from concurrent.futures import ThreadPoolExecutor

    def enter() -> T:
        with open(namespace, "rb") as file:
            _check(_libc().setns(file.fileno(), _CLONE_NEWIPC))
        return call()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter).result()


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


#: Bytes of the list of segments; the usual limit of 4,096 segments has 800 KiB.
SEGMENTS_LIMIT = 16 << 20


def dead_segments() -> List[Segment]:
    """Statistics that processes which ended have left in this namespace of IPC; raises OSError.

    No process has the id of the creator, which is also the key, and none has mapped it.
    """
    with open("/proc/sysvipc/shm", "rb") as file:
        text = file.read(SEGMENTS_LIMIT).decode("ascii", "replace")
    return [segment for segment in listed(text) if _is_dead(segment)]


def collect_statistics() -> int:
    """Remove them; returns their number.  Raises OSError, also for one of another user."""
    number = 0
    for segment in dead_segments():
        # Its id may be another segment's by now.
        if _is_dead(stat(segment.id)):
            remove(segment.id)
            number += 1
    return number


def _is_dead(segment: Segment) -> bool:
    if segment.size not in sizes() or segment.key != segment.creator or segment.key < 1 or segment.attached:
        return False
    try:
        os.kill(segment.creator, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
