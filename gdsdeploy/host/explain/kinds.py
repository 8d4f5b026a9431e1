"""Each kind of storage that cuFile knows: whether this host has it, and which path its I/O can take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, storage
from ..facts.storage import Mount
from ..facts.unknown import when_known
from ..gdscheck.grammar import SINCE
from . import config, nvidia_fs, path, userspace_rdma
from .blocks import stack
from .cause import BROKEN, NVIDIA_FS, P2PDMA, Cause, Condition, Path, distinct, numbers, weigh
from .config import p2pdma_keys, requests_p2pdma
from .filesystem import NETWORK
from .rules import DIRECT, USABLE, needs
from .userspace_rdma import CLIENTS

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
        Kind(label, _has(facts, label), _path(facts, label), _row(facts, label)) for label in _labels(facts)
    )
    adapters = when_known(facts.peermem.rdma_devices, bool)
    return (*storage_kinds, Kind(RDMA, adapters, _rdma_path(facts), _row(facts, RDMA)))


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
        return when_known(facts.storage.mounts, lambda mounts: any(map(_is_scsi, mounts.values())))
    if driver in TRANSPORTS:
        transports = list(facts.storage.controllers.values())
        if any(transport in TRANSPORTS[driver] for transport in transports):
            return True
        return next((transport for transport in transports if isinstance(transport, Unknown)), False)
    types = {name for name, module in NETWORK.items() if module == driver and (name == FSX) == (label == "FSx Lustre")}
    types |= {name for name, client in CLIENTS.items() if client.row == label} | {FILESYSTEMS.get(label, "")}
    return when_known(facts.storage.mounts, lambda mounts: any(m.filesystem in types for m in mounts.values()))


def _is_scsi(mount: Mount) -> bool:
    return any(device.kind == storage.SCSI for device in stack(mount))


def _storage_path(facts: HostFacts, driver: str) -> Path:
    """The path of a mount that is itself without fault."""
    attempts = [(NVIDIA_FS, [*needs(NVIDIA_FS, facts), *nvidia_fs.hooks(facts, driver)])]
    served = P2PDMA_STORAGE.get(driver, "")
    if requests_p2pdma(facts, served) is True:
        attempts.insert(0, (P2PDMA, [*needs(P2PDMA, facts), *p2pdma_keys(facts, served)]))
    return _best(facts, needs(USABLE, facts), attempts)


def _path(facts: HostFacts, label: str) -> Path:
    """The path of storage of this kind that is itself without fault."""
    if label in STACKS:
        return _storage_path(facts, STACKS[label])
    name = FILESYSTEMS[label]
    if name in CLIENTS:
        return _best(facts, needs(USABLE, facts), userspace_rdma.attempts(facts, CLIENTS[name], None))
    return path.path_of(facts, Mount("a mount", name, name, (), None, None, f"any mount of {name}"))


def _rdma_path(facts: HostFacts) -> Path:
    attempts = [(userspace_rdma.path_name(facts), list(userspace_rdma.needed(facts)))]
    return _best(facts, config.usable(facts), attempts)


def _best(facts: HostFacts, usable: Iterator[Condition], attempts: Sequence[Tuple[str, List[Condition]]]) -> Path:
    gpu = when_known(facts.pci.gpus, bool)
    basis = weigh(usable)
    if basis.holds is False:
        return Path(BROKEN, basis.causes, gpu)
    shared = list(needs(DIRECT, facts))
    causes: Tuple[Cause, ...] = ()
    for name, conditions in attempts:
        verdict = weigh([*shared, *conditions])
        if verdict.holds is not False:
            path_name = name if verdict.holds is True else verdict.holds
            return Path(path_name, (), gpu, verdict.suspects, verdict.unseen)
        causes = distinct((*causes, *verdict.causes))
    fallback, causes = path.or_compat(facts, causes)
    return Path(fallback, causes, gpu)
