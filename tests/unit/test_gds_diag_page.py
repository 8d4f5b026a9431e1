"""docs/gds-diag.md names checks, causes and verbs that exist, and a made fault shows each check and cause.

The cases hold most of them.  MADE_IN names the test module that makes the fault of each other one, with the words by
which it does.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gdsdeploy.cli import group
from gdsdeploy.host import checks
from tests.unit.host import cases

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


HOST = Path(__file__).parent / "host"
LOOPBACK = Path(__file__).parents[1] / "loopback" / "host"
ADVICE = HOST / "explain" / "test_explain_advice.py"
#: Name → (the module, what it asserts about the fault).
MADE_IN = {
    "odirect.bypass": (
        LOOPBACK / "odirect" / "test_odirect_live.py",
        '("odirect.bypass", "odirect.conditions")} == {FAIL}',
    ),
    "platform.far-gpu": (ADVICE, 'noted(document)["platform.far-gpu"]'),
    "rdma.link-down": (ADVICE, '["rdma.link-down"].what == "no port of mlx5_1 is active"'),
    "rdma.no-routing": (ADVICE, 'notes["rdma.no-routing"].what'),
    "rdma.policy": (ADVICE, 'notes["rdma.policy"].what'),
    "storage.queue-depth": (ADVICE, '("storage.queue-depth", '),
    "storage.spread": (ADVICE, '["storage.spread"].what'),
    "topology.acs": (
        HOST / "checks" / "test_topology_checks.py",
        '"topology.acs")\n    assert finding.verdict == FAIL',
    ),
}
FAILING = {name.partition(":")[0] for name in cases.failing()}
CAUSED = cases.causes()


@pytest.mark.parametrize("name", [name for name in NAMED if not name.startswith("gdsdeploy ") and name != "fit"])
def test_a_made_fault_shows_it(name: str) -> None:
    if name.startswith("MODULE."):
        assert {ident.partition(".")[2] for ident in CAUSED} >= {name.partition(".")[2]}
    elif name not in FAILING | CAUSED:
        module, words = MADE_IN[name]
        assert words in module.read_text(), name


def test_no_name_is_made_elsewhere_without_need() -> None:
    assert set(MADE_IN) <= set(NAMED)
    assert not set(MADE_IN) & (FAILING | CAUSED)
