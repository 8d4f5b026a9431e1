"""The lock's repositories and the keys that sign them: missing ones are added, the host's own stay."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, List, Optional, Sequence
from urllib.parse import unquote, urlsplit

from ..errors import DesiredError
from . import files
from .file_resource import restore
from .files import File
from .host import ManagedHost
from .model import Change, Refusal, Resource, Words
from .packages.managers import Index, Key, Manager, Pin, every, manager

#: Folders in which keys of a repository lie.
_KEY_FOLDERS = ("/etc/apt/keyrings/", "/etc/pki/rpm-gpg/")

_FOLDER_HINT = "install the package that holds it, such as cuda-repo-…-local; or serve hosts with: gdsdeploy mirror"


@dataclass(frozen=True)
class Desired:
    """The package repositories of the lock."""

    #: The host's package manager.
    manager: str
    #: The locked, signed package indices.
    indices: List[Index] = field(default_factory=list)
    #: Keys to bring.  Keyrings of other indices have to be there.
    keys: List[Key] = field(default_factory=list)
    #: Exact versions of all locked packages of this host.
    pins: List[Pin] = field(default_factory=list)


class Repositories(Resource[Desired]):
    """Keys, sources and package lists; the files on offer have to be the locked ones."""

    name = "repositories"
    desired_type = Desired
    removal_rank = 80
    kinds: ClassVar[Words] = {"refresh": "refresh {}"}
    reasons: ClassVar[Words] = {"sources": "other sources", "unknown-versions": "lists without the locked versions"}

    def __init__(self) -> None:
        self._files: List[File] = []

    def desired_files(self, desired: Desired) -> List[File]:
        """The files of the latest look at a host: what apt's sources lack depends on what the host has."""
        return self._files

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        chosen = manager(desired.manager)
        self._files = _files(host, chosen, desired)
        brought = {key.dest for key in desired.keys}
        needed = dict.fromkeys(path for path in chosen.keyrings(desired.indices) if path not in brought)
        entries, knows = {file.path: host.entry(file.path) for file in self._files}, chosen.knows(host, desired.pins)
        return {
            "files": self._files,
            "entries": entries,
            "keyrings": [path for path in needed if not host.exists(path)],
            "folders": [f for f in map(_folder, desired.indices) if f and not host.exists(f)],
            "knows": knows,
        }

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        hint = manager(desired.manager).keyring_hint
        words = "is not on this host, so its repository could not be checked"
        missing = [Refusal("keyring", f"{path} {words}", hint(path)) for path in observed["keyrings"]]
        for folder in observed["folders"]:
            words = f"{folder} is not on this host, and a repository of the lock is this folder"
            missing.append(Refusal("folder", words, _FOLDER_HINT))
        unsigned = [index for index in desired.indices if index.metadata != "signed"]
        for index in unsigned if not manager(desired.manager).checks_packages else ():
            words = f"the index of {index.repository} is unsigned, and {desired.manager} checks no package's signature"
            missing.append(Refusal("unsigned", words, "use a signed mirror of it: gdsdeploy mirror"))
        return missing + files.refusals((file, observed["entries"][file.path]) for file in observed["files"])

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """Files that differ, and the package lists where they are of other sources or lack the locked versions."""
        entries = observed["entries"]
        changes = [change for file in observed["files"] for change in files.compare(file, entries[file.path])]
        reason = _refresh(manager(desired.manager), changes, knows=observed["knows"])
        return [*changes, Change("refresh", "package lists", "", "", reason)] if reason else changes

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if change.kind == "refresh":
            manager(desired.manager).refresh(host)
        else:
            host.write(next(file for file in self._files if file.path == change.subject))

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """The files on offer are the locked ones, or this host's sources become what they were."""
        manager(desired.manager).verify_files(host, desired.pins)

    def revert(self, host: ManagedHost) -> List[Change]:
        return take_back(host)


def take_back(host: ManagedHost) -> List[Change]:
    """Sources and keys become what they were; with ``host.check`` only say it."""
    brought = [path for path in host.record.paths if path.startswith(_KEY_FOLDERS)]
    distrusted = [change for one in every() for change in one.distrust(host)]
    return [*distrusted, *restore(host, [*(path for one in every() for path in (*one.sources, *one.keys)), *brought])]


def _files(host: ManagedHost, chosen: Manager, desired: Desired) -> List[File]:
    for key in desired.keys:
        if not key.dest.startswith("/") or ".." in key.dest.split("/"):
            raise DesiredError(f"repositories: {key.dest!r} is not an absolute path")
    place = "repositories: the content of"
    keys = [File(key.dest, files.FILE, files.decode_base64(key.content, f"{place} {key.dest}")) for key in desired.keys]
    folders = dict.fromkeys(os.path.dirname(key.dest) for key in desired.keys)
    # One that is there keeps its mode; a file in its place is refused.
    missing = [path for path in folders if getattr(host.entry(path), "kind", "") != files.FOLDER]
    return [
        *(File(path, files.FOLDER, mode=0o755) for path in missing),
        *keys,
        *chosen.source_files(host, desired.indices, desired.pins),
    ]


def _folder(index: Index) -> str:
    """The folder on the host that the repository is; empty for one that a server has."""
    parts = urlsplit(index.uri)
    return unquote(parts.path) if parts.scheme == "file" else ""


def _refresh(chosen: Manager, changes: Sequence[Change], *, knows: bool) -> Optional[str]:
    """Why the package lists have to be read; None: they needn't."""
    if not chosen.lists:
        return None
    if any(change.subject in chosen.sources and change.reason in ("missing", "content") for change in changes):
        return "sources"
    return None if knows else "unknown-versions"
