"""All mounts of a host with the paths of their I/O, its kinds of storage and its programs: as one JSON object.

text.py has the same for a terminal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, as_dict, require
from ..facts.unknown import if_known, known, or_else
from ..subjects.filesystem import NATIVE
from ..subjects.foreign import ForeignInstall, Locked, findings
from ..subjects.path import Kind, Path, kinds, path_of
from ..subjects.programs import ExplainedProgram, as_row, is_listed, programs
from ..subjects.storage import Mount

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
    own = [explained.mount for explained in mounts]
    return Explanation(
        host=if_known(lambda: facts.name, "this host"),
        collected_at=facts.collected_at,
        runs=tuple(runs),
        mounts=mounts,
        kinds=() if path else kinds(facts),
        unseen=tuple(dict.fromkeys(_unseen(facts, mounts))),
        foreign=_foreign(facts),
        release=_release(facts),
        programs=known(lambda: tuple(filter(is_listed, programs(facts, own)))),
    )


def _release(facts: HostFacts) -> str:
    """Of the locked kernel where the evidence was collected for a lock, else of the running one."""
    return next(iter(facts.foreign.modules), "")


def _foreign(facts: HostFacts) -> Tuple[ForeignInstall, ...]:
    if if_known(lambda: facts.environment.container, "perhaps one") is not None:
        return ()
    return findings(facts.foreign, Locked(_release(facts)))[0]


def _one(facts: HostFacts, path: str) -> Iterator[ExplainedMount]:
    mount = known(lambda: facts.storage.mount_of(path))
    if mount is None:
        raise NoSuchMountError(f"nothing is mounted at or above {path}")
    if not isinstance(mount, Unknown):
        deeper = path if path != mount.mount_point else ""
        yield ExplainedMount(mount, path_of(facts, mount, deeper), deeper)


def _all(facts: HostFacts) -> Iterator[ExplainedMount]:
    for _, mount in sorted(if_known(lambda: facts.storage.mounts, {}).items()):
        if mount.filesystem in NATIVE or not UNINTERESTING.match(mount.filesystem):
            yield ExplainedMount(mount, path_of(facts, mount))


def _unseen(facts: HostFacts, explained: Sequence[ExplainedMount]) -> Iterator[str]:
    if not if_known(lambda: facts.environment.root, True):
        yield "the evidence was collected without root; only root can read kernel symbols, messages and modules"
    for unread in (known(lambda: facts.storage.mounts), known(lambda: facts.processes.complete)):
        if isinstance(unread, Unknown):
            yield unread.reason
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
        "kinds": [
            {"kind": k.label, "here": or_else(k.present, None), "libcufile": k.row, **_path_row(k.path)}
            for k in explanation.kinds
        ],
        "processes": if_known(lambda: [as_row(each) for each in require(explanation.programs)], None),
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
        "devices": [device.name for device in mount.devices],
        **_path_row(explained.path),
    }


def _path_row(path: Path) -> Dict[str, Any]:
    name, reason = ("not proven", path.path.reason) if isinstance(path.path, Unknown) else (path.path, "")
    lists = {name: as_dict(getattr(path, name)) for name in ("causes", "suspects", "notes", "proofs")}
    about = {"path": name, "reason": reason, "gpu": if_known(lambda: path.gpu, None)}
    return {**about, **lists, "surprise": path.surprise, "unseen": list(path.unseen)}
