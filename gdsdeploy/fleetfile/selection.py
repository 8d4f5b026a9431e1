"""Which hosts a command means: names and shell patterns against the fleet; an empty selection is an error."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from gdsdeploy.errors import NameUnknown, did_you_mean
from gdsdeploy.model import hostnames


def select(limit: str | None, names: Sequence[str], fleet: Path, *, option: str = "--limit") -> list[str]:
    """Those of ``names`` that ``limit`` (comma separated; shell patterns, ranges) selects, in the fleet's order.

    option: what a user calls it.
    Raises NameUnknown for a pattern that selects nothing: a typing error must not mean "none", nor "all".
    """
    if limit is None:
        return list(names)
    every, selected = set(names), set[str]()
    for group in hostnames.split(limit):
        matches = {name for pattern in _patterns(group) for name in _matches(pattern, every)}
        if not matches:
            raise _no_host(f"{option}: ", group, names, fleet)
        selected |= matches
    return [name for name in names if name in selected]


def _patterns(group: str) -> list[str]:
    try:
        return hostnames.expand(group)
    except ValueError:
        return []


def _matches(pattern: str, names: set[str]) -> Iterable[str]:
    return fnmatch.filter(names, pattern) if set("*?[") & set(pattern) else [pattern] if pattern in names else []


def require_host(name: str, hosts: Collection[str], fleet: Path) -> None:
    """Raise NameUnknown unless ``name`` is one of the fleet's hosts."""
    if name not in hosts:
        raise _no_host("", name, hosts, fleet)


def _no_host(option: str, name: str, names: Collection[str], fleet: Path) -> NameUnknown:
    words = f"{option}{fleet} has no host {name!r}{did_you_mean(name, names)}"
    return NameUnknown(words, hint=f"It has: {hostnames.words(names)}")
