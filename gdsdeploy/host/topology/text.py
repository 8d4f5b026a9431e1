"""The topology as text, as ``nvidia-smi topo -m`` prints it with rows for disks, and as JSON.

``gdsdeploy-host.pyz topology`` and ``gdsdeploy topology`` print these.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from ..facts import Maybe, Unknown, as_dict
from ..facts.pci import Link
from ..facts.topology import GPU, Node, Pair, Topology, degraded, link_words

VERSION = 1
LEGEND = (
    ("X", "itself"),
    ("PIX", "at most one PCIe switch between them"),
    ("PXB", "several PCIe switches, and no host bridge"),
    ("PHB", "a PCIe host bridge, typically the CPU"),
    ("NODE", "host bridges within one NUMA node"),
    ("SYS", "the link between NUMA nodes"),
)
UNTOLD = "?"


def add_parser(commands: Any, action: Callable[[argparse.Namespace], int]) -> None:
    """Add ``topology`` to the host program's commands; ``action`` runs it."""
    words = "how far GPUs, NVMe disks and network adapters are from each other, from sysfs alone"
    parser = commands.add_parser("topology", help=words, description=words)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--evidence", metavar="FILE", help="of evidence that was collected before, of any host")
    parser.set_defaults(run=action)


def collected() -> Dict[str, Any]:
    """The part of this host's evidence that a topology is made of."""
    import os

    # A zipapp is compiled anew at every start.
    from ..evidence import gpu, kernel, pci
    from ..evidence.recorder import Recorder
    from ..evidence.wanted import NOTHING

    recorder = Recorder(60.0)
    recorder.document["host"]["uid"] = os.geteuid()
    for collector in (kernel, gpu, pci):
        recorder.attempt(collector.__name__.rpartition(".")[2], lambda: collector.collect(recorder, NOTHING), 30.0)  # noqa: B023 - called at once
    return recorder.finish()


def document(topology: Topology) -> Dict[str, Any]:
    """The JSON object of ``--json``: the tree, devices by label, pairs; unknown facts are ``{"unknown": reason}``."""
    return {
        "version": VERSION,
        "iommu": as_dict(topology.iommu),
        "iommu_words": as_dict(topology.iommu_words),
        "numa_nodes": as_dict(topology.numa_nodes),
        "roots": [_node(item) for item in topology.roots],
        "devices": {item.label: {**_node(item), "children": []} for item in topology.devices},
        "pairs": [as_dict(item) for item in topology.pairs],
    }


def _node(node: Node) -> Dict[str, Any]:
    value: Dict[str, Any] = as_dict(node)
    value["degraded"] = as_dict(degraded(node))
    value["redirects"] = as_dict(node.redirects)
    value["children"] = [_node(item) for item in node.children]
    return value


def text(topology: Topology) -> str:
    """The matrix, what each device is, and what stands in the way."""
    if not topology.devices:
        return "no GPU, NVMe disk or network adapter is on PCI here\n"
    return "\n".join([*matrix(topology), "", *_devices(topology), "", *_words(topology)]) + "\n"


def matrix(topology: Topology) -> List[str]:
    """The lines of the matrix: a row and a column for each device, then NUMA node."""
    labels = [item.label for item in topology.devices]
    rows = [["", *labels, "NUMA"]]
    for device in topology.devices:
        cells = [_cell(topology, device.label, other) for other in labels]
        # Where there is one NUMA node only, firmware need not name it.
        node = 0 if device.numa_node < 0 and topology.numa_nodes == 1 else device.numa_node
        rows.append([device.label, *cells, str(node) if node >= 0 else "N/A"])
    return _columns(rows)


def _cell(topology: Topology, one: str, other: str) -> str:
    if one == other:
        return "X"
    pair = topology.pair(one, other)
    return pair.distance if pair is not None and isinstance(pair.distance, str) else UNTOLD


def _devices(topology: Topology) -> List[str]:
    head = ["device", "address", "part", "link", "IOMMU", "group", "BAR1", "names"]
    return _columns([head, *(_row(device) for device in topology.devices)])


def _row(device: Node) -> List[str]:
    return [
        device.label,
        device.address,
        device.model or device.part.partition(" ")[0],
        _link(device),
        _said(device.iommu),
        _said(device.iommu_group) if device.iommu_group is not None else "-",
        _bar1(device),
        ", ".join(device.names) or device.driver or "-",
    ]


def _link(device: Node) -> str:
    if not isinstance(device.link, Link):
        return "-" if device.link is None else UNTOLD
    short = degraded(device)
    now = link_words(device.link.speed, device.link.width)
    return f"{short} (!)" if isinstance(short, str) and short else now


def _bar1(device: Node) -> str:
    if device.kind != GPU:
        return "-"
    return "none" if device.bar1 is None else f"{device.bar1 >> 20} MiB"


def _said(value: Maybe[object]) -> str:
    return UNTOLD if isinstance(value, Unknown) else str(value)


def _words(topology: Topology) -> Iterator[str]:
    words = topology.iommu_words
    line = f"IOMMU: {_said(topology.iommu)}"
    yield line + (" ({})".format(" ".join(words)) if isinstance(words, tuple) and words else "")
    yield from _redirected(topology.pairs)
    for node in topology.nodes():
        short = degraded(node)
        if isinstance(short, str) and short:
            yield "degraded link: {} {} runs at {}".format(node.label or "switch", node.address, short)
    seen = {_cell(topology, pair.one, pair.other) for pair in topology.pairs} | {"X"}
    yield from (f"{word:<5} {means}" for word, means in LEGEND if word in seen)
    if UNTOLD in seen:
        yield f"{UNTOLD:<5} {next(_reasons(topology))}"


def _redirected(pairs: Sequence[Pair]) -> Iterator[str]:
    through: Dict[Tuple[str, ...], List[str]] = {}
    unread = []
    for pair in pairs:
        if isinstance(pair.redirecting, Unknown):
            unread.append(pair.redirecting.reason)
        elif pair.redirecting:
            through.setdefault(pair.redirecting, []).append(f"{pair.one}-{pair.other}")
    for bridges, names in sorted(through.items()):
        yield "ACS sends {} up to the host bridge: {}".format(", ".join(names), ", ".join(bridges))
    if unread:
        yield f"ACS of bridges between devices is not known: {unread[0]}"


def _reasons(topology: Topology) -> Iterator[str]:
    return (pair.distance.reason for pair in topology.pairs if isinstance(pair.distance, Unknown))


def _columns(rows: Sequence[Sequence[str]]) -> List[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
