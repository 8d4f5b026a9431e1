"""The result of a check: pass, fail, "could not tell" or "not applicable", with the expected and the actual state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

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


@dataclass(frozen=True)
class Finding:
    """One check's answer on one host."""

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

    def as_dict(self) -> Dict[str, Any]:
        """As JSON has it: ``path`` is left out where it is empty.  Its lists are the finding's own, not copies."""
        value = dict(vars(self))
        if not self.path:
            del value["path"]
        return value


def finding_from(value: Dict[str, Any]) -> Finding:
    """The inverse of :meth:`Finding.as_dict`; raises TypeError on unknown or missing keys."""
    finding = Finding(**value)
    if finding.verdict not in VERDICTS:
        raise TypeError(f"a verdict is one of {', '.join(VERDICTS)}: {finding.verdict!r}")
    if finding.path not in ("", *PATHS):
        raise TypeError(f"a path is one of {', '.join(PATHS)}: {finding.path!r}")
    return finding


def worst(findings: List[Finding]) -> str:
    """The first of HOST_VERDICTS that any finding has; ``unknown`` where none has one.

    Findings that are not applicable don't count: a host on which no check examined anything is not healthy.
    """
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in HOST_VERDICTS if verdict in verdicts), UNKNOWN)
