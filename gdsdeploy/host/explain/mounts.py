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
#: ``path_name`` where nothing is mounted.
NONE = "none"


@dataclass(frozen=True)
class MountPath:
    """One mount of a fleet, as a host has it.

    ``path_name`` is the proven path, else the expected one, ``none`` where nothing is mounted, unknown where the
    evidence isn't conclusive.  ``satisfies`` is also unknown for a direct path that is expected and was not proven.
    """

    mount: str
    #: what the fleet requires, a key of SATISFIES
    requirement: str
    path_name: Maybe[str]
    #: whether a read through cuFile showed ``path_name``
    proven: bool
    satisfies: Maybe[bool]
    #: both are None where nothing is mounted, or where that is unknown
    mounted: Optional[Mount] = None
    path: Optional[Path] = None


def storage_paths(facts: HostFacts, requirements: Iterable[Tuple[str, str]]) -> Tuple[MountPath, ...]:
    """Judge mounts, in their order.  requirements: (mount point, what the fleet requires)."""
    return tuple(_judge(facts, mount, path) for mount, path in requirements)


def description(mount_path: MountPath) -> str:
    """The path and what rules out a better one, without how that was proven."""
    path_name, path = mount_path.path_name, mount_path.path
    if isinstance(path_name, Unknown):
        return path_name.reason
    if path is None:
        return "nothing is mounted there"
    if isinstance(mount_path.satisfies, Unknown):
        return f"{path_name} is expected, and not proven: {mount_path.satisfies.reason}"
    if path_name not in (COMPAT, BROKEN) or not path.causes:
        return path_name
    others = f" (and {len(path.causes) - 1} more, see the evidence)" if path.causes[1:] else ""
    return f"{path_name}: {path.causes[0].what}{others}"


def proof_of(mount_path: MountPath) -> str:
    """How ``path_name`` was proven or why it was not, in parentheses; empty where the path is unknown."""
    path = mount_path.path
    if path is None:
        return ""
    if mount_path.proven:
        tried = dict.fromkeys(f"a {name}" for proof in path.proofs for name in proof.operations)
        surprise = f"; {path.surprise}" if path.surprise else ""
        return "(proven by {} through cuFile{})".format(" and ".join(tried), surprise)
    for unknown in (path.proven, path.gpu):
        if isinstance(unknown, Unknown):
            return f"(not proven: {unknown.reason})"
    return "(not proven: no I/O was tried)" if path.gpu is True else "(not proven: this host has no GPU)"


def _judge(facts: HostFacts, mount: str, requirement: str) -> MountPath:
    mounts = facts.storage.mounts
    if isinstance(mounts, Unknown):
        return MountPath(mount, requirement, mounts, proven=False, satisfies=mounts)
    mounted = mounts.get(mount)
    if mounted is None:
        return MountPath(mount, requirement, NONE, proven=False, satisfies=False)
    path = path_of(facts, mounted)
    proven = isinstance(path.proven, str)
    path_name = path.proven if isinstance(path.proven, str) else path.path
    return MountPath(mount, requirement, path_name, proven, _satisfies(path, path_name, requirement), mounted, path)


def _satisfies(path: Path, path_name: Maybe[str], requirement: str) -> Maybe[bool]:
    if isinstance(path_name, Unknown):
        return path_name
    if isinstance(path.proven, Unknown) and path_name in DIRECT and requirement != COMPAT:
        return path.proven
    return path_name in SATISFIES.get(requirement, ())
