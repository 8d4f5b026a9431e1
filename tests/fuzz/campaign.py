"""Give every reader hostile inputs, and count: ``python -m tests.fuzz.campaign [N] [READER…]`` prints a Markdown table.

A reader may read an input or refuse it with one of its own errors.  Anything else is a bug, and so is taking long or
taking memory; the input is then kept, and named by its number, from which it can be made again.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.mutation import damaged

#: Seconds of processor time that one input may take, and bytes that a reader may take beside what was there before.
SECONDS, MEMORY = 5.0, 300 * 1024 * 1024


class Hang(BaseException):
    """An input takes too long; no reader may catch it."""


@dataclass(frozen=True)
class Reader:
    """One reader of what others wrote."""

    name: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes], object]
    #: what it may raise
    errors: tuple[type[Exception], ...]
    #: makes an input from a seed
    damage: Callable[[bytes, Random], bytes] = damaged


@dataclass
class Outcome:
    """What came of the inputs of one reader."""

    reader: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    #: seconds of processor time, of the slowest input
    slowest: float = 0.0
    #: bytes, at most, beside what was there before
    memory: int = 0
    #: one for each place: the number of its first input, and the traceback
    bugs: dict[str, str] = field(default_factory=dict)

    def row(self) -> str:
        """Of the table."""
        counts = f"{self.inputs:,} | {self.read:,} | {self.refused:,}"
        return f"| {self.reader} | {counts} | {self.slowest * 1000:.0f} ms | {self.memory / 2**20:.0f} MiB |"


HEAD = "| reader | inputs | read | refused | slowest | memory |\n|---|--:|--:|--:|--:|--:|"


def input_of(reader: Reader, number: int) -> bytes:
    """The input with that number."""
    random = Random(f"{reader.name} {number}")
    return reader.damage(random.choice(reader.seeds()), random)


def run(reader: Reader, count: int, *, begin: int = 0) -> Outcome:
    """Give ``reader`` inputs with the numbers from ``begin`` on."""
    outcome = Outcome(reader.name)
    for seed in reader.seeds():
        reader.read(seed)
    before = _rss()
    with _memory_bounded():
        for number in range(begin, begin + count):
            data = input_of(reader, number)
            outcome.inputs += 1
            start = time.process_time()
            try:
                with _time_bounded():
                    reader.read(data)
                outcome.read += 1
            except reader.errors:
                outcome.refused += 1
            except (Exception, Hang) as error:  # noqa: BLE001 - what a reader must not raise is what is looked for
                frames = traceback.extract_tb(error.__traceback__)
                place = next((f for f in reversed(frames) if "/gdsdeploy/" in f.filename), frames[-1])
                key = f"{type(error).__name__} at {place.filename.rpartition('/gdsdeploy/')[2]}:{place.lineno}"
                outcome.bugs.setdefault(key, f"input {number}: {''.join(traceback.format_exception(error)[-6:])}")
            outcome.slowest = max(outcome.slowest, time.process_time() - start)
    outcome.memory = max(_peak() - before, 0)
    return outcome


@contextlib.contextmanager
def _time_bounded() -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {SECONDS} seconds")

    handler = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


@contextlib.contextmanager
def _memory_bounded() -> Iterator[None]:
    """Have what takes far too much memory end in a MemoryError, rather than this machine."""
    _forget_peak()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 4 * MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # not every container allows it; then the peak is that of the process
        Path("/proc/self/clear_refs").write_text("5")


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Print the table; the exit status is the number of bugs, at most 100."""
    from tests.fuzz.readers import READERS

    count = int(arguments[0]) if arguments else 100_000
    bugs = 0
    say(HEAD)
    for reader in READERS:
        if arguments[1:] and reader.name not in arguments[1:]:
            continue
        outcome = run(reader, count)
        if outcome.memory > MEMORY:
            outcome.bugs["memory"] = f"{outcome.memory} bytes\n"
        say(outcome.row())
        for place, words in outcome.bugs.items():
            say(f"{outcome.reader}: {place}: {words}")
        bugs += len(outcome.bugs)
    return min(bugs, 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
