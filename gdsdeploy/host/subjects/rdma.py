"""RDMA: the adapters' network interfaces with their links and addresses, and which of them libcufile may use."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Tuple

from ..facts.document import Document
from ..facts.unknown import Facts, UndecidedError, given, if_known
from ..paths import INFINIBAND
from .pci import addresses as pci_addresses
from .register import collector

if TYPE_CHECKING:
    from ..evidence.recorder import EvidenceRequest, Recorder

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
        active = any("ACTIVE" in _shown(document, port + "/state") for port in ports)
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


def _shown(document: Document, path: str) -> str:
    """A line; empty where it isn't there or not known."""
    return if_known(lambda: document.line(path), None) or ""


def _interface_names(document: Document, device: str, ports: List[str]) -> List[str]:
    """A hardware device has its interfaces below it; a software device names its own in the tables of its ports."""
    below = sorted(document.existing(f"{INFINIBAND}/{device}/device/net"), key=_by_number)
    return below or list(dict.fromkeys(filter(None, (_shown(document, f"{port}/{NDEV}") for port in ports))))


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
