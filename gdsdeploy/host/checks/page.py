"""The page of all checks for the documentation: ``python -m gdsdeploy.host.checks.page > docs/checks.md``."""

from __future__ import annotations

import re

from . import listed
from .registry import Check

HEAD = """\
# Checks

Made from the register of checks by `python -m gdsdeploy.host.checks.page`; a test keeps it so.

`gdsdeploy validate FLEET` runs them on every host of a fleet,
`python3 -I -S gdsdeploy-host.pyz validate` on the host itself.
Each one ends in one of three ways:

| verdict | means |
| --- | --- |
| pass | the evidence shows what was expected |
| FAIL | the evidence shows something else; the finding says what, and what to do |
| could not tell | the evidence does not decide it, e.g. for want of permission; never counted as a pass |

Checks that need facts of a GPU say "not proven" on a host without one.

| check | asserts | prevents |
| --- | --- | --- |
"""


def page() -> str:
    """Markdown: one table row per check, in the order of a report."""
    return HEAD + "".join(_row(item) for item in listed())


def _row(item: Check) -> str:
    expects = re.sub(r"\{(\w+)\}", lambda found: "*" + found.group(1).replace("_", " ") + "*", item.expects)
    cells = (f"`{item.id}`", f"{item.title}: {expects}", item.prevents)
    return "| {} |\n".format(" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells))


if __name__ == "__main__":
    print(page(), end="")
