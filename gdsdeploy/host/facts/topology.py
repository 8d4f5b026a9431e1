"""The PCIe tree between GPUs, disks and network adapters, and their distances, from sysfs alone.

Distances are those of ``nvidia-smi topo``, nearest first: PIX, PXB, PHB, NODE, SYS.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..paths import NODES
from .document import Document
from .gpu import DriverFacts
from .pci import BRIDGE, INFINIBAND, NETWORK, NVME, REDIRECTS, Function, Link, PciFacts, is_gpu
from .unknown import Maybe, Unknown, all_known, when_known, why_not, with_default

#: At most one switch; several; the host bridge; host bridges of one NUMA node; between NUMA nodes.
PIX, PXB, PHB, NODE, SYS = "PIX", "PXB", "PHB", "NODE", "SYS"
DISTANCES = (PIX, PXB, PHB, NODE, SYS)
#: Kinds of a node.
ROOT, PORT, GPU, NIC, DISK = "host bridge", "bridge", "gpu", "nic", "nvme"
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
    def redirects(self) -> Maybe[bool]:
        """Whether a bridge sends its devices' peer-to-peer requests up to the root (ACS)."""
        return self.acs if isinstance(self.acs, Unknown) else bool((self.acs or 0) & REDIRECTS)


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


def topology_facts(document: Document, pci: PciFacts, driver: DriverFacts) -> Maybe[Topology]:
    """The tree; Unknown where the PCI functions are."""
    functions = pci.functions
    if isinstance(functions, Unknown):
        return functions
    by_address = {function.address: function for function in functions}
    labels = _labels(functions)
    tree = _Tree(by_address, labels, pci.acs, driver.models)
    devices = tuple(tree.node(by_address[address]) for address in labels)
    nodes = _numa_nodes(document)
    pairs = itertools.combinations([by_address[address] for address in labels], 2)
    return Topology(
        roots=tree.roots(),
        devices=devices,
        pairs=tuple(_pair(one, other, labels, pci.acs, nodes) for one, other in pairs),
        iommu=_strictest(devices),
        iommu_words=_iommu_words(document),
        numa_nodes=nodes,
    )


def kind_of(function: Function) -> str:
    """What a function is among the devices of a topology; empty: none of them."""
    if function.virtual:
        return ""
    if is_gpu(function):
        return GPU
    if function.kind >> 16 == NETWORK or function.kind >> 8 == INFINIBAND:
        return NIC
    return DISK if function.kind == NVME else ""


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
        acs: Mapping[str, Maybe[int]],
        models: Mapping[str, Maybe[str]],
    ) -> None:
        self._functions, self._labels, self._acs, self._models = functions, labels, acs, models
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
        kind = kind_of(function) or PORT
        model = self._models.get(function.address)
        part = f"{function.vendor:04x}:{function.device:04x}"
        inside = _inside(function)
        acs = self._acs.get(function.address, Unknown(f"the access control of {function.address} was not read"))
        return Node(
            address=function.address,
            kind=kind,
            label=self._labels.get(function.address, ""),
            part=part + (" (" + function.subsystem + ")" if function.subsystem else ""),
            model=model if isinstance(model, str) else "",
            driver=function.driver,
            numa_node=function.numa_node,
            link=None if inside else function.link,
            capable=None if inside else self._capable(function),
            acs=acs if function.kind >> 8 == BRIDGE else None,
            iommu_group=function.iommu_group,
            iommu=_iommu(function),
            bar1=bar1(function) if kind == GPU else None,
            names=function.names,
            children=self._children(function.address),
        )

    def _capable(self, function: Function) -> Maybe[Optional[Tuple[float, int]]]:
        """The lower limit of both ends of the link.

        A virtual machine's port may report less than the link of a passed-through device: then it limits nothing.
        """
        if not isinstance(function.link, Link):
            return function.link
        limit = (function.link.max_speed, function.link.max_width)
        bridge = self._functions.get(function.bridges[-1]) if function.bridges else None
        port = bridge.link if bridge is not None else None
        if not isinstance(port, Link):
            return limit
        if port.max_speed < function.link.speed or port.max_width < function.link.width:
            return limit
        return min(limit[0], port.max_speed), min(limit[1], port.max_width)


def _inside(function: Function) -> bool:
    """Whether it is a port whose link the plugged-in device reports: every second bridge.

    Root ports have no bridge above them, upstream ports of switches one, downstream ports two, and so on.
    """
    return function.kind >> 8 == BRIDGE and len(function.bridges) % 2 == 0


