"""What an audit says about a module: ``{"id", "severity", "outcome", "message", "hint"}``, all texts.

docs/gen/audit_findings.json says what each id means.  ``severity`` is for people; code branches on ``outcome``.  They
differ only for an undecided finding: a warning with the outcome ``unknown``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

Finding = Dict[str, str]

#: The module does not load, or does not work; it is not what it should be, or will fail later; good to know.
ERROR, WARNING, NOTE = "error", "warning", "note"
#: The outcome of what could not be decided.  The others are ``error``, ``warning`` and, of a note, ``ok``.
UNKNOWN = "unknown"
OK = "ok"
#: Id of the finding that a file which decides can't be read: whatever is audited isn't installed or admitted.
INCOMPLETE = "input-unknown"
_OUTCOMES = (ERROR, UNKNOWN, WARNING, OK)
#: Ids of the undecided findings that were recorded before findings had an outcome.  The list is closed.
_RECORDED_UNKNOWN = frozenset(
    ("driver-tree-unknown", "secure-boot-unknown", "signature-key-unknown", "symbol-unknown", "vermagic-unknown")
)
#: Symbols or files named in one message; the rest is counted.
_NAMED = 6


def finding(ident: str, severity: str, message: str, hint: str = "") -> Finding:
    """A decided finding.  severity: ERROR, WARNING or NOTE."""
    outcome = OK if severity == NOTE else severity
    return {"id": ident, "severity": severity, "outcome": outcome, "message": message, "hint": hint}


def unknown_finding(ident: str, message: str, hint: str = "") -> Finding:
    """A finding that the files at hand do not decide: nothing is known to be wrong, and the module is not ``ok``."""
    return {"id": ident, "severity": WARNING, "outcome": UNKNOWN, "message": message, "hint": hint}


def outcome_of(recorded: Mapping[str, Any]) -> str:
    """The outcome of a finding read from JSON, also of one recorded before findings had any."""
    outcome, severity = recorded.get("outcome"), recorded.get("severity")
    if outcome in _OUTCOMES:
        return str(outcome)
    if str(recorded.get("id")) in _RECORDED_UNKNOWN:
        return UNKNOWN
    return str(severity) if severity in (ERROR, WARNING) else OK


def decisive(findings: Sequence[Finding]) -> List[Finding]:
    """The findings that make a module unreliable: its errors or, without errors, the undecided ones."""
    errors = [each for each in findings if outcome_of(each) == ERROR]
    return errors or [each for each in findings if outcome_of(each) == UNKNOWN]


def is_incomplete(findings: Sequence[Finding]) -> bool:
    """Whether the audit could not read something that decides."""
    return any(each["id"] == INCOMPLETE for each in findings)


def some(items: Sequence[str]) -> str:
    """The first few of ``items`` and how many more there are."""
    rest = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
