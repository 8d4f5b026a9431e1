"""What a real H200's machine said, judged again: the same verdicts, facts and topology as it found itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.pci import GPU
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.topology import document

RECORDED = json.loads((Path(__file__).parents[2] / "evidence" / "validate" / "h200.json").read_text())
FACTS = facts_from(RECORDED["evidence"])
FINDINGS = {finding.check: finding for finding in checks.run(FACTS, from_json(json.dumps(RECORDED["expectation"])))}


@pytest.mark.parametrize("check", sorted(RECORDED["findings"]))
def test_the_same_verdict_as_on_the_machine(check: str) -> None:
    verdict, finding = RECORDED["findings"][check]
    assert (FINDINGS[check].verdict, FINDINGS[check].found) == (verdict, finding)


def test_no_check_is_new_or_gone() -> None:
    assert set(FINDINGS) == set(RECORDED["findings"])


def test_the_path_of_its_disk_is_proven() -> None:
    (proof,) = FACTS.storage.proofs["/"]
    assert (proof.gpu, proof.path) == ("0000:00:06.0", "compat")
    assert FINDINGS["storage.path:/"].found.endswith("(proven by a read through cuFile)")


def test_its_driver_s_other_halves() -> None:
    libcuda, firmware = FACTS.userland.libraries["libcuda.so.1"], FACTS.userland.firmware
    assert not isinstance(libcuda, Unknown)
    assert libcuda is not None
    assert libcuda.version == FACTS.driver.version == "580.159.04"
    # Its kernel is told to look for firmware elsewhere than in /lib/firmware.
    assert firmware == {"580.159.04": ("gsp_ga10x.bin", "gsp_tu10x.bin")}


def test_its_topology() -> None:
    topology = FACTS.topology
    assert not isinstance(topology, Unknown)
    assert json.loads(json.dumps(document(topology))) == RECORDED["topology"]
    (gpu,) = topology.of_kind(GPU)
    assert (gpu.bar1, gpu.model) == (262144 << 20, "NVIDIA H200")
