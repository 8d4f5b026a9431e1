"""PCI functions and the tree between them: GPUs, network adapters, disks, and their distances, from sysfs alone.

Distances are those of ``nvidia-smi topo``, nearest first: PIX, PXB, PHB, NODE, SYS.  Hardware is counted by physical
functions, whether a driver runs them or not.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..paths import INFINIBAND, INTERFACES, NODES, PCI
from .document import Document, collected, group_of, once_for_alike, there
from .driver import DriverFacts
from .unknown import Facts, Maybe, UndecidedError, Unknown, fact, given, if_known, known, or_else, require

NVIDIA_VENDOR = 0x10DE
DISPLAY, NVME, BRIDGE = 0x03, 0x010802, 0x0604
NETWORK, INFINIBAND_CLASS = 0x02, 0x0C06
#: Bits of the control register of Access Control Services that send peers' requests up to the root (pci_regs.h).
REDIRECTS = 0x04 | 0x08 | 0x20
#: Not a width: sysfs shows these where the register is empty or all ones (seen for emulated functions).
_NO_WIDTH = (0, 63, 255)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_CODE = re.compile(r"0x[0-9a-f]{4,6}$")
_GENERATION = re.compile(r"\d{1,3}(\.\d)?(?=$| GT/s)")
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}$")


@dataclass(frozen=True)
class Link:
    """A PCI Express link as one of its ends sees it: gigatransfers a second and lanes.

    ``max_*`` is the limit of this end; the other end may have a lower one.
    """

    speed: float
    width: int
    max_speed: float
    max_width: int


class Function(Facts):
    """One PCI function; ``kind`` is its 24-bit class code."""

    def __init__(self, document: Document, address: str) -> None:
        """Raises UndecidedError where the evidence doesn't show what it is."""
        super().__init__(document)
        self.address, self._folder = address, f"{PCI}/{address}"
        self.vendor, self.device, self.kind = (
            _code(document, f"{self._folder}/{file}") for file in ("vendor", "device", "class")
        )

    def _link(self, name: str) -> str:
        """The end of a link; empty where there is none, or it isn't known."""
        return if_known(lambda: self.document.link(self._folder + name), None) or ""

    @fact
    def driver(self) -> str:
        return self._link("/driver").rpartition("/")[2]

    @fact
    def numa_node(self) -> int:
        """-1 where the platform names none."""
        text = if_known(lambda: self.document.line(self._folder + "/numa_node"), None)
        return int(text) if text is not None and re.match(r"-?\d{1,4}$", text) else -1

    @fact
    def iommu(self) -> bool:
        """Behind an IOMMU."""
        return self.document.link(self._folder + "/iommu_group") is not None

    @fact
    def bars(self) -> Mapping[int, int]:
        """Index of the BAR → bytes."""
        return _bars(if_known(lambda: self.document.text(self._folder + "/resource"), None) or "")

    @fact
    def bridges(self) -> Tuple[str, ...]:
        """Addresses of the bridges above it, the root's side first."""
        return addresses(self._link(""))[:-1]

    @fact
    def iommu_domain(self) -> Optional[str]:
        """``identity``: the IOMMU passes addresses through; ``DMA`` and ``DMA-FQ``: it translates; None: no IOMMU."""
        path = self._folder + "/iommu_group/type"
        return there(self.document.line(path), path) if self.iommu else None

    @fact
    def iommu_group(self) -> Optional[str]:
        """Number of its IOMMU group; None: no IOMMU."""
        link = self.document.link(self._folder + "/iommu_group")
        return None if link is None else link.rpartition("/")[2]

    @fact
    def host_bridge(self) -> str:
        """The root that it hangs from, as the kernel names it, e.g. ``pci0000:00``; empty: the path names none."""
        return next((part for part in self._link("").split("/") if _BRIDGE.match(part)), "")

    @fact
    def link(self) -> Optional[Link]:
        """None: it has no PCI Express link of its own, as functions on the root bus."""
        files = [f"{which}_link_{unit}" for which in ("current", "max") for unit in ("speed", "width")]
        values = [self.document.line(f"{self._folder}/{file}") for file in files]
        speed, width, max_speed, max_width = (_GENERATION.match(str(value)) for value in values)
        if not (speed and width and max_speed and max_width):
            return None
        link = Link(float(speed.group()), int(width.group()), float(max_speed.group()), int(max_width.group()))
        return None if {link.width, link.max_width} & set(_NO_WIDTH) else link

    @fact
    def subsystem(self) -> str:
        """What tells parts of one kind apart: ``vendor:device rev revision`` of its subsystem, or empty."""
        return if_known(self._subsystem, "")

    def _subsystem(self) -> str:
        files = ("subsystem_vendor", "subsystem_device", "revision")
        lines = [there(self.document.line(f"{self._folder}/{file}"), file) for file in files]
        return "{}:{} rev {}".format(*(re.sub("^0x", "", line) for line in lines))

    @fact
    def virtual(self) -> bool:
        """A virtual function of a part that is listed itself."""
        return self._link("/physfn") != ""

    @fact
    def names(self) -> Tuple[str, ...]:
        """What the kernel calls it: network interfaces, RDMA devices, NVMe controllers."""
        return _names(self.document, self.address)


