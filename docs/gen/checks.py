"""The page of all checks: ``python -m docs.gen.checks > docs/checks.md``."""

from __future__ import annotations

import re

from docs.gen import table_row
from gdsdeploy.host.checks import listed
from gdsdeploy.host.checks.registry import Check

HEAD = """\
# Checks

`python -m docs.gen.checks > docs/checks.md` writes this page from the registry of checks.

`gdsdeploy validate FLEET` runs them on every host of a fleet,
`python3 -I -S gdsdeploy-host.pyz validate` on the host itself.
Each one ends in one of three ways:

| verdict | means |
| --- | --- |
| pass | the evidence shows what was expected |
| FAIL | the evidence shows something else; the finding says what, and what to do |
| could not tell | the evidence does not decide it, e.g. for want of permission; never counted as a pass |

Checks that need facts of a GPU say "not proven" on a host without one.

| check | asserts | expects | prevents |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Markdown: one table row per check, in the order of a report."""
    return HEAD + "".join(_row(item) for item in listed())


def _row(item: Check) -> str:
    expects = re.sub(r"\{(\w+)\}", lambda found: "*" + found.group(1).replace("_", " ") + "*", item.expects)
    return table_row(f"`{item.id}`", item.title, expects, item.prevents)


if __name__ == "__main__":
    print(page(), end="")
