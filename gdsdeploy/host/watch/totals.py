"""What processes have done through cuFile, by unit, job, pod or container; it outlives them.  Pure.

The counters of a process end with it.  So what each look finds more than the one before is added up here, for the
metrics of ``watch --metrics``.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

from ..facts.processes import Program
from ..libcufile import counters as records
from ..libcufile.counters import WAYS, Counters, Direction, Gpu, bounced_bytes, less, ways_of
from .owner import Owner, owner

VERSION = 1
#: Seconds for which the sums of an owner stay after its last process, so that a server has read them.
LONG = 3600.0
#: Seconds for which a process that a look didn't read is remembered, so that nothing of it is counted twice.
MISSED = 120.0
#: Most owners with sums; the I/O of others is added to OTHER.
OWNERS = 500
#: Most GPUs of an owner; a process may write any number into its own counters.
GPUS = 64
OTHER, OTHER_GPU = Owner("other", ""), ""
READ, WRITE = "read", "write"


class Sum(NamedTuple):
    """Reads, or writes, of an owner with one GPU."""

    #: way of WAYS → operations
    operations: Tuple[int, ...] = (0,) * len(WAYS)
    bytes: int = 0
    #: through the memory of the host; an estimate where several ways had operations between two looks
    bounced: int = 0
    errors: int = 0

    def plus(self, moved: Direction) -> Sum:
        """With what was counted between two looks."""
        ways = ways_of(moved)
        return Sum(
            tuple(number + ways.get(way, 0) for way, number in zip(WAYS, self.operations)),
            self.bytes + moved.bytes,
            self.bounced + bounced_bytes(moved),
            self.errors + moved.errors,
        )


#: (GPU, READ or WRITE) → what it did.
Sums = Dict[Tuple[str, str], Sum]


class Totals:
    """Sums by owner, and what each process had counted at the last look."""

    def __init__(self) -> None:
        self.sums: Dict[Owner, Sums] = {}
        #: owner → when a process of it was read last
        self.times: Dict[Owner, float] = {}
        #: (process id, start) → when its counters were read, and those of each GPU
        self._before: Dict[Tuple[int, int], Tuple[float, Dict[str, Gpu]]] = {}
        #: without an earlier look, what a process has counted may be of any time
        self._began = False

    def add(self, programs: Iterable[Program], now: float) -> None:
        """Add what these processes did since the last look.  The first look only notes their counters."""
        before = self._before
        self._before = {key: old for key, old in before.items() if now - old[0] <= MISSED}
        for program in programs:
            if not isinstance(program.counters, Counters):
                continue
            key = (program.pid, program.start)
            _, earlier = before.get(key, (now, {}))
            self._before[key] = now, {gpu.uuid: gpu for gpu in program.counters.gpus}
            if self._began:
                whose = self._entry(owner(program.unit), now)
                for gpu in program.counters.gpus:
                    self._count(self.sums[whose], gpu, earlier.get(gpu.uuid))
        self._began = True
        for old in [whose for whose, time in self.times.items() if now - time > LONG]:
            del self.times[old], self.sums[old]

    def _entry(self, whose: Owner, now: float) -> Owner:
        if whose not in self.sums and len(self.sums) >= OWNERS:
            whose = OTHER
        self.sums.setdefault(whose, {})
        self.times[whose] = now
        return whose

    @staticmethod
    def _count(sums: Sums, gpu: Gpu, old: Any) -> None:
        is_listed = (gpu.uuid, READ) in sums or len(sums) < 2 * GPUS
        name = gpu.uuid if is_listed else OTHER_GPU
        for direction, new, earlier in ((READ, gpu.read, old and old.read), (WRITE, gpu.write, old and old.write)):
            sums[(name, direction)] = sums.get((name, direction), Sum()).plus(_since(new, earlier))

    def as_record(self) -> Dict[str, Any]:
        """As JSON values; ``from_record`` reads them."""
        owners = [
            [list(whose), self.times[whose], [[*key, *one] for key, one in sums.items()]]
            for whose, sums in self.sums.items()
        ]
        processes = [
            [pid, start, time, records.as_record(Counters(0, 0, 0, 0, tuple(gpus.values())))["gpus"]]
            for (pid, start), (time, gpus) in self._before.items()
        ]
        return {"version": VERSION, "owners": owners, "processes": processes}


def from_record(record: Any) -> Totals:
    """The sums that ``as_record`` gave; raises ValueError, TypeError, KeyError or AttributeError for anything else."""
    totals = Totals()
    if record["version"] != VERSION:
        raise ValueError("it is of another version")
    for (kind, name), time, rows in record["owners"]:
        whose = Owner(str(kind), str(name))
        totals.times[whose] = float(time)
        totals.sums[whose] = {(str(gpu), str(way)): _sum(*values) for gpu, way, *values in rows}
    for pid, start, time, gpus in record["processes"]:
        read = records.from_record({"version": 0, "size": 0, "read_bytes": 0, "write_bytes": 0, "gpus": gpus})
        if read is None:
            raise ValueError("counters of a process aren't counters")
        totals._before[(int(pid), int(start))] = float(time), {gpu.uuid: gpu for gpu in read.gpus}
    totals._began = True
    return totals


def _sum(operations: List[int], size: int, bounced: int, errors: int) -> Sum:
    if len(operations) != len(WAYS):
        raise ValueError("it has other ways")
    return Sum(tuple(map(int, operations)), int(size), int(bounced), int(errors))


def _since(now: Direction, before: Any) -> Direction:
    """What was counted since; all of it where a counter fell, because the program began again (cuFileStatsReset)."""
    if before is None:
        return now
    since = less(now, before)
    return now if any(value is not None and value < 0 for value in since) else since
