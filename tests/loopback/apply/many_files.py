"""Applies files to a root, up to one of its calls: ``many_files.py ROOT [CALL]``.

It kills itself before it makes that call of a C function (they are counted from 1: each system call is in one of them),
or says how many it made, where it may come to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from types import FrameType

from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.file_resource import FileResource
from gdsdeploy.host.apply.files import File
from gdsdeploy.host.apply.host import ManagedHost

NUMBER = 60


@dataclass(frozen=True)
class Desired:
    """Nothing: always the same files."""


class Many(FileResource[Desired]):
    """Files of some size in two folders."""

    reverts = ("/etc/many.d/*", "/etc/more.d/*")

    def desired_files(self, desired: Desired) -> list[File]:
        paths = [f"/etc/{'many' if number % 2 else 'more'}.d/{number}" for number in range(NUMBER)]
        return [File.of(path, path * 4000) for path in paths]


def run(root: str, *, check: bool = False) -> list[str]:
    """Paths that were, or would be, written."""
    resource = engine.DesiredResource("many", Many(), Desired())
    return [change.subject for change in engine.run(ManagedHost(check=check, root=root), [resource])[0].changes]


def main(root: str, last: int) -> None:
    """Apply the files; ``last`` is the call before which the process ends, 0 for none."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        if event == "c_call":
            calls += 1
            if calls == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    run(root)
    sys.setprofile(None)
    sys.stdout.write(str(calls))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
