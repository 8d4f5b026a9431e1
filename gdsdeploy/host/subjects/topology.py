"""The PCIe tree between GPUs, network adapters and disks: links, distances, and what stands between peers.

Distances over PCIe are from sysfs, in the words of ``nvidia-smi topo``, nearest first: PIX, PXB, PHB, NODE, SYS.  The
NVLinks between GPUs are those that nvidia-smi counts, where it was asked.
"""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..facts.document import Document, collected, once_for_alike, there
from ..facts.unknown import Maybe, UndecidedError, Unknown, if_known, known, or_else, require
from ..model.expectation import Expectation
from ..paths import GPU_ORDER, LINK_TABLE, NODES, NVFS, PCI
from . import kernel, quote
from .condition import NOTES, Cause, Condition, condition, listed_cause, rule, weigh
from .gpu import ARM, NO_GPU, STATIC_BYTES, WHOLE, X86, bar1, cached, grace, not_asked, of_all, of_some, with_bar1
from .pci import BRIDGE, DISK, GPU, NIC, REDIRECTS, Function, Link, PciFacts, kind_of
from .register import Answer, Steps, check, failed, not_applicable, passed
from .storage import NVME
from .types import HostFacts, Mount

if TYPE_CHECKING:
    from .driver import DriverFacts

#: At most one switch; several; the host bridge; host bridges of one NUMA node; between NUMA nodes.
PIX, PXB, PHB, NODE, SYS = "PIX", "PXB", "PHB", "NODE", "SYS"
DISTANCES = (PIX, PXB, PHB, NODE, SYS)
#: Kinds of a node; devices have the kinds of pci.py.
ROOT, PORT = "host bridge", "bridge"
#: The order of devices, and how each kind is numbered; GPUs so as nvidia-smi does: by address.
LABELS = {GPU: "GPU", NIC: "NIC", DISK: "NVME"}
#: Modes of the IOMMU: none, it passes devices' addresses through, it translates them.
OFF, PASSTHROUGH, TRANSLATING = "off", "pt", "on"
NO_WORD = "no word about an IOMMU"
TURN_OFF = (
    "turn the IOMMU off on the kernel's command line: intel_iommu=off or amd_iommu=off, which boot: auto in the profile"
    " sets; more than 255 processors need it, so there use nvidia-fs with iommu=pt"
)
#: For a host whose processors need it.
KEEP_IOMMU = (
    "keep the IOMMU, without which the kernel leaves processors out, and let it pass addresses through: iommu=pt on"
    " the kernel's command line"
)
TRANSLATE = (
    "remove iommu.passthrough=1 from the kernel's command line; without that word, enable the SMMU in the firmware"
)
IOMMU_WORDS = {OFF: "off", PASSTHROUGH: "pt: it passes addresses through", TRANSLATING: "on: it translates addresses"}
#: Speed that a GPU lowers its link to while it rests, in gigatransfers a second: most to 2.5, some boards to 5.
RESTING = 5.0


class Node(NamedTuple):
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


class Pair(NamedTuple):
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
    #: NVLinks between two GPUs, direct or through NVSwitches; 0 for other devices
    nvlinks: Maybe[int]


class Topology(NamedTuple):
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

    def pair(self, one: str, other: str) -> Optional[Pair]:
        """Two devices by their labels, in any order."""
        return next((pair for pair in self.pairs if {pair.one, pair.other} == {one, other}), None)

    def nearest(self, label: str, kind: str) -> Tuple[str, Tuple[str, ...]]:
        """The smallest distance of a device to others of a kind, and those at it; empty: there is no other.

        Raises UndecidedError where no distance is known.
        """
        pairs = [(device.label, self.pair(label, device.label)) for device in self.of_kind(kind)]
        distances = {other: pair.distance for other, pair in pairs if pair is not None}
        best = min((each for each in distances.values() if isinstance(each, str)), key=DISTANCES.index, default="")
        if distances and not best:
            require(next(iter(distances.values())))
        return best, tuple(other for other, distance in distances.items() if distance == best)

    def nodes(self) -> Tuple[Node, ...]:
        """Every node of the tree, each before what hangs below it."""
        found = list(self.roots)
        for place, node in enumerate(found, 1):
            found[place:place] = node.children
        return tuple(found)


