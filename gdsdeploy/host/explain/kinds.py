"""Each kind of storage that cuFile knows: whether this host has it, and which path its I/O can take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.unknown import when_known
from ..gdscheck import Report
from . import config, modules, nvidia_fs, p2pdma_keys, path, quote, reference
from .cause import BROKEN, NVIDIA_FS, P2PDMA, Cause, Condition, Path, distinct, weigh
from .filesystem import NETWORK
from .rules import DIRECT, USABLE, needs

#: The path of programs that use RDMA adapters directly, as WekaFS and Spectrum Scale do.
PEERMEM, DMABUF = "peermem", "dmabuf"
RDMA = "Userspace RDMA"
#: Label → the storage driver that must have hooks for nvidia-fs.
STACKS = {
    "NVMe": "nvme",
    "NVMeOF": "nvme_rdma",
    "NFS": "rpcrdma",
    "DDN EXAScaler": "lnet",
    "BeeGFS": "beegfs",
    "IBM Spectrum Scale": "mmfslinux",
    "ScaTeFS": "scatefs",
}
#: Storage driver → the name in cufile.json of storage that P2PDMA serves.
P2PDMA_STORAGE = {"nvme": "nvme", "nvme_rdma": "nvmeof"}
#: Storage driver → the transports of its NVMe controllers; all others serve mounted network filesystems.
TRANSPORTS = {"nvme": ("pcie",), "nvme_rdma": ("rdma", "tcp", "fc", "loop")}


@dataclass(frozen=True)
class Kind:
    """``label`` as libcufile and gdscheck write it; ``present``: whether this host has storage of this kind."""

    label: str
    present: Maybe[bool]
    path: Path
    #: libcufile's own row about it, empty where there is none
    row: str


def kinds(facts: HostFacts) -> Tuple[Kind, ...]:
    storage = [(label, _has(facts, stack), _storage_path(facts, stack)) for label, stack in STACKS.items()]
    rdma = (RDMA, when_known(facts.peermem.rdma_devices, bool), _rdma_path(facts))
    return tuple(Kind(label, present, kind_path, _row(facts, label)) for label, present, kind_path in (*storage, rdma))


def _row(facts: HostFacts, label: str) -> str:
    logged = facts.gdscheck.logged
    report = logged if isinstance(logged, Report) else facts.gdscheck.report
    row = report.storage.get(label) if isinstance(report, Report) else None
    return row.value if row is not None else ""


def _has(facts: HostFacts, stack: str) -> Maybe[bool]:
    if stack not in TRANSPORTS:
        types = {name for name, driver in NETWORK.items() if driver == stack}
        return when_known(facts.storage.mounts, lambda mounts: any(m.filesystem in types for m in mounts.values()))
    transports = list(facts.storage.controllers.values())
    if any(transport in TRANSPORTS[stack] for transport in transports):
        return True
    return next((transport for transport in transports if isinstance(transport, Unknown)), False)


def _storage_path(facts: HostFacts, stack: str) -> Path:
    """The path of a mount that is itself without fault."""
    attempts = [(NVIDIA_FS, [*needs(NVIDIA_FS, facts), *nvidia_fs.hooks(facts, stack)])]
    storage = P2PDMA_STORAGE.get(stack, "")
    if p2pdma_keys.requests(facts, storage) is True:
        attempts.insert(0, (P2PDMA, [*needs(P2PDMA, facts), *p2pdma_keys.conditions(facts, storage)]))
    return _best(facts, needs(USABLE, facts), attempts)


def _rdma_path(facts: HostFacts) -> Path:
    peer_type = facts.cufile.setting("properties", "rdma_peer_type", "")
    name, conditions = (DMABUF, [dmabuf_driver(facts)]) if peer_type == DMABUF else (PEERMEM, [_peermem(facts)])
    return _best(facts, config.usable(facts), [(name, [adapters(facts), *conditions])])


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


def _peermem(facts: HostFacts) -> Condition:
    loaded = facts.peermem.module.loaded
    return Condition(loaded, modules.not_loaded(facts, modules.peermem(facts)) if loaded is False else None)


def dmabuf_driver(facts: HostFacts) -> Condition:
    flavour = facts.driver.flavour
    shown = flavour if isinstance(flavour, str) else "not loaded"
    what = f"the driver is {shown}: only the open kernel modules export GPU memory as DMA-BUF"
    evidence = quote.file(facts, "/proc/driver/nvidia/version")
    cause = Cause("driver.proprietary", what, "install the open kernel modules", evidence, reference.OPEN_DRIVER)
    return Condition(when_known(flavour, lambda name: name == "open"), cause)


def adapters(facts: HostFacts) -> Condition:
    what = "there is no RDMA adapter"
    fix = "if the host has an adapter, load its driver (mlx5_ib on ConnectX), then list the adapters: rdma link"
    cause = Cause("rdma.no-adapter", what, fix, ("/sys/class/infiniband: empty",))
    return Condition(when_known(facts.peermem.rdma_devices, bool), cause)
