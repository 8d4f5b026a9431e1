"""The host's peer-to-peer mechanisms: PeerDirect's clients, DMA-BUF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ..paths import HOLDERS, LEGACY_SERVICE, PEERS, SERVICE_FOLDERS
from .document import Document
from .system import loaded_modules
from .unknown import Maybe, Unknown, all_known, when_known, why_not, with_default

KALLSYMS = "/proc/kallsyms"
#: The RDMA core's end of PeerDirect, and of DMA-BUF (the latter since Linux 5.12).
PEER_MEMORY, DMABUF = "ib_register_peer_memory_client", "ib_umem_dmabuf_get"
#: End of the name of the function by which an adapter's driver takes DMA-BUF memory.
ADAPTER_DMABUF = "reg_user_mr_dmabuf"


@dataclass(frozen=True)
class P2pFacts:
    """``clients``: those that registered with PeerDirect; None: the kernel shows no list of them."""

    clients: Maybe[Optional[Tuple[str, ...]]]
    #: modules that use the RDMA core, by in-kernel name
    rdma_users: Maybe[Tuple[str, ...]]
    #: nv_peer_mem, the module before nvidia-peermem, is loaded
    legacy_loaded: Maybe[bool]
    #: files of its service
    legacy_services: Maybe[Tuple[str, ...]]
    #: PeerDirect in the RDMA core: the module that has it; None: none
    peer_memory: Maybe[Optional[str]]
    #: DMA-BUF in the RDMA core, likewise
    rdma_dmabuf: Maybe[Optional[str]]
    #: adapters' drivers that take DMA-BUF memory
    adapters_dmabuf: Maybe[Tuple[str, ...]]


def p2p_facts(document: Document) -> P2pFacts:
    modules = loaded_modules(document)
    holders = _paths(document, HOLDERS)
    services = _paths(document, SERVICE_FOLDERS, "/" + LEGACY_SERVICE)
    return P2pFacts(
        clients=document.names(PEERS),
        rdma_users=when_known(holders, lambda paths: tuple(sorted({path.rpartition("/")[2] for path in paths}))),
        legacy_loaded=when_known(modules, lambda names: "nv_peer_mem" in names),
        # gdsdeploy keeps the service from starting with a folder of its name.
        legacy_services=when_known(services, lambda paths: tuple(path for path in paths if not path.endswith(".d"))),
        peer_memory=_exporter(document, PEER_MEMORY),
        rdma_dmabuf=_exporter(document, DMABUF),
        adapters_dmabuf=when_known(_symbols(document, ADAPTER_DMABUF), _adapters),
    )


def _paths(document: Document, folders: Tuple[str, ...], pattern: str = "") -> Maybe[Tuple[str, ...]]:
    """The entries of all folders; Unknown if one of them is."""
    listings = all_known(with_default(document.names(folder + pattern), ()) for folder in folders)
    return when_known(
        listings, lambda rows: tuple(f"{folder}/{name}" for folder, row in zip(folders, rows) for name in row)
    )


def _symbols(document: Document, word: str) -> Maybe[Tuple[Tuple[str, str], ...]]:
    """(name, module) of the symbols that end in ``word``."""
    lines = document.lines(KALLSYMS)
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no " + KALLSYMS)
    key = word.replace("ib_register_", "register_") if word == PEER_MEMORY else word
    if not document.looked_for(KALLSYMS, key):
        return Unknown(f"{word} was not looked for in {KALLSYMS}")
    rows = [line.split() for line in lines]
    return tuple(
        (row[2], row[3].strip("[]") if len(row) > 3 else "") for row in rows if len(row) > 2 and row[2].endswith(word)
    )


def _exporter(document: Document, name: str) -> Maybe[Optional[str]]:
    symbols = _symbols(document, name)
    if isinstance(symbols, Unknown):
        return symbols
    return next((module or "the kernel itself" for symbol, module in symbols if symbol == name), None)


def _adapters(symbols: Tuple[Tuple[str, str], ...]) -> Tuple[str, ...]:
    return tuple(sorted({module for _, module in symbols if module and not module.startswith("ib_")}))
