"""RDMA: the adapters' network interfaces with their links and addresses, and which of them libcufile may use.

libcufile itself moves the data of some filesystems, WekaFS and Spectrum Scale, by RDMA between adapters and GPU memory.
Sources: its own rows, strings and log (1.4 to 1.20); NVIDIA's cuObjClient guide; and NVIDIA's gds-diag, which counts
these filesystems as such.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
from functools import partial
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..facts.document import Document, recorded_lines, there
from ..facts.unknown import Facts, UndecidedError, Unknown, follows, given, if_known, known, require
from ..io.reading import beginning
from ..model.expectation import Expectation
from ..paths import CUFILE, INFINIBAND, INTERFACES
from . import libcufile, quote
from .condition import NOTES, Cause, Condition, listed_cause, numbers, required, rule
from .cufile_json import LIST, TABLE, given_keys, listed
from .gpu import NO_GPU
from .pci import GPU, NIC, addresses as pci_addresses
from .register import Steps, check, collector, not_applicable, passed
from .types import EvidenceRequest, HostFacts, Mount, Recorder

#: In a port's folder: the network interface of each entry of its GID table.
NDEVS = "gid_attrs/ndevs"


@collector("fit")
def collect_fit(recorder: Recorder, _request: EvidenceRequest) -> None:
    recorder.excerpt("/proc/meminfo", "^MemTotal:")
    devices = recorder.paths(INFINIBAND)
    for device in devices:
        recorder.link(device + "/device")
        recorder.texts(f"{INTERFACES}/{interface}/dev_port" for interface in recorder.names(device + "/device/net"))
        for port in recorder.paths(device + "/ports"):
            recorder.texts(("state", "rate", "link_layer"), port)
            recorder.value("excerpts", f"{port}/{NDEVS}", _lines_of_files)
    if devices:
        recorder.command("ip-address", ["ip", "-json", "address", "show"])


def _lines_of_files(folder: str) -> Dict[str, Any]:
    """Each line once: mlx5 has 256 entries a port.  Reading an entry that isn't in use fails with EINVAL."""
    lines = set()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            lines.add(beginning(f"{folder}/{name}", 64).decode("utf-8", "replace").strip())
    return {"pattern": "", "lines": sorted(lines)}


_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,32}\Z")


class Address(NamedTuple):
    """An interface's address that other hosts can reach, with the length of its network's prefix."""

    address: str
    prefix: int

    @property
    def parsed(self) -> Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]:
        return ipaddress.ip_interface(f"{self.address}/{self.prefix}")


class RdmaPort(NamedTuple):
    """One port of one RDMA device; InfiniBand needs no network interface on it."""

    device: str
    number: str
    #: as sysfs has it, e.g. ``4: ACTIVE``
    state: str
    #: ``InfiniBand`` or ``Ethernet``; empty where it isn't known
    layer: str
    #: PCI address of the device; empty for one in software
    pci: str
    #: a part of a PCI function, as containers get it
    is_subfunction: bool
    #: its own network interfaces, without those above them
    interfaces: Tuple[str, ...]

    @property
    def active(self) -> bool:
        return "ACTIVE" in self.state


class RdmaInterface(NamedTuple):
    """One network interface through which an RDMA device is reached, e.g. ``ens1f0`` or ``bond0`` of ``mlx5_0``."""

    device: str
    interface: str
    #: one of its ports is active
    active: bool
    #: PCI address of the device; empty for one in software
    pci: str
    addresses: Tuple[Address, ...]
    #: its link-local addresses, each with its zone
    local: Tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.device} on {self.interface}" if self.interface else self.device


class NetworkFacts(Facts):
    """RDMA devices: their ports, and the network interfaces that can do RDMA."""

    #: in the order of the devices' names, as numbers count: ``mlx5_2`` before ``mlx5_10``
    ports: Tuple[RdmaPort, ...] = given(lambda document: tuple(_ports(document)))
    #: likewise; those of a port before the VLANs and bonds above them
    rdma: Tuple[RdmaInterface, ...] = follows(lambda self: _interfaces(self.document, self.ports))


def _ports(document: Document) -> Iterator[RdmaPort]:
    for device in sorted(document.names(INFINIBAND) or (), key=_by_number):
        folder = f"{INFINIBAND}/{device}"
        path = if_known(partial(document.link, folder + "/device"), None) or ""
        pci = pci_addresses(path)[-1:]
        numbers = there(document.names(folder + "/ports"), folder + "/ports")
        below = sorted(document.existing(folder + "/device/net"), key=_by_number)
        tables: Dict[str, Tuple[str, ...]] = {}
        for number in numbers:
            table = f"{folder}/ports/{number}/{NDEVS}"
            # A device in software has no interface but those in its tables.
            tables[number] = recorded_lines(document, table) if below else document.lines(table) or ()
        for number in numbers:
            port = f"{folder}/ports/{number}"
            state = there(document.line(port + "/state"), port + "/state")
            layer = if_known(partial(document.line, port + "/link_layer"), None) or ""
            own = [name for name in below if _is_on(document, name, number, tables)]
            own += [name for name in sorted(tables[number], key=_by_number) if name not in own]
            yield RdmaPort(device, number, state, layer, "".join(pci), bool(pci) and not path.endswith(pci), tuple(own))


