"""The path of each mount that a fleet asks for, held against what it asks for: as values, and as words about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.storage import Mount
from .cause import BROKEN, COMPAT, DIRECT, Path
from .path import path_of

#: What a fleet asks for → the paths that satisfy it.
SATISFIES = {
    "direct": DIRECT,
    "nvidia-fs": ("nvidia-fs",),
    "p2pdma": ("p2pdma",),
    "compat": (COMPAT, *DIRECT),
}
#: "Taken" where nothing is mounted.
NONE = "none"


@dataclass(frozen=True)
class MountPath:
    """One mount of a fleet, as a host has it.

    ``taken`` is the path that was proven, else the expected one, ``none`` where nothing is mounted, unknown where the
    evidence does not decide it.  ``satisfies`` is also unknown for a direct path that is expected and was not proven.
    """

    mount: str
    #: what the fleet asks for, a key of SATISFIES
    wanted: str
    taken: Maybe[str]
    #: whether a read through cuFile showed ``taken``
    proven: bool
    satisfies: Maybe[bool]
    #: both are None where nothing is mounted, or it is not known what is
    mounted: Optional[Mount] = None
    path: Optional[Path] = None


def storage_paths(facts: HostFacts, wanted: Iterable[Tuple[str, str]]) -> Tuple[MountPath, ...]:
    """Judge mounts, in their order.  wanted: (mount point, what the fleet asks for)."""
    return tuple(_judged(facts, mount, path) for mount, path in wanted)


def described(item: MountPath) -> str:
    """What is taken and what keeps it from a better path, without how that was proven."""
    if item.path is None:
        return item.taken.reason if isinstance(item.taken, Unknown) else "nothing is mounted there"
    if isinstance(item.taken, Unknown):
        return item.taken.reason
    if isinstance(item.satisfies, Unknown):
        return f"{item.taken} is expected, and not proven: {item.satisfies.reason}"
    causes = item.path.causes if item.taken in (COMPAT, BROKEN) else ()
    if not causes:
        return item.taken
    others = f" (and {len(causes) - 1} more, see the evidence)" if causes[1:] else ""
    return f"{item.taken}: {causes[0].what}{others}"


def proof_of(item: MountPath) -> str:
    """How ``taken`` was proven or why it was not, in parentheses; empty where no path is known."""
    if item.path is None:
        return ""
    if item.proven:
        surprise = item.path.surprise
        return "(proven by a read through cuFile{})".format(f"; {surprise}" if surprise else "")
    if isinstance(item.path.proven, Unknown):
        return f"(not proven: {item.path.proven.reason})"
    if isinstance(item.path.gpu, Unknown):
        return f"(not proven: {item.path.gpu.reason})"
    return "(not proven: no I/O was tried)" if item.path.gpu else "(not proven: this host has no GPU)"


def _judged(facts: HostFacts, mount: str, wanted: str) -> MountPath:
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
