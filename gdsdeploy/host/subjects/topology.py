"""The PCIe tree between GPUs, network adapters and disks, its links, and the golden tree of a kind of machine.

Distances are those of ``nvidia-smi topo``, nearest first: PIX, PXB, PHB, NODE, SYS.

A golden topology is the expected PCIe tree of one kind of machine, a JSON object: ``version`` (1), ``label`` (the kind
of machine), ``devices`` (address → {label, part, numa_node, link, bridges, bar1}; ``link`` as ``32 GT/s x16`` or null),
``pairs`` ("GPU0 NVME1" → distance).
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ..facts.document import Document, collected, there
from ..facts.driver import DriverFacts
from ..facts.unknown import Maybe, UndecidedError, Unknown, if_known, known, or_else, require
from ..io import jsontext
from ..paths import NODES
from .pci import BRIDGE, DISK, GPU, NIC, REDIRECTS, Function, Link, PciFacts, kind_of

#: At most one switch; several; the host bridge; host bridges of one NUMA node; between NUMA nodes.
PIX, PXB, PHB, NODE, SYS = "PIX", "PXB", "PHB", "NODE", "SYS"
DISTANCES = (PIX, PXB, PHB, NODE, SYS)
#: Kinds of a node; devices have the kinds of pci.py.
ROOT, PORT = "host bridge", "bridge"
#: The order of devices, and how each kind is numbered; GPUs so as nvidia-smi does: by address.
LABELS = {GPU: "GPU", NIC: "NIC", DISK: "NVME"}
#: Modes of the IOMMU: none, it passes devices' addresses through, it translates them.
OFF, PASSTHROUGH, TRANSLATING = "off", "pt", "on"
#: Speed that a GPU lowers its link to while it rests, in gigatransfers a second.
RESTING = 2.5


@dataclass(frozen=True)
class Node:
    """A host bridge, a bridge, or a device, with what hangs below it.

    ``address`` is the PCI address; of a host bridge the kernel's name, ``pci0000:00``.
    """

    address: str
    kind: str
    #: ``GPU0``, ``NIC3``, ``NVME1`` in the order of addresses; empty for bridges
    label: str = ""
    #: ``vendor:device``, with subsystem and revision where they were recorded
    part: str = ""
    #: the driver's name for a GPU
    model: str = ""
    driver: str = ""
    #: -1 where the platform names none
    numa_node: int = -1
    #: None: it has no link of its own, or it is the inside of a switch
    link: Maybe[Optional[Link]] = None
    #: the limit of link and slot: gigatransfers a second and lanes; None as for ``link``
    capable: Maybe[Optional[Tuple[float, int]]] = None
    #: of a bridge: control register of Access Control Services, 0 without any
    acs: Maybe[Optional[int]] = None
    iommu_group: Maybe[Optional[str]] = None
    #: ``off``, ``pt`` or ``on``
    iommu: Maybe[str] = OFF
    #: bytes; of a GPU; None: it has none
    bar1: Optional[int] = None
    #: RDMA devices, network interfaces, NVMe controllers
    names: Tuple[str, ...] = ()
    children: Tuple[Node, ...] = ()

    @property
    def redirects(self) -> bool:
        """Whether a bridge sends its devices' peer-to-peer requests up to the root (ACS); raises UndecidedError."""
        return bool((require(self.acs) or 0) & REDIRECTS)


@dataclass(frozen=True)
class Pair:
    """Two devices, by label; ``one`` comes before ``other`` in the order of devices."""

    one: str
    other: str
    distance: Maybe[str]
    #: address of the nearest bridge above both; empty: they meet at a host bridge or farther
    bridge: str
    #: address of the port of the host bridge that both hang from; empty: none
    root_port: str
    #: bridges between them, from one to the other
    path: Tuple[str, ...]
    #: those below ``bridge`` that send peers' requests up to the root, so that they leave the switch (ACS)
    redirecting: Maybe[Tuple[str, ...]]


