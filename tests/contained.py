"""Run a command so that nothing it starts outlives it, however it ends: ``python -m tests.contained COMMAND …``.

Tests start virtual machines, containers and daemons, and mount filesystems.  All of them are in a process and mount
namespace whose first process is this module's.  When the command ends, also by SIGKILL, the first process ends, and the
kernel ends the others and drops their mounts.  What runs of the host program as root write to their audit trail is in
memory and is dropped, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

#: The folder of the audit trail.
TRAIL = "/var/log/gdsdeploy"
_UNSHARE = ("unshare", "--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc", "--")


def contain(command: list[str]) -> NoReturn:
    """Replace this process by the command in a namespace of its own; without root, by the command alone."""
    if os.geteuid() != 0:
        os.execvp(command[0], command)
    os.execvp(_UNSHARE[0], [*_UNSHARE, sys.executable, "-m", __spec__.name, "--first", *command])


def first(command: list[str]) -> int:
    """Be the namespace's first process until the command ends; returns its exit status."""
    Path(TRAIL).mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tests", TRAIL], check=True)
    child = os.fork()
    if child == 0:
        # Shells ignore Ctrl-C for what they start in the background, and tests interrupt programs.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvp(command[0], command)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    # Programs whose parent has ended become this process's children.
    while True:
        process, status = os.wait()
        if process == child:
            subprocess.run(["umount", "--lazy", TRAIL], check=False)
            with contextlib.suppress(OSError):  # Somebody else's trail is there.
                Path(TRAIL).rmdir()
            return os.waitstatus_to_exitcode(status) % 256


def main(arguments: list[str]) -> int:
    if arguments[0] == "--first":
        return first(arguments[1:])
    contain(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
