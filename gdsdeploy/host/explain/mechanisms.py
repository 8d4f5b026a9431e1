"""The peer-to-peer mechanisms of a host: each usable or not, and why; and which one to choose.

The terms are those of the field: PeerDirect, DMA-BUF, PCI P2PDMA, nvidia-fs.

Filesystems whose data libcufile itself moves by RDMA, between adapters and GPU memory: WekaFS and Spectrum Scale.

The GPU's memory reaches the adapter through nvidia-peermem or as DMA-BUF, as properties.rdma_peer_type chooses, and
over it CUFILE_DMABUF_ENABLE.  Sources: libcufile's own rows, strings and log (1.4 to 1.20); NVIDIA's cuObjClient guide,
RDMA Peer Memory Configuration; and NVIDIA's gds-diag, which counts these filesystems as such.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Collection, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, UndecidedError, Unknown, require
from ..facts.storage import Mount
from ..facts.unknown import if_known, known
from ..gdscheck import Row
from ..paths import CUFILE, HOLDERS, PEERS
from ..subjects import quote, reference
from ..subjects.condition import (
    COMPAT,
    DMABUF,
    NOTES,
    NVIDIA_FS,
    P2PDMA,
    PEERMEM,
    Cause,
    Condition,
    condition,
    distinct,
    listed_cause,
    needs,
    numbers,
    rule,
    weigh,
)
from ..subjects.rdma import RdmaInterface
from . import hardware, modules, nvidia_fs

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
        _mechanism(P2PDMA, "PCI P2PDMA", itertools.chain(_either(facts), needs(P2PDMA, facts))),
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
    return Condition(lambda: bool(facts.pci.gpus), cause)


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
    yield Condition(lambda: any(name in facts.kernel.symbols for name in names), cause)


def adapters(facts: HostFacts) -> Condition:
    what = "there is no RDMA adapter"
    fix = "if the host has an adapter, load its driver (mlx5_ib on ConnectX), then list the adapters: rdma link"
    cause = Cause("rdma.no-adapter", what, fix, ("/sys/class/infiniband: empty",))
    return Condition(lambda: bool(facts.peermem.rdma_devices), cause)


def peerdirect(facts: HostFacts) -> Iterator[Condition]:
    """nvidia-peermem passes GPU memory to adapters."""
    yield adapters(facts)
    yield _gpu(facts)
    yield from hardware.iommu(facts, None, needs_it_off=False)
    yield from _room(facts)
    yield from peer_memory(facts)


def _room(facts: HostFacts) -> Iterator[Condition]:
    """What adapters register has to fit into BAR1, which maps all of the memory on large GPUs only (T4: 256 MiB)."""
    on_grace = if_known(lambda: hardware.grace(facts), False)
    for gpu in () if on_grace else if_known(lambda: facts.pci.gpus, ()):
        size = gpu.bar1 or 0
        if 0 < size <= SMALL_BAR1:
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
    cause = Cause("rdma.no-peer-memory", what, fix, evidence)
    yield Condition(lambda: facts.p2p.peer_memory is not None, cause)
    is_legacy = if_known(lambda: facts.p2p.legacy_loaded, False)
    loaded = Condition(
        lambda: is_legacy or facts.peermem.module.loaded, lambda: modules.not_loaded(facts, modules.peermem(facts))
    )
    yield loaded
    if loaded.holds is True:
        yield registration(facts)


@condition
def registration(facts: HostFacts) -> Condition:
    """Whether a loaded peermem is a client of the RDMA core.

    Some kernels show no folder of clients.  The users of ib_uverbs then show that the module uses the core, which it
    does from its successful start on; that doesn't prove the registration.
    """
    clients = facts.p2p.clients
    what = "nvidia-peermem is loaded, but not registered as a client of the RDMA core"
    fix = "load it again after OFED's ib_core: systemctl restart gds-peermem"
    if clients is not None:
        what += ": {} shows {}".format(PEERS, ", ".join(clients) or "none")
        evidence = tuple(f"{PEERS}: {name}" for name in clients) or (PEERS + ": empty",)
        holds = any(name.startswith(CLIENT) for name in clients)
        return Condition(holds, Cause("peermem.not-registered", what, fix, evidence))
    no_list, users = f"the kernel shows no {PEERS}", known(lambda: facts.p2p.rdma_users)
    if isinstance(users, Unknown):
        raise UndecidedError(f"{no_list}; {users.reason}")
    if {"nvidia_peermem", "nv_peer_mem"} & set(users):
        raise UndecidedError(no_list + "; the module uses the RDMA core, as it does from its start on")
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
    cause = Cause("rdma.no-dmabuf", "the RDMA core has no ib_umem_dmabuf_get", fix, evidence)
    yield Condition(lambda: facts.p2p.rdma_dmabuf is not None, cause)
    what = "no loaded adapter driver accepts DMA-BUF memory"
    evidence = ("/proc/kallsyms: no …reg_user_mr_dmabuf",)
    fix = "use an adapter whose driver does (mlx5_ib, irdma, bnxt_re, efa), or nvidia-peermem"
    cause = Cause("rdma.adapter-no-dmabuf", what, fix, evidence)
    yield Condition(lambda: bool(facts.p2p.adapters_dmabuf), cause)


def dmabuf_of_host(facts: HostFacts) -> Iterator[Condition]:
    """What DMA-BUF requires of driver and kernel, whatever the adapters."""
    yield dmabuf_driver(facts)
    yield _dmabuf_kernel(facts)


@condition
def _dmabuf_kernel(facts: HostFacts) -> Condition:
    release = facts.kernel.release
    what, fix = f"kernel {release} is older than 5.12", "boot a newer kernel, or use nvidia-peermem"
    return Condition(numbers(release) >= DMABUF_KERNEL, Cause("kernel.no-dmabuf", what, fix, (f"uname -r: {release}",)))


@condition
def dmabuf_driver(facts: HostFacts) -> Condition:
    flavour = facts.driver.flavour
    what = f"the driver is {flavour or 'not loaded'}: only the open kernel modules export GPU memory as DMA-BUF"
    evidence = quote.file(facts, "/proc/driver/nvidia/version")
    cause = Cause("driver.proprietary", what, "install the open kernel modules", evidence, reference.OPEN_DRIVER)
    return Condition(flavour == "open", cause)


def choose(facts: HostFacts) -> Choice:
    """The modes for storage and RDMA that fit the host as it runs now, with the reasons in order."""
    offered = {mechanism.name: mechanism for mechanism in mechanisms(facts)}
    # P2PDMA comes first: it needs no module of NVIDIA's and no patched storage drivers.
    good = "PCI P2PDMA is usable: it needs neither nvidia-fs nor patched storage drivers"
    p2pdma = (P2PDMA, offered[P2PDMA], "PCI P2PDMA", good)
    good = "nvidia-fs is loaded, and a storage driver has hooks for it"
    mode, mode_why = _first_usable([p2pdma, (NVIDIA_FS, offered[NVIDIA_FS], "nvidia-fs", good)], COMPAT)
    devices = known(lambda: facts.peermem.rdma_devices)
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


LIST, TABLE, PEER_TYPE = "rdma_dev_addr_list", "mount_table", "rdma_peer_type"
#: Value of properties.rdma_peer_type → the path.
PEER_TYPES = {"nvidia_peermem": PEERMEM, "dmabuf": DMABUF}
#: The variable that chooses it, too: libcufile applies it after cufile.json.
VARIABLE = "CUFILE_DMABUF_ENABLE"
#: Words of libcufile's row that mean a direct path for such a filesystem; 1.15 and older say "Supported".
TOKENS = ("dmabuf", "nvidia_peermem", "nvfs")
#: libcufile's row about the library that does its RDMA, and how it begins where that isn't loaded.
LIBRARY_ROW, NOT_LOADED, LIBRARY = "rdma library", "Not Loaded", "libcufile_rdma.so"


@dataclass(frozen=True)
class Client:
    """A filesystem: ``section`` is its name below ``fs`` in cufile.json, ``row`` its label in libcufile's report."""

    section: str
    row: str
    #: key of its section that allows writes over RDMA; libcufile's default is false
    write_key: str
    #: the storage driver that may have hooks for nvidia-fs instead; empty: none
    hooks: str = ""


