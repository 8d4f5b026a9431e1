"""PCI functions and the tree between them: GPUs, network adapters, disks, and their distances, from sysfs alone.

Distances are those of ``nvidia-smi topo``, nearest first: PIX, PXB, PHB, NODE, SYS.  Hardware is counted by physical
functions, whether a driver runs them or not.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..paths import INFINIBAND, INTERFACES, NODES, PCI
from .document import Document, once_for_alike
from .driver import DriverFacts
from .unknown import Maybe, Unknown, all_known, decided, if_present, require, when_known, why_not, with_default

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


@dataclass(frozen=True)
class Function:
    """One PCI function; ``kind`` is its 24-bit class code."""

    address: str
    vendor: int
    device: int
    kind: int
    driver: str
    #: -1 where the platform names none
    numa_node: int
    #: behind an IOMMU
    iommu: Maybe[bool]
    #: index of the BAR → bytes
    bars: Mapping[int, int]
    #: addresses of the bridges above it, the root's side first
    bridges: Tuple[str, ...]
    #: what the IOMMU does: ``identity`` passes addresses through, ``DMA`` and ``DMA-FQ`` translate them; None: no IOMMU
    iommu_domain: Maybe[Optional[str]] = None
    #: number of its IOMMU group; None: no IOMMU
    iommu_group: Maybe[Optional[str]] = None
    #: the root that it hangs from, as the kernel names it, e.g. ``pci0000:00``; empty where the path names none
    host_bridge: str = ""
    #: None: it has no PCI Express link of its own, as functions on the root bus
    link: Maybe[Optional[Link]] = None
    #: what tells parts of one kind apart: ``subsystem vendor:subsystem device rev revision``; empty if not recorded
    subsystem: str = ""
    #: a virtual function of a part that is listed itself
    virtual: bool = False
    #: what the kernel calls it: network interfaces, RDMA devices, NVMe controllers
    names: Tuple[str, ...] = ()


@dataclass(frozen=True)
class PciFacts:
    """``gpus`` are NVIDIA's display functions; known only if every function could be read."""

    functions: Maybe[Tuple[Function, ...]]
    gpus: Maybe[Tuple[Function, ...]]
    #: bridges with access control that sends peers' traffic up to the root → its control register, 0 without any
    acs: Mapping[str, Maybe[int]] = field(default_factory=dict)
    #: vendor and family of the processor; None: the kernel names none, as on machines that are not x86
    cpu: Maybe[Optional[Tuple[str, int]]] = None


def pci_facts(document: Document) -> PciFacts:
    functions = _functions(document)
    if isinstance(functions, Unknown):
        return PciFacts(functions, functions, {}, _cpu(document))
    acs = {function.address: _acs(document, function.address) for function in functions if function.kind >> 8 == BRIDGE}
    return PciFacts(functions, tuple(function for function in functions if is_gpu(function)), acs, _cpu(document))


def _acs(document: Document, address: str) -> Maybe[int]:
    value = document.acs_control(address)
    return max(0, value) if isinstance(value, int) else why_not(value, f"the bridge {address} is gone")


def _cpu(document: Document) -> Maybe[Optional[Tuple[str, int]]]:
    lines = document.lines("/proc/cpuinfo")
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no /proc/cpuinfo")
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
    # Arm's lines are others, and this fact is about x86 only.
    pairs = [pair for pair in pairs if not pair[0].startswith("CPU ")][:2]
    if [key for key, _ in pairs] == ["vendor_id", "cpu family"] and pairs[1][1].isdigit():
        return pairs[0][1], int(pairs[1][1])
    return None if not pairs else Unknown("/proc/cpuinfo is not understood: {}".format("; ".join(lines[:2])))


def is_gpu(function: Function) -> bool:
    return function.vendor == NVIDIA_VENDOR and function.kind >> 16 == DISPLAY


@decided
def _functions(document: Document) -> Maybe[Tuple[Function, ...]]:
    names = require(document.names(PCI))
    return all_known(_function(document, name, PCI + "/" + name) for name in names or ())


