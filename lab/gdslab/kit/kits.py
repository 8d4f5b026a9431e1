"""The kit of each system: made once by its recipe, cached, and shared by all labs."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.files import folders
from gdslab import guest, records
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.kit import el, kernel, ubuntu
from gdslab.kit.content import Content
from gdslab.systems import System

#: Makes the repositories of a system: its name, Debian's packages, output folder, folder for unpacked packages.
#: Returns repository → fingerprint of its key; the public key is in the output folder (``REPOSITORY.gpg`` for apt).
Build = Callable[[str, Content, Path, Path], dict[str, str]]
_BUILDS: dict[str, Build] = {"ubuntu": ubuntu.build, "el": el.build}


@dataclass(frozen=True)
class Kit:
    """A system's repositories: their ``folder``, and repository → fingerprint of its key."""

    folder: Path
    keys: dict[str, str]

    def keyring(self, repository: str) -> Path:
        """The public key of ``repository``, as apt and gpgv read it."""
        return self.folder / f"{repository}.gpg"

    @property
    def vendor_certificate(self) -> bytes:
        """The certificate (DER) of the key that signs the kernels' own modules."""
        return (self.folder / kernel.CERTIFICATE).read_bytes()


def make(cache: Path, system: System, archive: Archive) -> Kit:
    """The kit of ``system``, made when it isn't cached.

    Raises LabUnavailable if Debian's archive doesn't have a package, ProgramFailed if a program fails.
    """

    def fill(folder: Path) -> None:
        work = folder / "work"
        work.mkdir()
        with console.step(f"Making the repositories of {system.os}"):
            keys = _BUILDS[system.kit](system.os, Content(cache, archive, work), folder, work)
            shutil.copyfile(_certificate(work), folder / kernel.CERTIFICATE)
            shutil.rmtree(work)
        records.write_json(folder / "kit.json", {"keys": keys})

    name = f"kit-{system.os}-{_digest(archive)}"
    return load(folders.cached_folder(cache, name, fill, what=f"the repositories of {system.os}"))


def _certificate(work: Path) -> Path:
    return next(iter(sorted(work.rglob(kernel.CERTIFICATE))))


def load(folder: Path) -> Kit:
    """The kit in ``folder``; raises LabUnavailable if it was deleted."""
    record = records.read_json(folder / "kit.json")
    if record is None:
        raise LabUnavailable(
            f"the lab's repositories in {folder} were deleted", hint="Make a new lab: gdsdeploy lab down, then lab up"
        )
    return Kit(folder, record["keys"])


def _digest(archive: Archive) -> str:
    """Of all that a kit is made from: this folder's files, the lists of packages and modules, the archive."""
    folder = guest.data("kit")
    sources = [path.read_text() for path in (*sorted(folder.glob("*.py")), *sorted(folder.glob("ofed/*")))]
    lists = [*guest.KERNEL_MODULES, *guest.PACKAGES, archive.uri, archive.security_uri or ""]
    return hashlib.sha256("\n".join([*sources, *lists]).encode()).hexdigest()[:12]
