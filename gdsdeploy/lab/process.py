"""Processes that outlive the command that started them, known by more than their number.

Process ids are reused, so a recorded id alone may name somebody else's process later.  The kernel's start
time of the process (clock ticks since boot, field 22 of /proc/PID/stat) is recorded beside it, with the boot id
because ticks begin anew with each boot.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import run


@dataclass(frozen=True)
class Process:
    """A started process: its ``pid``, its ``start`` in clock ticks, and the ``boot`` id it was started in."""

    pid: int
    start: int
    boot: str


def boot_id() -> str:
    """The id the kernel drew when it booted; another one means that every recorded process is gone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of ``pid``, or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def identify(pid: int) -> Process | None:
    """What must be recorded to know ``pid`` again; None when it already ended."""
    found = _stat(pid)
    if found is None or found[0] in "ZX":
        return None
    return Process(pid, found[1], boot_id())


def alive(process: Process) -> bool:
    """Whether exactly this process still runs (a zombie has ended)."""
    found = _stat(process.pid)
    return found is not None and found[0] not in "ZX" and found[1] == process.start and process.boot == boot_id()


def find(programs: Collection[str], folder: Path) -> Process | None:
    """The process of one of ``programs`` (names without folder) whose command line names a file in ``folder``.

    For a host whose process was started but, because of an interruption, never recorded.
    """
    inside = f"{folder}/"
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if argv[0].rsplit("/", 1)[-1] in programs and any(inside in f"{word}/" for word in argv[1:]):
            return identify(int(entry.name))
    return None


def stop(process: Process, *, as_root: bool = False, grace: float = 10.0, first: int = signal.SIGTERM) -> None:
    """End ``process`` and wait until it is gone: signal ``first``, and SIGKILL after ``grace`` seconds.

    Does nothing when the process is gone or its number now belongs to another one.
    as_root: the process belongs to root while this one may not.
    """
    for number, patience in ((first, grace), (signal.SIGKILL, 10.0)):
        if not alive(process):
            break
        _signal(process.pid, number, as_root=as_root)
        deadline = time.monotonic() + patience
        while alive(process) and time.monotonic() < deadline:
            time.sleep(0.05)
    _reap(process.pid)


def _signal(pid: int, number: int, *, as_root: bool) -> None:
    if as_root and os.geteuid() != 0:
        run.run(run.as_root(["kill", f"-{number}", str(pid)]), doing=f"stop process {pid}", ok=(0, 1))
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    """Collect the exit status when the process was a child of this one, so that no zombie stays."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