@dataclass(frozen=True)
class Topology:
    """``roots`` have only those branches that lead to a GPU, a disk or a network adapter."""

    roots: Tuple[Node, ...]
    #: GPUs, then network adapters, then disks
    devices: Tuple[Node, ...]
    pairs: Tuple[Pair, ...]
    #: the strictest among the devices' own; ``off`` where none is behind an IOMMU
    iommu: Maybe[str]
    #: words of the kernel's command line that concern it
    iommu_words: Maybe[Tuple[str, ...]]
    numa_nodes: Maybe[int]

    def of_kind(self, kind: str) -> Tuple[Node, ...]:
        return tuple(device for device in self.devices if device.kind == kind)

    def node(self, label: str) -> Optional[Node]:
        """A device by its label."""
        return next((device for device in self.devices if device.label == label), None)

    def pair(self, one: str, other: str) -> Optional[Pair]:
        """Two devices by their labels, in any order."""
        return next((pair for pair in self.pairs if {pair.one, pair.other} == {one, other}), None)

    def nodes(self) -> Tuple[Node, ...]:
        """Every node of the tree, each before what hangs below it."""
        nodes: List[Node] = []
        queue = list(reversed(self.roots))
        while queue:
            nodes.append(queue.pop())
            queue += reversed(nodes[-1].children)
        return tuple(nodes)


def topology_facts(document: Document, pci: PciFacts, driver: DriverFacts) -> Topology:
    """The tree; raises UndecidedError where the PCI functions are unknown."""
    by_address = {function.address: function for function in pci.functions}
    labels = _labels(pci.functions)
    tree = _Tree(by_address, labels, pci, driver.models)
    devices = tuple(tree.node(by_address[address]) for address in labels)
    nodes = known(lambda: _numa_nodes(document))
    pairs = itertools.combinations([by_address[address] for address in labels], 2)
    return Topology(
        roots=tree.roots(),
        devices=devices,
        pairs=tuple(_pair(one, other, labels, pci, nodes) for one, other in pairs),
        iommu=known(lambda: _strictest(devices)),
        iommu_words=known(lambda: _iommu_words(document)),
        numa_nodes=nodes,
    )


def _numa_nodes(document: Document) -> int:
    # Kernels without NUMA have no such folder.
    return len([name for name in document.names(NODES + "/node*") or () if name[4:].isdigit()]) or 1


def _labels(functions: Sequence[Function]) -> Dict[str, str]:
    """Address → label, in the order of devices."""
    labels: Dict[str, str] = {}
    for kind, word in LABELS.items():
        addresses = sorted(function.address for function in functions if kind_of(function) == kind)
        labels.update((address, f"{word}{number}") for number, address in enumerate(addresses))
    return labels


class _Tree:
    """Builds nodes from functions."""

    def __init__(
        self,
        functions: Mapping[str, Function],
        labels: Mapping[str, str],
        pci: PciFacts,
        models: Mapping[str, Maybe[str]],
    ) -> None:
        self._functions, self._labels, self._pci, self._models = functions, labels, pci, models
        self._below: Dict[str, Set[str]] = {}
        for address in labels:
            chain = (functions[address].host_bridge, *functions[address].bridges, address)
            for place, child in enumerate(chain[1:]):
                self._below.setdefault(chain[place], set()).add(child)

    def roots(self) -> Tuple[Node, ...]:
        names = sorted({self._functions[address].host_bridge for address in self._labels})
        return tuple(Node(name, ROOT, children=self._children(name)) for name in names)

    def _children(self, address: str) -> Tuple[Node, ...]:
        functions = [(name, self._functions.get(name)) for name in sorted(self._below.get(address, ()))]
        # A bridge that the evidence doesn't describe still leads to the devices below it.
        return tuple(
            self.node(function) if function else Node(name, PORT, children=self._children(name))
            for name, function in functions
        )

    def node(self, function: Function) -> Node:
        kind, inside = kind_of(function) or PORT, _inside(function)
        part = f"{function.vendor:04x}:{function.device:04x}"
        is_bridge = function.kind >> 8 == BRIDGE
        return Node(
            address=function.address,
            kind=kind,
            label=self._labels.get(function.address, ""),
            part=part + (" (" + function.subsystem + ")" if function.subsystem else ""),
            model=or_else(self._models.get(function.address, ""), ""),
            driver=function.driver,
            numa_node=function.numa_node,
            link=None if inside else known(lambda: function.link),
            capable=None if inside else known(lambda: self._capable(function)),
            acs=known(lambda: self._pci.control(function.address)) if is_bridge else None,
            iommu_group=known(lambda: function.iommu_group),
            iommu=known(lambda: _iommu(function)),
            bar1=function.bar1 if kind == GPU else None,
            names=function.names,
            children=self._children(function.address),
        )

    def _capable(self, function: Function) -> Optional[Tuple[float, int]]:
        """The lower limit of both ends of the link.

        A virtual machine's port may report less than the link of a passed-through device: then it limits nothing.
        """
        link = function.link
        if link is None:
            return None
        limit = (link.max_speed, link.max_width)
        bridge = self._functions.get(function.bridges[-1]) if function.bridges else None
        port = if_known(lambda: bridge.link, None) if bridge is not None else None
        if port is None or port.max_speed < link.speed or port.max_width < link.width:
            return limit
        return min(limit[0], port.max_speed), min(limit[1], port.max_width)


