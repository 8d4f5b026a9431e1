"""A host's PCIe tree as an SVG drawing: host bridges at the left, GPUs, network adapters and disks at the right.

Colour never stands alone: a degraded link and a redirecting bridge are said in words too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.pci import Link
from gdsdeploy.host.facts.topology import DISK, GPU, PORT, ROOT, Node, Topology, degraded, link_words

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
    row = 0
    placed = []
    for root in topology.roots:
        item, row = _place(root, 0, row)
        placed.append(item)
    depth = max((_depth(root) for root in topology.roots), default=0)
    width, height = depth * COLUMN + LAST + 2 * MARGIN, row * ROW + 2 * MARGIN
    parts = [part for item in placed for part in _parts(item, mounts)]
    return Markup(
        '<svg class="tree" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, width, height, title, Markup("").join(parts))


def distance(topology: Topology, one: str, other: str) -> str:
    """How far two devices (by label) are from each other: PIX … SYS, X for the same, ? where it is not known."""
    pair = topology.pair(one, other)
    if one == other or pair is None:
        return "X" if one == other else "?"
    found = pair.distance
    return "?" if isinstance(found, Unknown) else found


def _depth(node: Node) -> int:
    return max((1 + _depth(child) for child in node.children), default=0)


def _place(node: Node, depth: int, row: int) -> tuple[_Placed, int]:
    """The node with everything below it, and the first free row under it."""
    below = []
    at = row
    for child in node.children:
        item, at = _place(child, depth + 1, at)
        below.append(item)
    y = (below[0].y + below[-1].y) / 2 if below else MARGIN + row * ROW + ROW / 2
    return _Placed(node, MARGIN + depth * COLUMN, y, tuple(below)), at if below else row + 1


def _parts(item: _Placed, mounts: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[Markup]:
    for child in item.children:
        middle = item.x + BOX + (COLUMN - BOX) / 2
        wrong = " bad" if _slow(child.node) else ""
        path = f"M{item.x + BOX} {item.y:g}H{middle:g}V{child.y:g}H{child.x:g}"
        yield Markup('<path class="wire{}" d="{}"/>').format(wrong, path)
    node = item.node
    wide = LAST - COLUMN + BOX if node.kind not in (ROOT, PORT) else BOX
    kind = KINDS.get(node.kind, "nic")
    yield Markup('<g class="node {}"><title>{}</title><rect x="{:g}" y="{:g}" width="{}" height="{}" rx="5"/>').format(
        kind, "\n".join(_details(node)), item.x, item.y - HEIGHT / 2, wide, HEIGHT
    )
    first, second = _lines(node, mounts.get(node.address, ()))
    yield _text(item.x + 7, item.y - (3 if second else -4), first, "name")
    if second:
        yield _text(item.x + 7, item.y + 11, second, "bad" if _slow(node) or _redirects(node) else "more")
    yield Markup("</g>")
    for child in item.children:
        yield from _parts(child, mounts)


def _text(x: float, y: float, words: str, kind: str) -> Markup:
    return Markup('<text class="{}" x="{:g}" y="{:g}">{}</text>').format(kind, x, y, escape(words))


def _lines(node: Node, mounts: Sequence[tuple[str, str]]) -> tuple[str, str]:
    if node.kind == ROOT:
        return node.address, "" if node.numa_node < 0 else f"NUMA node {node.numa_node}"
    if node.kind == PORT:
        return node.address, "ACS redirects" if _redirects(node) else _speed(node)
    names = ", ".join(node.names) or node.model or node.part
    where = "; ".join(f"{point}: {path}" for point, path in mounts)
    return f"{node.label}  {names}"[:46], " · ".join(word for word in (_speed(node), where or node.address) if word)[
        :58
    ]


def _details(node: Node) -> list[str]:
    """Everything that is known, for the pointer and for readers."""
    shown = [f"{node.kind} {node.address}", node.label, node.model, node.part, ", ".join(node.names)]
    shown.append(f"driver {node.driver}" if node.driver else "")
    shown.append(_speed(node))
    shown.append(f"BAR1 {node.bar1 >> 20} MiB" if node.bar1 else "")
    if node.kind != ROOT:
        shown.append(f"IOMMU {'not known' if isinstance(node.iommu, Unknown) else node.iommu}")
    if isinstance(node.iommu_group, str):
        shown.append(f"IOMMU group {node.iommu_group}")
    if node.kind == PORT:
        words = {True: "redirects peers' requests to the root", False: "lets peers' requests through"}
        found = node.redirects
        shown.append("ACS not known" if isinstance(found, Unknown) else f"ACS {words[found]}")
    return [item for item in shown if item]


def _redirects(node: Node) -> bool:
    return node.kind == PORT and node.redirects is True


def _slow(node: Node) -> bool:
    return isinstance(degraded(node), str) and degraded(node) != ""


def _speed(node: Node) -> str:
    if not isinstance(node.link, Link):
        return ""
    short = degraded(node)
    return short if isinstance(short, str) and short else link_words(node.link.speed, node.link.width)