GPFS = Client("gpfs", "IBM Spectrum Scale", "gds_write_support", "mmfslinux")
CLIENTS = {"wekafs": Client("weka", "WekaFS", "rdma_write_support"), "gpfs": GPFS, "mmfs": GPFS}
Attempts = List[Tuple[str, List[Condition]]]


def attempts(facts: HostFacts, client: Client, mount: Optional[Mount]) -> Attempts:
    """(path, conditions) of each way to the GPU's memory, RDMA first.

    Where libcufile reports another result than the conditions have, the path is unknown.
    """
    ways: Attempts = [(path_name(facts), list(needed(facts, client, mount)))]
    if client.hooks:
        # With a mount the rules about nvidia-fs already ask for the hooks.
        hooks = nvidia_fs.hooks(facts, client.hooks) if mount is None else ()
        ways.append((NVIDIA_FS, [*needs(NVIDIA_FS, facts, mount), *hooks]))
    # libcufile was asked without the variable, so its row is about cufile.json alone.
    row = row_of(facts, client.row) if by_variable(facts) is None else None
    verdicts = [weigh(conditions) for _, conditions in ways]
    if row is None:
        return ways
    if any(verdict.holds is True for verdict in verdicts) and not _is_direct(row):
        doubt = _doubt(facts, client, row, "the evidence on this host allows a direct path")
        return [(name, [*conditions, doubt]) for name, conditions in ways]
    if all(verdict.holds is False for verdict in verdicts) and _is_direct(row):
        causes = distinct(cause for verdict in verdicts for cause in verdict.causes)
        doubt = _doubt(facts, client, row, causes[0].what)
        suspects = [Condition(doubt.holds, cause, suspect=True) for cause in causes]
        return [(ways[0][0], [doubt, *suspects])]
    return ways


