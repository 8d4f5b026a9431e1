"""A resource that is a handful of files and folders, and what has to happen after some of them changed."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Dict, Generic, List, Optional, Sequence, Set, Tuple, TypeVar

from ..rootdir import list_folder
from . import files
from .files import File
from .host import Host
from .model import Change, Refusal, Resource
from .record import is_ours, look

D = TypeVar("D")
Entries = Dict[str, Optional[files.Entry]]


class FileResource(Resource[D], Generic[D]):
    """Subclasses say which files they want; the rest follows."""

    #: what :meth:`revert` restores; shell patterns are allowed in the last part
    reverts: ClassVar[Tuple[str, ...]] = ()

    def wanted(self, desired: D) -> List[File]:
        """Files and folders in the order in which they are made."""
        raise NotImplementedError

    def observe(self, host: Host, desired: D) -> Any:
        """Path → what is there."""
        return {file.path: host.entry(file.path) for file in self.wanted(desired)}

    def refusals(self, desired: D, observed: Any) -> List[Refusal]:
        """Folders where files are wanted, and the other way round."""
        found = [files.in_the_way(file, observed[file.path]) for file in self.wanted(desired)]
        return [refusal for refusal in found if refusal is not None]

    def changes(self, desired: D, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """One for each path that differs; the engine leaves out those that an earlier resource brings about."""
        return [change for file in self.wanted(desired) for change in files.compare(file, observed[file.path])]

    def apply(self, host: Host, desired: D, change: Change) -> None:
        """Write the file of the change."""
        file = next(file for file in self.wanted(desired) if file.path == change.subject)
        host.write(file)

    def revert(self, host: Host) -> List[Change]:
        """Every path of ``reverts`` becomes what it was before; one of ours without a record is removed."""
        return restore(host, self.reverts)


def restore(host: Host, patterns: Sequence[str]) -> List[Change]:
    """Make each path what the record says it was; with ``host.check`` nothing is done.  Returns the changes."""
    changes = restoring(host, patterns)
    if not host.check:
        for change in changes:
            take_back(host, change.subject)
        for path in [path for path in host.glob(patterns) if path in host.record.paths]:
            host.restore(path, needed=False)
    return changes


def restoring(host: Host, patterns: Sequence[str]) -> List[Change]:
    """What makes each path what it was before, and the folders that were made for it; without a record ours goes."""
    paths = set(host.glob(patterns))
    paths |= {target for target in map(host.target, paths) if target in host.record.paths}
    paths |= {folder for path in paths for folder in _made_for(host, path)}
    found: List[Change] = []
    gone: Set[str] = set()
    # What is in a folder comes before the folder.
    for path in sorted(paths, reverse=True):
        change = _way_back(host, path, gone)
        if change is not None:
            found.append(change)
            gone |= {path} if change.kind == "delete" else set()
    return found


def take_back(host: Host, path: str) -> None:
    """Make one change of :func:`restoring`; raises ApplyError."""
    if path in host.record.paths:
        host.restore(path)
    else:
        host.remove_tree(path)


def _way_back(host: Host, path: str, gone: Set[str]) -> Optional[Change]:
    """What differs from what was before ``path`` was changed; ``gone``: what is about to be deleted."""
    now = look(host.root, path)
    if path not in host.record.paths:
        return Change("delete", path, "", "", "not-recorded") if now is not None and is_ours(path, now) else None
    before = host.record.paths[path]
    if now == before or ("folder" in (before or {}) and "folder" not in (now or {})):
        # A folder of others that they have removed or replaced is theirs to bring back.
        return None
    if now is not None and "folder" in now and "folder" not in (before or {}) and _entries(host, path) - gone:
        # Others keep things there.
        return None
    kind = "delete" if before is None else "make" if "folder" in before else "write"
    return Change(kind, path, "", "", "restore")


def _made_for(host: Host, path: str) -> List[str]:
    """The folders above ``path`` that weren't there."""
    found: List[str] = []
    folder = os.path.dirname(path)
    while folder in host.record.paths and host.record.paths[folder] is None:
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _entries(host: Host, folder: str) -> Set[str]:
    return {f"{folder}/{name}" for name in list_folder(host.root, folder)}
