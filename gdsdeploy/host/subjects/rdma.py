"""RDMA: the adapters' network interfaces with their links and addresses, and which of them libcufile may use.

libcufile itself moves the data of some filesystems, WekaFS and Spectrum Scale, by RDMA between adapters and GPU memory.
Sources: its own rows, strings and log (1.4 to 1.20); NVIDIA's cuObjClient guide; and NVIDIA's gds-diag, which counts
these filesystems as such.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

from ..facts.document import Document
from ..facts.unknown import Facts, UndecidedError, Unknown, given, if_known, known, require
from ..model.expectation import Expectation
from ..paths import CUFILE, INFINIBAND
from . import quote, reference
from .condition import NOTES, Cause, Condition, listed_cause, rule
from .cufile_json import LIST, TABLE, given_keys, listed
from .gpu import NO_GPU
from .pci import GPU, NIC
from .pci import addresses as pci_addresses
from .register import Steps, check, collector, not_applicable, passed

if TYPE_CHECKING:
    from ..evidence.recorder import EvidenceRequest, Recorder
    from ..facts import HostFacts
    from .storage import Mount

#: Entries of a port's table that name its network interface; the first one has it.
NDEV = "gid_attrs/ndevs/0"


@collector("fit")
def collect_fit(recorder: Recorder, _request: EvidenceRequest) -> None:
    recorder.excerpt("/proc/meminfo", "^MemTotal:")
    for name in recorder.names(INFINIBAND):
        device = INFINIBAND + "/" + name
        recorder.link(device + "/device")
        recorder.names(device + "/device/net")
        for port in recorder.names(device + "/ports"):
            recorder.texts(device + "/ports/" + port, ("state", "rate", "link_layer", NDEV))
    recorder.command("ip-address", ["ip", "-json", "address", "show"])


_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,32}\Z")


@dataclass(frozen=True)
class Address:
    """An interface's address that other hosts can reach, with the length of its network's prefix."""

    address: str
    prefix: int

    @property
    def version(self) -> int:
        return ipaddress.ip_address(self.address).version

    @property
    def network(self) -> str:
        """The network it lies in, e.g. ``192.0.2.0/24``."""
        return str(ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False))


@dataclass(frozen=True)
class RdmaInterface:
    """One network interface of one RDMA device, e.g. ``ens1f0`` of ``mlx5_0``."""

    device: str
    interface: str
    #: one of the device's ports is active
    active: bool
    #: PCI address of the device; empty for one in software
    pci: str
    addresses: Tuple[Address, ...]


class NetworkFacts(Facts):
    """The network interfaces that can do RDMA."""

    #: in the order of the devices' names, as numbers count: ``mlx5_2`` before ``mlx5_10``
    rdma = given(lambda document: _interfaces(document))


def _interfaces(document: Document) -> Tuple[RdmaInterface, ...]:
    devices = document.names(INFINIBAND)
    if not devices:
        return ()
    addresses = _addresses(document)
    interfaces: List[RdmaInterface] = []
    for device in sorted(devices, key=_by_number):
        path = if_known(partial(document.link, INFINIBAND + "/" + device + "/device"), None)
        above = pci_addresses(path or "")
        folder = f"{INFINIBAND}/{device}/ports"
        ports = [folder + "/" + port for port in document.existing(folder)]
        active = any("ACTIVE" in _line(document, port + "/state") for port in ports)
        pci = above[-1] if above else ""
        interfaces += [
            RdmaInterface(device, name, active, pci, addresses.get(name, ()))
            for name in _interface_names(document, device, ports)
        ]
    names = (name for interface in interfaces for name in (interface.device, interface.interface))
    invalid = next((name for name in names if not _NAME.match(name)), None)
    if invalid is not None:
        # The names go into files and messages.
        raise UndecidedError(f"{invalid[:100]!a} isn't a name of a device or interface")
    return tuple(interfaces)


def _line(document: Document, path: str) -> str:
    """A line; empty where it isn't there or not known."""
    return if_known(lambda: document.line(path), None) or ""


