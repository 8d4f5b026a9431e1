"""A host's PCIe tree as an SVG drawing: host bridges at the left, GPUs, network adapters and disks at the right.

Colour never stands alone: a degraded link and a redirecting bridge are said in words too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.pci import Link
from gdsdeploy.host.facts.topology import DISK, GPU, PORT, ROOT, Node, Topology, degraded, link_words
from gdsdeploy.report.svg import element

#: User units of the drawing: a row, a box, a column, and the space for a device with its words.
ROW, HEIGHT, COLUMN, BOX, LAST, MARGIN = 44, 34, 178, 150, 330, 8
KINDS = {ROOT: "root", PORT: "port", GPU: "gpu", DISK: "disk"}


@dataclass(frozen=True)
class _Placed:
    node: Node
    x: float
    y: float
    children: tuple[_Placed, ...]


def draw(topology: Topology, mounts: Mapping[str, Sequence[tuple[str, str]]], title: str) -> Markup:
    """The drawing as one SVG element without any outside reference.

    mounts: PCI address of a disk → (mount point, what its path was found to be).  title: what it is called when read
    aloud.  A topology without devices is an empty drawing.
    """
    roots, rows = _place_all(topology.roots, 0, 0)
    depth = max((_depth(root) for root in topology.roots), default=0)
    width, height = depth * COLUMN + LAST + 2 * MARGIN, rows * ROW + 2 * MARGIN
    parts = [part for root in roots for part in _parts(root, mounts)]
    return Markup(
        '<svg class="tree" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">{3}</svg>'
    ).format(width, height, title, Markup("").join(parts))


def distance(topology: Topology, one: str, other: str) -> str:
    """How far two devices (by label) are from each other: PIX … SYS, X for the same, ? where it is not known."""
    if one == other:
        return "X"
    pair = topology.pair(one, other)
    return "?" if pair is None or isinstance(pair.distance, Unknown) else pair.distance


def _depth(node: Node) -> int:
    return max((1 + _depth(child) for child in node.children), default=0)


def _place_all(nodes: Sequence[Node], depth: int, row: int) -> tuple[list[_Placed], int]:
    """The nodes from ``row`` on, each with everything below it; and the first free row."""
    placed = []
    for node in nodes:
        below, end = _place_all(node.children, depth + 1, row)
        y = (below[0].y + below[-1].y) / 2 if below else MARGIN + row * ROW + ROW / 2
        placed.append(_Placed(node, MARGIN + depth * COLUMN, y, tuple(below)))
        row = end if below else row + 1
    return placed, row


def _parts(place: _Placed, mounts: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[Markup]:
    for child in place.children:
        middle = place.x + BOX + (COLUMN - BOX) / 2
        path = f"M{place.x + BOX} {place.y:g}H{middle:g}V{child.y:g}H{child.x:g}"
        yield element("path", class_="wire bad" if _slow(child.node) else "wire", d=path)
    node = place.node
    wide = LAST - COLUMN + BOX if node.kind not in (ROOT, PORT) else BOX
    kind = KINDS.get(node.kind, "nic")
    yield Markup('<g class="node {}"><title>{}</title><rect x="{:g}" y="{:g}" width="{}" height="{}" rx="5"/>').format(
        kind, "\n".join(_details(node)), place.x, place.y - HEIGHT / 2, wide, HEIGHT
    )
    first, second = _lines(node, mounts.get(node.address, ()))
    yield element("text", first, class_="name", x=f"{place.x + 7:g}", y=f"{place.y - (3 if second else -4):g}")
    if second:
        kind = "bad" if _slow(node) or _redirects(node) else "more"
        yield element("text", second, class_=kind, x=f"{place.x + 7:g}", y=f"{place.y + 11:g}")
    yield Markup("</g>")
    for child in place.children:
        yield from _parts(child, mounts)


def _lines(node: Node, mounts: Sequence[tuple[str, str]]) -> tuple[str, str]:
    if node.kind == ROOT:
        return node.address, "" if node.numa_node < 0 else f"NUMA node {node.numa_node}"
    if node.kind == PORT:
        return node.address, "ACS redirects" if _redirects(node) else _speed(node)
    names = ", ".join(node.names) or node.model or node.part
    where = "; ".join(f"{point}: {path}" for point, path in mounts) or node.address
    return f"{node.label}  {names}"[:46], " · ".join(filter(None, (_speed(node), where)))[:58]


def _details(node: Node) -> list[str]:
    """Everything that is known, for the pointer and for readers."""
    lines = [f"{node.kind} {node.address}", node.label, node.model, node.part, ", ".join(node.names)]
    lines += [f"driver {node.driver}" if node.driver else "", _speed(node)]
    lines.append(f"BAR1 {node.bar1 >> 20} MiB" if node.bar1 else "")
    if node.kind != ROOT:
        lines.append(f"IOMMU {'not known' if isinstance(node.iommu, Unknown) else node.iommu}")
    if isinstance(node.iommu_group, str):
        lines.append(f"IOMMU group {node.iommu_group}")
    if node.kind == PORT:
        words = {True: "redirects peers' requests to the root", False: "lets peers' requests through"}
        lines.append(f"ACS {'not known' if isinstance(node.redirects, Unknown) else words[node.redirects]}")
    return list(filter(None, lines))


def _redirects(node: Node) -> bool:
    return node.kind == PORT and node.redirects is True


def _slow(node: Node) -> bool:
    return isinstance(degraded(node), str) and degraded(node) != ""


def _speed(node: Node) -> str:
    if not isinstance(node.link, Link):
        return ""
    return str(degraded(node)) if _slow(node) else link_words(node.link.speed, node.link.width)
