"""What an audit says about a module: ``{"id", "severity", "outcome", "message", "hint"}``, all texts.

``data/audit_findings.json`` says what each id means.  ``severity`` is for people, ``outcome`` is what code
branches on: the two differ only for a finding that could not be decided, which is a warning with the outcome
``unknown``.  Programs older than the outcome go by the severity, and by ids that end in ``-unknown``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

Finding = Dict[str, str]

#: The module does not load, or does not work; it is not what it should be, or will fail later; good to know.
ERROR, WARNING, NOTE = "error", "warning", "note"
#: The outcome of what could not be decided.  The others are ``error``, ``warning`` and, of a note, ``ok``.
UNKNOWN = "unknown"
OK = "ok"
_OUTCOMES = (ERROR, UNKNOWN, WARNING, OK)
#: Ids of the undecided findings that were recorded before findings had an outcome.  The list is closed.
_RECORDED_UNKNOWN = frozenset(
    ("driver-tree-unknown", "secure-boot-unknown", "signature-key-unknown", "symbol-unknown", "vermagic-unknown")
)
#: Symbols or files named in one message; the rest is counted.
_NAMED = 6


def finding(ident: str, severity: str, message: str, hint: str = "") -> Finding:
    """A finding that was decided.  severity: ERROR, WARNING or NOTE."""
    return _made(ident, severity, OK if severity == NOTE else severity, message, hint)


def unknown_finding(ident: str, message: str, hint: str = "") -> Finding:
    """A finding that the files at hand do not decide: nothing is known to be wrong, and the module is not ``ok``."""
    return _made(ident, WARNING, UNKNOWN, message, hint)


def _made(ident: str, severity: str, outcome: str, message: str, hint: str) -> Finding:
    return {"id": ident, "severity": severity, "outcome": outcome, "message": message, "hint": hint}


def outcome_of(item: Mapping[str, Any]) -> str:
    """The outcome of a finding read from JSON, also of one recorded before findings had any."""
    outcome = item.get("outcome")
    if outcome in _OUTCOMES:
        return str(outcome)
    if str(item.get("id")) in _RECORDED_UNKNOWN:
        return UNKNOWN
    severity = item.get("severity")
    return str(severity) if severity in (ERROR, WARNING) else OK


def decisive(findings: Sequence[Finding]) -> List[Finding]:
    """The findings for which a module cannot be relied on: its errors or, if it has none, what is undecided."""
    errors = [item for item in findings if outcome_of(item) == ERROR]
    return errors or [item for item in findings if outcome_of(item) == UNKNOWN]


def some(items: Sequence[str]) -> str:
    """The first few of ``items`` and how many more there are."""
    rest = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