def topology_facts(document: Document, pci: PciFacts, driver: DriverFacts) -> Topology:
    """The tree; raises UndecidedError where the PCI functions are unknown."""
    functions = {function.address: function for function in pci.functions}
    labels = _labels(pci.functions)
    below: Dict[str, Set[str]] = {}
    for address in labels:
        chain = (functions[address].host_bridge, *functions[address].bridges, address)
        for above, child in zip(chain, chain[1:]):
            below.setdefault(above, set()).add(child)

    def children(address: str) -> Tuple[Node, ...]:
        names = sorted(below.get(address, ()))
        # A bridge that the evidence doesn't describe still leads to the devices below it.
        return tuple(
            node(functions[name]) if name in functions else Node(name, PORT, children=children(name)) for name in names
        )

    def node(function: Function) -> Node:
        kind, inside = kind_of(function) or PORT, function.is_inside
        part = f"{function.vendor:04x}:{function.device:04x}"
        is_bridge = function.kind >> 8 == BRIDGE
        return Node(
            address=function.address,
            kind=kind,
            label=labels.get(function.address, ""),
            part=part + (" (" + function.subsystem + ")" if function.subsystem else ""),
            model=or_else(driver.models.get(function.address, ""), ""),
            driver=function.driver,
            numa_node=function.numa_node,
            link=None if inside else known(lambda: function.link),
            capable=None if inside else known(lambda: _capable(function, pci)),
            acs=known(lambda: pci.control(function.address)) if is_bridge else None,
            iommu_group=known(lambda: function.iommu_group),
            iommu=known(lambda: _iommu(function)),
            bar1=function.bar1 if kind == GPU else None,
            names=function.names,
            children=children(function.address),
        )

    devices = tuple(node(functions[address]) for address in labels)
    # Kernels without NUMA have no such folder.
    nodes = known(lambda: sum(name[4:].isdigit() for name in document.names(NODES + "/node*") or ()) or 1)
    pairs = itertools.combinations([functions[address] for address in labels], 2)
    return Topology(
        roots=tuple(Node(n, ROOT, children=children(n)) for n in sorted({functions[a].host_bridge for a in labels})),
        devices=devices,
        pairs=tuple(_pair(one, other, labels, pci, nodes) for one, other in pairs),
        iommu=known(lambda: _strictest(devices)),
        iommu_words=known(lambda: _iommu_words(document)),
        numa_nodes=nodes,
    )


def _capable(function: Function, pci: PciFacts) -> Optional[Tuple[float, int]]:
    """The lower limit of both ends of the link; raises UndecidedError where the other end isn't seen, and may limit it.

    A virtual machine's port may report less than the link of a passed-through device: then it isn't the other end.
    """
    link = function.link
    if link is None:
        return None
    bridge = pci.find(function.bridges[-1]) if function.bridges else None
    port = if_known(lambda: bridge.link, None) if bridge is not None else None
    if port is not None and port.max_speed >= link.speed and port.max_width >= link.width:
        return min(link.max_speed, port.max_speed), min(link.max_width, port.max_width)
    is_slow = link.speed < link.max_speed and not (kind_of(function) == GPU and link.speed <= RESTING)
    if is_slow or link.width < link.max_width:
        words = f"{link_words(link.speed, link.width)} of {link_words(link.max_speed, link.max_width)}"
        raise UndecidedError(f"{function.address} runs at {words}, and the slot, which may limit it, isn't seen here")
    return link.max_speed, link.max_width


def _labels(functions: Sequence[Function]) -> Dict[str, str]:
    """Address → label, in the order of devices."""
    of_kind = {kind: sorted(one.address for one in functions if kind_of(one) == kind) for kind in LABELS}
    return {address: f"{LABELS[kind]}{index}" for kind in LABELS for index, address in enumerate(of_kind[kind])}


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
        nvlinks=known(lambda: _nvlinks(one, other) if kind_of(one) == kind_of(other) == GPU else 0),
    )


