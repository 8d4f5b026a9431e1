"""``watch --metrics``: looks at this host's processes until it is stopped, and writes what they did.

gds-watch.service runs it.  It writes a file for each collector of node_exporter, and removes it when it ends.  Its sums
go to a file in /run, with which the next start continues.

The counters of a process end with it.  So what each look finds more than the one before is added up here, by unit, job,
pod or container.  The metrics are in Prometheus' text format: see docs/watch.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..facts.unknown import or_else
from ..io import atomic, jsontext
from ..io.prometheus import Sample, folders, text
from ..io.wording import line
from ..libcufile import counters as records
from ..libcufile.counters import (
    BOUNCED as THROUGH,
    COMPAT,
    NO_LIBRARY,
    POSIX,
    WAYS,
    Counters,
    Direction,
    Gpu,
    bounced_bytes,
    less,
    ways_of,
)
from ..model import expectation
from ..paths import EXPECTATION, WATCH_METRICS, WATCH_STATE
from ..subjects.processes import Program
from .look import Entry, Look, Owner, Watcher, named, owner, pods

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
        #: owner → path, POSIX or BOUNCED → bytes by system calls beside what cuFile counts
        self.calls: Dict[Owner, Dict[str, int]] = {}
        #: (process id, start) → when its counters were read, and those of each GPU
        self._before: Dict[Tuple[int, int], Tuple[float, Dict[str, Gpu]]] = {}
        #: without an earlier look, what a process has counted may be of any time
        self._began = False

    def add(self, programs: Iterable[Program], now: float, names: Mapping[str, str]) -> None:
        """Add what these processes did since the last look.  The first look only notes their counters.

        names: UID of a pod → its name, by which pods that follow one another have one sum.
        """
        before = self._before
        self._before = {key: old for key, old in before.items() if now - old[0] <= MISSED}
        for program in programs:
            if not isinstance(program.counters, Counters):
                continue
            key = (program.pid, program.start)
            _, earlier = before.get(key, (now, {}))
            self._before[key] = now, {gpu.uuid: gpu for gpu in program.counters.gpus}
            if self._began:
                whose = self._entry(named(owner(program.unit), names), now)
                for gpu in program.counters.gpus:
                    self._count(self.sums[whose], gpu, earlier.get(gpu.uuid))
        self._began = True
        for old in [whose for whose, seen in self.times.items() if now - seen > LONG]:
            del self.times[old], self.sums[old]
            self.calls.pop(old, None)

    def add_calls(self, entries: Iterable[Entry], now: float, names: Mapping[str, str]) -> None:
        """Add the bytes that these processes moved by system calls since the last look."""
        for program, way in entries:
            whose = named(owner(program.unit), names)
            if way.beside_bytes or whose in self.calls:
                sums = self.calls.setdefault(self._entry(whose, now), {})
                if way.beside_bytes:
                    sums[way.beside] = sums.get(way.beside, 0) + way.beside_bytes

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
            [pid, start, seen, records.as_record(Counters(0, 0, 0, 0, tuple(gpus.values())))["gpus"]]
            for (pid, start), (seen, gpus) in self._before.items()
        ]
        calls = [[list(whose), sums] for whose, sums in self.calls.items()]
        return {"version": VERSION, "owners": owners, "processes": processes, "calls": calls}


def from_record(record: Any) -> Totals:
    """The sums that ``as_record`` gave; raises ValueError, TypeError, KeyError or AttributeError for anything else."""
    totals = Totals()
    if record["version"] != VERSION:
        raise ValueError("it is of another version")
    for (kind, name), seen, rows in record["owners"]:
        whose = named(Owner(str(kind), str(name)), {})
        totals.times[whose] = float(seen)
        totals.sums[whose] = {(str(gpu), str(way)): _sum(*values) for gpu, way, *values in rows}
    # A file of an older version has none.
    for (kind, name), sums in record.get("calls", []):
        whose = named(Owner(str(kind), str(name)), {})
        totals.calls[whose] = {path: int(sums[path]) for path in (POSIX, THROUGH) if path in sums}
        totals.sums.setdefault(whose, {})
        totals.times.setdefault(whose, 0.0)
    for pid, start, seen, gpus in record["processes"]:
        read = records.from_record({"version": 0, "size": 0, "read_bytes": 0, "write_bytes": 0, "gpus": gpus})
        if read is None:
            raise ValueError("counters of a process aren't counters")
        totals._before[(int(pid), int(start))] = float(seen), {gpu.uuid: gpu for gpu in read.gpus}
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


#: Every series that a host exports, with its help.
HELP = {
    "gdsdeploy_cufile_operations_total": "Operations of cuFile with a GPU, by the path that they took.",
    "gdsdeploy_cufile_bytes_total": "Bytes between files and a GPU.",
    "gdsdeploy_cufile_bounced_bytes_total": (
        "Bytes of them that went through CPU memory; estimated where paths were mixed."
    ),
    "gdsdeploy_bounced_bytes_total": "Bytes of files through CPU memory, by cuFile or without it.",
    "gdsdeploy_cufile_errors_total": "Operations of cuFile that failed.",
    "gdsdeploy_cufile_processes": "Processes that have libcufile loaded, and whether they are counted.",
    "gdsdeploy_cufile_stale_segments": "Segments of statistics that ended processes have left.",
    "gdsdeploy_cufile_direct_expected": "1: the lock expects a direct path on this host.",
    "gdsdeploy_cufile_incomplete": "1: not every process was looked at, so some I/O may not be counted.",
    "gdsdeploy_cufile_timestamp_seconds": "When the processes were looked at.",
}
#: The label ``statistics`` of a process with counters; else it is the reason why it has none.
COUNTED = "counted"


def render(look: Look, totals: Totals, *, direct: Optional[bool]) -> str:
    """Every series with its help.

    direct: whether the lock expects a direct path on this host; None: it has no expectation.
    """
    samples = _samples(look, totals, direct)
    return text((name, words, samples[name]) for name, words in HELP.items())


def _samples(look: Look, totals: Totals, direct: Optional[bool]) -> Dict[str, List[Sample]]:
    rows: Dict[str, List[Sample]] = {name: [] for name in HELP}
    for (kind, name), sums in sorted(totals.sums.items()):
        for (gpu, direction), one in sorted(sums.items()):
            # Never ``job``: Prometheus itself has that label.
            labels = [("kind", kind), ("name", name), ("gpu", gpu), ("direction", direction)]
            rows["gdsdeploy_cufile_operations_total"] += [
                ([*labels, ("path", way)], str(number)) for way, number in zip(WAYS, one.operations) if number
            ]
            rows["gdsdeploy_cufile_bytes_total"].append((labels, str(one.bytes)))
            rows["gdsdeploy_cufile_bounced_bytes_total"].append((labels, str(one.bounced)))
            rows["gdsdeploy_cufile_errors_total"].append((labels, str(one.errors)))
        paths = {COMPAT: sum(one.bounced for one in sums.values()), **totals.calls.get(Owner(kind, name), {})}
        whose = [("kind", kind), ("name", name)]
        rows["gdsdeploy_bounced_bytes_total"] += [
            ([*whose, ("path", path)], str(number)) for path, number in sorted(paths.items()) if number
        ]
    return {
        **rows,
        "gdsdeploy_cufile_processes": _processes(look),
        "gdsdeploy_cufile_stale_segments": [] if look.dead is None else [([], str(look.dead))],
        "gdsdeploy_cufile_direct_expected": [] if direct is None else [([], str(int(direct)))],
        "gdsdeploy_cufile_incomplete": [([], str(int(look.incomplete is not None)))],
        "gdsdeploy_cufile_timestamp_seconds": [([], str(int(look.at)))],
    }


def _processes(look: Look) -> List[Sample]:
    counts: Counter[tuple[str, str]] = Counter()
    for program, result in look.programs:
        if program.counters == NO_LIBRARY:
            continue
        releases = sorted({or_else(version, "unknown") for version in program.libraries.values()})
        state = result.reason or (COUNTED if isinstance(program.counters, Counters) else program.counters)
        counts[(line(",".join(releases))[:64], state)] += 1
    return [([("libcufile", release), ("statistics", state)], str(n)) for (release, state), n in sorted(counts.items())]


#: Bytes of that file; with 500 owners of 8 GPUs and 500 processes it has 1 MiB.
STATE_LIMIT = 64 << 20
#: Most processes with a GPU or libcufile that are counted.
PROGRAMS = 4096
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def run(setting: str, every: float, state: str = WATCH_STATE) -> None:
    """Until SIGTERM or SIGINT, or until the program on the disk is another one; raises OSError.

    setting: the folder of the collector; empty: the usual ones that are there.
    """
    program, files = _program(), [os.path.join(folder, WATCH_METRICS) for folder in folders(setting)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        try:
            for path in [*files, state]:
                atomic.sweep(path, shared=True)
            watcher, totals = Watcher(PROGRAMS, counters_alone=True), restored(state)
            while _program() == program:
                begin = time.monotonic()
                look = watcher.look()
                names = pods()
                totals.add([entry.program for entry in look.programs], begin, names)
                totals.add_calls(look.programs, begin, names)
                text = render(look, totals, direct=expects_direct())
                for path in files:
                    atomic.write(path, text, shared=True)
                atomic.write(state, json.dumps(totals.as_record()), 0o600)
                time.sleep(max(0.0, every - (time.monotonic() - begin)))
        finally:
            for path in files:
                atomic.remove(path)


def _program() -> Optional[Tuple[int, int]]:
    """Which program this is on the disk; systemd starts the unit again where another one was installed."""
    try:
        status = os.stat(sys.argv[0])
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def restored(path: str = WATCH_STATE) -> Totals:
    """The sums of a file; new ones where it isn't there or can't be used."""
    try:
        with open(path, encoding="utf-8") as file:
            return from_record(jsontext.loads(file.read(STATE_LIMIT), limit=STATE_LIMIT))
    except (OSError, *_DAMAGED):
        return Totals()


def expects_direct() -> Optional[bool]:
    """Whether the lock expects a direct path on this host; None: it has no expectation."""
    try:
        with open(EXPECTATION, encoding="utf-8") as file:
            return expectation.from_json(file.read()).mode != "compat"
    except (OSError, ValueError):
        return None