def _inside(function: Function) -> bool:
    """Whether it is a port whose link the plugged-in device reports: every second bridge.

    Root ports have no bridge above them, upstream ports of switches one, downstream ports two, and so on.
    """
    return function.kind >> 8 == BRIDGE and len(function.bridges) % 2 == 0


def _pair(one: Function, other: Function, labels: Mapping[str, str], pci: PciFacts, nodes: Maybe[int]) -> Pair:
    shared = [name for name in one.bridges if name in other.bridges]
    up = [name for name in reversed(one.bridges) if name not in shared]
    down = [name for name in other.bridges if name not in shared]
    between = [*up, *down] if shared else []
    return Pair(
        one=labels[one.address],
        other=labels[other.address],
        distance=known(lambda: _distance(one, other, shared, max(len(up), len(down)), nodes)),
        bridge=shared[-1] if shared else "",
        root_port=shared[0] if shared else "",
        path=(*up, *shared[-1:], *down),
        redirecting=known(lambda: tuple([name for name in between if pci.control(name) & REDIRECTS])),
    )


def _distance(one: Function, other: Function, shared: Sequence[str], apart: int, nodes: Maybe[int]) -> str:
    """``apart``: bridges between the nearest shared one and the farther device.

    The ports of one switch count as one bridge, as for nvidia-smi: a downstream port on either side is still PIX.
    """
    if shared:
        return PIX if apart <= 1 else PXB
    if not one.host_bridge or not other.host_bridge:
        raise UndecidedError(f"the host bridge of {one.address} or {other.address} is not known")
    if one.host_bridge == other.host_bridge:
        return PHB
    if one.numa_node >= 0 and other.numa_node >= 0:
        return NODE if one.numa_node == other.numa_node else SYS
    if isinstance(nodes, Unknown) or nodes > 1:
        nameless = one if one.numa_node < 0 else other
        raise UndecidedError(f"the firmware names no NUMA node of {nameless.address}")
    return NODE


def _iommu(function: Function) -> str:
    if not function.iommu:
        return OFF
    domain = collected(function.iommu_domain, f"the IOMMU domain of {function.address} is not known")
    return PASSTHROUGH if domain == "identity" else TRANSLATING


def _strictest(devices: Sequence[Node]) -> str:
    if any(device.iommu == TRANSLATING for device in devices):
        return TRANSLATING
    return PASSTHROUGH if PASSTHROUGH in [require(device.iommu) for device in devices] else OFF


def _iommu_words(document: Document) -> Tuple[str, ...]:
    text = there(document.text("/proc/cmdline"), "/proc/cmdline")
    names = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pci")
    return tuple(word for word in text.split() if word.partition("=")[0] in names and "=" in word)


def degraded(node: Node) -> str:
    """How a link falls short of the limits of both ends, in words; empty: it doesn't.  Raises UndecidedError.

    A GPU at rest may lower the speed of its link to 2.5 GT/s, never its width: that doesn't count.
    """
    link, capable = require(node.link), require(node.capable)
    if link is None or capable is None:
        return ""
    speed, width = capable
    slow = link.speed < speed and not resting(node)
    if not slow and link.width >= width:
        return ""
    return f"{link_words(link.speed, link.width)} of {link_words(speed, width)}"


def resting(node: Node) -> bool:
    """Whether the speed of its link proves nothing, because a GPU at rest lowers it."""
    return node.kind == GPU and isinstance(node.link, Link) and node.link.speed <= RESTING


