"""Which hosts a command means: names and shell patterns against the fleet; an empty selection is an error."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path

from gdsdeploy.errors import FleetInvalid


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
            near = difflib.get_close_matches(pattern, known, n=1)
            raise FleetInvalid(
                f"{option}: {fleet} has no host {pattern!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"It has: {', '.join(known)}",
            )
        wanted |= set(found)
    return [name for name in known if name in wanted]
