"""docs/gds-diag.md names checks, causes and verbs that exist, and a made fault shows each check and cause.

The tables of faults hold most of them.  MADE_IN names the test module that makes the fault of each other one, with the
words by which it does.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gdsdeploy.cli import group
from gdsdeploy.host import checks
from tests.unit.host.checks.faults import FAULTS
from tests.unit.host.explain import test_explain_causes, test_explain_rdma

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
ADVICE, TOPOLOGY = HOST / "explain" / "test_explain_advice.py", HOST / "checks" / "test_topology_checks.py"
#: Name → (the module, what it asserts about the fault).
MADE_IN = {
    "odirect.bypass": (
        LOOPBACK / "odirect" / "test_odirect_live.py",
        '("odirect.bypass", "odirect.conditions")} == {FAIL}',
    ),
    "peermem.errors": (
        HOST / "checks" / "test_kernel_messages.py",
        '"peermem.errors", kernel_log(refusal.sample)).verdict == FAIL',
    ),
    "peermem.legacy": (TOPOLOGY, '(FAIL, "nv_peer_mem is loaded")'),
    "peermem.mechanism": (TOPOLOGY, '(FAIL, "DMA-BUF: no loaded adapter driver accepts DMA-BUF memory")'),
    "peermem.usable": (TOPOLOGY, 'judge(document, "peermem.usable", RDMA).verdict == FAIL'),
    "platform.far-gpu": (ADVICE, 'noted(document)["platform.far-gpu"]'),
    "rdma.addresses": (ADVICE, 'finding("rdma.addresses"'),
    "rdma.link": (ADVICE, 'finding("rdma.link"'),
    "rdma.link-down": (ADVICE, '["rdma.link-down"].what == "no port of mlx5_1 is active"'),
    "rdma.no-routing": (ADVICE, 'notes["rdma.no-routing"].what'),
    "rdma.policy": (ADVICE, 'notes["rdma.policy"].what'),
    "rdma.registration": (HOST / "checks" / "test_registration_check.py", "1 of 1 registrations fail"),
    "storage.queue-depth": (ADVICE, '("storage.queue-depth", '),
    "storage.spread": (ADVICE, '["storage.spread"].what'),
    "topology.acs": (TOPOLOGY, '"topology.acs")\n    assert finding.verdict == FAIL'),
    "topology.distance": (TOPOLOGY, '(FAIL, "GPU0: no nvme; GPU0: NIC0 at PHB")'),
    "topology.iommu": (TOPOLOGY, 'judge(document, "topology.iommu", expectation)'),
    "cufile.other-row": (
        HOST / "explain" / "test_explain_rdma.py",
        'for cause in result.suspects] == ["cufile.other-row"]',
    ),
    "cufile.no-rdma-library": (HOST / "explain" / "test_explain_rdma.py", 'cause.id == "cufile.no-rdma-library"'),
    "gpu.present": (HOST / "checks" / "test_hardware_checks.py", "gpu.present"),
}
FAILING = {name.partition(":")[0] for _, names in FAULTS.values() for name in names}
CAUSED = {ident for fault in test_explain_causes.FAULTS.values() for ident in (fault.id, *fault.also)}
CAUSED |= {fault.id for fault in test_explain_rdma.FAULTS.values()}


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