def link_words(speed: float, width: int) -> str:
    return f"{speed:g} GT/s x{width}"


VERSION = 1
#: Key of a device → what to call it.
_WORDS = {"numa_node": "NUMA node", "link": "link", "bridges": "bridges above it", "bar1": "bytes of BAR1"}


class GoldenError(ValueError):
    """A document that isn't a golden topology; the message says why."""


def golden(topology: Topology, label: str) -> Dict[str, Any]:
    """The golden topology that ``topology`` is, under a name for its kind of machine."""
    paths = _paths(topology)
    return {
        "version": VERSION,
        "label": label,
        "devices": {node.address: _expected(node, paths.get(node.address, [])) for node in topology.devices},
        "pairs": {f"{p.one} {p.other}": p.distance for p in topology.pairs if isinstance(p.distance, str)},
    }


def to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> Dict[str, Any]:
    """Raises GoldenError."""
    try:
        value: Any = jsontext.loads(text)
    except ValueError as error:
        raise GoldenError(str(error)) from None
    return validate_golden(value)


def validate_golden(value: Any) -> Dict[str, Any]:
    """``value`` if it is a golden topology; raises GoldenError."""
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise GoldenError(f"not a golden topology of version {VERSION}")
    devices, pairs = value.get("devices"), value.get("pairs")
    if not isinstance(devices, dict) or not isinstance(pairs, dict):
        raise GoldenError("a golden topology has devices and pairs")
    for address, device in devices.items():
        if not isinstance(device, dict) or not {"label", "part", *_WORDS} <= set(device):
            raise GoldenError(f"devices.{address}: not the description of a device")
    for name, distance in pairs.items():
        if distance not in DISTANCES:
            raise GoldenError(f"pairs.{name}: {distance!r} isn't one of {', '.join(DISTANCES)}")
    return value


def _paths(topology: Topology) -> Dict[str, List[str]]:
    """Address → addresses of the bridges above it."""
    paths: Dict[str, List[str]] = {}

    def walk(node: Node, above: List[str]) -> None:
        paths[node.address] = above
        for child in node.children:
            walk(child, [*above, node.address])

    for root in topology.roots:
        walk(root, [])
    return paths


def _expected(node: Node, bridges: List[str]) -> Dict[str, Any]:
    link: Optional[str] = None
    if isinstance(node.link, Link):
        # A GPU at rest lowers the speed of its link.
        speed = node.link.max_speed if resting(node) else node.link.speed
        link = link_words(speed, node.link.width)
    keys = ("label", "part", "numa_node", "bar1")
    return {**{key: getattr(node, key) for key in keys}, "link": link, "bridges": bridges}


def differences(expected: Mapping[str, Any], topology: Topology) -> List[str]:
    """What differs from a golden topology, one sentence each: slots first, then links and places, then distances."""
    now = golden(topology, "")
    before: Mapping[str, Any] = expected["devices"]
    after: Mapping[str, Any] = now["devices"]
    lines = list(_slots(before, after))
    for address in sorted(before.keys() & after.keys()):
        lines += _device_changes(address, before[address], after[address])
    same = {old["label"] for address, old in before.items() if after.get(address, {}).get("label") == old["label"]}
    for name, distance in sorted(expected["pairs"].items()):
        current = now["pairs"].get(name)
        if set(name.split()) <= same and current != distance:
            lines.append(f"{' to '.join(name.split())}: {current or 'unknown'}, was {distance}")
    return lines


def _slots(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    new = {address: after[address] for address in sorted(after.keys() - before.keys())}
    for address in sorted(before.keys() - after.keys()):
        label, part = before[address]["label"], before[address]["part"]
        slot = next((slot for slot, device in new.items() if device["part"] == part), None)
        if slot is None:
            yield f"{label} at {address} is gone ({part})"
        else:
            del new[slot]
            yield f"{label} moved from {address} to {slot} ({part})"
    for address, device in new.items():
        yield f"{device['label']} at {address} is new ({device['part']})"


def _device_changes(address: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    name = f"{before['label']} at {address}"
    if before["part"] != now["part"]:
        yield f"{name}: the part is {now['part']}, was {before['part']}"
    for key, words in _WORDS.items():
        if before[key] != now[key]:
            yield f"{name}: {words} {_shown(now[key])}, was {_shown(before[key])}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
