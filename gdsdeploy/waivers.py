"""Which waivers hold for which host: those of the fleet file, and those of one run; pure."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence

from gdsdeploy.host.finding import Finding
from gdsdeploy.host.waiver import Waiver
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.report.model import Accepted, HostReport


def of_host(fleet: Fleet, name: str) -> list[Waiver]:
    """The fleet file's waivers for the host ``name``."""
    return [
        Waiver(item.check, item.until.isoformat(), item.reason)
        for item in fleet.waivers
        if any(fnmatch.fnmatch(name, pattern) for pattern in item.hosts)
    ]


def accepted(given: Mapping[str, Sequence[Waiver]], hosts: Sequence[HostReport], day: str) -> tuple[Accepted, ...]:
    """Every waiver of a run as it was met on ``day`` (YYYY-MM-DD).

    given: host → the waivers that hold for it.
    """
    every = dict.fromkeys(item for items in given.values() for item in items)
    return tuple(
        Accepted(item.check, item.until, item.reason, item.until < day, _used(item, given, hosts)) for item in every
    )


def _used(waiver: Waiver, given: Mapping[str, Sequence[Waiver]], hosts: Sequence[HostReport]) -> tuple[str, ...]:
    def noted(finding: Finding) -> bool:
        known = finding.waiver
        return known is not None and waiver.covers(finding) and known["until"] == waiver.until

    return tuple(
        host.host for host in hosts if waiver in given.get(host.host, ()) and any(noted(item) for item in host.findings)
    )


def problems(fleet: Fleet) -> list[tuple[tuple[str | int, ...], str]]:
    """Waivers of checks that do not exist, or of hosts that do not: (path of keys, message) pairs."""
    if not fleet.waivers:
        return []
    from gdsdeploy.host import checks

    known = [check.id for check in checks.listed()]
    found: list[tuple[tuple[str | int, ...], str]] = []
    for number, item in enumerate(fleet.waivers):
        if item.check.partition(":")[0] not in known:
            near = difflib.get_close_matches(item.check, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            found.append((("waivers", number, "check"), f"there is no check {item.check!r}{meant}"))
        found += [
            (("waivers", number, "hosts"), f"no host is called {pattern!r}")
            for pattern in item.hosts
            if not fnmatch.filter(fleet.hosts, pattern)
        ]
    return found