@decided
def _function(document: Document, name: str, folder: str) -> Maybe[Function]:
    codes = require(all_known(_code(document, f"{folder}/{file}") for file in ("vendor", "device", "class")))
    vendor, device, kind = codes
    target, driver, group, physical = (
        document.link(folder + link) for link in ("", "/driver", "/iommu_group", "/physfn")
    )
    path = target if isinstance(target, str) else ""
    numa = document.line(folder + "/numa_node")
    return Function(
        address=name,
        vendor=vendor,
        device=device,
        kind=kind,
        driver=driver.rpartition("/")[2] if isinstance(driver, str) else "",
        numa_node=int(numa) if isinstance(numa, str) and re.match(r"-?\d{1,4}$", numa) else -1,
        iommu=when_known(group, lambda link: link is not None),
        bars=_bars(document.text(folder + "/resource")),
        bridges=addresses(path)[:-1],
        iommu_domain=if_present(group, lambda _: _domain(document, folder + "/iommu_group/type")),
        iommu_group=if_present(group, lambda link: link.rpartition("/")[2]),
        host_bridge=next((part for part in path.split("/") if _BRIDGE.match(part)), ""),
        link=_link(document, folder),
        subsystem=_subsystem(document, folder),
        virtual=isinstance(physical, str),
        names=_names(document, name),
    )


def _domain(document: Document, path: str) -> Maybe[str]:
    kind = document.line(path)
    return kind if isinstance(kind, str) else why_not(kind, "there is no " + path)


def _link(document: Document, folder: str) -> Maybe[Optional[Link]]:
    values = [
        document.line(f"{folder}/{which}_link_{unit}") for which in ("current", "max") for unit in ("speed", "width")
    ]
    for value in values:
        if isinstance(value, Unknown):
            return value
    speed, width, max_speed, max_width = (_GENERATION.match(str(value)) for value in values)
    if not (speed and width and max_speed and max_width):
        return None
    link = Link(float(speed.group()), int(width.group()), float(max_speed.group()), int(max_width.group()))
    return None if {link.width, link.max_width} & set(_NO_WIDTH) else link


def _subsystem(document: Document, folder: str) -> str:
    lines = [document.line(f"{folder}/{file}") for file in ("subsystem_vendor", "subsystem_device", "revision")]
    codes = [re.sub("^0x", "", line) for line in lines if isinstance(line, str)]
    return "{}:{} rev {}".format(*codes) if len(codes) == len(lines) else ""


def _names(document: Document, name: str) -> Tuple[str, ...]:
    devices = [device for folder in ("infiniband", "nvme") for device in document.existing(f"{PCI}/{name}/{folder}")]
    for interface in document.existing(INTERFACES):
        path = document.link(INTERFACES + "/" + interface)
        if isinstance(path, str) and addresses(path)[-1:] == (name,):
            devices.append(interface)
    return tuple(devices)


def _code(document: Document, path: str) -> Maybe[int]:
    text = document.line(path)
    if isinstance(text, str) and _CODE.match(text):
        return int(text, 16)
    return why_not(text, f"{path} says {text!r}")


@once_for_alike
def addresses(path: str) -> Tuple[str, ...]:
    """The PCI addresses in a path below /sys/devices, the root's side first."""
    return tuple(part for part in path.split("/") if _ADDRESS.match(part))


@once_for_alike
def _bars(text: object) -> Mapping[int, int]:
    """Sizes from sysfs' ``resource``: one line ``begin end flags`` per BAR, zeros where there is none."""
    sizes = {}
    for index, line in enumerate(text.splitlines()[:6] if isinstance(text, str) else ()):
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
_NO_MODEL, _NO_LINK = Unknown("it has no model"), Unknown("it has no link to a network")


@dataclass(frozen=True)
class Part:
    """One device."""

    address: str
    #: empty while no driver runs it
    driver: Maybe[str]
    #: as its driver names it; of GPUs and disks only
    model: Maybe[str] = _NO_MODEL
    #: Gbit/s of its fastest active RDMA port, 0 while none is active; of network adapters only
    link: Maybe[float] = _NO_LINK


@dataclass(frozen=True)
class HardwareFacts:
    """Physical functions only: no virtual functions of SR-IOV."""

    gpus: Maybe[Tuple[Part, ...]]
    #: a function for each port
    nics: Maybe[Tuple[Part, ...]]
    nvme: Maybe[Tuple[Part, ...]]