def needed(facts: HostFacts, client: Optional[Client] = None, mount: Optional[Mount] = None) -> Iterator[Condition]:
    """What RDMA with GPU memory requires of the host: adapters, their addresses and links, and access to the memory.

    Without a client, an address of any filesystem counts.
    """
    yield adapters(facts)
    yield from _addresses(facts, client, mount)
    yield from memory(facts)


def path_name(facts: HostFacts) -> str:
    """The path that cufile.json or the variable chooses; nvidia-peermem is libcufile's default."""
    return if_known(lambda: PEER_TYPES[peer_type(facts)], PEERMEM)


def by_variable(facts: HostFacts) -> Optional[bool]:
    """What VARIABLE says; None where it says nothing.

    Where the variables are unknown, config.direct already leaves every direct path unproven.
    """
    return if_known(lambda: facts.environment.switch(VARIABLE), None)


def peer_type(facts: HostFacts) -> str:
    """A key of PEER_TYPES: what the variable says, else cufile.json, else libcufile's default; or UndecidedError."""
    enabled = by_variable(facts)
    if enabled is not None:
        return "dmabuf" if enabled else "nvidia_peermem"
    value = facts.cufile.setting("properties", PEER_TYPE, "")
    return value if value in PEER_TYPES else "nvidia_peermem"


def row_of(facts: HostFacts, label: str) -> Optional[Row]:
    """The row of libcufile itself; None where there is none, or where no GPU was there for it to count."""
    row = facts.gdscheck.row(label) if if_known(lambda: facts.pci.gpus, ()) else None
    # Rows of a report that isn't whole claim nothing.
    return row if row is not None and row.supported is not None else None


def _is_direct(row: Row) -> bool:
    return any(name in TOKENS for name in row.paths) if row.paths else row.supported is True


def _doubt(facts: HostFacts, client: Client, row: Row, ours: str) -> Condition:
    reported = f"libcufile reports {client.row}: {row.value}"
    report = facts.gdscheck.best
    rows = report.rdma if report is not None else {}
    evidence = quote.with_source("libcufile", [f"{client.row}: {row.value}", *(f"{k}: {v}" for k, v in rows.items())])
    if not _is_direct(row) and rows.get(LIBRARY_ROW, "").startswith(NOT_LOADED):
        what = f"{reported}; it didn't load {LIBRARY}, which moves the data by RDMA"
        fix = f"install {LIBRARY} of libcufile's own release, and the libraries that ldd reports as not found for it"
        cause = Cause("cufile.no-rdma-library", what, fix, evidence, reference.USERSPACE_RDMA)
    else:
        what = f"{reported}, but {ours}"
        fix = "compare both: the lines of libcufile below Userspace RDMA say what it found; gdscheck -p prints them"
        cause = Cause("cufile.other-row", what, fix, evidence, reference.USERSPACE_RDMA)
    return Condition(Unknown(what), cause, suspect=True)


def memory(facts: HostFacts) -> Iterator[Condition]:
    """Access to the GPU's memory by the mechanism that cufile.json or the variable chooses."""
    chosen = known(lambda: peer_type(facts))
    if isinstance(chosen, Unknown):
        yield Condition(chosen)
        return
    by_type = {"nvidia_peermem": peer_memory, "dmabuf": dma_buf}
    other = next(name for name in by_type if name != chosen)
    conditions = list(by_type[chosen](facts))
    if weigh(conditions).holds is False and weigh(by_type[other](facts)).holds is True:
        what = f"libcufile uses {chosen}, which this host can't use, though it can use {other}"
        fix = f"set properties.{PEER_TYPE} to {other}"
        evidence = quote.setting(facts, "properties", PEER_TYPE) or (f"{CUFILE}: there is no such file",)
        if by_variable(facts) is not None:
            variable = facts.environment.variables[VARIABLE]
            fix += f", and remove {VARIABLE} from {variable.place}"
            evidence = quote.variable(variable)
        yield Condition(False, Cause("rdma.other-peer-type", what, fix, evidence, reference.PARAMETERS))
    yield from conditions


