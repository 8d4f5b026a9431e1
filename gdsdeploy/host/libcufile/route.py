"""Which way the I/O of one process went, from its own counters.  Pure.

The bytes are counted for each GPU and direction, not for each way: what went through the memory of the host is exact
where all operations took the same way, and else an estimate by the number of operations.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .counters import LEVEL_LOW, MALFORMED, UNKNOWN_LAYOUT, Counters, Direction, Gpu

#: Ways of an operation.  DIRECT: not through the memory of the host, and the release doesn't count by which of both
#: (nvidia-fs before 1.15, P2PDMA before 1.14).  OTHER: no counter of a way has it.
NVIDIA_FS, P2PDMA, DIRECT, COMPAT, OTHER = "nvidia-fs", "p2pdma", "direct", "compat", "other"
WAYS = (NVIDIA_FS, P2PDMA, DIRECT, COMPAT, OTHER)
#: Further paths of a process.  IDLE: it has moved nothing between a file and a GPU.
MIXED, IDLE, NOT_COUNTED = "mixed", "idle", "not-counted"
PATHS = (*WAYS, MIXED, IDLE, NOT_COUNTED)

STATISTICS_OFF, KEY_TAKEN, NOT_ITS_OWN = "statistics-off", "key-taken", "not-its-own"
GPUS_NOT_COUNTED, UNREADABLE, NO_RECORD = "gpus-not-counted", "unreadable", "no-record"
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
    #: NOT_COUNTED: an id of REASONS; else empty
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

    def rate(self, amount: int) -> Optional[float]:
        """Bytes per second; None where it isn't known how long it took, 0 where nothing moved since."""
        if not self.recent:
            return 0.0 if self.seconds else None
        return amount / self.seconds if self.seconds else None


def route(observed: Observed) -> Route:
    """The way of the operations since the earlier look, or of all where there were none since."""
    now, seconds = observed.now, observed.seconds
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


def words(path: str, reason: str, operations: Mapping[str, int]) -> str:
    """The path as people read it: ``compat``, ``mixed: 97 % nvidia-fs, 3 % compat``, ``not counted (level-low)``."""
    if path == NOT_COUNTED:
        return f"not counted ({reason})"
    if path != MIXED:
        return _NAMES.get(path, path)
    return f"mixed: {shares(operations)}"


def shares(operations: Mapping[str, int]) -> str:
    """The share of each way: ``97 % nvidia-fs, 3 % compat``."""
    whole = max(1, sum(operations.values()))
    order = sorted(operations, key=lambda way: -operations[way])
    return ", ".join(f"{_percent(operations[way] / whole)} {_NAMES.get(way, way)}" for way in order)


_NAMES = {DIRECT: "direct (nvidia-fs or p2pdma)", OTHER: "not accounted for"}


def _percent(share: float) -> str:
    whole = round(share * 100)
    return "<1 %" if whole == 0 else ">99 %" if whole == 100 and share < 1 else f"{whole} %"
