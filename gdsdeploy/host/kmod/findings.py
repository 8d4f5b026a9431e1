"""What an audit says about a module: a finding is ``{"id", "severity", "message", "hint"}``, all texts.

Every id is in ``meanings.py``, from which docs/audit.md is made; ids of what could not be told end in ``-unknown``.
"""

from __future__ import annotations

from typing import Dict, Sequence

Finding = Dict[str, str]

#: The module does not load, or does not work; it is not what it should be, or will fail later; good to know.
ERROR, WARNING, NOTE = "error", "warning", "note"
#: Symbols or files named in one message; the rest is counted.
_NAMED = 6


def finding(ident: str, severity: str, message: str, hint: str = "") -> Finding:
    return {"id": ident, "severity": severity, "message": message, "hint": hint}


def some(items: Sequence[str]) -> str:
    """The first few of ``items`` and how many more there are."""
    rest = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (" and {} more".format(rest) if rest > 0 else "")
