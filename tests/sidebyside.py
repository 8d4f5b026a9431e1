"""All tests in two processes, each on its own half of them.

``python -m tests.sidebyside`` is what ``make test`` runs.  Nearly all of it is work for the processor, and much of that
cannot be divided: an emulated machine keeps one core busy.  So two halves of about the same length run beside each
other, each in the order that keeps most virtual machines apart.  With arguments it is pytest with these arguments.

One half is shown as it runs.  What the other prints is kept meanwhile, shown from its beginning when the first has
ended, and followed from there.  Ctrl-C (or SIGTERM) interrupts both, and waits until both have cleared away what they
made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

ROOT = Path(__file__).parents[1]
LAB = Path("tests/lab")
#: Modules that share the lab with one virtual machine, in this order; they follow all that needs no lab.
SHARED_MACHINE = ("test_lab.py", "test_story.py", "test_vm_*.py")
#: What the other half begins with: it has virtual machines of its own, while the first half has none yet.
FIRST = ("test_rollout_story.py",)
#: What it ends with, so that both halves take about as long.
LAST = ("tests/preflight", "tests/kmod")
PYTEST = (sys.executable, "-m", "pytest")
#: Pytest's own, for a selection that selects nothing and for an interrupted run.
NO_TESTS, INTERRUPTED = 5, 2
#: Seconds between two looks at what the other process has printed.
FOLLOW = 0.5


def halves(root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Arguments of pytest for the half that is shown and for the one that is kept."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    rest = [path for path in settings["testpaths"] if path not in (LAB.as_posix(), *LAST)]
    machine, first = _modules(root, SHARED_MACHINE), _modules(root, FIRST)
    lights = [path for path in _modules(root, ("test_*.py",)) if path not in {*machine, *first}]
    # A cache of its own, for each run writes down which of its tests have failed.
    return [*rest, *machine], ["-o", "cache_dir=.pytest_cache/second", *first, *lights, *LAST]


def _modules(root: Path, patterns: Sequence[str]) -> list[str]:
    return [path.relative_to(root).as_posix() for item in patterns for path in sorted((root / LAB).glob(item))]


def beside(shown: Sequence[str], kept: Sequence[str], out: BinaryIO) -> int:
    """Run both commands at once, and show ``shown`` and then ``kept`` in ``out``; their worse exit status."""
    with tempfile.TemporaryFile() as log:
        # Groups of their own: a signal reaches each of them once, from here, whoever sent it.
        behind = subprocess.Popen(kept, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                                  env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
        front = subprocess.Popen(shown, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 process_group=0)  # fmt: skip
        both = (front, behind)

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            for process in both:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            assert front.stdout is not None
            while piece := os.read(front.stdout.fileno(), 1 << 16):
                _write(out, piece)
            front.wait()
            _write(out, b"\n==== the other half, from its beginning ====\n")
            position = 0
            while True:
                ended = behind.poll() is not None
                position += _write(out, os.pread(log.fileno(), 1 << 30, position))
                if ended:
                    break
                time.sleep(FOLLOW)
        finally:
            # Only where the output is gone is any of them left.
            for process in both:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)
    return _worse(front.returncode, behind.returncode)


def _write(out: BinaryIO, piece: bytes) -> int:
    out.write(piece)
    out.flush()
    return len(piece)


def _worse(one: int, other: int) -> int:
    """The status that says more; a signal is 128 and its number, as in a shell."""
    found = [status if status >= 0 else 128 - status for status in (one, other)]
    if INTERRUPTED in found:
        return 130
    return max((status for status in found if status != NO_TESTS), default=NO_TESTS)


def main(argv: Sequence[str]) -> int:
    """All tests, or pytest with ``argv``."""
    if argv:
        return subprocess.run([*PYTEST, *argv], cwd=ROOT, check=False).returncode
    os.chdir(ROOT)
    shown, kept = halves()
    color = ["--color=yes"] if sys.stdout.isatty() else []
    return beside([*PYTEST, *color, *shown], [*PYTEST, *color, *kept], sys.stdout.buffer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
