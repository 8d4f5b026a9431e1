"""Each kind of storage that cuFile knows: whether this host has it, and which path its I/O could take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator, List, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.unknown import test
from ..gdscheck import Report
from . import config, modules, nvidia_fs, path, quote, reference
from .cause import BROKEN, NVIDIA_FS, P2PDMA, Cause, Condition, Path, weigh
from .filesystem import NETWORK
from .rules import DIRECT, USABLE, needs

#: The path of programs that talk to RDMA adapters themselves, as WekaFS and Spectrum Scale do.
PEERMEM, DMABUF = "peermem", "dmabuf"


@dataclass(frozen=True)
class Kind:
    """``label`` as libcufile and gdscheck write it; ``here``: whether this host has storage of this kind."""

    label: str
    here: Maybe[bool]
    path: Path
    #: what libcufile itself says of it, empty where it said nothing
    row: str


@dataclass(frozen=True)
class Definition:
    label: str
    stack: str
    here: Callable[[HostFacts, str], Maybe[bool]]


def kinds(facts: HostFacts) -> Tuple[Kind, ...]:
    found = [Kind(item.label, item.here(facts, item.stack), _path(facts, item), row(facts, item.label)) for item in ALL]
    label = "Userspace RDMA"
    return (*found, Kind(label, test(facts.peermem.rdma_devices, bool), _rdma(facts), row(facts, label)))


def row(facts: HostFacts, label: str) -> str:
    logged = facts.gdscheck.logged
    report = logged if isinstance(logged, Report) else facts.gdscheck.report
    found = report.storage.get(label) if isinstance(report, Report) else None
    return found.value if found is not None else ""


def _path(facts: HostFacts, item: Definition) -> Path:
    """As of a mount that is in order itself."""
    gpu = test(facts.pci.gpus, bool)
    usable = weigh(needs(USABLE, facts))
    if usable.holds is False:
        return Path(BROKEN, usable.causes, gpu)
    attempts = [(NVIDIA_FS, [*needs(NVIDIA_FS, facts), *nvidia_fs.hooks(facts, item.stack)])]
    if item.stack == "nvme" and config.asks_for_p2pdma(facts) is True:
        attempts.insert(0, (P2PDMA, list(needs(P2PDMA, facts))))
    return _best(facts, attempts, gpu)


def _best(facts: HostFacts, attempts: List[Tuple[str, List[Condition]]], gpu: Maybe[bool]) -> Path:
    shared = list(needs(DIRECT, facts))
    causes: Tuple[Cause, ...] = ()
    for name, conditions in attempts:
        found = weigh([*shared, *conditions])
        if found.holds is not False:
            return Path(name if found.holds is True else found.holds, (), gpu, found.suspects, found.unseen)
        causes += tuple(item for item in found.causes if item not in causes)
    taken, causes = path.or_compat(facts, causes)
    return Path(taken, causes, gpu)


def _rdma(facts: HostFacts) -> Path:
    gpu = test(facts.pci.gpus, bool)
    usable = weigh(config.usable(facts))
    if usable.holds is False:
        return Path(BROKEN, usable.causes, gpu)
    wanted = facts.cufile.setting("properties", "rdma_peer_type", "")
    chosen = (DMABUF, list(_dmabuf(facts))) if wanted == DMABUF else (PEERMEM, list(_peermem(facts)))
    return _best(facts, [chosen], gpu)


def _peermem(facts: HostFacts) -> Iterator[Condition]:
    yield _adapters(facts)
    loaded = facts.peermem.module.loaded
    cause = modules.not_loaded(facts, modules.peermem(facts)) if loaded is False else None
    yield Condition(loaded, cause)


def _dmabuf(facts: HostFacts) -> Iterator[Condition]:
    yield _adapters(facts)
    what = "the driver is not of the open flavour, which alone exports GPU memory as DMA-BUF"
    seen = quote.file(facts, "/proc/driver/nvidia/version")
    cause = Cause("driver.proprietary", what, "install the open kernel modules", seen, reference.OPEN_DRIVER)
    yield Condition(test(facts.driver.flavour, lambda flavour: flavour == "open"), cause)


def _adapters(facts: HostFacts) -> Condition:
    what = "there is no RDMA adapter"
    cause = Cause("rdma.no-adapter", what, "load its driver: rdma link", ("/sys/class/infiniband: empty",))
    return Condition(test(facts.peermem.rdma_devices, bool), cause)


def _controllers(transports: Tuple[str, ...]) -> Callable[[HostFacts, str], Maybe[bool]]:
    def here(facts: HostFacts, _stack: str) -> Maybe[bool]:
        found = list(facts.storage.controllers.values())
        if any(item in transports for item in found):
            return True
        return next((item for item in found if isinstance(item, Unknown)), False)

    return here


def _mounted(facts: HostFacts, stack: str) -> Maybe[bool]:
    types = {name for name, needs in NETWORK.items() if needs == stack}
    return test(facts.storage.mounts, lambda mounts: any(item.filesystem in types for item in mounts.values()))


ALL = (
    Definition("NVMe", "nvme", _controllers(("pcie",))),
    Definition("NVMeOF", "nvme_rdma", _controllers(("rdma", "tcp", "fc", "loop"))),
    Definition("NFS", "rpcrdma", _mounted),
    Definition("DDN EXAScaler", "lnet", _mounted),
    Definition("BeeGFS", "beegfs", _mounted),
    Definition("IBM Spectrum Scale", "mmfslinux", _mounted),
    Definition("ScaTeFS", "scatefs", _mounted),
)