def _addresses(facts: HostFacts, client: Optional[Client], mount: Optional[Mount]) -> Iterator[Condition]:
    """An adapter that cufile.json names by an address, and that has a link."""
    addresses = known(lambda: listed_addresses(facts, client, mount))
    what = "cufile.json names no RDMA adapter: no list and no mount table has an address"
    if client is not None:
        lists = f"properties.{LIST} or fs.{client.section}.{LIST}"
        what = f"cufile.json names no RDMA adapter: neither {lists} nor a mount table has an address"
    fix = f"set properties.{LIST} to the addresses of the adapters; the profile's `fit` does this for each host"
    evidence = quote.setting(facts, "properties", LIST) or (f"{CUFILE}: there is no such file",)
    cause = Cause("rdma.no-addresses", what, fix, evidence, reference.PARAMETERS)
    yield Condition(lambda: bool(require(addresses)), cause)
    if isinstance(addresses, Unknown) or not addresses:
        return
    adapters = known(lambda: adapters_at(facts, addresses))
    if isinstance(adapters, Unknown):
        yield Condition(adapters)
        return
    shown = ", ".join(addresses)
    what = f"no RDMA adapter of this host has an address that cufile.json lists: {shown}"
    cause = Cause("rdma.foreign-addresses", what, fix, quote.with_source(CUFILE, [shown]), reference.PARAMETERS)
    yield Condition(bool(adapters), cause)
    if adapters:
        devices = ", ".join(dict.fromkeys(entry.device for entry in adapters))
        what = f"no port is active on the adapters that cufile.json lists: {devices}"
        fix = "connect the cable or repair the switch port, then look at the ports: rdma link"
        evidence = tuple(f"/sys/class/infiniband/{entry.device}/ports: no port is ACTIVE" for entry in adapters)
        cause = Cause("rdma.no-link", what, fix, evidence[: quote.LINES], reference.USERSPACE_RDMA)
        yield Condition(any(entry.active for entry in adapters), cause)


def adapters_at(facts: HostFacts, addresses: Collection[str]) -> List[RdmaInterface]:
    """The RDMA interfaces that have one of ``addresses``; raises UndecidedError."""
    interfaces = facts.network.rdma
    return [entry for entry in interfaces if any(own.address in addresses for own in entry.addresses)]


def listed_addresses(
    facts: HostFacts, client: Optional[Client] = None, mount: Optional[Mount] = None
) -> Tuple[str, ...]:
    """The addresses for a mount: of its row in the mount table, else its filesystem's list, else the general list.

    Without a mount, all addresses of the client's lists; without a client, those of every list.  Raises UndecidedError.
    """
    config = facts.cufile.config
    filesystems = _object(_object(config).get("fs"))
    sections = [client.section] if client is not None else list(filesystems)
    rows: List[Any] = []
    for section in (_object(filesystems.get(name)) for name in sections):
        table = _object(section.get(TABLE))
        points = [mount.mount_point] if mount is not None else list(table)
        rows += [_object(table.get(point)).get(LIST, table.get(point)) for point in points] + [section.get(LIST)]
    rows.append(_object(_object(config).get("properties")).get(LIST))
    lists = [tuple(text for text in row if isinstance(text, str) and text) for row in rows if isinstance(row, list)]
    if mount is None:
        return tuple(dict.fromkeys(address for row in lists for address in row))
    return next((row for row in lists if row), ())


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


@rule(NOTES, 70)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Writes take compat mode unless the filesystem's own key allows them."""
    client = CLIENTS.get(mount.filesystem)
    if client is None or _object(facts.cufile.setting("fs", client.section, {})).get(client.write_key) is True:
        return
    key = f"fs.{client.section}.{client.write_key}"
    what = f"writes to {mount.mount_point} take compat mode: {key} isn't true"
    fix = f"if your servers and client allow writes over RDMA, set {key} to true"
    evidence = quote.setting(facts, "fs", client.write_key) or (f"{CUFILE}: there is no such file",)
    yield Cause("cufile.no-rdma-writes", what, fix, evidence, reference.PARAMETERS)
