"""What real machines with a GPU said, judged again: the same verdicts, facts and topology as each found itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.unknown import Unknown
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.subjects.pci import GPU
from gdsdeploy.host.subjects.peermem import registrations
from gdsdeploy.host.subjects.trees import document
from tests.unit.later_evidence import with_ended_programs

FOLDER = Path(__file__).parents[2] / "evidence" / "validate"
RECORDED: dict[str, Any] = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("h100", "h200")}
FACTS = {
    "h100": facts_from(with_ended_programs(RECORDED["h100"]["evidence"])),
    "h200": facts_from(RECORDED["h200"]["evidence"]),
}
FINDINGS = {
    name: {one.check: one for one in checks.run(FACTS[name], from_json(json.dumps(RECORDED[name]["expectation"])))}
    for name in RECORDED
}


@pytest.mark.parametrize("host", RECORDED)
def test_the_same_verdicts_as_on_the_machine(host: str) -> None:
    found = {check: [finding.verdict, finding.found] for check, finding in FINDINGS[host].items()}
    assert found == RECORDED[host]["findings"]


@pytest.mark.parametrize(("host", "operations"), [("h100", ("read", "write")), ("h200", ("read",))])
def test_its_io_went_through_cpu_memory(host: str, operations: tuple[str, ...]) -> None:
    (proof,) = FACTS[host].storage.proofs["/"]
    assert (proof.gpu, proof.path, proof.operations) == ("0000:00:06.0", "compat", operations)
    words = " and a ".join(operations)
    assert FINDINGS[host]["storage.path:/"].found.endswith(f"(proven by a {words} through cuFile)")
    for operation in operations if host == "h100" else ():
        assert any(f"{operation} : Updating stats" in line and "compat: 1" in line for line in proof.evidence)


def test_its_driver_exported_memory_and_there_was_no_adapter_to_register_it_with() -> None:
    lines = RECORDED["h100"]["rdma"]
    assert {"event": "export", "gpu": "0000:00:06.0", "status": 0} in [json.loads(line) for line in lines]
    run = {"argv": [], "status": 0, "stdout": "\n".join(lines), "stderr": "", "seconds": 1.0}
    assert registrations(Document({"commands": {"rdma-registration": run}})) == ()
    assert FINDINGS["h100"]["rdma.registration"].found == "not proven: this host has no RDMA adapter"


def test_the_kernel_s_log_reaches_back_to_the_boot() -> None:
    assert FINDINGS["h100"]["driver.errors"].verdict == "pass"


def test_its_driver_s_other_halves() -> None:
    facts = FACTS["h200"]
    libcuda = facts.userland.libraries["libcuda.so.1"]
    assert libcuda is not None
    assert not isinstance(libcuda, Unknown)
    assert libcuda.version == facts.driver.version == "580.159.04"
    # Its kernel is told to look for firmware elsewhere than in /lib/firmware.
    assert facts.userland.firmware == {"580.159.04": ("gsp_ga10x.bin", "gsp_tu10x.bin")}


def test_its_topology() -> None:
    topology = FACTS["h200"].topology
    found = json.loads(json.dumps(document(topology)))
    # The recording is older than the question for NVLinks.
    links = [pair.pop("nvlinks") for pair in found["pairs"]]
    assert (found, links) == (RECORDED["h200"]["topology"], [0])
    (gpu,) = topology.of_kind(GPU)
    assert (gpu.bar1, gpu.model) == (262144 << 20, "NVIDIA H200")
