"""The page of faults, the checks that find them, and their words."""

from __future__ import annotations

from docs.gen import table_row
from gdsdeploy.host.model.finding import FAIL
from tests.unit.host.checks.changes import Document, findings
from tests.unit.host.checks.faults import FAULTS

HEAD = """\
# Faults, and the checks that find them

The table starts from the evidence of a real provisioned host
without a GPU, and changes one thing at a time. Faults on a live host, in the lab's virtual machine, are in
`tests/lab`.

| fault | found by | which says |
| --- | --- | --- |
"""
#: Characters of a finding that are shown.
WIDTH = 160


def page() -> str:
    """Markdown: one table row for each check that a fault fails."""
    return HEAD + "".join(row for name, case in FAULTS.items() for row in _rows(name, case.document()))


def _rows(name: str, document: Document) -> list[str]:
    failed = [finding for finding in findings(document).values() if finding.verdict == FAIL]
    return [
        table_row("" if position else name, f"`{finding.check}`", _short(finding.found))
        for position, finding in enumerate(failed)
    ]


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
