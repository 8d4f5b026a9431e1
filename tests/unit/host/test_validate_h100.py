"""What a real H100's machine said, judged again: every verdict, a read and a write through cuFile, exported memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.rdma import registrations
from gdsdeploy.host.model.expectation import from_json
from tests.unit.later_evidence import with_ended_programs

RECORDED = json.loads((Path(__file__).parents[2] / "evidence" / "validate" / "h100.json").read_text())
FACTS = facts_from(with_ended_programs(RECORDED["evidence"]))
FINDINGS = {finding.check: finding for finding in checks.run(FACTS, from_json(json.dumps(RECORDED["expectation"])))}


@pytest.mark.parametrize("check", sorted({*RECORDED["findings"], *FINDINGS}))
def test_the_same_verdict_as_on_the_machine(check: str) -> None:
    assert [FINDINGS[check].verdict, FINDINGS[check].found] == RECORDED["findings"][check]


def test_a_read_and_a_write_went_through_cpu_memory() -> None:
    (proof,) = FACTS.storage.proofs["/"]
    assert (proof.path, proof.operations) == ("compat", ("read", "write"))
    for operation in ("read", "write"):
        assert any(f"{operation} : Updating stats" in line and "compat: 1" in line for line in proof.evidence)


def test_its_driver_exported_memory_and_there_was_no_adapter_to_register_it_with() -> None:
    events = [json.loads(line) for line in RECORDED["rdma"]]
    assert {"event": "export", "gpu": "0000:00:06.0", "status": 0} in events
    run = {"argv": [], "status": 0, "stdout": "\n".join(RECORDED["rdma"]), "stderr": "", "seconds": 1.0}
    results = registrations(Document({"commands": {"rdma-registration": run}}))
    assert not isinstance(results, Unknown)
    assert results == ()
    assert FINDINGS["rdma.registration"].found == "not proven: this host has no RDMA adapter"


def test_the_kernel_s_log_reaches_back_to_the_boot() -> None:
    assert FINDINGS["driver.errors"].verdict == "pass"
    assert not isinstance(FACTS.kernel.messages, Unknown)
