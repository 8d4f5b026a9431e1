"""The explanation of a host: each mount and each kind of storage.  Pure.

The path of each mount in a fleet file, compared with the required one: as values, and in words.

Each kind of storage that cuFile knows: whether this host has it, and which path its I/O can take.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, as_dict, storage
from ..facts.storage import Mount
from ..facts.unknown import if_known, when_known
from ..foreign import ForeignInstall, Locked, findings
from ..gdscheck.reader import SINCE
from . import blocks, config, mechanisms, nvidia_fs, path, processes
from .blocks import stack
from .cause import (
    BROKEN,
    COMPAT,
    DIRECT,
    DIRECT_PATH,
    NVIDIA_FS,
    P2PDMA,
    USABLE,
    Condition,
    Path,
    needs,
    numbers,
    weigh,
)
from .config import p2pdma_keys, requests_p2pdma
from .filesystem import NATIVE, NETWORK
from .mechanisms import CLIENTS
from .path import path_of
from .processes import ExplainedProgram, as_row

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


RDMA = "Userspace RDMA"
#: Label → the storage driver that must have hooks for nvidia-fs.
STACKS = {
    "NVMe": "nvme",
    "NVMeOF": "nvme_rdma",
    "SCSI": "scsi_mod",
    "ScaleFlux CSD": "sfxvdriver",
    "NVMesh": "nvmeib_common",
    "DDN EXAScaler": "lnet",
    "FSx Lustre": "lnet",
    "NFS": "rpcrdma",
    "BeeGFS": "beegfs",
    "ScaTeFS": "scatefs",
}
#: Storage driver → the name in cufile.json of storage that P2PDMA serves.
P2PDMA_STORAGE = {"nvme": "nvme", "nvme_rdma": "nvmeof"}
#: Label → the filesystem whose mount is judged as a whole.
FILESYSTEMS = {"IBM Spectrum Scale": "gpfs", "VIRTIOFS": "virtiofs", "PanFS": "panfs", "WekaFS": "wekafs"}
#: Storage driver → the transports of its NVMe controllers.
TRANSPORTS = {"nvme": ("pcie",), "nvme_rdma": ("rdma", "tcp", "fc", "loop")}
#: Drivers whose storage a host has where they are loaded.
LOADED = ("sfxvdriver", "nvmeib_common")
#: Filesystem of FSx for Lustre, whose row libcufile prints in place of the other one's.
FSX = "fuse.fsx_lustre"


@dataclass(frozen=True)
class Kind:
    """``label`` as libcufile and gdscheck write it; ``present``: whether this host has storage of this kind."""

    label: str
    present: Maybe[bool]
    path: Path
    #: libcufile's own row about it, empty where there is none
    row: str


def kinds(facts: HostFacts) -> Tuple[Kind, ...]:
    """Every kind that this host's libcufile prints; those that depend on the release where it isn't known, too."""
    storage_kinds = tuple(
        Kind(label, _has(facts, label), _kind_path(facts, label), _row(facts, label)) for label in _labels(facts)
    )
    adapters = when_known(facts.peermem.rdma_devices, bool)
    attempts = [(mechanisms.path_name(facts), list(mechanisms.needed(facts)))]
    path = _best(facts, config.usable(facts), attempts)
    return (*storage_kinds, Kind(RDMA, adapters, path, _row(facts, RDMA)))


def _labels(facts: HostFacts) -> Iterator[str]:
    release = config.library(facts)
    for label in (*STACKS, *FILESYSTEMS):
        first, last = SINCE.get(label, ((0, 0), (99, 99)))
        if isinstance(release, str) and not first <= numbers(release) <= last:
            continue
        if label == "FSx Lustre" and _has(facts, label) is not True and not _row(facts, label):
            continue
        yield label


def _row(facts: HostFacts, label: str) -> str:
    row = facts.gdscheck.row(label)
    return row.value if row is not None else ""


def _has(facts: HostFacts, label: str) -> Maybe[bool]:
    driver = STACKS.get(label, "")
    if driver in LOADED:
        return when_known(facts.kernel.modules, lambda names: driver in names)
    if label == "SCSI":
        every = when_known(facts.storage.mounts, lambda mounts: [d for mount in mounts.values() for d in stack(mount)])
        return when_known(every, lambda devices: any(device.kind == storage.SCSI for device in devices))
    if driver in TRANSPORTS:
        transports = list(facts.storage.controllers.values())
        if any(transport in TRANSPORTS[driver] for transport in transports):
            return True
        return next((transport for transport in transports if isinstance(transport, Unknown)), False)
    types = {name for name, module in NETWORK.items() if module == driver and (name == FSX) == (label == "FSx Lustre")}
    types |= {name for name, client in CLIENTS.items() if client.row == label} | {FILESYSTEMS.get(label, "")}
    return when_known(facts.storage.mounts, lambda mounts: any(m.filesystem in types for m in mounts.values()))


def _storage_path(facts: HostFacts, driver: str) -> Path:
    """The path of a mount that is itself without fault."""
    attempts = [(NVIDIA_FS, [*needs(NVIDIA_FS, facts), *nvidia_fs.hooks(facts, driver)])]
    served = P2PDMA_STORAGE.get(driver, "")
    if requests_p2pdma(facts, served) is True:
        attempts.insert(0, (P2PDMA, [*needs(P2PDMA, facts), *p2pdma_keys(facts, served)]))
    return _best(facts, needs(USABLE, facts), attempts)


def _kind_path(facts: HostFacts, label: str) -> Path:
    """The path of storage of this kind that is itself without fault."""
    if label in STACKS:
        return _storage_path(facts, STACKS[label])
    name = FILESYSTEMS[label]
    if name in CLIENTS:
        return _best(facts, needs(USABLE, facts), mechanisms.attempts(facts, CLIENTS[name], None))
    return path.path_of(facts, Mount("a mount", name, name, (), None, None, f"any mount of {name}"))


def _best(facts: HostFacts, usable: Iterator[Condition], attempts: Sequence[Tuple[str, List[Condition]]]) -> Path:
    gpu = when_known(facts.pci.gpus, bool)
    basis = weigh(usable)
    if basis.holds is False:
        return Path(BROKEN, basis.causes, gpu)
    name, verdict = path.decide(list(needs(DIRECT_PATH, facts)), attempts)
    if name is not None:
        return Path(name, (), gpu, verdict.suspects, verdict.unseen)
    fallback, causes = path.or_compat(facts, verdict.causes)
    return Path(fallback, causes, gpu)


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
        "kinds": [
            {"kind": k.label, "here": if_known(k.present, None), "libcufile": k.row, **_path_row(k.path)}
            for k in explanation.kinds
        ],
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
        **_path_row(explained.path),
    }


def _path_row(path: Path) -> Dict[str, Any]:
    name, reason = ("not proven", path.path.reason) if isinstance(path.path, Unknown) else (path.path, "")
    lists = {name: as_dict(getattr(path, name)) for name in ("causes", "suspects", "notes", "proofs")}
    about = {"path": name, "reason": reason, "gpu": if_known(path.gpu, None)}
    return {**about, **lists, "surprise": path.surprise, "unseen": list(path.unseen)}
