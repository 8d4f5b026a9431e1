"""The golden topology: the expected PCIe tree of one kind of machine, and what differs from it.

It is a JSON object: ``version`` (1), ``label`` (the kind of machine), ``devices`` (address → {label, part, numa_node,
link, bridges, bar1}; ``link`` as ``32 GT/s x16`` or null), ``pairs`` ("GPU0 NVME1" → distance).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional

from ..facts.unknown import UndecidedError
from ..io import jsontext
from ..io.wording import first_few
from ..model.expectation import Expectation
from .pci import Link
from .register import Answer, check, failed, not_applicable, passed
from .topology import DISTANCES, Node, Topology, link_words, resting

if TYPE_CHECKING:
    from ..facts import HostFacts

VERSION = 1
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

    def walk(node: Node, above: List[str]) -> None:
        paths[node.address] = above
        for child in node.children:
            walk(child, [*above, node.address])

    for root in topology.roots:
        walk(root, [])
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
