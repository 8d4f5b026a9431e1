"""Findings about keys that are right one by one: what one key does to another, and values without an effect.

``RULES`` has a row for each.  The facts are from the libraries' own answers and logs, from the comments of NVIDIA's
cufile.json, and from the documentation of NVIDIA's gds-diag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gdsdeploy.cufile import model
from gdsdeploy.cufile.model import BATCH, BUFFER, CACHE, FORCE_COMPAT, GPU_SIZES, LARGEST, Release
from gdsdeploy.host.libcufile import p2pdma

_ROUTING = "properties.rdma_dynamic_routing"
_ADDRESSES = re.compile(r".*\.(rdma_dev_addr_list|mount_table)")
_LIST, _TABLE = ".rdma_dev_addr_list", ".mount_table"


@dataclass(frozen=True)
class Settings:
    """A file's values by dotted key, for one release."""

    values: Mapping[str, Any]
    release: Release

    def effective(self, name: str) -> Any:
        """The file's value, else the library's default, else None."""
        value, key = self.values.get(name), model.keys(self.release).get(name)
        return value if value is not None or key is None else key.default_for(self.release)

    def addresses(self, name: str) -> list[str]:
        """The addresses of a list or of a mount table; empty if the value has another type."""
        value = self.values.get(name)
        tables = value.values() if isinstance(value, dict) else [{_LIST[1:]: value}]
        lists = [table.get(_LIST[1:]) if isinstance(table, dict) else None for table in tables]
        return [one for each in lists if isinstance(each, list) for one in each if isinstance(one, str)]


@dataclass(frozen=True)
class Rule:
    """One finding: its id in findings.yml, the keys that it concerns, and when it applies to one of them.

    message: text with ``{value}``, the value of the key.
    """

    id: str
    #: a dotted key, or a pattern for the whole of it
    keys: str | re.Pattern[str]
    applies: Callable[[str, Settings], bool]
    message: str

    def concerned(self, settings: Settings) -> Iterator[str]:
        for name in settings.values:
            if name == self.keys if isinstance(self.keys, str) else self.keys.fullmatch(name):
                yield name


def relations(settings: Settings, wrong: Collection[str] = ()) -> Iterator[tuple[str, str, str]]:
    """(finding id, dotted key, message) of each rule that applies to a key that isn't ``wrong`` by itself."""
    for rule in RULES:
        for name in rule.concerned(settings):
            if name not in wrong and rule.applies(name, settings):
                yield rule.id, name, rule.message.format(value=model.shown(settings.values[name]))


def trapped(settings: Settings) -> bool:
    """Whether newer releases refuse a request size that this one accepts: their buffer is larger by default."""
    largest = settings.values.get(LARGEST)
    return settings.release < (1, 13) and BUFFER not in settings.values and type(largest) is int and largest < 1024


def _on(name: str, settings: Settings) -> bool:
    return settings.values[name] is True


def _needs(key: str, other: str, value: Any = None) -> Rule:
    """A key that does nothing unless ``other`` has ``value`` (None: any)."""

    def applies(name: str, settings: Settings) -> bool:
        present = other in settings.values and (value is None or settings.values[other] is value)
        return settings.values[name] is not False and not present

    return Rule("no-effect", key, applies, f"does nothing without {other}" + (": true" if value is True else ""))


def _without_addresses(_name: str, settings: Settings) -> bool:
    return settings.values[_ROUTING] is True and not any(
        settings.addresses(name) for name in settings.values if _ADDRESSES.fullmatch(name)
    )


def _two_lists(name: str, settings: Settings) -> bool:
    return bool(settings.addresses(name) and settings.addresses(name.removesuffix(_TABLE) + _LIST))


def _has_ipv6(name: str, settings: Settings) -> bool:
    return any(model.is_address(address, 6) for address in settings.addresses(name))


def _small_cache(name: str, settings: Settings) -> bool:
    """Reported once, at the first of the keys that the file sets.  Slabs (from 1.17 on) replace both sizes."""
    first = next(one for one in settings.values if one in {CACHE, BUFFER, BATCH})
    cache, buffer, batch = (settings.effective(one) for one in (CACHE, BUFFER, BATCH))
    if name != first or GPU_SIZES in settings.values or any(type(one) is not int for one in (cache, buffer, batch)):
        return False
    return bool(cache < buffer * batch)


def _unordered(name: str, settings: Settings) -> bool:
    sizes = settings.values[name]
    return isinstance(sizes, list) and all(type(size) is int for size in sizes) and sizes != sorted(set(sizes))


_WITHOUT_ROUTE = "|".join(re.escape(row.name) for row in p2pdma.storage_keys() if not row.route)

RULES = (
    Rule(
        "upgrade-trap",
        LARGEST,
        lambda _name, settings: trapped(settings),
        "without per_buffer_cache_size_kb this is fatal from libcufile 1.13 on",
    ),
    Rule(
        "p2pdma-contradiction",
        re.compile(r".*\.use_pci_p2pdma"),
        lambda name, settings: _on(name, settings) and settings.values.get(FORCE_COMPAT) is True,
        "contradicts force_compat_mode: true, which wins",
    ),
    Rule(
        "no-p2pdma-route",
        re.compile(_WITHOUT_ROUTE),
        _on,
        "NVIDIA lists no PCI peer-to-peer route to this file system, although libcufile then logs p2pdma for it",
    ),
    _needs("properties.rdma_dynamic_routing_order", _ROUTING, True),
    _needs("miscellaneous.static_routing_filepath", "miscellaneous.enable_static_routing", True),
    _needs("miscellaneous.static_config_filepath", "miscellaneous.enable_static_config", True),
    _needs("miscellaneous.enable_static_routing", "miscellaneous.static_routing_filepath"),
    _needs("miscellaneous.enable_static_config", "miscellaneous.static_config_filepath"),
    _needs("properties.rdma_max_backup_devices", "properties.rdma_multipath_enabled", True),
    Rule(
        "no-effect",
        _ROUTING,
        _without_addresses,
        "does nothing without addresses, in an rdma_dev_addr_list or a mount_table",
    ),
    Rule(
        "two-address-lists",
        re.compile(r"fs\.\w+\.mount_table"),
        _two_lists,
        "gives addresses by mount, and this file system's rdma_dev_addr_list gives them for all mounts",
    ),
    Rule("ipv6-address", _ADDRESSES, _has_ipv6, "NVIDIA documents IPv4 addresses only (found {value})"),
    Rule(
        "no-near-interface",
        "properties.rdma_topN_ranks",
        lambda name, settings: type(settings.values[name]) is int and settings.values[name] < 1,
        "must be 1 or more: of the distances between GPU and interface, so many count (found {value})",
    ),
    Rule(
        "small-cache",
        re.compile("|".join(map(re.escape, (CACHE, BUFFER, BATCH)))),
        _small_cache,
        "max_device_cache_size_kb holds fewer bounce buffers of per_buffer_cache_size_kb than io_batchsize",
    ),
    Rule("slab-order", GPU_SIZES, _unordered, "must ascend (found {value})"),
)
