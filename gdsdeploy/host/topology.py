"""PCIe topology as text and JSON, like ``nvidia-smi topo -m`` with rows for disks."""

from __future__ import annotations

import argparse
import functools
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from .facts.unknown import Maybe, Unknown, as_dict, if_known, known
from .io.wording import aligned, joined
from .subjects.pci import GPU, Link
from .subjects.topology import Node, Pair, Topology, degraded, link_words

VERSION = 1
LEGEND = (
    ("X", "itself"),
    ("PIX", "at most one PCIe switch between them"),
    ("PXB", "several PCIe switches, and no host bridge"),
    ("PHB", "a PCIe host bridge, typically the CPU"),
    ("NODE", "host bridges within one NUMA node"),
    ("SYS", "the link between NUMA nodes"),
)
UNKNOWN_MARK = "?"


def add_parser(commands: Any, action: Callable[[argparse.Namespace], int]) -> None:
    """Add ``topology`` to the host program's commands; ``action`` runs it."""
    words = "how far GPUs, NVMe disks and network adapters are from each other, from sysfs alone"
    parser = commands.add_parser("topology", help=words, description=words)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--evidence", metavar="FILE", help="evidence that was collected before, of any host")
    parser.set_defaults(run=action)


def collect_topology() -> Dict[str, Any]:
    """The part of this host's evidence that a topology is made of."""
    # A zipapp is compiled again at every start.
    import os

    from .evidence.recorder import NOTHING, Recorder
    from .subjects.driver import collect_gpu
    from .subjects.kernel import collect_kernel
    from .subjects.pci import collect_pci

    recorder = Recorder(60.0)
    recorder.document["host"]["uid"] = os.geteuid()
    for name, collect in (("kernel", collect_kernel), ("gpu", collect_gpu), ("pci", collect_pci)):
        recorder.attempt(name, functools.partial(collect, recorder, NOTHING), 30.0)
    return recorder.finish()


def document(topology: Topology) -> Dict[str, Any]:
    """The JSON object of ``--json``: the tree, devices by label, pairs; unknown facts are ``{"unknown": reason}``."""
    return {
        "version": VERSION,
        "iommu": as_dict(topology.iommu),
        "iommu_words": as_dict(topology.iommu_words),
        "numa_nodes": as_dict(topology.numa_nodes),
        "roots": list(map(_node, topology.roots)),
        "devices": {device.label: {**_node(device), "children": []} for device in topology.devices},
        "pairs": [as_dict(pair) for pair in topology.pairs],
    }


def _node(node: Node) -> Dict[str, Any]:
    value: Dict[str, Any] = as_dict(node)
    value["degraded"] = as_dict(known(lambda: degraded(node)))
    value["redirects"] = as_dict(known(lambda: node.redirects))
    value["children"] = list(map(_node, node.children))
    return value


def text(topology: Topology) -> str:
    """The matrix, the devices, and what slows transfers down."""
    if not topology.devices:
        return "no GPU, NVMe disk or network adapter is on PCI here\n"
    return joined([*matrix(topology), "", *_devices(topology), "", *_words(topology)]) + "\n"


def matrix(topology: Topology) -> List[str]:
    """The lines of the matrix: a row and a column for each device, then NUMA node."""
    labels = [device.label for device in topology.devices]
    rows = [["", *labels, "NUMA"]]
    for device in topology.devices:
        cells = [_cell(topology, device.label, other) for other in labels]
        # With one NUMA node only, firmware needn't name it.
        node = 0 if device.numa_node < 0 and topology.numa_nodes == 1 else device.numa_node
        rows.append([device.label, *cells, str(node) if node >= 0 else "N/A"])
    return aligned(rows)


def _cell(topology: Topology, one: str, other: str) -> str:
    if one == other:
        return "X"
    pair = topology.pair(one, other)
    return pair.distance if pair is not None and isinstance(pair.distance, str) else UNKNOWN_MARK


def _devices(topology: Topology) -> List[str]:
    rows = [["device", "address", "part", "link", "IOMMU", "group", "BAR1", "names"]]
    for device in topology.devices:
        part = device.model or device.part.partition(" ")[0]
        group = _text(device.iommu_group) if device.iommu_group is not None else "-"
        names = ", ".join(device.names) or device.driver or "-"
        cells = [device.label, device.address, part, _link(device), _text(device.iommu), group, _bar1(device), names]
        rows.append(cells)
    return aligned(rows)


def _link(device: Node) -> str:
    if not isinstance(device.link, Link):
        return "-" if device.link is None else UNKNOWN_MARK
    short = if_known(lambda: degraded(device), "")
    return f"{short} (!)" if short else link_words(device.link.speed, device.link.width)


def _bar1(device: Node) -> str:
    if device.kind != GPU:
        return "-"
    return "none" if device.bar1 is None else f"{device.bar1 >> 20} MiB"


def _text(value: Maybe[object]) -> str:
    return UNKNOWN_MARK if isinstance(value, Unknown) else str(value)


def _words(topology: Topology) -> Iterator[str]:
    words = topology.iommu_words
    yield f"IOMMU: {_text(topology.iommu)}" + (f" ({' '.join(words)})" if isinstance(words, tuple) and words else "")
    yield from _redirections(topology.pairs)
    for node in topology.nodes():
        short = if_known(functools.partial(degraded, node), "")
        if short:
            yield f"degraded link: {node.label or 'switch'} {node.address} runs at {short}"
    cells = {_cell(topology, pair.one, pair.other) for pair in topology.pairs} | {"X"}
    yield from (f"{word:<5} {means}" for word, means in LEGEND if word in cells)
    if UNKNOWN_MARK in cells:
        reasons = (pair.distance.reason for pair in topology.pairs if isinstance(pair.distance, Unknown))
        yield f"{UNKNOWN_MARK:<5} {next(reasons)}"


def _redirections(pairs: Sequence[Pair]) -> Iterator[str]:
    through: Dict[Tuple[str, ...], List[str]] = {}
    unread = []
    for pair in pairs:
        if isinstance(pair.redirecting, Unknown):
            unread.append(pair.redirecting.reason)
        elif pair.redirecting:
            through.setdefault(pair.redirecting, []).append(f"{pair.one}-{pair.other}")
    for bridges, names in sorted(through.items()):
        yield f"ACS sends {', '.join(names)} up to the host bridge: {', '.join(bridges)}"
    if unread:
        yield f"ACS of bridges between devices is unknown: {unread[0]}"
