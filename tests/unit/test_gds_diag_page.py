"""docs/gds-diag.md names checks, causes and verbs that exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gdsdeploy.cli import group
from gdsdeploy.host import checks

DOCS = Path(__file__).parents[2] / "docs"
ROWS = [line for line in (DOCS / "gds-diag.md").read_text().splitlines() if line.startswith("| ")]
CELLS = [row.strip("| ").split(" | ", 1)[1] for row in ROWS if not row.startswith(("| gds-diag", "| ---"))]
IDS = {check.id for check in checks.listed()}
CAUSES = set(re.findall(r"^\| `([\w-]+\.[\w-]+)` \|", (DOCS / "explain.md").read_text(), re.MULTILINE))
NAMED = sorted({word for cell in CELLS for word in re.findall(r"`([^`]+)`", cell)})


def test_every_row_names_something() -> None:
    assert len(CELLS) > 40
    assert all("`" in cell or "](" in cell for cell in CELLS), "a verb, a check, a cause or a page"


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_exists(name: str) -> None:
    if name.startswith("gdsdeploy "):
        command: click.Command | None = group
        for word in name.split()[1:]:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), word)
            assert command is not None, name
        return
    # Hooks of each storage driver are documented as STACK.…, for all of them.
    general = re.sub(r"^(nvme|rpcrdma|lnet)\.(?=no-hooks|not-registered)", "STACK.", name)
    # `fit` is a key of the fleet file.
    assert name in IDS or general in CAUSES or name == "fit", name