def _nvlinks(one: Function, other: Function) -> int:
    """How many nvidia-smi counts; raises UndecidedError where it wasn't asked, or its answer isn't understood."""
    table, order = (one.document.output(command, command) for command in (LINK_TABLE, GPU_ORDER))
    names = {kernel.address(line): f"GPU{index}" for index, line in enumerate(order.splitlines())}
    pair = tuple(names.get(kernel.address(gpu.address), "") for gpu in (one, other))
    cells = _cells(table)
    cell = re.fullmatch("|".join((r"NV(\d{1,3})", *DISTANCES)), cells.get(pair, ""))
    if cell is None or cells.get(pair[::-1]) != cell[0] or len(cells) != len(names) ** 2:
        raise UndecidedError(f"what {LINK_TABLE} says about {one.address} and {other.address} isn't understood")
    return int(cell[1] or 0)


@once_for_alike
def _cells(table: str) -> Mapping[Tuple[str, ...], str]:
    """Row and column → cell of nvidia-smi's table; of GPUs only."""
    rows = [[cell.strip() for cell in line.split("\t")] for line in re.sub(r"\x1b\[[\d;]*m", "", table).splitlines()]
    head, *rows = [row for row in rows if len(row) > 1 and re.match(r"(GPU\d+)?$", row[0])] or [[]]
    return {(row[0], name): cell for row in rows for name, cell in zip(head, row) if re.match(r"GPU\d+$", name)}


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

    A GPU at rest may lower the speed of its link, never its width: that doesn't count.
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


