"""The lock's repositories and the keys that sign them: what the host lacks is added, and what it has stays."""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass, field
from typing import Any, List, Optional, Sequence

from ..errors import DesiredError
from . import files
from .file_resource import restore
from .files import File
from .host import Host
from .model import Change, Refusal, Resource
from .packages.apt import Apt
from .packages.dnf import Dnf
from .packages.managers import Index, Key, Manager, Pin, manager

#: Folders in which keys of a repository lie.
_KEY_FOLDERS = ("/etc/apt/keyrings/", "/etc/pki/rpm-gpg/")


@dataclass(frozen=True)
class Desired:
    """``keys`` are brought; keyrings of ``indices`` that aren't among them have to be there."""

    manager: str
    indices: List[Index] = field(default_factory=list)
    keys: List[Key] = field(default_factory=list)
    pins: List[Pin] = field(default_factory=list)


class Repositories(Resource[Desired]):
    """Keys, sources and package lists; the files on offer have to be the locked ones."""

    name = "repositories"
    desired_type = Desired

    def __init__(self) -> None:
        self._files: List[File] = []

    def wanted(self, desired: Desired) -> List[File]:
        """The files of the latest look at a host: what apt's sources lack depends on what the host has."""
        return self._files

    def observe(self, host: Host, desired: Desired) -> Any:
        """The files, the keyrings that are missing, and whether the package lists have the locked versions."""
        chosen = manager(desired.manager)
        self._files = _files(host, chosen, desired)
        brought = {key.dest for key in desired.keys}
        needed = dict.fromkeys(path for path in chosen.keyrings(desired.indices) if path not in brought)
        return {
            "files": self._files,
            "entries": {file.path: host.entry(file.path) for file in self._files},
            "keyrings": [path for path in needed if not host.exists(path)],
            "knows": chosen.knows(host, desired.pins),
        }

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        """Keyrings that aren't there, and what is in the way of a file."""
        hint = manager(desired.manager).keyring_hint
        words = "{} is not on this host, so its repository could not be checked"
        found = [Refusal("keyring", words.format(path), hint(path)) for path in observed["keyrings"]]
        blocked = [files.in_the_way(file, observed["entries"][file.path]) for file in observed["files"]]
        return [*found, *(refusal for refusal in blocked if refusal is not None)]

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """Files that differ, and the package lists where they are of other sources or lack the locked versions."""
        entries = observed["entries"]
        changes = [change for file in observed["files"] for change in files.compare(file, entries[file.path])]
        reason = _refresh(manager(desired.manager), changes, knows=observed["knows"])
        return [*changes, Change("refresh", "package lists", "", "", reason)] if reason else changes

    def apply(self, host: Host, desired: Desired, change: Change) -> None:
        """Write a file, or read the package lists."""
        if change.kind == "refresh":
            manager(desired.manager).refresh(host)
        else:
            host.write(next(file for file in self._files if file.path == change.subject))

    def settle(self, host: Host, desired: Desired, changes: Sequence[Change]) -> None:
        """The files on offer are the locked ones, or this host's sources become what they were."""
        manager(desired.manager).verify_files(host, desired.pins)

    def revert(self, host: Host) -> List[Change]:
        """Our sources and keys go."""
        return take_back(host)


def take_back(host: Host) -> List[Change]:
    """Sources and keys become what they were; with ``host.check`` only say it."""
    brought = [path for path in host.record.paths if path.startswith(_KEY_FOLDERS)]
    return restore(host, [*Apt.sources, *Apt.keys, *Dnf.sources, *Dnf.keys, *brought])


def _files(host: Host, chosen: Manager, desired: Desired) -> List[File]:
    keys = [File(key.dest, files.FILE, _decoded(key)) for key in desired.keys]
    folders = dict.fromkeys(os.path.dirname(key.dest) for key in desired.keys)
    # One that is there keeps its mode; a file in its place is refused.
    made = [File(path, files.FOLDER, mode=0o755) for path in folders if not _is_folder(host, path)]
    return [*made, *keys, *chosen.source_files(host, desired.indices, desired.pins)]


def _is_folder(host: Host, path: str) -> bool:
    entry = host.entry(path)
    return entry is not None and entry.kind == files.FOLDER


def _decoded(key: Key) -> bytes:
    if not key.dest.startswith("/") or ".." in key.dest.split("/"):
        raise DesiredError(f"repositories: {key.dest!r} is not an absolute path")
    try:
        return base64.b64decode(key.content, validate=True)
    except (binascii.Error, ValueError):
        raise DesiredError(f"repositories: the content of {key.dest} is not base64") from None


def _refresh(chosen: Manager, changes: Sequence[Change], *, knows: bool) -> Optional[str]:
    """Why the package lists have to be read; None: they needn't."""
    if not chosen.lists:
        return None
    if any(change.subject in chosen.sources and change.reason in ("missing", "content") for change in changes):
        return "sources"
    return None if knows else "unknown-versions"
