"""Waivers: a check that does not pass is accepted until a day, for a reason; it is shown as waived, never as passed.

The controller and the host use the same rule, so that the gate and ``validate`` agree.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List, Sequence

from .finding import NOT_APPLICABLE, PASS, WAIVED, Finding


@dataclass(frozen=True)
class Waiver:
    """One acceptance."""

    #: id of a check; without a subject it covers every subject
    check: str
    #: the last day on which it holds, YYYY-MM-DD in UTC
    until: str
    reason: str

    def covers(self, finding: Finding) -> bool:
        return self.check in (finding.check, finding.check.partition(":")[0])

    def as_dict(self) -> Dict[str, str]:
        return asdict(self)


def waiver_from(value: Any) -> Waiver:
    """The inverse of :meth:`Waiver.as_dict`; raises ValueError."""
    try:
        waiver = Waiver(**value)
    except TypeError as error:
        raise ValueError(f"a waiver is check, until and reason: {error}") from None
    if not all(isinstance(text, str) and text for text in asdict(waiver).values()):
        raise ValueError(f"check, until and reason of a waiver are texts: {value!r}")
    return waiver


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def apply(findings: Sequence[Finding], waivers: Sequence[Waiver], day: str) -> List[Finding]:
    """The findings as they count on ``day`` (YYYY-MM-DD); a waiver that has ended changes nothing but says so."""
    return [_waived(finding, [waiver for waiver in waivers if waiver.covers(finding)], day) for finding in findings]


def _waived(finding: Finding, covering: Sequence[Waiver], day: str) -> Finding:
    waiver = max(covering, key=lambda waiver: waiver.until, default=None)
    if finding.verdict == WAIVED and finding.waiver is not None:
        # It was waived when it was judged, maybe on an earlier day.
        before = Waiver(finding.check, finding.waiver["until"], finding.waiver["reason"])
        waiver = before if waiver is None or waiver.until <= before.until else waiver
        finding = replace(finding, verdict=finding.waiver["was"], waiver=None)
    if waiver is None or finding.verdict in (PASS, NOT_APPLICABLE):
        return finding
    noted = {"until": waiver.until, "reason": waiver.reason, "was": finding.verdict}
    # Both are ISO 8601, which sorts as text.
    if day <= waiver.until:
        return replace(finding, verdict=WAIVED, waiver=noted)
    ended = f"its waiver ended on {waiver.until} ({waiver.reason})"
    return replace(finding, waiver=noted, hint="; ".join(filter(None, (finding.hint, ended))))
