"""The peer-to-peer mechanisms of a host: each usable or not, and why; and which one to choose.

The terms are those of the field: PeerDirect, DMA-BUF, PCI P2PDMA, nvidia-fs.

libcufile's own RDMA: the GPU's memory reaches the adapter through nvidia-peermem or as DMA-BUF, as
properties.rdma_peer_type chooses, and over it CUFILE_DMABUF_ENABLE (NVIDIA, RDMA Peer Memory Configuration).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..facts.unknown import Maybe, Unknown, if_known, known, require
from ..model.expectation import Expectation
from ..paths import CUFILE
from . import gpu, nvidia_fs, quote, rdma
from .condition import COMPAT, DMABUF, NVIDIA_FS, P2PDMA, PEERMEM, Condition, distinct, doubted, needs, required, weigh
from .driver import driver_runs
from .peermem import dma_buf, dmabuf, peer_memory, peerdirect
from .rdma import Client
from .register import Answer, capitalized, check, failed, passed
from .topology import iommu
from .types import HostFacts, Mount

if TYPE_CHECKING:
    from ..gdscheck.reader import Row

NONE = "none"


class Choice(NamedTuple):
    """The recommended settings of a host: ``mode`` and ``rdma`` as in a fleet file."""

    mode: Maybe[str]
    mode_why: Tuple[str, ...]
    rdma: Maybe[str]
    rdma_why: Tuple[str, ...]


def _either(facts: HostFacts) -> Iterator[Condition]:
    """What either path for storage requires: explain's rules about the host, but not about cufile.json.

    Provision renders that file for the mode of the fleet file.
    """
    yield gpu.present(facts)
    yield from gpu.pci_tree_usable(facts)
    yield from gpu.pci_tree_direct(facts)
    yield from driver_runs(facts, None)
    yield from nvidia_fs.usable(facts)
    yield from gpu.direct(facts)


def _nvidia_fs(facts: HostFacts) -> Iterator[Condition]:
    yield from _either(facts)
    yield from needs(NVIDIA_FS, facts)
    yield from iommu(facts, None, needs_it_off=False)
    names = [name for hooks in nvidia_fs.HOOKS.values() for name in hooks]
    yield required(
        lambda: any(name in facts.kernel.symbols for name in names), "storage.no-hooks", quote.symbols(facts, names[:2])
    )


def _p2pdma(facts: HostFacts) -> Iterator[Condition]:
    yield from _either(facts)
    yield from needs(P2PDMA, facts)


class Offer(NamedTuple):
    """A value of the fleet file: the mechanism's name, what it requires, and why it is good."""

    value: str
    name: str
    needs: Callable[[HostFacts], Iterator[Condition]]
    good: str


#: P2PDMA comes first: it needs no module of NVIDIA's and no patched storage drivers.
STORAGE = (
    Offer(P2PDMA, "PCI P2PDMA", _p2pdma, "it needs neither nvidia-fs nor patched storage drivers"),
    Offer(NVIDIA_FS, "nvidia-fs", _nvidia_fs, "it is loaded, and a storage driver has hooks for it"),
)
#: DMA-BUF comes first: it needs no OFED and no module that has to be built against it.
RDMA = (
    Offer(DMABUF, "DMA-BUF", dmabuf, "nvidia-peermem isn't needed"),
    Offer(PEERMEM, "PeerDirect", peerdirect, "nvidia-peermem is loaded and registered with the RDMA core"),
)


def choose(facts: HostFacts) -> Choice:
    """The modes for storage and RDMA that fit the host as it runs now, with the reasons in order."""
    mode, mode_why = _first_usable(facts, STORAGE, COMPAT)
    devices = known(lambda: facts.peermem.rdma_devices)
    if isinstance(devices, Unknown):
        return Choice(mode, mode_why, devices, (devices.reason,))
    if not devices:
        return Choice(mode, mode_why, NONE, ("there is no RDMA adapter",))
    return Choice(mode, mode_why, *_first_usable(facts, RDMA, NONE))


def _first_usable(facts: HostFacts, offers: Sequence[Offer], fallback: str) -> Tuple[Maybe[str], Tuple[str, ...]]:
    """The value of the first offer that is usable, why it's good, and why not those before.

    ``fallback`` if none is usable; unknown if one of them may be.
    """
    reasons: List[str] = []
    unknown: List[Unknown] = []
    for offer in offers:
        verdict = weigh(offer.needs(facts))
        if verdict.holds is True:
            return offer.value, (f"{offer.name} is usable: {offer.good}", *reasons)
        reasons += [f"no {offer.name}: {reason}" for reason in verdict.why]
        unknown += [verdict.holds] if isinstance(verdict.holds, Unknown) else []
    return next(iter(unknown), fallback), tuple(reasons)


PEER_TYPE = "rdma_peer_type"
#: Value of properties.rdma_peer_type → the path.
PEER_TYPES = {"nvidia_peermem": PEERMEM, "dmabuf": DMABUF}
#: The variable that chooses it, too: libcufile applies it after cufile.json.
VARIABLE = "CUFILE_DMABUF_ENABLE"
#: Words of libcufile's row that mean a direct path for such a filesystem; 1.15 and older say "Supported".
TOKENS = ("dmabuf", "nvidia_peermem", "nvfs")
#: libcufile's row about the library that does its RDMA, and how it begins where that isn't loaded.
LIBRARY_ROW, NOT_LOADED, LIBRARY = "rdma library", "Not Loaded", "libcufile_rdma.so"


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
    yield rdma.present(facts)
    yield from rdma.usable_addresses(facts, client, mount)
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
        return doubted("cufile.no-rdma-library", evidence, what, fix)
    return doubted("cufile.other-row", evidence, f"{reported}, but {ours}")


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
        also, evidence = "", quote.setting(facts, "properties", PEER_TYPE) or (f"{CUFILE}: there is no such file",)
        if by_variable(facts) is not None:
            variable = facts.environment.variables[VARIABLE]
            also, evidence = f", and remove {VARIABLE} from {variable.place}", quote.variable(variable)
        yield required(False, "rdma.other-peer-type", evidence, chosen=chosen, other=other, also=also)
    yield from conditions


@check(
    "peermem.mechanism",
    "the host has the mechanism between GPUs and adapters that the fleet uses",
    expects="RDMA by {rdma}, usable by this host's adapters",
    prevents="RDMA through CPU memory because core, adapter or driver don't support the mechanism",
    of_running=True,
    unless=rdma.unproven,
)
def mechanism(facts: HostFacts, expectation: Expectation) -> Answer:
    (offer,) = (offer for offer in RDMA if offer.value == expectation.rdma)
    verdict = weigh(offer.needs(facts))
    lines = [*(line for cause in verdict.shown for line in cause.evidence), *verdict.why]
    if require(verdict.holds):
        return passed(f"{offer.name} is usable", lines)
    hint = "; ".join(dict.fromkeys(cause.fix for cause in verdict.causes if cause.fix)) or "Read the reasons above"
    other = choose(facts).rdma
    if isinstance(other, str) and other not in (expectation.rdma, NONE):
        hint += f"; or set rdma: {other} in the profile, which this host offers"
    return failed("{}: {}".format(offer.name, "; ".join(verdict.why)), capitalized(hint), lines)
