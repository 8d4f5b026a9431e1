"""The peer-to-peer mechanisms of a host: each usable or not, and why; and which one to choose.

The terms are those of the field: PeerDirect, DMA-BUF, PCI P2PDMA, nvidia-fs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.pci import bar1
from ..facts.unknown import when_known
from ..paths import HOLDERS, PEERS
from . import hardware, modules, nvidia_fs, quote, reference
from .cause import COMPAT, DMABUF, NVIDIA_FS, P2PDMA, PEERMEM, Cause, Condition, listed_cause, numbers, weigh
from .rules import needs

PEERDIRECT, NONE = "peerdirect", "none"
#: First kernel whose RDMA core accepts DMA-BUF memory.
DMABUF_KERNEL = (5, 12)
#: The client that nvidia-peermem and nv_peer_mem register; a second one only with persistent_api_support=0.
CLIENT = "nv_mem"
#: BAR1 of GPUs whose firmware doesn't map all of their memory.
SMALL_BAR1 = 256 << 20


@dataclass(frozen=True)
class Mechanism:
    """``usable`` is True only if all evidence shows it; ``why`` is in order, the root cause first."""

    name: str
    title: str
    usable: Maybe[bool]
    why: Tuple[str, ...]
    evidence: Tuple[str, ...] = ()
    #: what to do; empty where nothing needs to be done
    fixes: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The recommended settings of a host: ``mode`` and ``rdma`` as in a fleet file."""

    mode: Maybe[str]
    mode_why: Tuple[str, ...]
    rdma: Maybe[str]
    rdma_why: Tuple[str, ...]


def mechanisms(facts: HostFacts) -> Tuple[Mechanism, ...]:
    """Every mechanism that a fleet file can choose."""
    return (
        _mechanism(NVIDIA_FS, "nvidia-fs: storage drivers with hooks", _nvidia_fs(facts)),
        _mechanism(P2PDMA, "PCI P2PDMA", _p2pdma(facts)),
        _mechanism(PEERDIRECT, "PeerDirect with nvidia-peermem", peerdirect(facts)),
        _mechanism(DMABUF, "DMA-BUF", dmabuf(facts)),
    )


def _mechanism(name: str, title: str, conditions: Iterator[Condition]) -> Mechanism:
    verdict = weigh(conditions)
    causes = (*verdict.causes, *verdict.suspects)
    why = (*(cause.what for cause in causes), *(() if verdict.causes else verdict.unseen))
    evidence = tuple(line for cause in causes for line in cause.evidence)
    fixes = tuple(dict.fromkeys(cause.fix for cause in verdict.causes if cause.fix))
    return Mechanism(name, title, verdict.holds, why, evidence, fixes)


def _gpu(facts: HostFacts) -> Condition:
    cause = Cause("gpu.none", "this host has no GPU", "", ("/sys/bus/pci/devices: no display device of NVIDIA",))
    return Condition(when_known(facts.pci.gpus, bool), cause)


def _either(facts: HostFacts) -> Iterator[Condition]:
    """What either path for storage requires: explain's rules about the host, but not about cufile.json.

    Provision renders that file for the mode of the fleet file.
    """
    yield _gpu(facts)
    yield from hardware.pci_tree_usable(facts)
    yield from hardware.pci_tree_direct(facts, None)
    yield from modules.driver_runs(facts, None)
    yield from nvidia_fs.usable(facts)
    yield from hardware.gpus_direct(facts, None)


def _nvidia_fs(facts: HostFacts) -> Iterator[Condition]:
    yield from _either(facts)
    yield from needs(NVIDIA_FS, facts)
    yield from hardware.iommu(facts, None, needs_it_off=False)
    names = [name for hooks in nvidia_fs.HOOKS.values() for name in hooks]
    what = "no loaded storage driver has hooks for nvidia-fs"
    fix = "install nvme from MLNX_OFED or DOCA, or the vendor's filesystem client, for this kernel; or use P2PDMA mode"
    cause = Cause("storage.no-hooks", what, fix, quote.symbols(facts, names[:2]), reference.NVME)
    yield Condition(when_known(facts.kernel.symbols, lambda symbols: any(name in symbols for name in names)), cause)