def _endpoints(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    """GPUs and the disks under a mount; none without a GPU, because the disks then have no peer."""
    gpus = if_known(lambda: facts.pci.gpus, ())
    return [*gpus, *disks(facts, mount)] if gpus else []


def disks(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    devices = mount.devices if mount is not None else ()
    return list(filter(None, (facts.pci.find(device.pci_address) for device in devices if device.pci_address)))


def iommu(facts: HostFacts, mount: Optional[Mount], needs_it_off: bool) -> Iterator[Condition]:
    """In another of its modes than those that let peers through, an IOMMU may block them."""
    gpus = if_known(lambda: facts.pci.gpus, ())
    judge = partial(_lets_through, facts, needs_it_off=needs_it_off)
    yield from of_all([judge(gpu)] for gpu in gpus)
    yield from map(judge, disks(facts, mount) if gpus else ())


def _letting_through(facts: HostFacts, needs_it_off: bool) -> Tuple[str, ...]:
    """Modes of the IOMMU in which peers reach each other; raises UndecidedError.

    Grace needs one that translates (Best Practices Guide, 1.1).  NVIDIA documents no rule for other Arm machines:
    there one that translates may block peers, as on x86.
    """
    return (TRANSLATING,) if grace(facts) else (OFF,) if needs_it_off else (OFF, PASSTHROUGH)


@condition
def _lets_through(facts: HostFacts, function: Function, needs_it_off: bool) -> Condition:
    mode, allowed = known(lambda: _iommu(function)), _letting_through(facts, needs_it_off)
    if mode in allowed or (isinstance(mode, Unknown) and TRANSLATING in allowed):
        return Condition(mode if isinstance(mode, Unknown) else True)
    cause, machine = _iommu_cause(facts, function, needs_it_off), if_known(lambda: facts.os.machine, "")
    refuses = machine in X86 and needs_it_off and mode != PASSTHROUGH
    return Condition(False if refuses else Unknown(cause.what), cause, suspect=True)


def _domain(function: Function) -> Optional[str]:
    return if_known(lambda: function.iommu_domain, None)


def _iommu_cause(facts: HostFacts, function: Function, needs_it_off: bool) -> Cause:
    domain = _domain(function) or "of a type that was not recorded"
    what = f"an IOMMU is between {function.address} and its peers ({domain})"
    words = known(lambda: "/proc/cmdline: " + (" ".join(_iommu_words(facts.document)) or NO_WORD))
    told = words.reason if isinstance(words, Unknown) else words
    cause = listed_cause("platform.iommu", (f"{PCI}/{function.address}/iommu_group/type: {domain}", told), what)
    if if_known(lambda: grace(facts), False):
        what = f"no IOMMU translates addresses for {function.address}, but NVIDIA's guide needs that on Grace"
        return cause._replace(what=what, fix=TRANSLATE)
    if if_known(lambda: facts.os.machine, "") == ARM:
        fix = "let the IOMMU pass addresses through: iommu.passthrough=1 on the kernel's command line"
        return cause._replace(fix=fix)
    if if_known(lambda: facts.os.needs_iommu, False):
        return cause._replace(fix=KEEP_IOMMU + ("; this host can't have mode p2pdma" if needs_it_off else ""))
    # The table's fix has a second best, for which this is too strict.
    return cause._replace(fix=TURN_OFF) if needs_it_off else cause


def redirecting_bridges(facts: HostFacts) -> Tuple[str, ...]:
    """Bridges whose access control sends peers' traffic up to the root, according to the kernel and nvidia-fs."""
    own = [name for name, control in facts.pci.acs.items() if isinstance(control, int) and control & REDIRECTS]
    return tuple(sorted({*_listed_bridges(facts), *own}))


def _listed_bridges(facts: HostFacts) -> Tuple[str, ...]:
    return if_known(lambda: facts.nvidia_fs.bridges, None) or ()


def _acs_cause(bridges: Sequence[str], evidence: Sequence[str]) -> Cause:
    what = "traffic between peers takes a detour through the root complex, because of ACS on {}"
    return listed_cause("platform.acs", tuple(evidence), what.format(", ".join(bridges)))


@rule(NOTES, 30)
def notes(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Cause]:
    """What slows the direct path of all GPUs down."""
    endpoints = _endpoints(facts, mount)
    above = {bridge for function in endpoints for bridge in function.bridges}
    bridges = [name for name in redirecting_bridges(facts) if name in above]
    if bridges:
        yield _acs_cause(bridges, [f"{name}: ACS redirects requests" for name in bridges[: quote.LINES]])
    yield from of_some([_lets_through(facts, gpu, needs_it_off=False)] for gpu in if_known(lambda: facts.pci.gpus, ()))
    needed = if_known(lambda: facts.os.needs_iommu, False)
    for function in [one for one in endpoints if _domain(one) == "identity" and not needed][:1]:
        what = f"an IOMMU passes the addresses of {function.address} through, which is slow on some platforms"
        evidence = quote.with_source(f"{PCI}/{function.address}/iommu_group/type", ["identity"])
        fix = "if I/O is slow, turn the IOMMU off: intel_iommu=off or amd_iommu=off"
        yield listed_cause("platform.iommu", evidence, what, fix)


@rule(NOTES, 40)
def nearness_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Disks that are far from every GPU, or near different ones."""
    topology = facts.topology
    addresses = {device.pci_address for device in mount.devices if device.pci_address}
    labels = [disk.label for disk in topology.of_kind(DISK) if disk.address in addresses]
    found = {label: if_known(partial(topology.nearest, label, GPU), ("", ())) for label in labels}
    nearest = {label: place for label, place in found.items() if place[0]}
    far = [label for label, (distance, _) in nearest.items() if distance in (NODE, SYS)]
    evidence = quote.with_source(
        "topology",
        ["{}: {} from {}".format(label, distance, ", ".join(gpus)) for label, (distance, gpus) in nearest.items()],
    )
    if far:
        what = "the nearest GPU to {} is at distance {}".format(", ".join(far), nearest[far[0]][0])
        fix = "move the data to disks under the same host bridge as the GPUs, or run the work on the nearest GPU"
        yield listed_cause("platform.far-gpu", evidence, what, fix)
    if len(set(nearest.values())) > 1:
        yield listed_cause("storage.spread", evidence)


#: Requests that the queue of an NVMe disk holds by default, which is as much as throughput needs: NVIDIA's gds-diag
#: expects 1024, and one entry of the ring stays free (drivers/nvme/host/pci.c: io_queue_depth).
REQUESTS = 1023


@rule(NOTES, 41)
def queue_notes(_facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    disks = [device for device in mount.devices if device.kind == NVME]
    sizes = {disk.name: if_known(partial(getattr, disk, "requests"), REQUESTS) for disk in disks}
    shallow = [(name, size) for name, size in sizes.items() if size < REQUESTS]
    if shallow:
        name, size = shallow[0]
        path = f"/sys/block/{name}/queue/nr_requests"
        evidence = quote.with_source(path, [f"{name}: {size}" for name, size in shallow])
        yield listed_cause("storage.queue-depth", evidence, disk=name, size=str(size))


SEAT_HINT = (
    "Check the firmware's settings for a limit of that slot; then drain the host, power it off, and seat the card,"
    " riser or cable again"
)


@check(
    "topology.link",
    "every PCIe link of a GPU, NVMe disk or network adapter has the highest speed and width that both ends support",
    expects="no degraded link; a GPU at rest may lower its speed, never its width",
    prevents="half of the bandwidth because a card is not seated well, or a riser or cable is damaged",
)
def links(facts: HostFacts, _expectation: Expectation) -> Answer:
    linked = [node for node in facts.topology.nodes() if node.link is not None]
    found = [(node, known(partial(degraded, node))) for node in linked]
    slow = [(node, words) for node, words in found if isinstance(words, str) and words]
    if slow:
        names = [
            f"{node.label} ({node.address})" if node.label else f"the switch at {node.address}" for node, _ in slow
        ]
        words = "; ".join(f"{name} runs at {words}" for name, (_, words) in zip(names, slow))
        return failed(words, SEAT_HINT, [_link_line(node) for node, _ in slow])
    for _, of_node in found:
        require(of_node)
    if not linked:
        return not_applicable("no device has a PCIe link")
    words = f"{len(linked)} link{'' if len(linked) == 1 else 's'} at what both ends can do"
    rest = [node.label for node in linked if resting(node)]
    return passed(words + ("; at rest, so their speed is not proven: {}".format(", ".join(rest)) if rest else ""))


def _link_line(node: Node) -> str:
    assert isinstance(node.link, Link)
    now, most = link_words(node.link.speed, node.link.width), link_words(node.link.max_speed, node.link.max_width)
    return f"{PCI}/{node.address}: current {now}, max {most}"


@check(
    "topology.acs",
    "no PCIe switch sends traffic between a GPU and its peers up to the host bridge (ACS redirect)",
    expects="Access Control Services do not redirect between a GPU and the disks and adapters below its switch",
    prevents="direct I/O at a fraction of its speed, because the firmware or the kernel enabled ACS",
    unless=not_asked,
)
def acs(facts: HostFacts, _expectation: Expectation) -> Steps:
    gpus = {gpu.label for gpu in facts.topology.of_kind(GPU)}
    pairs = [p for p in facts.topology.pairs if p.bridge and p.one in gpus and p.other not in gpus]
    bad = {f"{p.one} to {p.other}": p.redirecting for p in pairs if isinstance(p.redirecting, tuple) and p.redirecting}
    listed = _listed_bridges(facts)
    lines = [f"{NVFS}/bridges: {name}" for name in listed]
    lines += ["{}: {} redirects".format(name, ", ".join(bridges)) for name, bridges in bad.items()]
    yield Condition(not lines, lambda: _acs_cause(sorted({*listed, *itertools.chain(*bad.values())}), lines))
    for pair in pairs:
        require(pair.redirecting)
    if pairs:
        yield passed(f"none of {len(pairs)} pairs of a GPU and a peer below one switch is redirected")
    else:
        yield not_applicable("no GPU shares a switch with a disk or adapter: there is nothing to redirect")


@check(
    "topology.iommu",
    "the IOMMU does not slow down or break peer traffic of GPUs in this mode",
    expects="off, or passing addresses through where the mode is not p2pdma; on Grace: translating",
    prevents="direct I/O that is slow or corrupt because a firmware update enabled an IOMMU",
    unless=not_asked,
)
def iommu_of_mode(facts: HostFacts, expectation: Expectation) -> Steps:
    topology = facts.topology
    words, mode = require(topology.iommu_words), require(topology.iommu)
    line = "/proc/cmdline: {}".format(" ".join(words) or NO_WORD)
    is_p2pdma = expectation.mode == "p2pdma"
    allowed = _letting_through(facts, is_p2pdma)
    others = [device for device in topology.devices if or_else(device.iommu, allowed[0]) not in allowed]
    for function in filter(None, (facts.pci.find(device.address) for device in others[:1])):
        cause = _iommu_cause(facts, function, is_p2pdma)
        is_documented = facts.os.machine in X86 or allowed == (TRANSLATING,)
        yield Condition(False if is_documented else Unknown(cause.what), cause, suspect=True)
    for device in topology.devices:
        require(device.iommu)
    yield passed(IOMMU_WORDS[mode], [line])


#: Linux, drivers/vfio/pci/nvgrace-gpu: the GPU has a BAR1 that isn't used once the link is up.
ON_GRACE = "not needed: NVLink-C2C reaches the memory of this machine's GPUs, not BAR1"


@check(
    "topology.bar1",
    "BAR1 of every GPU is large enough for this mode",
    expects="at least the bounce buffers of cufile.json; in mode p2pdma the whole memory of the GPU",
    prevents="bounce buffers that cannot be mapped, after Resizable BAR or Above 4G Decoding was reset in the firmware",
    unless=lambda facts, fleet: not_asked(facts, fleet) or (ON_GRACE if if_known(lambda: grace(facts), False) else ""),
)
def large_enough(facts: HostFacts, expectation: Expectation) -> Steps:
    conditions = [one for gpu in with_bar1(facts) for one in cached(facts, gpu, refuses=True)]
    if expectation.mode == "p2pdma":
        conditions += [one for gpu in with_bar1(facts) for one in bar1(gpu, STATIC_BYTES, WHOLE)]
    # Where it isn't known whether this is a Grace, a small BAR1 may do.
    yield from conditions if weigh(conditions).holds is True or not grace(facts) else ()
    yield passed(", ".join(f"{gpu.label} {(gpu.bar1 or 0) >> 20} MiB" for gpu in facts.topology.of_kind(GPU)))


#: Keys of the fleet's topology → kind of device.
KINDS = {"nvme": DISK, "nic": NIC}


@check(
    "topology.distance",
    "every GPU has a disk and an adapter within the fleet's distance",
    expects="topology.nvme and topology.nic of the profile",
    prevents="I/O across CPU sockets after cards changed their slots",
)
def distance(facts: HostFacts, expectation: Expectation) -> Answer:
    limits = {key: str(expectation.topology[key]) for key in KINDS if key in expectation.topology}
    if not limits:
        return not_applicable("not asked: the fleet sets no distance")
    topology = facts.topology
    gpus = topology.of_kind(GPU)
    expected = ", ".join(f"{key} at most {most}" for key, most in limits.items())
    if not gpus:
        return not_applicable(NO_GPU, expected=expected)
    far: List[str] = []
    near: Dict[str, List[str]] = {}
    for key, most in limits.items():
        for gpu in gpus:
            nearness, names = topology.nearest(gpu.label, KINDS[key])
            near.setdefault(gpu.label, []).append(f"{names[0]} {nearness}" if nearness else f"no {key}")
            if not nearness or DISTANCES.index(nearness) > DISTANCES.index(most):
                far.append("{}: {}".format(gpu.label, f"{names[0]} at {nearness}" if nearness else f"no {key}"))
    lines = ["{}: {}".format(label, ", ".join(words)) for label, words in near.items()]
    if far:
        hint = "Move the cards so that each GPU shares a switch or socket with them; gdsdeploy topology shows the tree"
        return failed("; ".join(far), hint, lines, expected=expected)
    return passed("; ".join(lines), expected=expected)
