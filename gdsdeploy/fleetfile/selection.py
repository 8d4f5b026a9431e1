"""Which hosts a command means, and which waivers hold for which host.  An empty selection is an error."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from gdsdeploy.errors import NameUnknown, did_you_mean
from gdsdeploy.host.model.finding import Waiver
from gdsdeploy.model import hostnames
from gdsdeploy.model.fleet import Fleet


def select(limit: str | None, names: Sequence[str], fleet: Path, *, option: str = "--limit") -> list[str]:
    """Those of ``names`` that ``limit`` (comma separated; shell patterns, ranges) selects, in the fleet's order.

    option: what a user calls it.
    Raises NameUnknown for a pattern that selects nothing: a typing error must not mean "none", nor "all".
    """
    if limit is None:
        return list(names)
    every, selected = set(names), set[str]()
    for group in hostnames.split(limit):
        patterns: list[str] = []
        with contextlib.suppress(ValueError):
            patterns = hostnames.expand(group)
        matches = {name for pattern in patterns for name in _matches(pattern, every)}
        if not matches:
            raise _no_host(f"{option}: ", group, names, fleet)
        selected |= matches
    return [name for name in names if name in selected]


def _matches(pattern: str, names: set[str]) -> Iterable[str]:
    return fnmatch.filter(names, pattern) if set("*?[") & set(pattern) else [pattern] if pattern in names else []


def require_host(name: str, hosts: Collection[str], fleet: Path) -> None:
    """Raise NameUnknown unless ``name`` is one of the fleet's hosts."""
    if name not in hosts:
        raise _no_host("", name, hosts, fleet)


def _no_host(option: str, name: str, names: Collection[str], fleet: Path) -> NameUnknown:
    words = f"{option}{fleet} has no host {name!r}{did_you_mean(name, names)}"
    return NameUnknown(words, hint=f"It has: {hostnames.words(names)}")


def waivers_of(fleet: Fleet, name: str) -> list[Waiver]:
    """The fleet file's waivers for the host ``name``."""
    return [
        Waiver(waiver.check, waiver.until.isoformat(), waiver.reason)
        for waiver in fleet.waivers
        if any(fnmatch.fnmatch(name, pattern) for pattern in waiver.hosts)
    ]


def problems_of_waivers(fleet: Fleet) -> list[tuple[tuple[str | int, ...], str]]:
    """Waivers of checks that do not exist, or of hosts that do not: (path of keys, message) pairs."""
    if not fleet.waivers:
        return []
    from gdsdeploy.host import checks

    check_ids = [check.id for check in checks.listed()]
    problems: list[tuple[tuple[str | int, ...], str]] = []
    for number, waiver in enumerate(fleet.waivers):
        if waiver.check.partition(":")[0] not in check_ids:
            words = f"there is no check {waiver.check!r}{did_you_mean(waiver.check, check_ids)}"
            problems.append((("waivers", number, "check"), words))
        problems += [
            (("waivers", number, "hosts"), f"no host is called {pattern!r}")
            for pattern in waiver.hosts
            if not fnmatch.filter(fleet.hosts, pattern)
        ]
    return problems