def _p2pdma(facts: HostFacts) -> Iterator[Condition]:
    yield from _either(facts)
    yield from needs(P2PDMA, facts)


def adapters(facts: HostFacts) -> Condition:
    what = "there is no RDMA adapter"
    fix = "if the host has an adapter, load its driver (mlx5_ib on ConnectX), then list the adapters: rdma link"
    cause = Cause("rdma.no-adapter", what, fix, ("/sys/class/infiniband: empty",))
    return Condition(when_known(facts.peermem.rdma_devices, bool), cause)


def peerdirect(facts: HostFacts) -> Iterator[Condition]:
    """nvidia-peermem passes GPU memory to adapters."""
    yield adapters(facts)
    yield _gpu(facts)
    yield from hardware.iommu(facts, None, needs_it_off=False)
    yield from _room(facts)
    yield from peer_memory(facts)


def _room(facts: HostFacts) -> Iterator[Condition]:
    """What adapters register has to fit into BAR1, which maps all of the memory on large GPUs only (T4: 256 MiB)."""
    for gpu in facts.pci.gpus if isinstance(facts.pci.gpus, tuple) else ():
        size = bar1(gpu) or 0
        if 0 < size <= SMALL_BAR1 and hardware.grace(facts) is not True:
            what = (
                f"BAR1 of the GPU {gpu.address} has {size >> 20} MiB: adapters can't register more than that at a time"
            )
            cause = listed_cause("gpu.small-bar1", (f"{gpu.address}: BAR1 of {size} bytes",), what)
            yield Condition(Unknown(what), cause, suspect=True)


def peer_memory(facts: HostFacts) -> Iterator[Condition]:
    """Registered, not only loaded: lsmod also shows a module whose client the RDMA core refused."""
    what = "the loaded RDMA core has no ib_register_peer_memory_client: it's the kernel's own, not OFED's"
    fix = "install MLNX_OFED or DOCA, then build the driver again; or use DMA-BUF, which needs neither"
    evidence = quote.symbols(facts, ("ib_register_peer_memory_client",))
    core = when_known(facts.p2p.peer_memory, lambda symbol: symbol is not None)
    yield Condition(core, Cause("rdma.no-peer-memory", what, fix, evidence))
    loaded = True if facts.p2p.legacy_loaded is True else facts.peermem.module.loaded
    yield Condition(loaded, modules.not_loaded(facts, modules.peermem(facts)) if loaded is False else None)
    if loaded is True:
        yield registration(facts)


def registration(facts: HostFacts) -> Condition:
    """Whether a loaded peermem is a client of the RDMA core.

    Some kernels show no folder of clients.  The users of ib_uverbs then show that the module uses the core, which it
    does from its successful start on; that doesn't prove the registration.
    """
    clients, users = facts.p2p.clients, facts.p2p.rdma_users
    if isinstance(clients, Unknown):
        return Condition(clients)
    what = "nvidia-peermem is loaded, but not registered as a client of the RDMA core"
    fix = "load it again after OFED's ib_core: systemctl restart gds-peermem"
    if clients is not None:
        what += ": {} shows {}".format(PEERS, ", ".join(clients) or "none")
        evidence = tuple(f"{PEERS}: {name}" for name in clients) or (PEERS + ": empty",)
        holds = any(name.startswith(CLIENT) for name in clients)
        return Condition(holds, Cause("peermem.not-registered", what, fix, evidence))
    no_list = f"the kernel shows no {PEERS}"
    if isinstance(users, Unknown):
        return Condition(Unknown(f"{no_list}; {users.reason}"))
    if {"nvidia_peermem", "nv_peer_mem"} & set(users):
        return Condition(Unknown(no_list + "; the module uses the RDMA core, as it does from its start on"))
    what += ": the module doesn't even use the core"
    evidence = ("{}: {}".format(HOLDERS[0], ", ".join(users) or "none"),)
    return Condition(False, Cause("peermem.not-registered", what, fix, evidence))


def dmabuf(facts: HostFacts) -> Iterator[Condition]:
    """The kernel itself passes GPU memory to adapters."""
    yield adapters(facts)
    yield _gpu(facts)
    yield from dma_buf(facts)