def _is_on(document: Document, name: str, number: str, tables: Mapping[str, Sequence[str]]) -> bool:
    """Whether an interface is on a port: mlx4 has two ports in one function, which dev_port counts from 0."""
    by_table = [port for port, names in tables.items() if name in names] if len(tables) > 1 else [number]
    dev_port = f"{INTERFACES}/{name}/dev_port"
    return number in by_table if by_table else document.line(dev_port) == str(int(number) - 1)


def _interfaces(document: Document, ports: Sequence[RdmaPort]) -> Tuple[RdmaInterface, ...]:
    rows = _rows(document) if ports else {}
    found: Dict[Tuple[str, str], List[RdmaPort]] = {}
    for port in ports:
        for name in _with_upper(rows, port.interfaces):
            found.setdefault((port.device, name), []).append(port)
    invalid = next((name for names in found for name in names if not _NAME.match(name)), None)
    if invalid is not None:
        # The names go into files and messages.
        raise UndecidedError(f"{invalid[:100]!a} isn't a name of a device or interface")
    return tuple(
        RdmaInterface(device, name, any(port.active for port in on), on[0].pci, row.addresses, row.local)
        for (device, name), on in found.items()
        for row in [rows.get(name, _Row())]
    )


def _by_number(name: str) -> List[Any]:
    parts = re.split(r"([0-9]{1,18})", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


class _Row(NamedTuple):
    """A network interface as ip(8) shows it."""

    #: ``ether``, ``infiniband``, or of a tunnel
    kind: str = ""
    #: the bond or bridge that it is in
    master: str = ""
    #: the interface below it, of a VLAN or the like
    link: str = ""
    addresses: Tuple[Address, ...] = ()
    local: Tuple[str, ...] = ()


def _with_upper(rows: Mapping[str, _Row], names: Iterable[str]) -> List[str]:
    """``names``, and the bonds, bridges and VLANs above them, whose addresses are in the tables of the same ports
    (is_eth_port_of_netdev_filter in Linux 6.12, drivers/infiniband/core/roce_gid_mgmt.c).  IPoIB has bonds, too.
    """
    found = list(names)
    for name in found:
        if name in rows:
            upper = [above for above, row in rows.items() if row.link == name or above == rows[name].master]
            found += [above for above in upper if above not in found and rows[above].kind == rows[name].kind]
    return found


def _rows(document: Document) -> Dict[str, _Row]:
    run = document.ran("ip-address")
    try:
        rows: Any = json.loads(run.stdout)
        return {str(row["ifname"]): _row(row) for row in rows if row.get("ifname")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        words = f"`ip -json address show` did not answer with addresses: {run.stdout[:100]!r}"
        raise UndecidedError(words) from None


def _row(row: Mapping[str, Any]) -> _Row:
    usable: List[Address] = []
    local: List[str] = []
    for record in row.get("addr_info", []):
        if "%" in str(record["local"]):
            # Python accepts any text after it as a zone, which a reachable address doesn't have.
            raise ValueError("an address with a zone")
        address = ipaddress.ip_address(record["local"])
        # Temporary and deprecated ones go away; link-local ones mean nothing without an interface.
        leaving = record.get("temporary") or record.get("deprecated") or record.get("tentative")
        if record.get("scope") == "global" and not leaving and not address.is_link_local:
            usable.append(Address(str(address), int(record["prefixlen"])))
        elif address.is_link_local:
            local.append("{}%{}".format(address, row["ifname"]))
    usable.sort(key=lambda address: address.parsed.version)
    kind, master, link = (str(row.get(key, "")) for key in ("link_type", "master", "link"))
    return _Row(kind, master, link, tuple(usable), tuple(local))


POLICY = "rdma_load_balancing_policy"
#: Policies that use several adapters of a host well.
SPREADING = ("RoundRobinMaxMin", "MaxMinFit")


class Client(NamedTuple):
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
    return required(lambda: bool(facts.peermem.rdma_devices), "rdma.no-adapter", (f"{INFINIBAND}: empty",))


def ports(facts: HostFacts) -> Tuple[RdmaPort, ...]:
    """Those of whole adapters of the network.

    Virtual functions and subfunctions are for guests and containers, and may be down.
    """
    others = {one.address for one in if_known(lambda: facts.pci.functions, ()) if one.virtual}
    others.update(if_known(lambda: facts.pci.switch_bridges, ()))
    whole = tuple(port for port in facts.network.ports if not port.is_subfunction and port.pci not in others)
    return whole or facts.network.ports


def devices(every: Iterable[RdmaPort]) -> Tuple[RdmaInterface, ...]:
    """The devices of some ports, without an interface."""
    found: Dict[str, List[RdmaPort]] = {}
    for port in every:
        found.setdefault(port.device, []).append(port)
    return tuple(RdmaInterface(name, "", any(p.active for p in on), on[0].pci, ()) for name, on in found.items())


def links(facts: HostFacts) -> Condition:
    """Every RDMA adapter has an active port."""
    every = ports(facts)
    down = [each.device for each in devices(every) if not each.active]
    return Condition(not down, lambda: listed_cause("rdma.link-down", _shown(every), names=", ".join(down)))


def _shown(every: Iterable[RdmaPort]) -> Tuple[str, ...]:
    return tuple(f"{INFINIBAND}/{port.device}/ports/{port.number}/state: {port.state}" for port in every)


#: What cufile.json names an adapter by: an address whatever its spelling, or the name of an RDMA device.
Entry = Union[ipaddress.IPv4Address, ipaddress.IPv6Address, str]
#: The first releases whose lists take names of RDMA devices, and IPv6 addresses: seen with libcufile and libcufile_rdma
#: 1.11 to 1.20 and a libibverbs with one device.  Older ones log "ipv6 address format not supported"; up to 1.16, such
#: an entry ends the list.  A network interface's name was found by none.
NAMES_SINCE, IPV6_SINCE = (1, 16), (1, 18)
#: IB_DEVICE_NAME_MAX of the kernel is 64, with the byte at the end.
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


def entry(text: str) -> Entry:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return text


def refusal(text: str, release: Tuple[int, ...]) -> str:
    """Why that release of libcufile doesn't take an entry of an address list; empty: it takes it."""
    found = entry(text)
    if isinstance(found, str):
        if release < NAMES_SINCE:
            return "must be an address: libcufile takes names of RDMA devices from 1.16 on"
        return "" if _DEVICE.fullmatch(found) else "must be an address, or the name of an RDMA device"
    older = found.version == 6 and release < IPV6_SINCE
    return "must be an IPv4 address: libcufile takes IPv6 addresses from 1.18 on" if older else ""


def _refused(facts: HostFacts, text: str) -> str:
    """Likewise by this host's release; raises UndecidedError where that matters and isn't known."""
    release = None if isinstance(entry(text), ipaddress.IPv4Address) else libcufile.release(facts)
    return refusal(text, numbers(release)) if release is not None else ""


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


def adapters_at(facts: HostFacts, addresses: Iterable[str]) -> Dict[str, RdmaInterface]:
    """Entry of a list → the adapter that libcufile finds by it; raises UndecidedError."""
    own: Dict[Entry, RdmaInterface] = {each.device: each for each in devices(facts.network.ports)}
    for each in sorted(facts.network.rdma, key=lambda each: each.active):
        # The one with a link is the last, and stays: a bond's address is that of all its members.
        own.update({entry(text): each for text in [*each.local, *(one.address for one in each.addresses)]})
    return {text: own[entry(text)] for text in addresses if entry(text) in own and not _refused(facts, text)}


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
    yield required(lambda: bool(require(adapters)), "rdma.foreign-addresses", quote.with_source(CUFILE, [shown]), what)
    if not isinstance(adapters, Unknown) and adapters:
        names = list(dict.fromkeys(each.device for each in adapters.values()))
        lines = _shown(port for port in facts.network.ports if port.device in names)
        yield required(
            any(each.active for each in adapters.values()), "rdma.no-link", lines[: quote.LINES], names=", ".join(names)
        )


def _no_addresses(facts: HostFacts, what: str) -> Cause:
    evidence = quote.setting(facts, "properties", LIST) or (f"{CUFILE}: there is no such file",)
    return listed_cause("rdma.no-addresses", evidence, what)


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
        values = {"policy": str(policy), "gpus": str(len(gpus)), "adapters": str(len(adapters))}
        yield listed_cause("rdma.policy", quote.setting(facts, "properties", POLICY), **values)
    distances = {topology.nearest(gpu.label, NIC)[0] for gpu in gpus}
    routing = if_known(lambda: facts.cufile.setting("properties", "rdma_dynamic_routing", False), False)
    if len(distances) > 1 and routing is not True:
        yield listed_cause("rdma.no-routing", quote.setting(facts, "properties", "rdma_dynamic_routing"))


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
    yield listed_cause("cufile.no-rdma-writes", evidence, what, fix)


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
    every = ports(facts)
    yield required(bool(every), "rdma.no-adapter", (f"{INFINIBAND}: empty",))
    yield links(facts)
    yield passed("{} active".format(", ".join(each.device for each in devices(every))), _shown(every))


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
    own = adapters_at(facts, [address for _, address in listed])
    foreign = [f"{key}: {address}{_why(facts, address)}" for key, address in listed if address not in own]
    words = "not an address of this host's RDMA adapters: {}".format("; ".join(foreign))
    rows = [(address.address, each.words) for each in facts.network.rdma for address in each.addresses]
    shown = tuple(f"{address}: {place}" for address, place in sorted(rows))
    yield Condition(not foreign, lambda: listed_cause("rdma.foreign-addresses", shown, words))
    yield passed("{} as listed".format(", ".join(dict.fromkeys(each.words for each in own.values()))))


def _why(facts: HostFacts, text: str) -> str:
    reason = _refused(facts, text)
    device = next((each.device for each in facts.network.rdma if each.interface == text), "")
    reason = f"the network interface of {device}, which the list doesn't take" if device else reason
    return f" ({reason})" if reason else ""


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
