"""``load FOLDER``: how fast a mount reads while several readers keep it busy, with direct I/O into CPU memory.

That is the rate of the storage and of the way to it, not of the path to a GPU: which path a read through cuFile takes,
``proof`` says.  The data come from a scratch file, which is gone when the reading ends (see odirect/scratch.py).

Bounds: the file has 1 GiB at most and a tenth of the free space; it is written for 20 s at most, and read as long as is
asked for, 60 s at most.  Nothing else on the mount is touched, and the page cache takes no part in it: where reads turn
out to have gone through it, there is no rate, because it would be that of memory.
"""

from __future__ import annotations

import argparse
import errno
import json
import mmap
import os
import random
import threading
import time
from array import array
from typing import Any, Callable, Dict, List

from ..process import TIMED_OUT, apart
from .audit import WORDS
from .cache import cache_of
from .load_limits import FILLING, LONGEST, SECONDS, longest
from .scratch import reopened, scratch

MIB = 1024 * 1024
#: One read.  Large enough for the full rate of an array, small enough for its latency to mean something.
BLOCK = MIB
#: Reads under way at once; NVMe disks need several, and network filesystems more.
READERS = 16
LARGEST, SMALLEST = 1024 * MIB, 64 * MIB
#: Of what is free to unprivileged users.
SHARE = 10
#: What is looked at in the page cache.
_SEEN = 64 * 1024


def add_parser(commands: Any) -> None:
    """Add ``load`` to the host program's commands."""
    words = "how fast a mount reads under load, from a scratch file that is always removed"
    parser = commands.add_parser("load", help=words, description=words)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    text = f"how long to read, {LONGEST:g} at most (default: {SECONDS:g})"
    parser.add_argument("--seconds", type=_seconds, default=SECONDS, help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"more than 0 and at most {LONGEST:g} seconds")
    return value


def _run(arguments: argparse.Namespace) -> int:
    found = {folder: measured(folder, arguments.seconds) for folder in arguments.folders}
    if arguments.json:
        print(json.dumps(found, sort_keys=True))
    else:
        from ..facts.load import loaded

        for folder, item in found.items():
            known = None if "error" in item else loaded(folder, item)
            print("{}: {}".format(folder, item["error"] if known is None else getattr(known, "summary", known)))
    return 31 if any("error" in item for item in found.values()) else 0


def measured(folder: str, seconds: float = SECONDS, largest: int = 0) -> Dict[str, Any]:
    """Read in ``folder`` for ``seconds``, from a file of ``largest`` bytes at most.  Never raises OSError.

    Either {"error": why there is no rate}, or {"rate": bytes/s, "bytes", "seconds": of the reading, "size": of the
    file, "block": of one read, "readers", "latency": {"p50", "p99", "max"} in seconds}.
    """
    limit = longest(seconds)
    done = apart(lambda: json.dumps(_measured(folder, seconds, largest or LARGEST)), limit)
    if done.status == 0:
        found: Dict[str, Any] = json.loads(done.stdout)
        return found
    if done.status == TIMED_OUT:
        return {"error": f"it did not answer within {limit:g} s"}
    return {"error": f"the reading ended early: {done.stderr.strip() or done.status}"}


def _measured(folder: str, seconds: float, largest: int) -> Dict[str, Any]:
    try:
        if not os.path.isdir(folder):
            return {"error": "it is no folder" if os.path.exists(folder) else "there is no such folder"}
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
        length = min(largest, free // SHARE // BLOCK * BLOCK)
        if length < min(SMALLEST, largest):
            return {"error": f"only {free // MIB} MiB are free; a tenth of that is too little to read from"}
        with scratch(folder) as (plain, _):
            return _in_file(plain, length, seconds)
    except OSError as error:
        return {"error": _why(error)}


def _why(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, str(error))
    return f"{WORDS[name]} ({name})" if name in WORDS else name


def _in_file(plain: int, length: int, seconds: float) -> Dict[str, Any]:
    try:
        direct = reopened(plain, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return {"error": "its filesystem takes no direct I/O, so that memory would be measured"}
    try:
        os.pwrite(plain, os.urandom(_SEEN), 0)
        cache = cache_of(plain, _SEEN)
        if cache is None:
            return {"error": "nothing shows there whether reads go through memory, which would be measured"}
        if not cache.empty(_SEEN):
            return {"error": "what is written there stays in memory, which would be measured"}
        length = _fill(direct, length)
        if not length:
            return {"error": f"it took longer than {FILLING:g} s to write what is to be read"}
        os.fsync(plain)
        cache.empty(length)
        found = _read(direct, length, seconds)
        pages = cache.pages(0, length)
    finally:
        os.close(direct)
    if pages:
        words = "direct reads went through the page cache ({} pages), so that memory was measured"
        return {"error": words.format(pages)}
    return found


def _fill(direct: int, length: int) -> int:
    """Write random data; how many bytes it came to within the time, 0 where that is too little."""
    end, done = time.monotonic() + FILLING, 0
    with mmap.mmap(-1, 4 * BLOCK) as memory:
        while done < length and time.monotonic() < end:
            # What nobody can compress, or keep once for many.
            memory[:] = os.urandom(len(memory))
            part = memoryview(memory)[: min(len(memory), length - done)]
            try:
                done += os.pwritev(direct, [part], done)
            finally:
                part.release()
    whole = done // BLOCK * BLOCK
    return whole if whole >= min(SMALLEST, length) else 0


def _read(direct: int, length: int, seconds: float) -> Dict[str, Any]:
    """Read blocks at random places with all readers at once.  Raises OSError, of whichever reader met it first."""
    latencies: List[Any] = [array("d") for _ in range(READERS)]
    failures: List[OSError] = []
    begin = time.monotonic()
    end = begin + seconds
    work: List[Callable[[], None]] = [_reader(direct, length // BLOCK, end, taken, failures) for taken in latencies]
    threads = [threading.Thread(target=item, daemon=True) for item in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - begin
    if failures:
        raise failures[0]
    every = sorted(value for taken in latencies for value in taken)
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


def _reader(direct: int, blocks: int, end: float, taken: Any, failures: List[OSError]) -> Callable[[], None]:
    def read() -> None:
        places = random.Random()  # noqa: S311 # nosec B311 # where to read next is no secret
        with mmap.mmap(-1, BLOCK) as memory:
            view = memoryview(memory)
            try:
                # At least once, however slow it is.
                while not taken or (time.monotonic() < end and not failures):
                    begin = time.monotonic()
                    got = os.preadv(direct, [view], places.randrange(blocks) * BLOCK)
                    taken.append(time.monotonic() - begin)
                    if got != BLOCK:
                        failures.append(OSError(errno.EIO, os.strerror(errno.EIO)))
            except OSError as error:
                failures.append(error)
            finally:
                view.release()

    return read


def _percentile(values: List[float], share: int) -> float:
    """The nearest rank."""
    return round(values[max(0, -(-len(values) * share // 100) - 1)], 6)
