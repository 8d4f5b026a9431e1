"""A resource that consists of files and folders."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, ClassVar, Generic, List, Optional, Sequence, Set, TypeVar

from ..rootdir import list_folder
from . import files
from .files import File
from .host import ManagedHost
from .model import Change, Refusal, Resource, Words
from .record import is_ours, look

D = TypeVar("D")


class FileResource(Resource[D], Generic[D]):
    """A subclass lists its files in :meth:`desired_files`; the rest follows."""

    kinds: ClassVar[Words] = {"write": "write {}", "make": "make the folder {}", "delete": "delete {}"}
    reasons: ClassVar[Words] = {
        "missing": "missing",
        "content": "other content",
        "mode": "mode {}",
        "owner": "owner {}",
        "kind": "a {}",
        "not-wanted": "it is there",
    }

    @abstractmethod
    def desired_files(self, desired: D) -> List[File]:
        """Files and folders in the order in which they are made."""

    def observe(self, host: ManagedHost, desired: D) -> Any:
        """Path → what is there."""
        return {file.path: host.entry(file.path) for file in self.desired_files(desired)}

    def refusals(self, desired: D, observed: Any) -> List[Refusal]:
        """Folders where files belong, and the other way round."""
        return files.refusals((file, observed[file.path]) for file in self.desired_files(desired))

    def changes(self, desired: D, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """One for each path that differs; the engine leaves out those that an earlier resource brings about."""
        return [change for file in self.desired_files(desired) for change in files.compare(file, observed[file.path])]

    def apply(self, host: ManagedHost, desired: D, change: Change) -> None:
        host.write(next(file for file in self.desired_files(desired) if file.path == change.subject))

    def revert(self, host: ManagedHost) -> List[Change]:
        """Restore every path of ``reverts``; a file of gdsdeploy without a record is removed."""
        return restore(host, self.reverts)


def restore(host: ManagedHost, patterns: Sequence[str]) -> List[Change]:
    """Make each path what the record says it was; with ``host.check`` nothing is done.  Returns the changes."""
    changes = restoration_changes(host, patterns)
    if not host.check:
        for change in changes:
            take_back(host, change.subject)
        for path in [path for path in host.glob(patterns) if path in host.record.paths]:
            host.restore(path, needed=False)
    return changes


def restoration_changes(host: ManagedHost, patterns: Sequence[str]) -> List[Change]:
    """What makes each path what it was before, and the folders that were made for it; without a record ours goes."""
    paths = set(host.glob(patterns))
    paths |= {target for target in map(host.target, paths) if target in host.record.paths}
    paths |= {folder for path in paths for folder in _new_folders(host, path)}
    changes: List[Change] = []
    # The content of a folder comes before the folder.
    for path in sorted(paths, reverse=True):
        change = _restoration(host, path, {earlier.subject for earlier in changes if earlier.kind == "delete"})
        changes += [change] if change is not None else []
    return changes


def take_back(host: ManagedHost, path: str) -> None:
    """Make one change of :func:`restoring`; raises ApplyError."""
    if path in host.record.paths:
        host.restore(path)
    else:
        host.remove_tree(path)


def _restoration(host: ManagedHost, path: str, deletions: Set[str]) -> Optional[Change]:
    """What differs from what was before ``path`` was changed; ``deletions``: what is about to be deleted."""
    now = look(host.root, path)
    if path not in host.record.paths:
        return Change("delete", path, "", "", "not-recorded") if now is not None and is_ours(path, now) else None
    before = host.record.paths[path]
    if now == before or ("folder" in (before or {}) and "folder" not in (now or {})):
        # A folder of others that they have removed or replaced is theirs to bring back.
        return None
    is_new_folder = "folder" in (now or {}) and "folder" not in (before or {})
    if is_new_folder and {f"{path}/{name}" for name in list_folder(host.root, path)} - deletions:
        # Other programs keep files there.
        return None
    kind = "delete" if before is None else "make" if "folder" in before else "write"
    return Change(kind, path, "", "", "restore")


def _new_folders(host: ManagedHost, path: str) -> List[str]:
    """The folders above ``path`` that weren't there."""
    folders: List[str] = []
    folder = os.path.dirname(path)
    while folder in host.record.paths and host.record.paths[folder] is None:
        folders.append(folder)
        folder = os.path.dirname(folder)
    return folders
