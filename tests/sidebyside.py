"""All tests in two lanes beside each other, each a pytest process at a time.

``python -m tests.sidebyside`` is what ``make test`` runs.  Nearly all of it is work for the processor, and much of that
cannot be divided: an emulated machine keeps one core busy.  Each lane begins with tests that have virtual machines of
their own, in the order that keeps most of these machines apart.  What is left then is taken piece by piece by whichever
lane is free, so that both end at about the same time on machines of any speed.  With arguments it is pytest with these
arguments.

One lane is shown as it runs.  What the other prints is kept meanwhile, shown from its beginning when the first has
ended, and followed from there.  Ctrl-C (or SIGTERM) interrupts both, and waits until both have cleared away what they
made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

ROOT = Path(__file__).parents[1]
LAB = Path("tests/lab")
#: Modules that share the lab with one virtual machine, in this order; they follow all that needs no lab.
SHARED_MACHINE = ("test_lab.py", "test_story.py", "test_vm_*.py")
#: What the other lane begins with: it has virtual machines of its own, while the first lane has none yet.
FIRST = ("test_rollout_story.py",)
#: What is taken when a lane is free: first what waits more than it works, beside the emulated machines that the other
#: lane has then; next the longest; then the other modules with light hosts, one by one.
LATER = ("tests/lab/test_rollout_light.py", "tests/lab/test_slurm_lights.py", "tests/kmod", "tests/preflight")
PYTEST = (sys.executable, "-m", "pytest")
#: Pytest's own, for a selection that selects nothing and for an interrupted run.
NO_TESTS, INTERRUPTED = 5, 2
#: Seconds between two looks at what the lanes have printed.
FOLLOW = 0.5

Command = Sequence[str]


def division(root: Path = ROOT) -> tuple[list[str], list[str], list[list[str]]]:
    """Arguments of pytest for the lane that is shown, for the one that is kept, and for each piece that is left."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    rest = [path for path in settings["testpaths"] if path not in (LAB.as_posix(), *LATER)]
    machine, first = _modules(root, SHARED_MACHINE), _modules(root, FIRST)
    lights = [path for path in _modules(root, ("test_*.py",)) if path not in {*machine, *first, *LATER}]
    return [*rest, *machine], first, [[piece] for piece in (*LATER, *lights)]


def _modules(root: Path, patterns: Sequence[str]) -> list[str]:
    return [path.relative_to(root).as_posix() for item in patterns for path in sorted((root / LAB).glob(item))]


class Lanes:
    """Commands that run beside each other: one at a time in each lane, first its own and then of those left."""

    def __init__(self, later: Iterable[Command]) -> None:
        self._left = deque(later)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._statuses: list[int] = []

    def begin(self, first: Command, log: BinaryIO) -> threading.Thread:
        """A new lane that starts with ``first`` and writes to ``log``; its thread ends with its last command."""
        lane = threading.Thread(target=self._lane, args=(first, log))
        lane.start()
        return lane

    def _lane(self, first: Command, log: BinaryIO) -> None:
        command: Command | None = first
        while command is not None:
            with self._lock:
                # A group of its own: a signal reaches it once, from here, whoever sent it.
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )  # fmt: skip
                self._running.add(process)
            process.wait()
            with self._lock:
                self._running.remove(process)
                self._statuses.append(process.returncode)
                command = self._left.popleft() if self._left else None

    def interrupt(self) -> None:
        """Begin nothing more, and interrupt what runs."""
        with self._lock:
            self._left.clear()
            for process in self._running:
                process.send_signal(signal.SIGINT)

    def status(self) -> int:
        """The status that says most; a signal is 128 and its number, as in a shell."""
        found = [status if status >= 0 else 128 - status for status in self._statuses]
        if INTERRUPTED in found:
            return 130
        return max((status for status in found if status != NO_TESTS), default=NO_TESTS)


def beside(shown: Command, kept: Command, later: Iterable[Command], out: BinaryIO) -> int:
    """Run ``shown`` and ``kept`` at once, and ``later`` when one of them has ended; the worst exit status.

    What the lane of ``shown`` prints is written to ``out``, and then what the other prints.
    """
    lanes = Lanes(later)
    asked = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # Not from here: the lock may be held by what this handler interrupts.
        asked.set()

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    with tempfile.TemporaryFile() as front, tempfile.TemporaryFile() as behind:
        begun = [lanes.begin(command, log) for command, log in ((shown, front), (kept, behind))]
        try:
            _follow(begun[0], front, out, lanes, asked)
            _write(out, b"\n==== the other lane, from its beginning ====\n")
            _follow(begun[1], behind, out, lanes, asked)
        finally:
            # Only where the output is gone does any of them run.
            if any(lane.is_alive() for lane in begun):
                lanes.interrupt()
            for lane in begun:
                lane.join()
            for number, handler in before.items():
                signal.signal(number, handler)
    return lanes.status()


def _follow(lane: threading.Thread, log: BinaryIO, out: BinaryIO, lanes: Lanes, asked: threading.Event) -> None:
    position = 0
    while True:
        ended = not lane.is_alive()
        if asked.is_set():
            asked.clear()
            lanes.interrupt()
        position += _write(out, os.pread(log.fileno(), 1 << 30, position))
        if ended:
            return
        time.sleep(FOLLOW)


def _write(out: BinaryIO, piece: bytes) -> int:
    out.write(piece)
    out.flush()
    return len(piece)


def main(argv: Sequence[str]) -> int:
    """All tests, or pytest with ``argv``."""
    if argv:
        return subprocess.run([*PYTEST, *argv], cwd=ROOT, check=False).returncode
    os.chdir(ROOT)
    shown, kept, later = division()
    color = ["--color=yes"] if sys.stdout.isatty() else []
    # Caches of their own, for each run writes down which of its tests have failed.
    commands = [
        [*PYTEST, *color, "-o", f"cache_dir=.pytest_cache/{number}", *paths]
        for number, paths in enumerate((shown, kept, *later))
    ]
    return beside(commands[0], commands[1], commands[2:], sys.stdout.buffer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
