"""``gdsdeploy topology``, on saved evidence and on hosts that are really asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commandline import plain, run
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import Sshd

EVIDENCE = Path(__file__).parents[2] / "evidence"
H100 = EVIDENCE / "hosts" / "h100-libcufile-1.20.0.json"


def test_saved_evidence_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topology", "--evidence", H100) == 0
    output = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in output[:3]] == ["GPU0 NIC0 NUMA", "GPU0 X PHB N/A", "NIC0 PHB X N/A"]
    assert any("NVIDIA H100 80GB HBM3" in line and "32 GT/s x16" in line and "131072 MiB" in line for line in output)
    assert run("topology", "--evidence", H100, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pairs"][0]["distance"] == "PHB"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["topology"], 2, "Missing argument 'FLEET'"),
        (["topology", "fleet.yml", "--from", "x.json"], 2, "--evidence FILE goes with no other option than --json"),
        (["topology", "--evidence", "/nonexistent.json"], 1, "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_used_is_said(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == status
    assert message in plain(capsys.readouterr().err).replace("\n", " ")


def test_a_file_that_is_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("{", "[]", "{}"):
        (tmp_path / "x.json").write_text(text)
        assert run("topology", "--evidence", tmp_path / "x.json") == 1
        assert "not evidence" in plain(capsys.readouterr().err)


Make = Callable[..., LoopbackFleet]
RIGHT = {"profile": "right"}


@pytest.fixture
def make_fleet(sshd: Callable[..., Sshd], tmp_path: Path) -> Make:
    def make(**hosts: dict[str, Any]) -> LoopbackFleet:
        fleet = LoopbackFleet(tmp_path, sshd(), hosts)
        value = yaml.safe_load(fleet.path.read_text())
        value["profiles"]["right"] = {**value["profiles"]["right"], "topology": {"golden": "right.topology.json"}}
        fleet.path.write_text(yaml.safe_dump(value))
        return fleet

    return make


def test_a_host_is_asked_and_its_golden_topology_written_and_held_against(
    make_fleet: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT)
    assert run("topology", fleet.path, "--golden", "check") == 10
    assert "Write it from a host that is right" in plain(capsys.readouterr().err)
    assert run("topology", fleet.path, "--golden", "write") == 0
    assert "right.topology.json: the topology of gpu[1-2]" in capsys.readouterr().err
    assert run("topology", fleet.path, "--golden", "check") == 0
    assert capsys.readouterr().out == "gpu[1-2]: matches\n"
    file = tmp_path / "right.topology.json"
    golden = json.loads(file.read_text())
    golden["devices"]["ffff:00:00.0"] = {
        "label": "GPU9", "part": "10de:2330", "numa_node": 0, "link": None, "bridges": [], "bar1": None,
    }  # fmt: skip
    file.write_text(json.dumps(golden))
    assert run("topology", fleet.path, "--limit", "gpu1", "--golden", "check") == 30
    out, err = capsys.readouterr()
    assert out == "gpu1: GPU9 at ffff:00:00.0 is gone (10de:2330)\n"
    assert "the topology has moved on gpu1" in plain(err)


def test_a_profile_without_a_file_is_told_how(make_fleet: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet(gpu1={"profile": "wrong"})
    assert run("topology", fleet.path, "--golden", "write") == 10
    assert "topology: {golden: wrong.topology.json}" in plain(capsys.readouterr().err)
    assert run("topology", fleet.path, "--golden", "check") == 0
    assert "names no golden topology" in capsys.readouterr().out


def test_hosts_that_do_not_answer_keep_nobody_waiting(make_fleet: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet(gpu1=RIGHT, gone={**RIGHT, "port": 1})
    assert run("topology", fleet.path, "--json") == 20
    assert set(json.loads(capsys.readouterr().out)) == {"gpu1"}