def dma_buf(facts: HostFacts) -> Iterator[Condition]:
    """What DMA-BUF requires of driver, kernel, RDMA core and the adapters' drivers."""
    yield from dmabuf_of_host(facts)
    fix = "load the core (modprobe ib_uverbs); if it's loaded, use another kernel or OFED"
    evidence = quote.symbols(facts, ("ib_umem_dmabuf_get",))
    core = when_known(facts.p2p.rdma_dmabuf, lambda symbol: symbol is not None)
    yield Condition(core, Cause("rdma.no-dmabuf", "the RDMA core has no ib_umem_dmabuf_get", fix, evidence))
    what = "no loaded adapter driver accepts DMA-BUF memory"
    evidence = ("/proc/kallsyms: no …reg_user_mr_dmabuf",)
    fix = "use an adapter whose driver does (mlx5_ib, irdma, bnxt_re, efa), or nvidia-peermem"
    yield Condition(when_known(facts.p2p.adapters_dmabuf, bool), Cause("rdma.adapter-no-dmabuf", what, fix, evidence))


def dmabuf_of_host(facts: HostFacts) -> Iterator[Condition]:
    """What DMA-BUF requires of driver and kernel, whatever the adapters."""
    yield dmabuf_driver(facts)
    release = facts.kernel.release
    what = f"kernel {release} is older than 5.12"
    cause = Cause("kernel.no-dmabuf", what, "boot a newer kernel, or use nvidia-peermem", (f"uname -r: {release}",))
    yield Condition(when_known(release, lambda text: numbers(text) >= DMABUF_KERNEL), cause)


def dmabuf_driver(facts: HostFacts) -> Condition:
    flavour = facts.driver.flavour
    shown = flavour if isinstance(flavour, str) else "not loaded"
    what = f"the driver is {shown}: only the open kernel modules export GPU memory as DMA-BUF"
    evidence = quote.file(facts, "/proc/driver/nvidia/version")
    cause = Cause("driver.proprietary", what, "install the open kernel modules", evidence, reference.OPEN_DRIVER)
    return Condition(when_known(flavour, lambda name: name == "open"), cause)


def choose(facts: HostFacts) -> Choice:
    """The modes for storage and RDMA that fit the host as it runs now, with the reasons in order."""
    offered = {mechanism.name: mechanism for mechanism in mechanisms(facts)}
    # P2PDMA comes first: it needs no module of NVIDIA's and no patched storage drivers.
    good = "PCI P2PDMA is usable: it needs neither nvidia-fs nor patched storage drivers"
    p2pdma = (P2PDMA, offered[P2PDMA], "PCI P2PDMA", good)
    good = "nvidia-fs is loaded, and a storage driver has hooks for it"
    mode, mode_why = _first_usable([p2pdma, (NVIDIA_FS, offered[NVIDIA_FS], "nvidia-fs", good)], COMPAT)
    devices = facts.peermem.rdma_devices
    if isinstance(devices, Unknown):
        return Choice(mode, mode_why, devices, (devices.reason,))
    if not devices:
        return Choice(mode, mode_why, NONE, ("there is no RDMA adapter",))
    # DMA-BUF comes first: it needs no OFED and no module that has to be built against it.
    by_dmabuf = (DMABUF, offered[DMABUF], "DMA-BUF", "DMA-BUF is usable: nvidia-peermem isn't needed")
    good = "nvidia-peermem is loaded and registered with the RDMA core"
    rdma, rdma_why = _first_usable([by_dmabuf, (PEERMEM, offered[PEERDIRECT], "PeerDirect", good)], NONE)
    return Choice(mode, mode_why, rdma, rdma_why)


def _first_usable(
    candidates: Sequence[Tuple[str, Mechanism, str, str]], fallback: str
) -> Tuple[Maybe[str], Tuple[str, ...]]:
    """The first (value, mechanism, its name, why it's good) that is usable, and why not those before.

    ``fallback`` if none is usable; unknown if one of them may be.
    """
    reasons: List[str] = []
    for value, mechanism, name, good in candidates:
        if mechanism.usable is True:
            return value, (good, *reasons)
        reasons += [f"no {name}: {reason}" for reason in mechanism.why]
    unknown = [mechanism.usable for _, mechanism, _, _ in candidates if isinstance(mechanism.usable, Unknown)]
    return (unknown[0] if unknown else fallback), tuple(reasons)
