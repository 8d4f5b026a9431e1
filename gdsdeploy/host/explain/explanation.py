"""Everything that is to be said of a host's paths: of each kind of storage and of each mount.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, as_dict
from ..facts.storage import Mount
from . import blocks
from .cause import Cause, Path
from .filesystem import LOCAL, NETWORK, UNJUDGED
from .kinds import Kind, kinds
from .path import path_of

VERSION = 1
#: Filesystems of the kernel and of systems of containers, which hold no data for a GPU.
UNINTERESTING = re.compile(
    r"(proc|sysfs|devtmpfs|devpts|tmpfs|ramfs|cgroup2?|securityfs|debugfs|tracefs|configfs|pstore|efivarfs|bpf|mqueue"
    r"|hugetlbfs|autofs|binfmt_misc|fusectl|rpc_pipefs|nsfs|selinuxfs|rootfs|squashfs|erofs|iso9660|vfat|fuse\.(lxcfs|gvfsd-fuse|portal|snapfuse))$"
)


@dataclass(frozen=True)
class Explained:
    """One mount and its path.  ``asked``: the path that was asked for, where it lies deeper than the mount point."""

    mount: Mount
    path: Path
    asked: str = ""


@dataclass(frozen=True)
class Explanation:
    """``runs`` are (part, version) from the kernel up."""

    host: str
    collected_at: str
    runs: Tuple[Tuple[str, str], ...]
    mounts: Tuple[Explained, ...]
    kinds: Tuple[Kind, ...]
    #: why some of it is not known
    unseen: Tuple[str, ...]


class NoSuchMountError(Exception):
    """Nothing is mounted where something was asked about, as far as the evidence shows."""


def explain(facts: HostFacts, runs: Sequence[Tuple[str, str]], asked: str = "") -> Explanation:
    """Explain the mount that the path ``asked`` lies on, else all that may hold data; raises NoSuchMountError."""
    mounts = _one(facts, asked) if asked else _all(facts)
    kinds_ = () if asked else kinds(facts)
    return Explanation(
        host=facts.name if isinstance(facts.name, str) else "this host",
        collected_at=facts.collected_at,
        runs=tuple(runs),
        mounts=mounts,
        kinds=kinds_,
        unseen=_unseen(facts, [item.path for item in mounts]),
    )


def _one(facts: HostFacts, asked: str) -> Tuple[Explained, ...]:
    found: Maybe[Optional[Mount]] = facts.storage.mount_of(asked)
    if isinstance(found, Unknown):
        return ()
    if found is None:
        raise NoSuchMountError(f"nothing is mounted at or above {asked}")
    deeper = asked if asked != found.mount_point else ""
    return (Explained(found, path_of(facts, found, deeper), deeper),)


def _all(facts: HostFacts) -> Tuple[Explained, ...]:
    mounts = facts.storage.mounts
    if isinstance(mounts, Unknown):
        return ()
    wanted = [item for item in mounts.values() if _interesting(item)]
    return tuple(Explained(item, path_of(facts, item)) for item in sorted(wanted, key=lambda item: item.mount_point))


def _interesting(mount: Mount) -> bool:
    name = mount.filesystem
    return name in (*LOCAL, *NETWORK, *UNJUDGED) or not UNINTERESTING.match(name)


def _unseen(facts: HostFacts, paths: Sequence[Path]) -> Tuple[str, ...]:
    found: List[str] = []
    if facts.environment.root is False:
        found.append("the evidence was not collected by root, who alone sees symbols, messages and modules")
    mounts = facts.storage.mounts
    found += [mounts.reason] if isinstance(mounts, Unknown) else []
    found += facts.gaps
    found += [reason for path in paths for reason in path.unseen]
    return tuple(dict.fromkeys(found))


def as_document(explanation: Explanation) -> Dict[str, Any]:
    """The explanation as JSON values; see docs/explain.md."""
    return {
        "version": VERSION,
        "host": explanation.host,
        "collected_at": explanation.collected_at,
        "stack": [list(item) for item in explanation.runs],
        "mounts": [_mount(item) for item in explanation.mounts],
        "kinds": [_kind(item) for item in explanation.kinds],
        "unseen": list(explanation.unseen),
    }


def _mount(item: Explained) -> Dict[str, Any]:
    about = {
        "mount": item.mount.mount_point,
        "asked": item.asked or item.mount.mount_point,
        "filesystem": item.mount.filesystem,
        "source": item.mount.source,
        "devices": [device.name for device in blocks.stack(item.mount)],
    }
    return {**about, **_path(item.path)}


def _kind(item: Kind) -> Dict[str, Any]:
    here = None if isinstance(item.here, Unknown) else item.here
    return {"kind": item.label, "here": here, "libcufile": item.row, **_path(item.path)}


def _path(path: Path) -> Dict[str, Any]:
    known = not isinstance(path.path, Unknown)
    return {
        "path": path.path if known else "not proven",
        "reason": "" if not isinstance(path.path, Unknown) else path.path.reason,
        "gpu": None if isinstance(path.gpu, Unknown) else path.gpu,
        "causes": _causes(path.causes),
        "suspects": _causes(path.suspects),
        "notes": _causes(path.notes),
        "proofs": as_dict(path.proofs),
        "surprise": path.surprise,
        "unseen": list(path.unseen),
    }


def _causes(causes: Tuple[Cause, ...]) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = as_dict(causes)
    return found
