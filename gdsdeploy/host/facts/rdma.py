"""RDMA: network interfaces that can do it, with their addresses, and whether adapters registered memory of GPUs.

Registrations are those of a trial: see host/proof/proof.py.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..paths import INFINIBAND, REGISTRATION
from .document import TIMED_OUT, Document, Ran, group_of, there
from .pci import addresses as pci_addresses
from .processes import events
from .unknown import Facts, Maybe, UndecidedError, Unknown, given, if_known

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
    return below or list(dict.fromkeys(filter(None, (_shown(document, port + NDEV) for port in ports))))


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


def memory(document: Document) -> int:
    """Bytes of this host's memory; raises UndecidedError."""
    lines = there(document.lines("/proc/meminfo"), "/proc/meminfo")
    total = re.match(r"MemTotal:\s+(\d{1,15}) kB", lines[0]) if lines else None
    return int(group_of(total, "/proc/meminfo has no MemTotal")) * 1024


#: Ways of registration, as proof/child.py names them; HOST is memory of the host, for comparison.
HOST, PEERMEM, DMABUF = "host", "peermem", "dmabuf"


@dataclass(frozen=True)
class Registration:
    """One GPU with one adapter.  ``ok``: Unknown where it was not tried or did not end."""

    #: PCI address as libcuda has it
    gpu: str
    adapter: str
    #: PEERMEM or DMABUF
    by: str
    ok: Maybe[bool]
    #: the failure, e.g. ``ibv_reg_mr: EFAULT``
    why: str = ""

    @property
    def words(self) -> str:
        """The result as one line."""
        pair = f"GPU {self.gpu} with {self.adapter}"
        if isinstance(self.ok, Unknown):
            return f"{pair}: not tried: {self.ok.reason}"
        return f"{pair}: ok" if self.ok else f"{pair}: {self.why}"


def registrations(document: Document) -> Tuple[Registration, ...]:
    """Every GPU × adapter × way of a trial; empty where none was made.

    Raises UndecidedError where it ended before it knew them.
    """
    run = if_known(lambda: document.attempted(REGISTRATION), None)
    if run is None:
        # A trial is made only where the host has both, and the fleet uses RDMA.
        return ()
    records = events(run.stdout)
    gpus, adapters = (_names(records, kind) for kind in ("gpus", "adapters"))
    if gpus is None or adapters is None:
        raise UndecidedError(_ending(run, records))
    missing = [event for event in records if event.get("event") in ("no context", "no adapter")]
    gpus += [str(event["gpu"]) for event in missing if "gpu" in event]
    adapters += [str(event["adapter"]) for event in missing if "adapter" in event]
    return tuple(
        _judge(run, records, gpu, adapter, way) for gpu in gpus for adapter in adapters for way in (PEERMEM, DMABUF)
    )


def _names(records: List[Dict[str, Any]], kind: str) -> Optional[List[str]]:
    names = _event(records, kind).get(kind)
    return [str(name) for name in names] if isinstance(names, list) else None


def _judge(run: Ran, records: List[Dict[str, Any]], gpu: str, adapter: str, way: str) -> Registration:
    event = _event(records, "registration", gpu=gpu, adapter=adapter, by=way)
    if event.get("ok") is True:
        left = event.get("deregistered")
        return Registration(gpu, adapter, way, not left, f"ibv_dereg_mr: {left}" if left else "")
    if event.get("ok") is False:
        call = "ibv_reg_mr" if way == PEERMEM else "ibv_reg_dmabuf_mr"
        return Registration(gpu, adapter, way, False, "{}: {}".format(call, event.get("errno")))
    exported = _event(records, "export", gpu=gpu).get("status")
    if way == DMABUF and exported:
        why = (
            "libcuda is too old to export DMA-BUF" if exported == -1 else f"no export as DMA-BUF: CUDA error {exported}"
        )
        return Registration(gpu, adapter, way, False, why)
    return Registration(gpu, adapter, way, Unknown(_untried(run, records, gpu, adapter)))


def _untried(run: Ran, records: List[Dict[str, Any]], gpu: str, adapter: str) -> str:
    """Why a registration has no result."""
    refused = _event(records, "no adapter", adapter=adapter)
    if refused:
        return "{}: {} failed: {}".format(adapter, refused.get("call"), refused.get("errno"))
    control = _event(records, "registration", adapter=adapter, by=HOST)
    if control.get("ok") is False:
        return "{} doesn't register memory of the host either: {}".format(adapter, control.get("errno"))
    for kind, words in (("no context", "CUDA has no context for it"), ("no memory", "no memory could be allocated")):
        event = _event(records, kind, gpu=gpu)
        if event:
            return "GPU {}: {}: CUDA error {}".format(gpu, words, event.get("status"))
    return _ending(run, records)


def _event(records: List[Dict[str, Any]], kind: str, **where: str) -> Mapping[str, Any]:
    expected = {"event": kind, **where}
    return next((event for event in records if expected.items() <= event.items()), {})


def _ending(run: Ran, records: List[Dict[str, Any]]) -> str:
    """Why the trial stopped."""
    library, gpu = _event(records, "not loaded"), _event(records, "no GPU")
    if library:
        return "a library was not loaded: {}".format(library.get("reason"))
    if gpu:
        return "CUDA gives no GPU: {} returned {}".format(gpu.get("call"), gpu.get("status"))
    last: Mapping[str, Any] = next((event for event in reversed(records) if event.get("event") == "begin"), {})
    place = " at {} with GPU {}".format(last.get("adapter"), last.get("gpu")) if last.get("gpu") else ""
    if run.status == TIMED_OUT:
        return f"the registration did not return in time{place}"
    if run.status < 0:
        return f"the registration was ended by signal {-run.status}{place}"
    error = (run.stderr.strip().splitlines() or ["it printed no error"])[-1]
    return f"the registration ended with status {run.status}{place}: {error}"
