"""Counts for a while what processes read and write through cuFile, and what of it goes through CPU memory.

Probes in libcufile count calls and bytes in the kernel, for processes with and without statistics.  Two are at
cuFileRead and cuFileWrite: their handle has the program's descriptor in its lower half (seen in 1.4.0 to 1.20.0).  Only
there is the file known, so the bytes of a file are those that were requested.  Return probes of both count what they
moved, and calls that failed.  The others are at libcufile's own calls of pread and pwrite, through which everything in
compat mode passes, and perhaps P2PDMA.  Batches, streams and vectors (cuFileBatchIOSubmit, cuFileReadAsync,
cuFileReadv) have no probe.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ..evidence.processes import PROC, mapped_files
from ..evidence.recorder import read_all
from ..evidence.statistics import LIBRARY_LIMIT, file_of
from ..io.printable import line
from .bpf import Counting
from .document import LONG, document
from .look import Watcher
from .symbols import NotALibraryError, offsets

#: Most libraries that are probed, and files of a process that are shown.
LIBRARIES, FILES = 64, 16
READ, WRITE, PREAD, PWRITE, READ_RETURN, WRITE_RETURN = range(6)
_FUNCTIONS = {"cuFileRead": READ, "cuFileWrite": WRITE}
_CALLS = {"pread": PREAD, "pread64": PREAD, "pwrite": PWRITE, "pwrite64": PWRITE}
_KINDS = {**_FUNCTIONS, **_CALLS}
_RETURNS = {"cuFileRead": READ_RETURN, "cuFileWrite": WRITE_RETURN}
#: The upper half of a handle.  Not documented: another one is no descriptor.
HANDLE = 0xABABABAB
#: CPU time of one hit, in seconds, as measured: from, to.  A stub begins with a jump, which the kernel doesn't emulate:
#: it steps over it.  On a virtual machine that took 15 to 20 µs; other machines weren't measured.
COST, RETURN_COST, STUB_COST = (0.6e-6, 0.9e-6), (0.8e-6, 1.0e-6), (0.6e-6, 20e-6)
_COSTS = {
    **dict.fromkeys(_FUNCTIONS.values(), COST),
    **dict.fromkeys(_RETURNS.values(), RETURN_COST),
    **dict.fromkeys(_CALLS.values(), STUB_COST),
}
UNKNOWN_FILE = "unknown file"


class Total(NamedTuple):
    """Calls and bytes of one process, or one file of it."""

    calls: int = 0
    read: int = 0
    written: int = 0

    def plus(self, kind: int, calls: int, size: int) -> Total:
        """With calls of cuFileRead or cuFileWrite, or of pread or pwrite."""
        reads = kind in (READ, PREAD, READ_RETURN)
        return Total(self.calls + calls, self.read + size * reads, self.written + size * (not reads))


def probe(seconds: float, job: Optional[str] = None) -> Dict[str, Any]:
    """The document of ``watch`` about these seconds, or of a Slurm job in them.

    Its processes and itself also have ``probe``.
    """
    watcher = Watcher()
    first = watcher.look()
    refused: List[str] = []
    counts: Dict[Tuple[int, int, int], Tuple[int, int]] = {}
    number = 0
    try:
        with Counting() as counting:
            number = attach(counting, [entry.program.pid for entry in first.programs], refused)
            time.sleep(seconds)
            counts = counting.counts()
            last = watcher.look()
    except OSError as error:
        refused.append(f"the kernel refuses probes: {error.strerror} (they need CAP_SYS_ADMIN and uprobes with BPF)")
        last = watcher.look()
    hits = sum(calls for calls, _ in counts.values())
    result = document(last, job)
    for row in result["processes"]:
        row["probe"] = _of(row["pid"], counts)
    each = [(calls, _COSTS[kind]) for (_, kind, _), (calls, _) in counts.items()]
    cost = [round(sum(calls * of_hit[end] for calls, of_hit in each), 6) for end in (0, 1)]
    texts = [line(text)[:LONG] for text in refused[:FILES]]
    result["probe"] = {"seconds": seconds, "probes": number, "hits": hits, "cost": cost, "refused": texts}
    return result


def attach(counting: Counting, pids: List[int], refused: List[str]) -> int:
    """Probe each library that these processes have mapped, once; returns the number of probes."""
    done: Set[Tuple[int, int]] = set()
    number = 0
    for pid in pids:
        try:
            ranges = mapped_files(f"{PROC}/{pid}/maps").libraries
        except OSError:
            continue  # it ended
        for path, at in ranges.items():
            file = f"{PROC}/{pid}/map_files/{at}"
            try:
                state = os.stat(file)
                if (state.st_dev, state.st_ino) in done or len(done) >= LIBRARIES:
                    continue
                done.add((state.st_dev, state.st_ino))
                with open(file, "rb") as opened:
                    places = offsets(read_all(opened, LIBRARY_LIMIT), _FUNCTIONS, _CALLS)
                for name, offset in places.items():
                    counting.probe(file, offset, _KINDS[name])
                    number += 1
                    if name in _RETURNS:
                        counting.probe(file, offset, _RETURNS[name], returns=True)
                        number += 1
            except FileNotFoundError:
                continue  # it ended
            except (NotALibraryError, OSError) as error:
                refused.append(f"{path} of process {pid}: {error}")
    return number


def _of(pid: int, counts: Dict[Tuple[int, int, int], Tuple[int, int]]) -> Dict[str, Any]:
    """What one process did in all, and what it requested of each file."""
    moved, through, failed = Total(), Total(), 0
    files: Dict[Tuple[str, str, str], Total] = {}
    for (number, kind, argument), (calls, size) in sorted(counts.items()):
        if number != pid:
            continue
        if kind in (PREAD, PWRITE):
            through = through.plus(kind, calls, size)
            continue
        if kind in _RETURNS.values():
            moved = moved.plus(kind, calls, size)
            failed += calls if argument else 0
            continue
        place = (UNKNOWN_FILE, "", "")
        if argument >> 32 == HANDLE:
            place = file_of(f"{PROC}/{pid}", argument & 0xFFFFFFFF) or place
        files[place] = files.get(place, Total()).plus(kind, calls, size)
    largest = sorted(files.items(), key=lambda pair: -pair[1].read - pair[1].written)[:FILES]
    names = ("path", "mount", "filesystem")
    return {
        **_bytes(moved),
        "failed": failed,
        "posix_bytes": through.read + through.written,
        "files": [
            {**{name: line(text)[:LONG] for name, text in zip(names, place)}, **_bytes(total)}
            for place, total in largest
        ],
    }


def _bytes(total: Total) -> Dict[str, int]:
    return {"calls": total.calls, "read_bytes": total.read, "written_bytes": total.written}
