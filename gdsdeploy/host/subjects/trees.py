"""A topology as text, like ``nvidia-smi topo -m`` with rows for disks; as JSON; and compared with a golden one.

A golden topology is the expected PCIe tree of one kind of machine, a JSON object: ``version`` (1), ``label`` (the kind
of machine), ``devices`` (address → {label, part, numa_node, link, bridges, bar1}; ``link`` as ``32 GT/s x16`` or null),
``pairs`` ("GPU0 NVME1" → distance).
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..facts.unknown import Maybe, UndecidedError, Unknown, as_dict, if_known, known, or_else
from ..io import jsontext
from ..io.wording import aligned, first_few, joined
from ..model.expectation import Expectation
from .pci import GPU, Link
from .register import Answer, check, failed, not_applicable, passed
from .topology import DISTANCES, Node, Pair, Topology, degraded, link_words, resting
from .types import HostFacts

VERSION = 1
LEGEND = (
    ("X", "itself"),
    ("PIX", "at most one PCIe switch between them"),
    ("PXB", "several PCIe switches, and no host bridge"),
    ("PHB", "a PCIe host bridge, typically the CPU"),
    ("NODE", "host bridges within one NUMA node"),
    ("SYS", "the link between NUMA nodes"),
    ("NV#", "as many NVLinks between two GPUs, direct or through NVSwitches; --json has their distance over PCIe"),
)
UNKNOWN_MARK = "?"


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
    if pair is not None and or_else(pair.nvlinks, 0):
        return f"NV{pair.nvlinks}"
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
        short = if_known(partial(degraded, node), "")
        if short:
            yield f"degraded link: {node.label or 'switch'} {node.address} runs at {short}"
    unasked = [pair.nvlinks.reason for pair in topology.pairs if isinstance(pair.nvlinks, Unknown)]
    if unasked:
        yield f"NVLink between GPUs is unknown, and isn't shown: {unasked[0]}"
    cells = {re.sub(r"^NV\d+$", "NV#", _cell(topology, pair.one, pair.other)) for pair in topology.pairs} | {"X"}
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
    for node in topology.nodes():
        above = [*paths.setdefault(node.address, []), node.address]
        paths.update((child.address, above) for child in node.children)
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


#: Differences named in a finding; the rest is counted.
NAMED = 3


@check(
    "topology.golden",
    "the PCIe tree is the golden one of this kind of machine",
    expects="every slot, part, link, bridge and distance as in the profile's golden topology",
    prevents="a part that was replaced by another, moved to another slot, or disappeared",
)
def as_golden(facts: HostFacts, expectation: Expectation) -> Answer:
    tree = expectation.topology.get("golden")
    if tree is None:
        return not_applicable("not asked: the profile names no golden topology")
    try:
        lines = differences(validate_golden(tree), facts.topology)
    except GoldenError as error:
        raise UndecidedError(f"the expectation's golden topology: {error}") from None
    expected = "the tree of {}".format(tree.get("label") or "the profile")
    if not lines:
        return passed("the same tree", expected=expected)
    hint = "Put the parts back; if this tree is right: gdsdeploy topology FLEET --limit {} --golden write"
    hint = hint.format(expectation.host or facts.name)
    return failed(first_few(lines, NAMED, "; "), hint, lines, expected=expected)
