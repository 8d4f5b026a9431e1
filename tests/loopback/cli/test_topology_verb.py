"""``gdsdeploy topology``, on saved evidence and on hosts that are really asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commandline import Run, plain
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import Sshd

EVIDENCE = Path(__file__).parents[2] / "evidence"
H100 = EVIDENCE / "hosts" / "h100-libcufile-1.20.0.json"


def test_saved_evidence_as_text_and_as_json(run: Run) -> None:
    code, out, _ = run("topology", "--evidence", H100)
    output = out.splitlines()
    assert code == 0
    assert [" ".join(line.split()) for line in output[:3]] == ["GPU0 NIC0 NUMA", "GPU0 X PHB N/A", "NIC0 PHB X N/A"]
    assert any("NVIDIA H100 80GB HBM3" in line and "32 GT/s x16" in line and "131072 MiB" in line for line in output)
    code, out, _ = run("topology", "--evidence", H100, "--json")
    assert (code, json.loads(out)["pairs"][0]["distance"]) == (0, "PHB")


@pytest.mark.parametrize(
    ("words", "text", "status", "message"),
    [
        ([], None, 2, "Missing argument 'FLEET'"),
        (["fleet.yml", "--from", "x.json"], None, 2, "fleet.yml is not expected beside --evidence FILE"),
        (["--evidence", "x.json"], None, 1, "cannot be read: No such file"),
        *((["--evidence", "x.json"], text, 1, "not evidence") for text in ("", "{", "[1]", "{}", '{"files": []}')),
    ],
)
def test_what_cannot_be_used_is_said(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    text: str | None,
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    code, _, err = run("topology", *words)
    assert (code, message in plain(err).replace("\n", " ")) == (status, True), err


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
    make_fleet: Make, run: Run, tmp_path: Path
) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT)
    code, _, err = run("topology", fleet.path, "--golden", "check")
    assert (code, "Write it from a host that is right" in plain(err)) == (10, True)
    code, _, err = run("topology", fleet.path, "--golden", "write")
    assert (code, "right.topology.json: the topology of gpu[1-2]" in err) == (0, True)
    assert run("topology", fleet.path, "--golden", "check")[:2] == (0, "gpu[1-2]: matches\n")
    file = tmp_path / "right.topology.json"
    golden = json.loads(file.read_text())
    golden["devices"]["ffff:00:00.0"] = {
        "label": "GPU9", "part": "10de:2330", "numa_node": 0, "link": None, "bridges": [], "bar1": None,
    }  # fmt: skip
    file.write_text(json.dumps(golden))
    code, out, err = run("topology", fleet.path, "--limit", "gpu1", "--golden", "check")
    assert (code, out) == (30, "gpu1: GPU9 at ffff:00:00.0 is gone (10de:2330)\n")
    assert "the topology has moved on gpu1" in plain(err)


def test_a_profile_without_a_file_is_told_how(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1={"profile": "wrong"})
    code, _, err = run("topology", fleet.path, "--golden", "write")
    assert (code, "topology: {golden: wrong.topology.json}" in plain(err)) == (10, True)
    code, out, _ = run("topology", fleet.path, "--golden", "check")
    assert (code, "names no golden topology" in out) == (31, True), "nothing was compared"


def test_hosts_that_do_not_answer_keep_nobody_waiting(make_fleet: Make, run: Run) -> None:
    code, out, _ = run("topology", make_fleet(gpu1=RIGHT, gone={**RIGHT, "port": 1}).path, "--json")
    assert (code, set(json.loads(out))) == (20, {"gpu1"})
