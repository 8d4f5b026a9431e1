"""Processes that outlive the command that started them.

The kernel reuses process ids.  A record therefore has the start time (clock ticks since boot, field 22 of
/proc/PID/stat) and the boot id, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import run


@dataclass(frozen=True)
class Process:
    """A started process; ``start``: in clock ticks; ``boot``: the boot id at its start."""

    pid: int
    start: int
    boot: str


def boot_id() -> str:
    """The kernel's id of this boot; processes of another boot have ended."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start(pid: int) -> int | None:
    """Start time of ``pid``; None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the program's name in parentheses, may contain spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    state, threads = fields[0], int(fields[17])
    # A zombie has ended when none of its other threads is left: until then its files and ports are open.
    ended = state == "X" or (state == "Z" and threads <= 1)
    return None if ended else int(fields[19])


def identify(pid: int) -> Process | None:
    """The record of ``pid``; None when it already ended (a zombie has ended)."""
    start = _start(pid)
    return None if start is None else Process(pid, start, boot_id())


def alive(process: Process) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def find(programs: Collection[str], folder: Path) -> Process | None:
    """The process of one of ``programs`` (names without folder) whose command line names a file in ``folder``.

    It finds a process that an interrupted run started and didn't record.
    """
    prefix = f"{folder}/"
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if argv[0].rsplit("/", 1)[-1] in programs and any(prefix in f"{word}/" for word in argv[1:]):
            return identify(int(entry.name))
    return None


def stop(process: Process, *, as_root: bool = False, grace: float = 10.0, first: int = signal.SIGTERM) -> None:
    """End ``process`` and wait for its end: signal ``first``, then SIGKILL after ``grace`` seconds.

    Does nothing when it has ended, even if its pid was reused.  as_root: the process belongs to root.
    """
    for number, patience in ((first, grace), (signal.SIGKILL, 10.0)):
        if not alive(process):
            break
        if as_root and os.geteuid() != 0:
            argv = run.as_root(["kill", f"-{number}", str(process.pid)])
            run.run(argv, doing=f"stop process {process.pid}", ok=(0, 1))
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + patience
        while alive(process) and time.monotonic() < deadline:
            time.sleep(0.05)
    # If it was a child of this process, its exit status has to be collected.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
