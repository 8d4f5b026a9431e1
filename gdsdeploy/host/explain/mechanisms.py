"""The mechanisms between peers that a host offers, each present, usable or not, and why; and which one to choose.

The words are those of the field: PeerDirect, DMA-BUF, PCI P2PDMA, nvidia-fs, HMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.gpu import OPEN
from ..facts.p2p import EXPORTERS
from ..facts.unknown import test
from ..paths import HOLDERS, PEERS
from . import gpus, nvidia_fs, p2pdma, quote, reference
from .cause import COMPAT, NVIDIA_FS, P2PDMA, Cause, Condition, numbers, weigh

PEERDIRECT, DMABUF, HMM = "peerdirect", "dmabuf", "hmm"
PEERMEM, NONE = "peermem", "none"
#: First kernel whose RDMA core takes DMA-BUF memory.
DMABUF_KERNEL = (5, 12)
#: The client that nvidia-peermem and nv_peer_mem register; a second one only with persistent_api_support=0.
CLIENT = "nv_mem"


@dataclass(frozen=True)
class Mechanism:
    """``usable`` is True only where everything that was looked at holds; ``why`` is in order, the root first."""

    name: str
    title: str
    present: Maybe[bool]
    usable: Maybe[bool]
    why: Tuple[str, ...]
    evidence: Tuple[str, ...] = ()
    #: what to do; empty where nothing is to be done
    fixes: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """What a host should be set to: ``mode`` as in a fleet file (storage), ``rdma`` likewise."""

    mode: Maybe[str]
    mode_why: Tuple[str, ...]
    rdma: Maybe[str]
    rdma_why: Tuple[str, ...]


def mechanisms(facts: HostFacts) -> Tuple[Mechanism, ...]:
    """Every mechanism that matters here, and other vendors' where they are found."""
    return (
        _judged(NVIDIA_FS, "nvidia-fs: storage drivers with hooks", facts.nvidia_fs.module.loaded, _nvidia_fs(facts)),
        _judged(P2PDMA, "PCI P2PDMA", _p2pdma_there(facts), _p2pdma(facts)),
        _judged(PEERDIRECT, "PeerDirect with nvidia-peermem", _peerdirect_there(facts), peerdirect(facts)),
        _judged(DMABUF, "DMA-BUF", _dmabuf_there(facts), dmabuf(facts)),
        _judged(HMM, "HMM device memory", _hmm_there(facts), _hmm(facts)),
        *_others(facts),
    )


def _judged(name: str, title: str, present: Maybe[bool], conditions: Iterator[Condition]) -> Mechanism:
    items = list(conditions)
    found = weigh(items)
    why = [item.what for item in (*found.causes, *found.suspects)] + (list(found.unseen) if not found.causes else [])
    evidence = [line for item in (*found.causes, *found.suspects) for line in item.evidence]
    fixes = [item.fix for item in found.causes if item.fix]
    return Mechanism(name, title, present, found.holds, tuple(why), tuple(evidence), tuple(dict.fromkeys(fixes)))


def _gpu(facts: HostFacts) -> Condition:
    cause = Cause("gpu.none", "this host has no GPU", "", ("/sys/bus/pci/devices: none of NVIDIA's displays",))
    return Condition(test(facts.pci.gpus, bool), cause)


def _nvidia_fs(facts: HostFacts) -> Iterator[Condition]:
    yield _gpu(facts)
    yield from nvidia_fs.module(facts)
    yield from gpus.iommu(facts, None, needs_it_off=False)
    symbols = facts.kernel.symbols
    names = [name for items in nvidia_fs.HOOKS.values() for name in items]
    what = "no loaded storage driver has hooks for nvidia-fs"
    fix = (
        "install the nvme of MLNX_OFED or DOCA, or the vendor's filesystem client, for this kernel; or use P2PDMA mode"
    )
    cause = Cause("storage.no-hooks", what, fix, quote.symbols(facts, names[:2]), reference.NVME)
    yield Condition(test(symbols, lambda found: any(name in found for name in names)), cause)


def _p2pdma(facts: HostFacts) -> Iterator[Condition]:
    yield _gpu(facts)
    yield from p2pdma.of_host(facts)
    what = "this kernel was built without CONFIG_ZONE_DEVICE, in which memory of devices has its pages"
    option = facts.kernel.option("ZONE_DEVICE")
    seen = f"the kernel's configuration: CONFIG_ZONE_DEVICE={option}"
    fix = "run a kernel built with it, or use nvidia-fs"
    cause = Cause("kernel.no-zone-device", what, fix, (seen,), reference.P2P_SUPPORT)
    yield Condition(test(option, lambda value: value == "y"), cause)
    yield from gpus.iommu(facts, None, needs_it_off=True)


def _p2pdma_there(facts: HostFacts) -> Maybe[bool]:
    return test(facts.kernel.option("PCI_P2PDMA"), lambda value: value == "y")