def bar1(gpu: Function) -> Optional[int]:
    """Bytes of NVIDIA's BAR1: the second one that exists, because a 64-bit BAR takes two places."""
    sizes = [gpu.bars[index] for index in sorted(gpu.bars)]
    return sizes[1] if len(sizes) > 1 else None


def _pair(
    one: Function, other: Function, labels: Mapping[str, str], acs: Mapping[str, Maybe[int]], nodes: Maybe[int]
) -> Pair:
    shared = [name for name in one.bridges if name in other.bridges]
    up = [name for name in reversed(one.bridges) if name not in shared]
    down = [name for name in other.bridges if name not in shared]
    return Pair(
        one=labels[one.address],
        other=labels[other.address],
        distance=_distance(one, other, shared, max(len(up), len(down)), nodes),
        bridge=shared[-1] if shared else "",
        root_port=shared[0] if shared else "",
        path=(*up, *shared[-1:], *down),
        redirecting=_redirecting([*up, *down] if shared else [], acs),
    )


def _distance(one: Function, other: Function, shared: Sequence[str], apart: int, nodes: Maybe[int]) -> Maybe[str]:
    """``apart``: bridges between the nearest shared one and the farther device.

    The ports of one switch count as one bridge, as for nvidia-smi: a downstream port on either side is still PIX.
    """
    if shared:
        return PIX if apart <= 1 else PXB
    if not one.host_bridge or not other.host_bridge:
        return Unknown(f"the host bridge of {one.address} or {other.address} is not known")
    if one.host_bridge == other.host_bridge:
        return PHB
    if one.numa_node >= 0 and other.numa_node >= 0:
        return NODE if one.numa_node == other.numa_node else SYS
    if isinstance(nodes, Unknown) or nodes > 1:
        nameless = one if one.numa_node < 0 else other
        return Unknown(f"the firmware names no NUMA node of {nameless.address}")
    return NODE


def _redirecting(names: Sequence[str], acs: Mapping[str, Maybe[int]]) -> Maybe[Tuple[str, ...]]:
    controls = all_known(acs.get(name, Unknown(f"the access control of {name} was not read")) for name in names)
    return when_known(controls, lambda bits: tuple(name for name, control in zip(names, bits) if control & REDIRECTS))


def _iommu(function: Function) -> Maybe[str]:
    if isinstance(function.iommu, Unknown):
        return function.iommu
    if not function.iommu:
        return OFF
    domain = function.iommu_domain
    if isinstance(domain, Unknown) or domain is None:
        return why_not(domain, f"the IOMMU domain of {function.address} is not known")
    return PASSTHROUGH if domain == "identity" else TRANSLATING


def _strictest(devices: Sequence[Node]) -> Maybe[str]:
    modes = [mode for mode in (device.iommu for device in devices) if isinstance(mode, str)]
    unknown = [device.iommu for device in devices if isinstance(device.iommu, Unknown)]
    if TRANSLATING in modes:
        return TRANSLATING
    return unknown[0] if unknown else PASSTHROUGH if PASSTHROUGH in modes else OFF


def _iommu_words(document: Document) -> Maybe[Tuple[str, ...]]:
    text = document.text("/proc/cmdline")
    if not isinstance(text, str):
        return why_not(text, "there is no /proc/cmdline")
    names = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pci")
    return tuple(word for word in text.split() if word.partition("=")[0] in names and "=" in word)


def _numa_nodes(document: Document) -> Maybe[int]:
    # Kernels without NUMA have no such folder.
    names = with_default(document.names(NODES + "/node*"), ())
    return when_known(names, lambda nodes: len([name for name in nodes if name[4:].isdigit()]) or 1)


def degraded(node: Node) -> Maybe[str]:
    """How a link falls short of the limits of both ends, in words; empty: it doesn't.

    A GPU at rest may lower the speed of its link to 2.5 GT/s, never its width: that doesn't count.
    """
    if isinstance(node.link, Unknown) or isinstance(node.capable, Unknown):
        return node.link if isinstance(node.link, Unknown) else why_not(node.capable, "")
    if node.link is None or node.capable is None:
        return ""
    speed, width = node.capable
    slow = node.link.speed < speed and not resting(node)
    if not slow and node.link.width >= width:
        return ""
    return f"{link_words(node.link.speed, node.link.width)} of {link_words(speed, width)}"


def resting(node: Node) -> bool:
    """Whether the speed of its link proves nothing, because a GPU at rest lowers it."""
    return node.kind == GPU and isinstance(node.link, Link) and node.link.speed <= RESTING


def link_words(speed: float, width: int) -> str:
    return f"{speed:g} GT/s x{width}"
