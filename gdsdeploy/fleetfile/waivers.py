"""Which waivers hold for which host: those of the fleet file, and those of one run; pure."""

from __future__ import annotations

import fnmatch

from gdsdeploy.errors import did_you_mean
from gdsdeploy.host.model.waiver import Waiver
from gdsdeploy.model.fleet import Fleet


def of_host(fleet: Fleet, name: str) -> list[Waiver]:
    """The fleet file's waivers for the host ``name``."""
    return [
        Waiver(item.check, item.until.isoformat(), item.reason)
        for item in fleet.waivers
        if any(fnmatch.fnmatch(name, pattern) for pattern in item.hosts)
    ]


def problems(fleet: Fleet) -> list[tuple[tuple[str | int, ...], str]]:
    """Waivers of checks that do not exist, or of hosts that do not: (path of keys, message) pairs."""
    if not fleet.waivers:
        return []
    from gdsdeploy.host import checks

    known = [check.id for check in checks.listed()]
    found: list[tuple[tuple[str | int, ...], str]] = []
    for number, item in enumerate(fleet.waivers):
        if item.check.partition(":")[0] not in known:
            problem = f"there is no check {item.check!r}{did_you_mean(item.check, known)}"
            found.append((("waivers", number, "check"), problem))
        found += [
            (("waivers", number, "hosts"), f"no host is called {pattern!r}")
            for pattern in item.hosts
            if not fnmatch.filter(fleet.hosts, pattern)
        ]
    return found
