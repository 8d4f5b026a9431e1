"""The host program itself, at /usr/lib/gdsdeploy/gdsdeploy-host.pyz, and the folders that gdsdeploy has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List

from .. import trail
from ..errors import ApplyError
from ..paths import OWN_NAME, OWN_PARENTS, PROGRAM as PATH
from .file_resource import FileResource
from .files import FOLDER, File
from .host import ManagedHost
from .model import Change, writing

#: How systemd, the kernel's hooks and DKMS start it: no variables, no user's folder, no site-packages.
COMMAND = f"/usr/bin/python3 -I -S {PATH}"
FOLDERS = tuple(f"{parent}/{OWN_NAME}" for parent in OWN_PARENTS)


@dataclass(frozen=True)
class Desired:
    """It has no fields: the program that runs is the one that is put in place."""


class Program(FileResource[Desired]):
    """Our folders, and the zipapp that runs."""

    name = "program"
    desired_type = Desired
    removal_rank = 140
    reverts = (PATH,)

    def desired_files(self, desired: Desired) -> List[File]:
        """The folders and the program; raises ApplyError outside of a zipapp."""
        folders = [File(path, FOLDER, mode=0o755) for path in FOLDERS]
        return [*folders, File(PATH, content=running(), mode=0o755)]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        """Make a folder, or write the program, which is too large for the record."""
        if change.subject == PATH:
            host.write_unrecorded(File(PATH, content=running(), mode=0o755))
        else:
            super().apply(host, desired, change)


def running(loader: Any = None) -> bytes:
    """The bytes of the zipapp that runs: a file, /proc/self/fd/N or what was unpacked; raises ApplyError."""
    archive = trail.archive(loader)
    if not archive:
        words = "the host program doesn't run from a zipapp, so it can't put one in place"
        raise ApplyError(words, "run gdsdeploy-host.pyz, which gdsdeploy sends; python3 -m gdsdeploy.host won't do")
    with writing(archive), open(archive, "rb") as file:
        return file.read()