class PciFacts(Facts):
    """Known only if every function could be read."""

    functions = given(lambda document: tuple(Function(document, name) for name in document.names(PCI) or ()))

    @fact
    def gpus(self) -> Tuple[Function, ...]:
        """NVIDIA's display functions."""
        return tuple(function for function in self.functions if is_gpu(function))

    @fact
    def acs(self) -> Mapping[str, Maybe[int]]:
        """Bridges → the control register of their access control, 0 without any."""
        bridges = [one.address for one in if_known(lambda: self.functions, ()) if one.kind >> 8 == BRIDGE]
        return {address: known(partial(_acs, self.document, address)) for address in bridges}

    @fact
    def cpu(self) -> Optional[Tuple[str, int]]:
        """Vendor and family of the processor; None: the kernel names none, as on machines that are not x86."""
        lines = there(self.document.lines("/proc/cpuinfo"), "/proc/cpuinfo")
        pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
        # Arm's lines are others, and this fact is about x86 only.
        pairs = [pair for pair in pairs if not pair[0].startswith("CPU ")][:2]
        if [key for key, _ in pairs] == ["vendor_id", "cpu family"] and pairs[1][1].isdigit():
            return pairs[0][1], int(pairs[1][1])
        if pairs:
            raise UndecidedError("/proc/cpuinfo is not understood: {}".format("; ".join(lines[:2])))
        return None

    def control(self, bridge: str) -> int:
        """The control register of a bridge's access control; raises UndecidedError."""
        return require(self.acs.get(bridge, Unknown(f"the access control of {bridge} was not read")))


def _acs(document: Document, address: str) -> int:
    return max(0, collected(document.acs_control(address), f"the bridge {address} is gone"))


def is_gpu(function: Function) -> bool:
    return function.vendor == NVIDIA_VENDOR and function.kind >> 16 == DISPLAY


def _names(document: Document, name: str) -> Tuple[str, ...]:
    devices = [device for folder in ("infiniband", "nvme") for device in document.existing(f"{PCI}/{name}/{folder}")]
    for interface in document.existing(INTERFACES):
        path = if_known(partial(document.link, f"{INTERFACES}/{interface}"), None) or ""
        if addresses(path)[-1:] == (name,):
            devices.append(interface)
    return tuple(devices)


def _code(document: Document, path: str) -> int:
    text = document.line(path)
    if text is None or not _CODE.match(text):
        raise UndecidedError(f"{path} says {text!r}")
    return int(text, 16)


@once_for_alike
def addresses(path: str) -> Tuple[str, ...]:
    """The PCI addresses in a path below /sys/devices, the root's side first."""
    return tuple(part for part in path.split("/") if _ADDRESS.match(part))


@once_for_alike
def _bars(text: str) -> Mapping[int, int]:
    """Sizes from sysfs' ``resource``: one line ``begin end flags`` per BAR, zeros where there is none."""
    sizes = {}
    for index, line in enumerate(text.splitlines()[:6]):
        words = line.split()
        if len(words) == 3 and all(re.match(r"0x[0-9a-f]{1,16}$", word) for word in words):
            begin, end = int(words[0], 16), int(words[1], 16)
            if end > begin:
                sizes[index] = end - begin + 1
    return sizes


