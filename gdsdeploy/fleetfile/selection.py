"""Which hosts a command means: names and shell patterns against the fleet; an empty selection is an error."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from pathlib import Path

from gdsdeploy.errors import FleetInvalid, did_you_mean


def select(limit: str | None, known: Sequence[str], fleet: Path, *, option: str = "--limit") -> list[str]:
    """The names of ``known`` that ``limit`` (comma separated, shell patterns) selects, in the fleet's order.

    option: what a user calls it.
    Raises FleetInvalid for a pattern that selects nothing: a typing error must not mean "none", nor "all".
    """
    if limit is None:
        return list(known)
    wanted: set[str] = set()
    for pattern in (part.strip() for part in limit.split(",")):
        found = fnmatch.filter(known, pattern) if pattern else []
        if not found:
            raise no_host(f"{option}: {fleet}", pattern, known)
        wanted |= set(found)
    return [name for name in known if name in wanted]


def no_host(where: str, name: str, hosts: Collection[str]) -> FleetInvalid:
    """The error for a name that no host has; ``where`` is the fleet file, or an option and the fleet file."""
    return FleetInvalid(f"{where} has no host {name!r}{did_you_mean(name, hosts)}", hint=f"It has: {', '.join(hosts)}")
