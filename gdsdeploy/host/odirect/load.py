"""``load FOLDER``: the read rate of a mount under load, with several readers and direct I/O into CPU memory.

It is the rate of the storage and of its connection, not of the path to a GPU: ``proof`` tests that path.  The readers
read a scratch file, which is removed when they end (see odirect/scratch.py).

Bounds: the file has 1 GiB at most and a tenth of the free space; writing it takes 20 s at most, and reading the
requested time, 60 s at most.  Nothing else on the mount is touched.  Where reads went through the page cache, the
result is an error, because the rate would be that of memory.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import threading
import time
from array import array
from functools import partial
from typing import Any, Dict, List

from .scratch import FILLING, SECONDS, longest, reopened, scratch
from .trials import cache_of, in_process, require_whole

MIB = 1024 * 1024
#: One read.  Large enough for the full rate of an array, small enough for its latency to mean something.
BLOCK = MIB
#: Reads under way at once; NVMe disks need several, and network filesystems more.
READERS = 16
LARGEST, SMALLEST = 1024 * MIB, 64 * MIB
#: Of what is free to unprivileged users.
SHARE = 10
#: Bytes that prove whether the page cache can be seen.
_PROBE = 64 * 1024


def measured(folder: str, seconds: float = SECONDS, largest: int = 0, mount: str = "") -> Dict[str, Any]:
    """Read in ``folder`` for ``seconds``, from a file of ``largest`` bytes at most.  Never raises OSError.

    Either {"error": why there is no rate}, or {"rate": bytes/s, "bytes", "seconds": of the reading, "size": of the
    file, "block": of one read, "readers", "latency": {"p50", "p99", "max"} in seconds}.  mount: as for in_process.
    """
    work = partial(_measure, seconds=seconds, largest=largest or LARGEST)
    return in_process(work, folder, longest(seconds), "the reading", mount)


def _measure(folder: str, seconds: float, largest: int) -> Dict[str, Any]:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    length = min(largest, free // SHARE // BLOCK * BLOCK)
    if length < min(SMALLEST, largest):
        return {"error": f"only {free // MIB} MiB are free; a tenth of that is too little to read from"}
    with scratch(folder) as (plain, _):
        return _measure_file(plain, length, seconds)


def _measure_file(plain: int, length: int, seconds: float) -> Dict[str, Any]:
    try:
        direct = reopened(plain, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return {"error": "its filesystem takes no direct I/O, so that memory would be measured"}
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, direct)
        require_whole(os.pwrite(plain, os.urandom(_PROBE), 0), _PROBE)
        cache = cache_of(plain, _PROBE)
        if cache is None:
            return {"error": "nothing shows there whether reads go through memory, which would be measured"}
        if not cache.empty(_PROBE):
            return {"error": "what is written there stays in memory, which would be measured"}
        length = _fill(direct, length)
        if not length:
            return {"error": f"it took longer than {FILLING:g} s to write the scratch file"}
        os.fsync(plain)
        cache.empty(length)
        result = _read(direct, length, seconds)
        pages = cache.pages(0, length)
        if pages:
            return {"error": f"direct reads went through the page cache ({pages} pages), so that memory was measured"}
        return result


def _fill(direct: int, length: int) -> int:
    """Write random data; returns the bytes written within the time, 0 where that is too little."""
    end, done = time.monotonic() + FILLING, 0
    with mmap.mmap(-1, 4 * BLOCK) as memory:
        while done < length and time.monotonic() < end:
            # Data that can't be compressed or deduplicated.
            memory[:] = os.urandom(len(memory))
            with memoryview(memory) as view, view[: length - done] as part:
                done += os.pwritev(direct, [part], done)
    whole = done // BLOCK * BLOCK
    return whole if whole >= min(SMALLEST, length) else 0


def _read(direct: int, length: int, seconds: float) -> Dict[str, Any]:
    """Read blocks at random places with all readers at once.  Raises OSError, the first that a reader met."""
    latencies: List[Any] = [array("d") for _ in range(READERS)]
    failures: List[OSError] = []
    begin = time.monotonic()
    common = (direct, length // BLOCK, begin + seconds, failures)
    threads = [threading.Thread(target=_run_reader, args=(*common, times), daemon=True) for times in latencies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - begin
    if failures:
        raise failures[0]
    every = sorted(value for times in latencies for value in times)
    total = len(every) * BLOCK
    return {
        "rate": round(total / elapsed),
        "bytes": total,
        "seconds": round(elapsed, 3),
        "size": length,
        "block": BLOCK,
        "readers": READERS,
        "latency": {"p50": _percentile(every, 50), "p99": _percentile(every, 99), "max": round(every[-1], 6)},
    }


def _run_reader(direct: int, blocks: int, end: float, failures: List[OSError], latencies: Any) -> None:
    places = random.Random()  # noqa: S311 # nosec B311 # where to read next is no secret
    with mmap.mmap(-1, BLOCK) as memory, memoryview(memory) as view:
        try:
            # At least once, however slow it is.
            while not latencies or (time.monotonic() < end and not failures):
                begin = time.monotonic()
                size = os.preadv(direct, [view], places.randrange(blocks) * BLOCK)
                latencies.append(time.monotonic() - begin)
                if size != BLOCK:
                    failures.append(OSError(errno.EIO, os.strerror(errno.EIO)))
        except OSError as error:
            failures.append(error)


def _percentile(values: List[float], share: int) -> float:
    """The nearest rank."""
    return round(values[max(0, -(-len(values) * share // 100) - 1)], 6)
