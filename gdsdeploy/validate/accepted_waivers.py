"""Which waivers of a run were used, and on which hosts; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdsdeploy.host.model.finding import Finding
from gdsdeploy.host.model.waiver import Waiver
from gdsdeploy.report.model import Accepted, HostReport


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
