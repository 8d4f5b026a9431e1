"""The page of all checks."""

from __future__ import annotations

import re

from docs.gen import table_row
from gdsdeploy.host.checks import listed
from gdsdeploy.host.subjects.register import Check

HEAD = """\
# Checks

`gdsdeploy validate FLEET` runs them on every host of a fleet. `python3 -I -S gdsdeploy-host.pyz validate` runs them on
the host itself. Each check ends in one of four ways:

| verdict | meaning |
| --- | --- |
| pass | the evidence shows the expected state |
| FAIL | the evidence shows another state; the finding says which, and what to do |
| could not tell | the evidence does not decide it, for example without root; this never counts as a pass |
| not applicable | the host has nothing that the check is about, and the finding says why; this never counts as a pass |

Checks that need a GPU are not applicable on a host without one. *Italic* words stand for values of the lock
or the fleet file.

| check | asserts | expects | prevents |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Markdown: one table row per check, in the order of a report."""
    return HEAD + "".join(_row(check) for check in listed())


def _row(check: Check) -> str:
    expects = re.sub(r"\{(\w+)\}", lambda match: "*" + match.group(1).replace("_", " ") + "*", check.expects)
    return table_row(f"`{check.id}`", check.title, expects, check.prevents)