def _interface_names(document: Document, device: str, ports: List[str]) -> List[str]:
    """A hardware device has its interfaces below it; a software device names its own in the tables of its ports."""
    below = sorted(document.existing(f"{INFINIBAND}/{device}/device/net"), key=_by_number)
    return below or list(dict.fromkeys(filter(None, (_line(document, f"{port}/{NDEV}") for port in ports))))


def _by_number(name: str) -> List[Any]:
    parts = re.split(r"([0-9]{1,18})", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _addresses(document: Document) -> Dict[str, Tuple[Address, ...]]:
    run = document.ran("ip-address")
    try:
        rows: Any = json.loads(run.stdout)
        return {str(row["ifname"]): tuple(_usable(row)) for row in rows if row.get("ifname")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        words = f"`ip -json address show` did not answer with addresses: {run.stdout[:100]!r}"
        raise UndecidedError(words) from None


def _usable(row: Mapping[str, Any]) -> List[Address]:
    usable: List[Address] = []
    for record in row.get("addr_info", []):
        if "%" in str(record["local"]):
            # Python accepts any text after it as a zone, which a reachable address doesn't have.
            raise ValueError("an address with a zone")
        address = ipaddress.ip_address(record["local"])
        # Temporary and deprecated ones go away; link-local ones mean nothing without an interface.
        leaving = record.get("temporary") or record.get("deprecated") or record.get("tentative")
        if record.get("scope") == "global" and not leaving and not address.is_link_local:
            prefix = ipaddress.ip_network("{}/{}".format(address, int(record["prefixlen"])), strict=False).prefixlen
            usable.append(Address(str(address), prefix))
    return sorted(usable, key=lambda address: address.version)


POLICY = "rdma_load_balancing_policy"
#: Policies that use several adapters of a host well.
SPREADING = ("RoundRobinMaxMin", "MaxMinFit")
LINK_FIX = "check the cable, the switch port and, for InfiniBand, the subnet manager: ibstat, rdma link"


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


def present(facts: HostFacts) -> Condition:
    return Condition(lambda: bool(facts.peermem.rdma_devices), _no_adapter)


def _no_adapter() -> Cause:
    fix = "if the host has an adapter, load its driver (mlx5_ib on ConnectX), then list the adapters: rdma link"
    return Cause("rdma.no-adapter", "there is no RDMA adapter", fix, (f"{INFINIBAND}: empty",))


def links(facts: HostFacts) -> Condition:
    """Every RDMA adapter has an active port."""
    interfaces = facts.network.rdma
    down = list(dict.fromkeys(interface.device for interface in interfaces if not interface.active))
    what = "no port of {} is active".format(", ".join(down))
    fix = LINK_FIX + f"; or remove its addresses from {LIST} in cufile.json"
    return Condition(not down, lambda: Cause("rdma.link-down", what, fix, _shown(interfaces), reference.NFS))


def _shown(interfaces: Collection[RdmaInterface]) -> Tuple[str, ...]:
    return tuple("{} ({}): {}".format(i.device, i.interface, "active" if i.active else "down") for i in interfaces)


def _lists(config: Optional[Mapping[str, Any]]) -> Iterator[Tuple[str, str, Tuple[str, ...]]]:
    """(key, mount point, addresses) of every list with an address; the mount point is that of a mount table's row."""
    for key, value in given_keys(config or {}):
        for mount, addresses in listed(value).items() if key.endswith((LIST, TABLE)) else ():
            if addresses:
                yield key, mount, tuple(addresses)


def listed_addresses(
    facts: HostFacts, client: Optional[Client] = None, mount: Optional[Mount] = None
) -> Tuple[str, ...]:
    """The addresses for a mount: of its row in the mount table, else its filesystem's list, else the general list.

    Without a mount, all addresses of the client's lists; without a client, those of every list.  Raises UndecidedError.
    """
    places = ("properties.", f"fs.{client.section}.") if client is not None else ("properties.", "fs.")
    rows = [row for row in _lists(facts.cufile.config) if row[0].startswith(places)]
    if mount is not None:
        # libcufile goes by the filesystem of a row's folder (seen in 1.4 to 1.20), which may lie below the mount point.
        at = {row[1]: facts.storage.mount_of(row[1] or mount.mount_point) for row in rows}
        rows = [row for row in rows if at[row[1]] == facts.storage.mount_of(mount.mount_point)]
    rows.sort(key=lambda row: (not row[1], row[0].startswith("properties.")))
    return tuple(dict.fromkeys(address for *_, addresses in rows[: 1 if mount else None] for address in addresses))


def adapters_at(facts: HostFacts, addresses: Collection[str]) -> List[RdmaInterface]:
    """The RDMA interfaces that have one of ``addresses``; raises UndecidedError."""
    interfaces = facts.network.rdma
    return [entry for entry in interfaces if any(own.address in addresses for own in entry.addresses)]


def usable_addresses(facts: HostFacts, client: Optional[Client], mount: Optional[Mount]) -> Iterator[Condition]:
    """An adapter that cufile.json names by an address, and that has a link."""
    addresses = known(lambda: listed_addresses(facts, client, mount))
    where = "no list and no mount table"
    if client is not None:
        where = f"neither properties.{LIST} or fs.{client.section}.{LIST} nor a mount table"
    without = f"cufile.json names no RDMA adapter: {where} has an address"
    yield Condition(lambda: bool(require(addresses)), lambda: _no_addresses(facts, without))
    if isinstance(addresses, Unknown) or not addresses:
        return
    adapters = known(lambda: adapters_at(facts, addresses))
    shown = ", ".join(addresses)
    what = f"no RDMA adapter of this host has an address that cufile.json lists: {shown}"
    foreign = listed_cause("rdma.foreign-addresses", quote.with_source(CUFILE, [shown]), what)
    yield Condition(lambda: bool(require(adapters)), foreign)
    if not isinstance(adapters, Unknown) and adapters:
        devices = ", ".join(dict.fromkeys(entry.device for entry in adapters))
        what = f"no port is active on the adapters that cufile.json lists: {devices}"
        cause = Cause("rdma.no-link", what, LINK_FIX, _shown(adapters)[: quote.LINES], reference.USERSPACE_RDMA)
        yield Condition(any(entry.active for entry in adapters), cause)


def _no_addresses(facts: HostFacts, what: str) -> Cause:
    fix = f"set properties.{LIST} to the addresses of the adapters; the profile's `fit` does this for each host"
    evidence = quote.setting(facts, "properties", LIST) or (f"{CUFILE}: there is no such file",)
    return Cause("rdma.no-addresses", what, fix, evidence, reference.PARAMETERS)


@rule(NOTES, 42)
def adapter_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Which adapter libcufile uses for a GPU, where it chooses it; its default is round robin."""
    if mount.filesystem not in CLIENTS:
        return
    topology = facts.topology
    gpus, adapters = topology.of_kind(GPU), topology.of_kind(NIC)
    if len(gpus) < 2 or len(adapters) < 2:
        return
    policy = if_known(lambda: facts.cufile.setting("properties", POLICY, "RoundRobin"), SPREADING[0])
    if policy not in SPREADING:
        host = f"a host with {len(gpus)} GPUs and {len(adapters)} network adapters"
        what = f"properties.{POLICY} is {policy} on {host}"
        fix = f"set properties.{POLICY} to RoundRobinMaxMin, which spreads GPUs over their nearest adapters"
        yield Cause("rdma.policy", what, fix, quote.setting(facts, "properties", POLICY), reference.PARAMETERS)
    distances = {topology.nearest(gpu.label, NIC)[0] for gpu in gpus}
    routing = if_known(lambda: facts.cufile.setting("properties", "rdma_dynamic_routing", False), False)
    if len(distances) > 1 and routing is not True:
        what = "some GPUs are farther from every adapter than others, and dynamic routing is off"
        fix = "set properties.rdma_dynamic_routing to true: far GPUs then reach an adapter through the nearest GPU"
        evidence = quote.setting(facts, "properties", "rdma_dynamic_routing")
        yield Cause("rdma.no-routing", what, fix, evidence, reference.PARAMETERS)


@rule(NOTES, 43)
def link_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    down = links(facts).cause if mount.filesystem in CLIENTS else None
    if down is not None:
        yield down


@rule(NOTES, 70)
def write_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Writes take compat mode unless the filesystem's own key allows them."""
    client = CLIENTS.get(mount.filesystem)
    section = facts.cufile.setting("fs", client.section, {}) if client is not None else None
    if client is None or (isinstance(section, dict) and section.get(client.write_key) is True):
        return
    key = f"fs.{client.section}.{client.write_key}"
    what = f"writes to {mount.mount_point} take compat mode: {key} isn't true"
    fix = f"if your servers and client allow writes over RDMA, set {key} to true"
    evidence = quote.setting(facts, "fs", client.write_key) or (f"{CUFILE}: there is no such file",)
    yield Cause("cufile.no-rdma-writes", what, fix, evidence, reference.PARAMETERS)


def no_rdma(_facts: HostFacts, expectation: Expectation) -> str:
    return "not needed: the fleet asks for no RDMA" if expectation.rdma == "none" else ""


def unproven(facts: HostFacts, expectation: Expectation) -> str:
    return no_rdma(facts, expectation) or ("" if facts.pci.gpus else NO_GPU)


@check(
    "rdma.link",
    "the RDMA adapters have a link",
    expects="a port of every RDMA device is active",
    prevents="storage traffic through one adapter only, or a failover, because a cable or switch port is down",
    unless=no_rdma,
)
def active(facts: HostFacts, _expectation: Expectation) -> Steps:
    interfaces = facts.network.rdma
    yield Condition(bool(interfaces), _no_adapter)
    yield links(facts)
    yield passed("{} active".format(", ".join(dict.fromkeys(i.device for i in interfaces))), _shown(interfaces))


@check(
    "rdma.addresses",
    "the addresses in cufile.json's RDMA lists belong to this host's RDMA adapters",
    expects="every address of {cufile_path} on an RDMA interface of this host",
    prevents="a file copied from another node, with which libcufile finds no adapter and falls back to compat mode",
    unless=no_rdma,
)
def own_addresses(facts: HostFacts, expectation: Expectation) -> Steps:
    listed = [
        (f"{key}.{mount}" if mount else key, address)
        for key, mount, addresses in _lists(facts.cufile.config)
        for address in addresses
    ]
    without = _without_addresses(facts, expectation)
    words = "no address of an RDMA adapter is listed for {}".format(", ".join(without))
    yield Condition(not without, lambda: _no_addresses(facts, words))
    if not listed:
        yield not_applicable("no list has an address: libcufile chooses the adapters")
        return
    own = {entry.address: f"{i.device} on {i.interface}" for i in facts.network.rdma for entry in i.addresses}
    foreign = [f"{key}: {address}" for key, address in listed if address not in own]
    words = "not an address of this host's RDMA adapters: {}".format("; ".join(foreign))
    shown = tuple(f"{address}: {place}" for address, place in sorted(own.items()))
    yield Condition(not foreign, lambda: listed_cause("rdma.foreign-addresses", shown, words))
    yield passed("{} as listed".format(", ".join(dict.fromkeys(own[address] for _, address in listed))))


def _without_addresses(facts: HostFacts, expectation: Expectation) -> List[str]:
    """Mounts that take a direct path only with an address, and have none; Spectrum Scale can also use nvidia-fs."""
    mounts = facts.storage.mounts
    if expectation.mode == "compat":
        return []
    clients = [(mount, CLIENTS.get(mount.filesystem)) for mount in mounts.values()]
    return [
        f"{mount.mount_point} ({mount.filesystem})"
        for mount, client in clients
        if client is not None
        and not (client.hooks and expectation.mode == "nvidia-fs")
        and listed_addresses(facts, client, mount) == ()
    ]
