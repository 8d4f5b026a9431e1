"""Filesystems whose data libcufile itself moves by RDMA, between adapters and GPU memory: WekaFS and Spectrum Scale.

The GPU's memory reaches the adapter through nvidia-peermem or as DMA-BUF, as properties.rdma_peer_type chooses, and
over it CUFILE_DMABUF_ENABLE.  Sources: libcufile's own rows, strings and log (1.4 to 1.20); NVIDIA's cuObjClient guide,
RDMA Peer Memory Configuration; and NVIDIA's gds-diag, which counts these filesystems as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Iterator, List, Mapping, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.rdma import RdmaInterface
from ..facts.storage import Mount
from ..facts.unknown import when_known
from ..gdscheck import Row
from ..paths import CUFILE
from . import mechanisms, nvidia_fs, quote, reference
from .cause import DMABUF, NVIDIA_FS, PEERMEM, Cause, Condition, distinct, weigh
from .rules import NOTES, needs, rule

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
    row = None if isinstance(facts.environment.switch(VARIABLE), bool) else row_of(facts, client.row)
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
    yield mechanisms.adapters(facts)
    yield from _addresses(facts, client, mount)
    yield from memory(facts)


def path_name(facts: HostFacts) -> str:
    """The path that cufile.json or the variable chooses; nvidia-peermem is libcufile's default."""
    chosen = peer_type(facts)
    return PEERMEM if isinstance(chosen, Unknown) else PEER_TYPES[chosen]


def peer_type(facts: HostFacts) -> Maybe[str]:
    """A key of PEER_TYPES: what the variable says, else cufile.json, else libcufile's default.

    Where the variables are unknown, config.direct already leaves every direct path unproven.
    """
    enabled = facts.environment.switch(VARIABLE)
    if isinstance(enabled, bool):
        return "dmabuf" if enabled else "nvidia_peermem"
    configured = facts.cufile.setting("properties", PEER_TYPE, "")
    return when_known(configured, lambda value: value if value in PEER_TYPES else "nvidia_peermem")


def row_of(facts: HostFacts, label: str) -> Optional[Row]:
    """The row of libcufile itself; None where there is none, or where no GPU was there for it to count."""
    has_gpu = not isinstance(facts.pci.gpus, Unknown) and bool(facts.pci.gpus)
    row = facts.gdscheck.row(label) if has_gpu else None
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
    chosen = peer_type(facts)
    if isinstance(chosen, Unknown):
        yield Condition(chosen)
        return
    by_type = {"nvidia_peermem": mechanisms.peer_memory, "dmabuf": mechanisms.dma_buf}
    other = next(name for name in by_type if name != chosen)
    conditions = list(by_type[chosen](facts))
    if weigh(conditions).holds is False and weigh(by_type[other](facts)).holds is True:
        what = f"libcufile uses {chosen}, which this host can't use, though it can use {other}"
        fix = f"set properties.{PEER_TYPE} to {other}"
        evidence = quote.setting(facts, "properties", PEER_TYPE) or (f"{CUFILE}: there is no such file",)
        if isinstance(facts.environment.switch(VARIABLE), bool):
            variable = facts.environment.variables[VARIABLE]
            fix += f", and remove {VARIABLE} from {variable.place}"
            evidence = quote.variable(variable)
        yield Condition(False, Cause("rdma.other-peer-type", what, fix, evidence, reference.PARAMETERS))
    yield from conditions


def _addresses(facts: HostFacts, client: Optional[Client], mount: Optional[Mount]) -> Iterator[Condition]:
    """An adapter that cufile.json names by an address, and that has a link."""
    addresses = listed_addresses(facts, client, mount)
    what = "cufile.json names no RDMA adapter: no list and no mount table has an address"
    if client is not None:
        lists = f"properties.{LIST} or fs.{client.section}.{LIST}"
        what = f"cufile.json names no RDMA adapter: neither {lists} nor a mount table has an address"
    fix = f"set properties.{LIST} to the addresses of the adapters; the profile's `fit` does this for each host"
    evidence = quote.setting(facts, "properties", LIST) or (f"{CUFILE}: there is no such file",)
    cause = Cause("rdma.no-addresses", what, fix, evidence, reference.PARAMETERS)
    yield Condition(when_known(addresses, bool), cause)
    if isinstance(addresses, Unknown) or not addresses:
        return
    adapters = adapters_at(facts, addresses)
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


def adapters_at(facts: HostFacts, addresses: Collection[str]) -> Maybe[List[RdmaInterface]]:
    """The RDMA interfaces that have one of ``addresses``."""
    return when_known(
        facts.network.rdma,
        lambda entries: [entry for entry in entries if any(own.address in addresses for own in entry.addresses)],
    )


def listed_addresses(
    facts: HostFacts, client: Optional[Client] = None, mount: Optional[Mount] = None
) -> Maybe[Tuple[str, ...]]:
    """The addresses for a mount: of its row in the mount table, else its filesystem's list, else the general list.

    Without a mount, all addresses of the client's lists; without a client, those of every list.
    """
    config = facts.cufile.config
    if isinstance(config, Unknown):
        return config
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
    if client is None:
        return
    section = facts.cufile.setting("fs", client.section, {})
    if isinstance(section, Unknown) or _object(section).get(client.write_key) is True:
        return
    key = f"fs.{client.section}.{client.write_key}"
    what = f"writes to {mount.mount_point} take compat mode: {key} isn't true"
    fix = f"if your servers and client allow writes over RDMA, set {key} to true"
    evidence = quote.setting(facts, "fs", client.write_key) or (f"{CUFILE}: there is no such file",)
    yield Cause("cufile.no-rdma-writes", what, fix, evidence, reference.PARAMETERS)
