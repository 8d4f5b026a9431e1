"""The gate against the real Slurm: its controller, a node's daemon and munge, all on loopback and thrown away."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.host.cli.gate import NPD_LENGTH
from gdsdeploy.host.gate import gate, gate as gate_slurm
from gdsdeploy.host.io.scontrol import SlurmError
from gdsdeploy.run import which
from tests.loopback import loopback_slurm
from tests.loopback.loopback_slurm import Slurm
from tests.loopback.loopback_sshd import free_port

NODE = "node7"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with loopback_slurm.cluster(
        NODE, HealthCheckInterval="1", ReturnToService="1", RebootProgram="/bin/true"
    ) as started:
        yield started


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """The node, in."""
    cluster.until(takes_jobs)
    yield cluster
    cluster.settle()


def takes_jobs(node: gate_slurm.Node) -> bool:
    return node.states == ["IDLE"]


def is_in(node: gate_slurm.Node) -> bool:
    """Nobody keeps it out; it may still have to answer, or to end a job."""
    return not set(node.states) & {"DRAIN", "DOWN"}


def test_a_closed_gate_drains_and_an_open_one_resumes(slurm: Slurm) -> None:
    answer = gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed")
    assert answer == "node7 is drained: gdsdeploy: driver.flavour failed"
    node = slurm.show()
    assert "DRAIN" in node.states
    assert node.reason == "gdsdeploy: driver.flavour failed"
    assert gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed") == "node7 is drained already"
    gate_slurm.apply_step(gate.CLOSED, "storage.path:/mnt/nvme failed")
    assert slurm.show().reason == "gdsdeploy: storage.path:/mnt/nvme failed"
    assert gate_slurm.apply_step(gate.OPEN, "24 checks passed") == "node7 is resumed"
    assert is_in(slurm.show())
    assert gate_slurm.apply_step(gate.OPEN, "24 checks passed") == "node7 is in already"


def test_a_reason_that_somebody_else_gave_is_kept(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.scontrol("update", f"NodeName={NODE}", "Comment=rack [3] ask@ops", "Extra=bought 2024")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    slurm.set("DRAIN", "DIMM in slot [3] is bad, ask ops@site")
    before = slurm.show()
    assert before.reason == "DIMM in slot [3] is bad, ask ops@site"
    assert "keeps its reason: DIMM" in gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed")
    stays = "node7 stays out: DIMM in slot [3] is bad, ask ops@site"
    assert gate_slurm.apply_step(gate.OPEN, "24 checks passed") == stays
    after = slurm.show()
    assert after.reason == before.reason
    assert "DRAIN" in after.states


def test_a_node_that_is_down_is_drained_too_and_gets_its_reason_back(slurm: Slurm) -> None:
    """Slurm takes a node that is only down back by itself when it answers, as it does after a boot."""
    slurm.set("DOWN", "fan 3 has stopped")
    gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed")
    gate_slurm.apply_step(gate.CLOSED, "kernel.running failed")
    node = slurm.show()
    assert node.reason == "gdsdeploy: kernel.running failed; was: fan 3 has stopped"
    assert set(node.states) >= {"DRAIN"}
    gate_slurm.apply_step(gate.OPEN, "24 checks passed")
    node = slurm.show()
    assert "DRAIN" not in node.states
    assert "DOWN" in node.states
    assert node.reason == "fan 3 has stopped"


def test_slurm_reboots_and_the_gate_decides(slurm: Slurm) -> None:
    """``nextstate=DOWN`` with a reason of ours: Slurm lifts its own drain of a reboot, whoever gave the reason."""
    for moment in ("before", "after"):
        slurm.scontrol("reboot", "ASAP", "nextstate=DOWN", "reason=gdsdeploy: reboot", NODE)
        node = slurm.until(lambda node: "REBOOT_ISSUED" in node.states)
        assert node.reason == "gdsdeploy: reboot"
        if moment == "before":
            gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed")
        slurm.reboot_node(NODE)
        node = slurm.until(lambda node: node.states == ["DOWN"])
        gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed")
        assert set(slurm.show().states) == {"DOWN", "DRAIN"}
        assert slurm.show().reason == "gdsdeploy: driver.flavour failed"
        assert gate_slurm.apply_step(gate.OPEN, "24 checks passed") == "node7 is resumed"
        slurm.until(takes_jobs)
        slurm.settle()


def test_an_open_gate_takes_a_node_back_that_slurm_rebooted_for_it(slurm: Slurm) -> None:
    slurm.scontrol("reboot", "ASAP", "nextstate=DOWN", "reason=gdsdeploy: reboot", NODE)
    slurm.until(lambda node: "REBOOT_ISSUED" in node.states)
    slurm.reboot_node(NODE)
    slurm.until(lambda node: node.states == ["DOWN"])
    assert gate_slurm.apply_step(gate.OPEN, "24 checks passed") == "node7 is resumed"
    assert is_in(slurm.show())
    # One that somebody had rebooted for a reason of theirs is theirs to take back.
    slurm.until(takes_jobs)
    slurm.scontrol("reboot", "ASAP", "nextstate=DOWN", "reason=firmware", NODE)
    slurm.until(lambda node: "REBOOT_ISSUED" in node.states)
    slurm.reboot_node(NODE)
    slurm.until(lambda node: node.states == ["DOWN"])
    assert gate_slurm.apply_step(gate.OPEN, "24 checks passed") == "node7 stays out: firmware"


def test_a_job_is_not_started_while_the_gate_is_closed(slurm: Slurm) -> None:
    gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed")
    refused = subprocess.run(["srun", "--immediate=1", "true"], capture_output=True, text=True)
    assert refused.returncode != 0
    gate_slurm.apply_step(gate.OPEN, "24 checks passed")
    slurm.until(takes_jobs)
    subprocess.run(["srun", "--immediate=15", "true"], check=True, capture_output=True, text=True)


def test_slurmd_itself_asks_the_gate(slurm: Slurm, tmp_path: Path) -> None:
    """HealthCheckProgram with the real daemon: no verdict of this boot drains, an open gate resumes."""
    health = slurm.health
    run, program = tmp_path / "run", Path(__file__).parents[3]
    line = f"exec {which('python3')} -m gdsdeploy.host gate slurm-health --run-folder {run}"
    idle, mark = health.read_text(), tmp_path / "idle"
    try:
        health.write_text(f"#!/bin/sh\nexport SLURM_CONF={slurm.folder}/slurm.conf\ncd {program}\n{line}\n")
        node = slurm.until(lambda node: "DRAIN" in node.states)
        assert node.reason == "gdsdeploy: the gate has not judged this host yet"
        settings = gate.Settings(file="", metrics=str(tmp_path / "metrics"))
        record = gate.Record(gate.OPEN, "24 checks passed", "pass", gate.boot_id(), "2026-11-21T08:00:00Z", 1.0)
        gate.publish(record, settings, str(run), str(tmp_path / "state"))
        slurm.until(is_in)
        record = gate.Record(gate.OPEN, "24 checks passed", "pass", "another boot", "2026-11-21T08:00:00Z", 1.0)
        gate.publish(record, settings, str(run), str(tmp_path / "state"))
        node = slurm.until(lambda node: "DRAIN" in node.states)
        assert "has not judged this boot" in node.reason
    finally:
        health.write_text(f"{idle}touch {mark}\n")
        # What was started before may drain the node yet.
        slurm.until(lambda _: mark.exists() and not running(str(run)))
        health.write_text(idle)
    gate_slurm.apply_step(gate.OPEN, "over")


def running(word: str) -> bool:
    """Whether a process has ``word`` in its command line."""
    return word in subprocess.run(["ps", "-ww", "-eo", "args"], check=True, capture_output=True, text=True).stdout


def test_a_controller_that_is_away_and_a_node_that_is_unknown(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlurmError, match="Node nobody not found"):
        gate_slurm.apply_step(gate.CLOSED, "kernel.running failed", "nobody")
    text = (slurm.folder / "slurm.conf").read_text()
    other = slurm.folder / "other.conf"
    other.write_text(re.sub("SlurmctldPort=.*", f"SlurmctldPort={free_port()}", text) + "MessageTimeout=1\n")
    monkeypatch.setenv("SLURM_CONF", str(other))
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        gate_slurm.apply_step(gate.CLOSED, "kernel.running failed", NODE)


def test_what_is_no_node_is_an_error() -> None:
    with pytest.raises(SlurmError, match="something else than a node"):
        gate_slurm.node_from("No nodes in the system")


def test_reasons_fit_a_line() -> None:
    step = gate_slurm.step(gate_slurm.Node(NODE, ["IDLE"], ""), gate.CLOSED, "x" * 1000)
    assert len(step.says) < gate_slurm.REASON_LENGTH + NPD_LENGTH