def peerdirect(facts: HostFacts) -> Iterator[Condition]:
    """Registered, not only loaded: lsmod shows a module whose client the RDMA core may have refused."""
    yield _adapters(facts)
    yield _gpu(facts)
    core = facts.p2p.peer_memory
    what = "the loaded RDMA core has no ib_register_peer_memory_client: it is the kernel's own, not OFED's"
    fix = "install MLNX_OFED or DOCA and build the driver after it; or use DMA-BUF, which needs neither"
    evidence = quote.symbols(facts, ("ib_register_peer_memory_client",))
    yield Condition(test(core, lambda found: found is not None), Cause("rdma.no-peer-memory", what, fix, evidence))
    loaded = facts.peermem.module.loaded
    legacy = facts.p2p.legacy_loaded
    either = True if True in (loaded is True, legacy is True) else loaded
    what = "nvidia-peermem is not loaded"
    if facts.peermem.stub is True:
        what += ": the installed one is a stub, built without OFED's symbols, and cannot be"
    cause = Cause("peermem.not-loaded", what, fix if facts.peermem.stub is True else "start gds-peermem.service")
    yield Condition(either, cause)
    if either is True:
        yield registered(facts)


def registered(facts: HostFacts) -> Condition:
    """Whether a loaded peermem is a client of the RDMA core, from more than one place: neither alone proves it.

    Some kernels show no folder of clients at all; the users of ib_uverbs then say that the module holds the core, which
    it does from its successful start on.
    """
    clients, users = facts.p2p.clients, facts.p2p.rdma_users
    evidence = tuple(f"{PEERS}: {name}" for name in clients or ()) if isinstance(clients, tuple) else ()
    if isinstance(clients, tuple):
        what = "it is loaded, but no client of the RDMA core: {} has {}".format(PEERS, ", ".join(clients) or "none")
        fix = "load it again after OFED's ib_core: systemctl restart gds-peermem"
        cause = Cause("peermem.not-registered", what, fix, evidence or (PEERS + ": empty",))
        return Condition(any(name.startswith(CLIENT) for name in clients), cause)
    if isinstance(clients, Unknown):
        return Condition(clients)
    words = f"the kernel shows no {PEERS}"
    if isinstance(users, Unknown):
        return Condition(Unknown(words + "; " + users.reason))
    if {"nvidia_peermem", "nv_peer_mem"} & set(users):
        return Condition(Unknown(words + "; the module holds the RDMA core, which it does from its start on"))
    what = "it is loaded, but no client of the RDMA core, which it does not even hold"
    evidence = ("{}: {}".format(HOLDERS[0], ", ".join(users) or "none"),)
    return Condition(False, Cause("peermem.not-registered", what, "systemctl restart gds-peermem", evidence))


def _peerdirect_there(facts: HostFacts) -> Maybe[bool]:
    return test(facts.p2p.peer_memory, lambda found: found is not None)


def dmabuf(facts: HostFacts) -> Iterator[Condition]:
    """GPU memory handed to adapters by the kernel's own means."""
    yield _adapters(facts)
    yield _gpu(facts)
    yield from dmabuf_of_host(facts)
    what = "the RDMA core has no ib_umem_dmabuf_get"
    fix = "load it (modprobe ib_uverbs); if it is there and lacks that, use another kernel or OFED"
    evidence = quote.symbols(facts, ("ib_umem_dmabuf_get",))
    core = test(facts.p2p.rdma_dmabuf, lambda found: found is not None)
    yield Condition(core, Cause("rdma.no-dmabuf", what, fix, evidence))
    what = "no loaded driver of an adapter takes DMA-BUF memory"
    evidence = ("/proc/kallsyms: no …reg_user_mr_dmabuf",)
    fix = "use an adapter whose driver does (mlx5_ib, irdma, bnxt_re, efa), or nvidia-peermem"
    yield Condition(test(facts.p2p.adapters_dmabuf, bool), Cause("rdma.adapter-no-dmabuf", what, fix, evidence))


def dmabuf_of_host(facts: HostFacts) -> Iterator[Condition]:
    """What DMA-BUF needs of driver and kernel, whatever the adapters."""
    seen = quote.file(facts, "/proc/driver/nvidia/version")
    what, fix = "the driver is {}: only the open flavour exports GPU memory as DMA-BUF", "use the open flavour"
    flavour = facts.driver.flavour
    what = what.format(flavour if isinstance(flavour, str) else "not loaded")
    cause = Cause("driver.proprietary", what, fix, seen, reference.OPEN_DRIVER)
    yield Condition(test(flavour, lambda found: found == OPEN), cause)
    release = facts.kernel.release
    what = f"kernel {release} is older than 5.12"
    cause = Cause("kernel.no-dmabuf", what, "use a newer kernel, or nvidia-peermem", (f"uname -r: {release}",))
    yield Condition(test(release, lambda text: numbers(text) >= DMABUF_KERNEL), cause)


