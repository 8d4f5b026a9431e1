"""The result of a check: pass, fail, "could not tell" or "not applicable", with the expected and the actual state.

A waiver accepts a check that does not pass until a day, for a reason; it is shown as waived, never as passed.  The
controller and the host use the same rule, so that the gate and ``validate`` agree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Sequence

from ..io.wording import line

PASS = "pass"  # noqa: S105 # nosec B105 # a verdict, not a secret
FAIL = "fail"
#: The third answer: the evidence does not decide it.  Never counted as a pass.
UNKNOWN = "unknown"
#: It did not pass, and a waiver accepts that until a day; see waiver.py.
WAIVED = "waived"
#: The host has nothing that the check is about, and the evidence says so.  Missing evidence is ``unknown``.
NOT_APPLICABLE = "not-applicable"
#: Verdicts of a whole host, the worst first: ``unknown`` where no check examined anything.
HOST_VERDICTS = (FAIL, UNKNOWN, WAIVED, PASS)
VERDICTS = (*HOST_VERDICTS, NOT_APPLICABLE)
#: Verdict → its name in reports for people.
WORDS = {PASS: "pass", FAIL: "FAIL", UNKNOWN: "could not tell", WAIVED: "waived", NOT_APPLICABLE: "not applicable"}
#: Results of the check storage.path: the path of a mount's I/O, or none without a mount.
PATHS = ("nvidia-fs", "p2pdma", "peermem", "dmabuf", "compat", "broken", "none")
_WAIVER = {"until", "reason", "was"}


@dataclass(frozen=True)
class Finding:
    """One check's answer on one host.  Each of its texts is one line, whatever the host says.

    Raises ValueError for a verdict or a path that there isn't.
    """

    #: Stable id, e.g. ``nvidia-fs.driver-tree``; with a subject after ``:`` where a check runs per subject
    #: (``storage.path:/mnt/nvme``).
    check: str
    verdict: str
    #: What the check asserts, as one sentence.
    title: str
    expected: str
    found: str
    #: What to do about it; empty on a pass.
    hint: str = ""
    #: Raw lines behind the verdict.
    evidence: List[str] = field(default_factory=list)
    #: {"until", "reason", "was"} of the waiver that covers this finding, or did until that day; ``was`` is the verdict
    #: that the check itself gave.
    waiver: Optional[Dict[str, str]] = None
    #: Of storage.path, one of PATHS: proven or, where the verdict is ``unknown``, expected.  Empty where it is not
    #: known, for every other check, and in what was recorded before this field existed.
    path: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"a verdict is one of {', '.join(VERDICTS)}: {self.verdict!r}")
        if self.waiver is not None and (self.waiver.keys() != _WAIVER or self.waiver["was"] not in VERDICTS):
            raise ValueError(f"a finding's waiver has {', '.join(sorted(_WAIVER))}: {self.waiver!r}")
        if self.path not in ("", *PATHS):
            raise ValueError(f"a path is one of {', '.join(PATHS)}: {self.path!r}")
        for name in ("check", "title", "expected", "found", "hint"):
            object.__setattr__(self, name, line(getattr(self, name)))
        object.__setattr__(self, "evidence", list(map(line, self.evidence)))
        if self.waiver is not None:
            object.__setattr__(self, "waiver", {name: line(text) for name, text in self.waiver.items()})

    def as_dict(self) -> Dict[str, Any]:
        """As JSON has it: ``path`` is left out where it is empty.  Its lists are the finding's own, not copies."""
        value = dict(vars(self))
        if not self.path:
            del value["path"]
        return value


def worst(findings: List[Finding]) -> str:
    """The first of HOST_VERDICTS that any finding has; ``unknown`` where none has one.

    Findings that are not applicable don't count: a host on which no check examined anything is not healthy.
    """
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in HOST_VERDICTS if verdict in verdicts), UNKNOWN)


@dataclass(frozen=True)
class Waiver:
    """One acceptance; raises ValueError where one of its texts is empty."""

    #: id of a check; without a subject it covers every subject
    check: str
    #: the last day on which it holds, YYYY-MM-DD in UTC
    until: str
    reason: str

    def __post_init__(self) -> None:
        if not (self.check and self.until and self.reason):
            raise ValueError(f"check, until and reason of a waiver are texts: {self!r}")

    def covers(self, finding: Finding) -> bool:
        return self.check in (finding.check, finding.check.partition(":")[0])


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
