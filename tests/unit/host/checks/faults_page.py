"""docs/faults.md: each fault of the tests and the checks that find it, with their words.

python tests/unit/host/checks/faults_page.py > docs/faults.md
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[4]))

from gdsdeploy.host.model.finding import FAIL
from tests.unit.host.checks.changes import GOOD, Change, Document, findings
from tests.unit.host.checks.faults import FAULTS

HEAD = """# Faults, and the checks that find them

Made by the tests, from the evidence of a real provisioned host without a GPU in which one thing is wrong at a time
(`python tests/unit/host/checks/faults_page.py`); a test keeps it so. Faults that are made on a live host, in the lab's
virtual machine, are in `tests/lab`.

| fault | found by | which says |
| --- | --- | --- |
"""
#: Characters of a finding that are shown.
WIDTH = 160


def page() -> str:
    return HEAD + "".join(row for name, (change, _) in FAULTS.items() for row in _rows(name, _with(change)))


def _with(change: Change) -> Document:
    document = copy.deepcopy(GOOD)
    change(document)
    return document


def _rows(name: str, document: Document) -> list[str]:
    found = [item for item in findings(document).values() if item.verdict == FAIL]
    first = [name, *[""] * len(found)]
    return [f"| {title} | `{item.check}` | {_short(item.found)} |\n" for title, item in zip(first, found, strict=False)]


def _short(text: str) -> str:
    text = text.replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


if __name__ == "__main__":
    sys.stdout.write(page())