def find(functions: Tuple[Function, ...], address: str) -> Optional[Function]:
    return next((function for function in functions if function.address == address), None)


#: VGA and 3D controllers.  A GPU's audio function has 0x0403, an NVSwitch 0x0680 (bridge).
GPU_CLASSES = (0x0300, 0x0302)


class Part(Facts):
    """One device."""

    def __init__(self, function: Function, drivers: DriverFacts) -> None:
        super().__init__(function.document)
        self.address, self._kind, self._drivers = function.address, kind_of(function), drivers
        self._folder = f"{PCI}/{function.address}"

    @fact
    def driver(self) -> str:
        """Empty while no driver runs it."""
        return (self.document.link(self._folder + "/driver") or "").rpartition("/")[2]

    @fact
    def model(self) -> str:
        """As its driver names it; of GPUs and disks only."""
        if self._kind == GPU:
            unknown = Unknown(f"NVIDIA's driver doesn't run the GPU {self.address}")
            return require(self._drivers.models.get(self.address, unknown) if self._drivers.gpus else unknown)
        if self._kind == DISK:
            names = self.document.names(self._folder + "/nvme")
            if not names:
                raise UndecidedError(f"no driver runs the disk {self.address}")
            return collected(self.document.line(f"/sys/class/nvme/{names[0]}/model"), f"{names[0]} names no model")
        raise UndecidedError("it has no model")

    @fact
    def link(self) -> float:
        """Gbit/s of its fastest active RDMA port, 0 while none is active; of network adapters only."""
        if self._kind != NIC:
            raise UndecidedError("it has no link to a network")
        devices = self.document.names(self._folder + "/infiniband")
        if not devices:
            raise UndecidedError(f"the adapter {self.address} has no RDMA device that names its rate")
        folders = [f"{INFINIBAND}/{device}/ports" for device in devices]
        ports = [f"{folder}/{port}" for folder in folders for port in self.document.existing(folder)]
        return max((_port_rate(self.document, port) for port in ports), default=0.0)


class HardwareFacts(Facts):
    """Physical functions only: no virtual functions of SR-IOV."""

    def __init__(self, document: Document, pci: PciFacts, driver: DriverFacts) -> None:
        super().__init__(document)
        self._pci, self._driver = pci, driver

    @fact
    def gpus(self) -> Tuple[Part, ...]:
        return self._parts(lambda one: is_gpu(one) and one.kind >> 8 in GPU_CLASSES)

    @fact
    def nics(self) -> Tuple[Part, ...]:
        """A function for each port."""
        return self._parts(lambda one: kind_of(one) == NIC)

    @fact
    def nvme(self) -> Tuple[Part, ...]:
        return self._parts(lambda one: kind_of(one) == DISK)

    def _parts(self, chosen: Callable[[Function], bool]) -> Tuple[Part, ...]:
        functions = list(filter(chosen, self._pci.functions))
        physical = [self.document.link(f"{PCI}/{function.address}/physfn") for function in functions]
        return tuple(Part(one, self._driver) for one, parent in zip(functions, physical) if parent is None)


def _port_rate(document: Document, folder: str) -> float:
    """Of ``400 Gb/sec (4X NDR)``; a port without a link shows a rate, too."""
    if "ACTIVE" not in there(document.line(folder + "/state"), folder + "/state"):
        return 0.0
    rate = document.line(folder + "/rate")
    match = re.match(r"(\d{1,6}(?:\.\d)?) Gb/sec", rate or "")
    return float(group_of(match, f"{folder}/rate says {rate!r}"))


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


def kind_of(function: Function) -> str:
    """What a function is among the devices of a topology; empty: none of them."""
    if function.virtual:
        return ""
    if is_gpu(function):
        return GPU
    if function.kind >> 16 == NETWORK or function.kind >> 8 == INFINIBAND_CLASS:
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
            bar1=bar1(function) if kind == GPU else None,
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


def bar1(gpu: Function) -> Optional[int]:
    """Bytes of NVIDIA's BAR1: the second one that exists, because a 64-bit BAR takes two places."""
    sizes = [gpu.bars[index] for index in sorted(gpu.bars)]
    return sizes[1] if len(sizes) > 1 else None


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
