"""Network interfaces that can do RDMA, with their addresses."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Tuple

from ..paths import INFINIBAND
from .document import Document
from .pci import addresses as pci_addresses
from .unknown import Maybe, Unknown, why_not

NDEV = "/gid_attrs/ndevs/0"
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


@dataclass(frozen=True)
class NetworkFacts:
    """In the order of the devices' names, as numbers count: ``mlx5_2`` before ``mlx5_10``."""

    rdma: Maybe[Tuple[RdmaInterface, ...]]


def network_facts(document: Document) -> NetworkFacts:
    return NetworkFacts(_interfaces(document))


def _interfaces(document: Document) -> Maybe[Tuple[RdmaInterface, ...]]:
    devices = document.names(INFINIBAND)
    if isinstance(devices, Unknown):
        return devices
    if not devices:
        return ()
    addresses = _addresses(document)
    if isinstance(addresses, Unknown):
        return addresses
    interfaces: List[RdmaInterface] = []
    for device in sorted(devices, key=_by_number):
        path = document.link(INFINIBAND + "/" + device + "/device")
        above = pci_addresses(path if isinstance(path, str) else "")
        folder = f"{INFINIBAND}/{device}/ports"
        ports = [folder + "/" + port for port in document.existing(folder)]
        active = any("ACTIVE" in str(document.line(port + "/state")) for port in ports)
        pci = above[-1] if above else ""
        interfaces += [
            RdmaInterface(device, name, active, pci, addresses.get(name, ()))
            for name in _interface_names(document, device, ports)
        ]
    invalid = next(
        (name for interface in interfaces for name in (interface.device, interface.interface) if not _NAME.match(name)),
        None,
    )
    # The names go into files and messages.
    return tuple(interfaces) if invalid is None else Unknown(f"{invalid[:100]!a} isn't a name of a device or interface")


def _interface_names(document: Document, device: str, ports: List[str]) -> List[str]:
    """A hardware device has its interfaces below it; a software device names its own in the tables of its ports."""
    below = sorted(document.existing(f"{INFINIBAND}/{device}/device/net"), key=_by_number)
    tables = (document.line(port + NDEV) for port in ports)
    return below or list(dict.fromkeys(name for name in tables if isinstance(name, str) and name))


def _by_number(name: str) -> List[Any]:
    parts = re.split(r"([0-9]{1,18})", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _addresses(document: Document) -> Maybe[Dict[str, Tuple[Address, ...]]]:
    run = document.ran("ip-address")
    if isinstance(run, Unknown):
        return run
    try:
        rows: Any = json.loads(run.stdout)
        return {str(row["ifname"]): tuple(_usable(row)) for row in rows if row.get("ifname")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Unknown(f"`ip -json address show` did not answer with addresses: {run.stdout[:100]!r}")


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


def memory(document: Document) -> Maybe[int]:
    """Bytes of this host's memory."""
    lines = document.lines("/proc/meminfo")
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no /proc/meminfo")
    total = re.match(r"MemTotal:\s+(\d{1,15}) kB", lines[0]) if lines else None
    return int(total.group(1)) * 1024 if total else Unknown("/proc/meminfo has no MemTotal")
