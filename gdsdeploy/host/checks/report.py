"""Findings of one host as text for a terminal and as a JSON document."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ..facts import HostFacts, Unknown
from ..facts.stack import stack
from ..io.wording import aligned, joined
from ..model.expectation import Expectation
from ..model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WAIVED, WORDS, Finding, worst


def document(expectation: Expectation, facts: HostFacts, findings: Sequence[Finding]) -> Dict[str, Any]:
    """One JSON object: host, profile, boot_id, verdict, stack, findings, gaps, collected_at, seconds, lock_digest."""
    return {
        "version": 1,
        "host": expectation.host or facts.name,
        "profile": expectation.profile,
        "lock_digest": expectation.lock_digest,
        "boot_id": "" if isinstance(facts.kernel.boot_id, Unknown) else facts.kernel.boot_id,
        "collected_at": facts.collected_at,
        "seconds": facts.seconds,
        "verdict": worst(list(findings)),
        "stack": [list(part) for part in stack(facts)],
        "findings": [finding.as_dict() for finding in findings],
        "gaps": list(facts.gaps),
    }


def text(expectation: Expectation, facts: HostFacts, findings: Sequence[Finding]) -> str:
    """The failures with their hints, then the undecided and the waived checks, then a line for each passed check.

    All checks that are not applicable share one line.
    """
    versions = ", ".join("{} {}".format(*part) for part in stack(facts))
    host = expectation.host or facts.name
    lines = ["{} (profile {}): {}".format(host, expectation.profile, versions or "nothing is known"), ""]
    by_verdict = {verdict: [finding for finding in findings if finding.verdict == verdict] for verdict in WORDS}
    for verdict in (FAIL, UNKNOWN, WAIVED):
        for finding in by_verdict[verdict]:
            lines += _block(finding)
    lines += aligned([(WORDS[PASS], finding.check, finding.found) for finding in by_verdict[PASS]])
    skipped = by_verdict[NOT_APPLICABLE]
    if skipped:
        lines.append("{}  {}".format(WORDS[NOT_APPLICABLE], ", ".join(finding.check for finding in skipped)))
    rare = (WAIVED, NOT_APPLICABLE)
    counts = [f"{len(by_verdict[key])} {word}" for key, word in WORDS.items() if key not in rare or by_verdict[key]]
    return joined([*lines, "", "{}: {}".format(WORDS[worst(list(findings))], ", ".join(counts))])


def _block(finding: Finding) -> List[str]:
    lines = [
        f"{WORDS[finding.verdict]}  {finding.check}: {finding.title}",
        "  expected  " + finding.expected,
        "  found     " + finding.found,
        *("            | " + line for line in finding.evidence),
    ]
    if finding.verdict == WAIVED and finding.waiver:
        lines.append("  waived    until {until}: {reason}".format(**finding.waiver))
    return [*lines, "  to do     " + finding.hint, ""] if finding.hint else [*lines, ""]