def hardware_facts(document: Document, pci: PciFacts, driver: DriverFacts) -> HardwareFacts:
    @decided
    def parts(chosen: Callable[[Function], bool], part: Callable[[Function], Part]) -> Maybe[Tuple[Part, ...]]:
        functions = list(filter(chosen, require(pci.functions)))
        links = require(all_known(document.link(f"{PCI}/{function.address}/physfn") for function in functions))
        return tuple(part(function) for function, physical in zip(functions, links) if physical is None)

    return HardwareFacts(
        gpus=parts(
            lambda one: is_gpu(one) and one.kind >> 8 in GPU_CLASSES,
            lambda one: Part(one.address, _driver(document, one), model=_gpu_model(driver, one)),
        ),
        nics=parts(
            lambda one: kind_of(one) == NIC,
            lambda one: Part(one.address, _driver(document, one), link=_rate(document, one)),
        ),
        nvme=parts(
            lambda one: kind_of(one) == DISK,
            lambda one: Part(one.address, _driver(document, one), model=_disk_model(document, one)),
        ),
    )


def _driver(document: Document, function: Function) -> Maybe[str]:
    link = with_default(document.link(f"{PCI}/{function.address}/driver"), "")
    return when_known(link, lambda path: path.rpartition("/")[2])


def _gpu_model(driver: DriverFacts, function: Function) -> Maybe[str]:
    if isinstance(driver.gpus, Unknown):
        return driver.gpus
    return driver.models.get(function.address, Unknown(f"NVIDIA's driver doesn't run the GPU {function.address}"))


@decided
def _disk_model(document: Document, function: Function) -> Maybe[str]:
    folder = f"{PCI}/{function.address}/nvme"
    names = require(with_default(document.names(folder), ()))
    if not names:
        return Unknown(f"no driver runs the disk {function.address}")
    model = document.line(f"/sys/class/nvme/{names[0]}/model")
    return model if isinstance(model, str) else why_not(model, f"{names[0]} names no model")


@decided
def _rate(document: Document, function: Function) -> Maybe[float]:
    devices = require(with_default(document.names(f"{PCI}/{function.address}/infiniband"), ()))
    if not devices:
        return Unknown(f"the adapter {function.address} has no RDMA device that names its rate")
    folders = [f"{INFINIBAND}/{device}/ports" for device in devices]
    rates = all_known(_port_rate(document, f"{ports}/{port}") for ports in folders for port in document.existing(ports))
    return when_known(rates, lambda each: max(each, default=0.0))


def _port_rate(document: Document, folder: str) -> Maybe[float]:
    """Of ``400 Gb/sec (4X NDR)``; a port without a link shows a rate, too."""
    state, rate = document.line(folder + "/state"), document.line(folder + "/rate")
    if not isinstance(state, str):
        return why_not(state, f"there is no {folder}/state")
    if "ACTIVE" not in state:
        return 0.0
    match = re.match(r"(\d{1,6}(?:\.\d)?) Gb/sec", rate) if isinstance(rate, str) else None
    return float(match.group(1)) if match else why_not(rate, f"{folder}/rate says {rate!r}")


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


@decided
def topology_facts(document: Document, pci: PciFacts, driver: DriverFacts) -> Maybe[Topology]:
    """The tree; Unknown where the PCI functions are."""
    functions = require(pci.functions)
    by_address = {function.address: function for function in functions}
    labels = _labels(functions)
    tree = _Tree(by_address, labels, pci.acs, driver.models)
    devices = tuple(tree.node(by_address[address]) for address in labels)
    # Kernels without NUMA have no such folder.
    folders = with_default(document.names(NODES + "/node*"), ())
    nodes = when_known(folders, lambda names: len([name for name in names if name[4:].isdigit()]) or 1)
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
    between = [*up, *down] if shared else []
    controls = all_known(acs.get(name, Unknown(f"the access control of {name} was not read")) for name in between)
    return Pair(
        one=labels[one.address],
        other=labels[other.address],
        distance=_distance(one, other, shared, max(len(up), len(down)), nodes),
        bridge=shared[-1] if shared else "",
        root_port=shared[0] if shared else "",
        path=(*up, *shared[-1:], *down),
        redirecting=when_known(
            controls, lambda bits: tuple(name for name, control in zip(between, bits) if control & REDIRECTS)
        ),
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
