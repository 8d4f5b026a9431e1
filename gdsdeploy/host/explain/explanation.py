"""The explanation of a host: each mount and each kind of storage.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, as_dict
from ..facts.storage import Mount
from ..facts.unknown import if_known, when_known
from ..foreign import ForeignInstall, Locked, findings
from . import blocks, processes
from .cause import Path
from .filesystem import NATIVE
from .kinds import Kind, kinds
from .path import path_of
from .processes import ExplainedProgram, as_row

VERSION = 1
#: Filesystems of the kernel and of container runtimes, which hold no data for a GPU.
UNINTERESTING = re.compile(
    r"(proc|sysfs|devtmpfs|devpts|tmpfs|ramfs|cgroup2?|securityfs|debugfs|tracefs|configfs|pstore|efivarfs|bpf|mqueue"
    r"|hugetlbfs|autofs|binfmt_misc|fusectl|rpc_pipefs|nsfs|selinuxfs|rootfs|squashfs|erofs|iso9660|vfat|fuse\.(lxcfs|gvfsd-fuse|portal|snapfuse))$"
)


@dataclass(frozen=True)
class ExplainedMount:
    """One mount and its path.  ``requested``: the path of the request, if it lies below the mount point."""

    mount: Mount
    path: Path
    requested: str = ""


@dataclass(frozen=True)
class Explanation:
    """``runs`` are (part, version) from the kernel up."""

    host: str
    collected_at: str
    runs: Tuple[Tuple[str, str], ...]
    mounts: Tuple[ExplainedMount, ...]
    kinds: Tuple[Kind, ...]
    #: why some facts are unknown
    unseen: Tuple[str, ...]
    #: running programs with another configuration than the default one, by which the mounts are judged
    programs: Maybe[Tuple[ExplainedProgram, ...]] = ()
    #: what others have installed of the stack; nothing in a container, which doesn't show its host's packages
    foreign: Tuple[ForeignInstall, ...] = ()
    #: of the kernel that it was judged for
    release: str = ""


class NoSuchMountError(Exception):
    """Nothing is mounted at or above the requested path, as far as the evidence shows."""


def explain(facts: HostFacts, runs: Sequence[Tuple[str, str]], path: str = "") -> Explanation:
    """Explain the mount that holds ``path``, else all that may hold data; raises NoSuchMountError."""
    mounts = tuple(_one(facts, path) if path else _all(facts))
    running = processes.programs(facts, [explained.mount for explained in mounts])
    return Explanation(
        host=facts.name if isinstance(facts.name, str) else "this host",
        collected_at=facts.collected_at,
        runs=tuple(runs),
        mounts=mounts,
        kinds=() if path else kinds(facts),
        unseen=tuple(dict.fromkeys(_unseen(facts, mounts))),
        foreign=_foreign(facts),
        release=_release(facts),
        programs=when_known(running, lambda every: tuple(filter(processes.is_listed, every))),
    )


def _release(facts: HostFacts) -> str:
    """Of the locked kernel where the evidence was collected for a lock, else of the running one."""
    return next(iter(facts.foreign.modules), "")


def _foreign(facts: HostFacts) -> Tuple[ForeignInstall, ...]:
    if facts.environment.container is not None:
        return ()
    return findings(facts.foreign, Locked(_release(facts)))[0]


def _one(facts: HostFacts, path: str) -> Iterator[ExplainedMount]:
    mount = facts.storage.mount_of(path)
    if mount is None:
        raise NoSuchMountError(f"nothing is mounted at or above {path}")
    if not isinstance(mount, Unknown):
        deeper = path if path != mount.mount_point else ""
        yield ExplainedMount(mount, path_of(facts, mount, deeper), deeper)


def _all(facts: HostFacts) -> Iterator[ExplainedMount]:
    for _, mount in sorted(if_known(facts.storage.mounts, {}).items()):
        if mount.filesystem in NATIVE or not UNINTERESTING.match(mount.filesystem):
            yield ExplainedMount(mount, path_of(facts, mount))


def _unseen(facts: HostFacts, explained: Sequence[ExplainedMount]) -> Iterator[str]:
    if facts.environment.root is False:
        yield "the evidence was collected without root; only root can read kernel symbols, messages and modules"
    if isinstance(facts.storage.mounts, Unknown):
        yield facts.storage.mounts.reason
    if isinstance(facts.processes.complete, Unknown):
        yield facts.processes.complete.reason
    yield from facts.gaps
    for entry in explained:
        yield from entry.path.unseen


def as_document(explanation: Explanation) -> Dict[str, Any]:
    """The explanation as JSON values; see docs/explain.md."""
    return {
        "version": VERSION,
        "host": explanation.host,
        "collected_at": explanation.collected_at,
        "stack": [list(run) for run in explanation.runs],
        "mounts": [_mount(explained) for explained in explanation.mounts],
        "kinds": [_kind(kind) for kind in explanation.kinds],
        "processes": if_known(when_known(explanation.programs, lambda every: [as_row(each) for each in every]), None),
        "foreign": [install.to_json() for install in explanation.foreign],
        "unseen": list(explanation.unseen),
    }


def _mount(explained: ExplainedMount) -> Dict[str, Any]:
    mount = explained.mount
    return {
        "mount": mount.mount_point,
        "asked": explained.requested or mount.mount_point,
        "filesystem": mount.filesystem,
        "source": mount.source,
        "devices": [device.name for device in blocks.stack(mount)],
        **_path(explained.path),
    }


def _kind(kind: Kind) -> Dict[str, Any]:
    return {"kind": kind.label, "here": if_known(kind.present, None), "libcufile": kind.row, **_path(kind.path)}


def _path(path: Path) -> Dict[str, Any]:
    name, reason = ("not proven", path.path.reason) if isinstance(path.path, Unknown) else (path.path, "")
    lists = {name: as_dict(getattr(path, name)) for name in ("causes", "suspects", "notes", "proofs")}
    about = {"path": name, "reason": reason, "gpu": if_known(path.gpu, None)}
    return {**about, **lists, "surprise": path.surprise, "unseen": list(path.unseen)}
