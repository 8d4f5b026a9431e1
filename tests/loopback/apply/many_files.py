"""Applies files to a root until it is killed: ``many_files.py ROOT``."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.file_resource import FileResource
from gdsdeploy.host.apply.files import File
from gdsdeploy.host.apply.host import Host

NUMBER = 60


@dataclass(frozen=True)
class Desired:
    """Nothing: always the same files."""


class Many(FileResource[Desired]):
    """Files of some size in two folders."""

    reverts = ("/etc/many.d/*", "/etc/more.d/*")

    def wanted(self, desired: Desired) -> list[File]:
        paths = [f"/etc/{'many' if number % 2 else 'more'}.d/{number}" for number in range(NUMBER)]
        return [File.of(path, path * 4000) for path in paths]


def run(root: str, *, check: bool = False) -> list[str]:
    """Paths that were, or would be, written."""
    item = engine.Item("many", Many(), Desired())
    return [change.subject for change in engine.run(Host(check=check, root=root), [item])[0].changes]


if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    run(sys.argv[1])
