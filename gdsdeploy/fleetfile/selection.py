"""Which hosts a command means: names and shell patterns against the fleet; an empty selection is an error."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from pathlib import Path

from gdsdeploy.errors import FleetInvalid, did_you_mean


def select(limit: str | None, names: Sequence[str], fleet: Path, *, option: str = "--limit") -> list[str]:
    """Those of ``names`` that ``limit`` (comma separated, shell patterns) selects, in the fleet's order.

    option: what a user calls it.
    Raises FleetInvalid for a pattern that selects nothing: a typing error must not mean "none", nor "all".
    """
    if limit is None:
        return list(names)
    selected: set[str] = set()
    for pattern in (part.strip() for part in limit.split(",")):
        matches = fnmatch.filter(names, pattern) if pattern else []
        if not matches:
            raise _no_host(f"{option}: ", pattern, names, fleet)
        selected |= set(matches)
    return [name for name in names if name in selected]


def require_host(name: str, hosts: Collection[str], fleet: Path) -> None:
    """Raise FleetInvalid unless ``name`` is one of the fleet's hosts."""
    if name not in hosts:
        raise _no_host("", name, hosts, fleet)


def _no_host(option: str, name: str, names: Collection[str], fleet: Path) -> FleetInvalid:
    words = f"{option}{fleet} has no host {name!r}{did_you_mean(name, names)}"
    return FleetInvalid(words, hint=f"It has: {', '.join(names)}")
