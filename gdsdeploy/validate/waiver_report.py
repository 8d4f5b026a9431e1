"""Which waivers of a run were used, and on which hosts; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdsdeploy.host.model.waiver import Waiver
from gdsdeploy.report.model import HostReport, WaiverUse


def waiver_uses(
    waivers: Mapping[str, Sequence[Waiver]], hosts: Sequence[HostReport], day: str
) -> tuple[WaiverUse, ...]:
    """Every waiver of a run as it was met on ``day`` (YYYY-MM-DD).  waivers: host → those that hold for it."""

    def is_used(waiver: Waiver, host: HostReport) -> bool:
        return waiver in waivers.get(host.host, ()) and any(
            finding.waiver is not None and finding.waiver["until"] == waiver.until and waiver.covers(finding)
            for finding in host.findings
        )

    def use_of(waiver: Waiver) -> WaiverUse:
        hosts_covered = tuple(host.host for host in hosts if is_used(waiver, host))
        return WaiverUse(waiver.check, waiver.until, waiver.reason, waiver.until < day, hosts_covered)

    return tuple(map(use_of, dict.fromkeys(waiver for listed_waivers in waivers.values() for waiver in listed_waivers)))
