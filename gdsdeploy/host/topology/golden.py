"""What the PCIe tree of one kind of machine looks like when it is right, and what has moved since; pure.

A golden topology is a JSON object::

    version  1
    label    what kind of machine it is of
    devices  address → {label, part, numa_node, link, bridges, bar1}: ``link`` as ``32 GT/s x16``, null without one
    pairs    "GPU0 NVME1" → distance
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ..facts.pci import Link
from ..facts.topology import DISTANCES, Node, Topology, link_words, resting
from ..io import jsontext

VERSION = 1
#: Key of a device → what to call it.
_WORDS = {
    "numa_node": "NUMA node",
    "link": "link",
    "bridges": "bridges above it",
    "bar1": "bytes of BAR1",
}


class GoldenError(ValueError):
    """A document that is no golden topology; the message says why."""


def golden(topology: Topology, label: str) -> Dict[str, Any]:
    """The golden topology that ``topology`` is, under a name for its kind of machine."""
    paths = _paths(topology)
    return {
        "version": VERSION,
        "label": label,
        "devices": {item.address: _device(item, paths.get(item.address, [])) for item in topology.devices},
        "pairs": {
            f"{pair.one} {pair.other}": pair.distance for pair in topology.pairs if isinstance(pair.distance, str)
        },
    }


def to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> Dict[str, Any]:
    """Raises GoldenError."""
    try:
        value: Any = jsontext.loads(text)
    except ValueError as error:
        raise GoldenError(str(error)) from None
    return checked(value)


def checked(value: Any) -> Dict[str, Any]:
    """``value`` if it is a golden topology; raises GoldenError."""
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise GoldenError(f"not a golden topology of version {VERSION}")
    devices, pairs = value.get("devices"), value.get("pairs")
    if not isinstance(devices, dict) or not isinstance(pairs, dict):
        raise GoldenError("a golden topology has devices and pairs")
    for address, item in devices.items():
        if not isinstance(item, dict) or not {"label", "part", *_WORDS} <= set(item):
            raise GoldenError(f"devices.{address}: not the description of a device")
    for name, distance in pairs.items():
        if distance not in DISTANCES:
            raise GoldenError("pairs.{}: {!r} is none of {}".format(name, distance, ", ".join(DISTANCES)))
    return value


def _paths(topology: Topology) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}

    def walk(node: Node, above: List[str]) -> None:
        found[node.address] = above
        for child in node.children:
            walk(child, [*above, node.address])

    for root in topology.roots:
        walk(root, [])
    return found


def _device(node: Node, bridges: List[str]) -> Dict[str, Any]:
    link: Optional[str] = None
    if isinstance(node.link, Link):
        # A GPU at rest says nothing of its speed.
        speed = node.link.max_speed if resting(node) else node.link.speed
        link = link_words(speed, node.link.width)
    return {
        "label": node.label,
        "part": node.part,
        "numa_node": node.numa_node,
        "link": link,
        "bridges": bridges,
        "bar1": node.bar1,
    }


def differences(wanted: Mapping[str, Any], topology: Topology) -> List[str]:
    """What differs from a golden topology, one sentence each: slots first, then links and places, then distances."""
    now = golden(topology, "")
    before: Mapping[str, Any] = wanted["devices"]
    there: Mapping[str, Any] = now["devices"]
    lines = list(_slots(before, there))
    for address in sorted(before.keys() & there.keys()):
        lines += _changed(address, before[address], there[address])
    same = {item["label"] for address, item in before.items() if there.get(address, {}).get("label") == item["label"]}
    for name, distance in sorted(wanted["pairs"].items()):
        found = now["pairs"].get(name)
        if set(name.split()) <= same and found != distance:
            lines.append("{}: {}, was {}".format(" to ".join(name.split()), found or "not known", distance))
    return lines


def _slots(before: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[str]:
    gone = {address: before[address] for address in sorted(before.keys() - there.keys())}
    new = {address: there[address] for address in sorted(there.keys() - before.keys())}
    for address, item in gone.items():
        place = next((slot for slot, other in new.items() if other["part"] == item["part"]), None)
        if place is None:
            yield "{} at {} is gone ({})".format(item["label"], address, item["part"])
        else:
            del new[place]
            yield "{} moved from {} to {} ({})".format(item["label"], address, place, item["part"])
    for address, item in new.items():
        yield "{} at {} is new ({})".format(item["label"], address, item["part"])


def _changed(address: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    name = "{} at {}".format(before["label"], address)
    if before["part"] != now["part"]:
        yield "{}: the part is {}, was {}".format(name, now["part"], before["part"])
    for key, words in _WORDS.items():
        if before[key] != now[key]:
            yield f"{name}: {words} {_said(now[key])}, was {_said(before[key])}"


def _said(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value)
