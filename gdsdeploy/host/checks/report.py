"""Findings of one host as text for a terminal and as a JSON document."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ..facts import HostFacts, Unknown
from ..facts.stack import stack
from ..model.expectation import Expectation
from ..model.finding import FAIL, PASS, UNKNOWN, WAIVED, Finding, worst

WORDS = {PASS: "pass", FAIL: "FAIL", UNKNOWN: "could not tell", WAIVED: "waived"}


def document(expectation: Expectation, facts: HostFacts, findings: Sequence[Finding]) -> Dict[str, Any]:
    """One JSON object: host, profile, boot_id, verdict, stack, findings, gaps, collected_at, seconds, lock_digest."""
    return {
        "version": 1,
        "host": expectation.host,
        "profile": expectation.profile,
        "lock_digest": expectation.lock_digest,
        "boot_id": "" if isinstance(facts.kernel.boot_id, Unknown) else facts.kernel.boot_id,
        "collected_at": facts.collected_at,
        "seconds": facts.seconds,
        "verdict": worst(list(findings)),
        "stack": [list(item) for item in stack(facts)],
        "findings": [item.as_dict() for item in findings],
        "gaps": list(facts.gaps),
    }


def text(expectation: Expectation, facts: HostFacts, findings: Sequence[Finding]) -> str:
    """What failed first, with what to do; then what could not be told; then one line for each check that passed."""
    runs = ", ".join("{} {}".format(*item) for item in stack(facts))
    lines = ["{} (profile {}): {}".format(expectation.host, expectation.profile, runs or "nothing is known"), ""]
    for verdict in (FAIL, UNKNOWN, WAIVED):
        for item in findings:
            if item.verdict == verdict:
                lines += _block(item)
    width = max([len(item.check) for item in findings if item.verdict == PASS] or [0])
    lines += [f"{WORDS[PASS]}  {item.check.ljust(width)}  {item.found}" for item in findings if item.verdict == PASS]
    number = {verdict: sum(item.verdict == verdict for item in findings) for verdict in WORDS}
    shown = [verdict for verdict in WORDS if verdict != WAIVED or number[WAIVED]]
    counts = [f"{number[verdict]} {WORDS[verdict]}" for verdict in shown]
    return "\n".join([*lines, "", "{}: {}".format(WORDS[worst(list(findings))], ", ".join(counts))])


def _block(item: Finding) -> List[str]:
    lines = [
        f"{WORDS[item.verdict]}  {item.check}: {item.title}",
        "  expected  " + item.expected,
        "  found     " + item.found,
    ]
    lines += ["            | " + line for line in item.evidence]
    if item.verdict == WAIVED and item.waiver:
        lines.append("  waived    until {until}: {reason}".format(**item.waiver))
    return [*lines, "  to do     " + item.hint, ""] if item.hint else [*lines, ""]