def _dmabuf_there(facts: HostFacts) -> Maybe[bool]:
    return test(facts.p2p.rdma_dmabuf, lambda found: found is not None)


def _adapters(facts: HostFacts) -> Condition:
    what = "there is no RDMA adapter"
    cause = Cause("rdma.no-adapter", what, "load its driver: rdma link", ("/sys/class/infiniband: empty",))
    return Condition(test(facts.peermem.rdma_devices, bool), cause)


def _hmm(facts: HostFacts) -> Iterator[Condition]:
    yield _gpu(facts)
    for name in ("DEVICE_PRIVATE", "HMM_MIRROR"):
        what = "this kernel was built without CONFIG_" + name
        seen = (f"the kernel's configuration: no CONFIG_{name}=y",)
        yield Condition(_option(facts, name), Cause("kernel.no-hmm", what, "", seen))
    what = "nvidia_uvm is not loaded" if facts.p2p.uvm_hmm is None else "nvidia_uvm has HMM switched off"
    yield Condition(test(facts.p2p.uvm_hmm, lambda on: on is True), Cause("driver.no-hmm", what, ""))


def _hmm_there(facts: HostFacts) -> Maybe[bool]:
    return _option(facts, "DEVICE_PRIVATE")


def _option(facts: HostFacts, name: str) -> Maybe[bool]:
    """An option that older recordings did not keep is not known rather than off."""
    looked = [path for path in facts.document.paths("excerpts") if facts.document.looked_for(path, name)]
    if not looked:
        return Unknown(f"CONFIG_{name} was not looked for")
    return test(facts.kernel.option(name), lambda value: value == "y")


def _others(facts: HostFacts) -> Iterator[Mechanism]:
    found = facts.p2p.exporters
    for name in found if isinstance(found, tuple) else ():
        why = ("cuFile moves data to NVIDIA's GPUs only",)
        yield Mechanism(name, EXPORTERS[name], True, False, why, ("/proc/modules: " + name,))


def choose(facts: HostFacts) -> Choice:
    """The mode for storage and for RDMA that fits the host as it runs now, with the reasons in order."""
    found = {item.name: item for item in mechanisms(facts)}
    mode, mode_why = _mode(found[NVIDIA_FS], found[P2PDMA])
    rdma, rdma_why = _rdma(facts, found[DMABUF], found[PEERDIRECT])
    return Choice(mode, tuple(mode_why), rdma, tuple(rdma_why))


def _mode(nvfs: Mechanism, direct: Mechanism) -> Tuple[Maybe[str], List[str]]:
    """P2PDMA needs no module of its own and no patched storage drivers, so it comes first."""
    return _first_usable(
        (
            (
                P2PDMA,
                direct,
                "PCI P2PDMA",
                "PCI P2PDMA is usable: it needs neither nvidia-fs nor patched storage drivers",
            ),
            (NVIDIA_FS, nvfs, "nvidia-fs", "nvidia-fs is loaded, and a storage driver has hooks for it"),
        ),
        COMPAT,
    )


def _rdma(facts: HostFacts, dmabuf_found: Mechanism, peer: Mechanism) -> Tuple[Maybe[str], List[str]]:
    """DMA-BUF, where it serves, needs no OFED and no module that has to be built against it."""
    devices = facts.peermem.rdma_devices
    if isinstance(devices, Unknown) or not devices:
        return (devices, [devices.reason]) if isinstance(devices, Unknown) else (NONE, ["there is no RDMA adapter"])
    return _first_usable(
        (
            (
                DMABUF,
                dmabuf_found,
                "DMA-BUF",
                "DMA-BUF is usable: nvidia-peermem is not needed, and need not be loaded",
            ),
            (PEERMEM, peer, "PeerDirect", "nvidia-peermem is loaded and registered with the RDMA core"),
        ),
        NONE,
    )


def _first_usable(
    candidates: Sequence[Tuple[str, Mechanism, str, str]], otherwise: str
) -> Tuple[Maybe[str], List[str]]:
    """The first of (value, mechanism, what it is called, what speaks for it) that is usable, and why not those before.

    ``otherwise`` where none is; unknown where one of them may be.
    """
    reasons: List[str] = []
    for value, mechanism, name, good in candidates:
        if mechanism.usable is True:
            return value, [good, *reasons]
        reasons += [f"no {name}: {word}" for word in mechanism.why]
    unknown = [item.usable for _, item, _, _ in candidates if isinstance(item.usable, Unknown)]
    return (unknown[0] if unknown else otherwise), reasons


def words(item: Mechanism) -> str:
    """``usable``, ``not usable`` or ``not known``, and whether it is there at all."""
    if isinstance(item.usable, Unknown):
        return "not known"
    return "usable" if item.usable else "there, but not usable" if item.present is True else "not usable"
