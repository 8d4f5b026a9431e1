"""Which waivers hold for which host: those of the fleet file, and those of one run; pure."""

from __future__ import annotations

import fnmatch

from gdsdeploy.errors import did_you_mean
from gdsdeploy.host.model.waiver import Waiver
from gdsdeploy.model.fleet import Fleet


def of_host(fleet: Fleet, name: str) -> list[Waiver]:
    """The fleet file's waivers for the host ``name``."""
    return [
        Waiver(waiver.check, waiver.until.isoformat(), waiver.reason)
        for waiver in fleet.waivers
        if any(fnmatch.fnmatch(name, pattern) for pattern in waiver.hosts)
    ]


def problems(fleet: Fleet) -> list[tuple[tuple[str | int, ...], str]]:
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
