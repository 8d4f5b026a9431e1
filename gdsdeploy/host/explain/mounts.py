"""The path of each mount in a fleet file, compared with the required one: as values, and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.storage import Mount
from .cause import BROKEN, COMPAT, DIRECT, Path
from .path import path_of

#: What a fleet requires → the paths that satisfy it.
SATISFIES = {
    "direct": DIRECT,
    "nvidia-fs": ("nvidia-fs",),
    "p2pdma": ("p2pdma",),
    "compat": (COMPAT, *DIRECT),
}
#: ``taken`` where nothing is mounted.
NONE = "none"


@dataclass(frozen=True)
class MountPath:
    """One mount of a fleet, as a host has it.

    ``taken`` is the proven path, else the expected one, ``none`` where nothing is mounted, unknown where the evidence
    isn't conclusive.  ``satisfies`` is also unknown for a direct path that is expected and was not proven.
    """

    mount: str
    #: what the fleet requires, a key of SATISFIES
    wanted: str
    taken: Maybe[str]
    #: whether a read through cuFile showed ``taken``
    proven: bool
    satisfies: Maybe[bool]
    #: both are None where nothing is mounted, or where that is unknown
    mounted: Optional[Mount] = None
    path: Optional[Path] = None


def storage_paths(facts: HostFacts, wanted: Iterable[Tuple[str, str]]) -> Tuple[MountPath, ...]:
    """Judge mounts, in their order.  wanted: (mount point, what the fleet requires)."""
    return tuple(_judge(facts, mount, path) for mount, path in wanted)


def description(mount_path: MountPath) -> str:
    """The path and what rules out a better one, without how that was proven."""
    taken, path = mount_path.taken, mount_path.path
    if isinstance(taken, Unknown):
        return taken.reason
    if path is None:
        return "nothing is mounted there"
    if isinstance(mount_path.satisfies, Unknown):
        return f"{taken} is expected, and not proven: {mount_path.satisfies.reason}"
    if taken not in (COMPAT, BROKEN) or not path.causes:
        return taken
    others = f" (and {len(path.causes) - 1} more, see the evidence)" if path.causes[1:] else ""
    return f"{taken}: {path.causes[0].what}{others}"


def proof_of(mount_path: MountPath) -> str:
    """How ``taken`` was proven or why it was not, in parentheses; empty where the path is unknown."""
    path = mount_path.path
    if path is None:
        return ""
    if mount_path.proven:
        return "(proven by a read through cuFile{})".format(f"; {path.surprise}" if path.surprise else "")
    for unknown in (path.proven, path.gpu):
        if isinstance(unknown, Unknown):
            return f"(not proven: {unknown.reason})"
    return "(not proven: no I/O was tried)" if path.gpu is True else "(not proven: this host has no GPU)"


def _judge(facts: HostFacts, mount: str, wanted: str) -> MountPath:
    mounts = facts.storage.mounts
    if isinstance(mounts, Unknown):
        return MountPath(mount, wanted, mounts, proven=False, satisfies=mounts)
    mounted = mounts.get(mount)
    if mounted is None:
        return MountPath(mount, wanted, NONE, proven=False, satisfies=False)
    path = path_of(facts, mounted)
    proven = isinstance(path.proven, str)
    taken = path.proven if isinstance(path.proven, str) else path.path
    return MountPath(mount, wanted, taken, proven, _satisfies(path, taken, wanted), mounted, path)


def _satisfies(path: Path, taken: Maybe[str], wanted: str) -> Maybe[bool]:
    if isinstance(taken, Unknown):
        return taken
    if isinstance(path.proven, Unknown) and taken in DIRECT and wanted != COMPAT:
        return path.proven
    return taken in SATISFIES.get(wanted, ())
