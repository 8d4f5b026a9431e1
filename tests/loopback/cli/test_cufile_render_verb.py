"""``cufile render`` against a real SSH server on loopback that leads to this machine, asked only where it has to be."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.inventory import inventory
from gdsdeploy.converge.machine import Machine, RunFiles
from gdsdeploy.converge.plan_fleet import facts_to_fit, names_to_fit, plan_fleet
from gdsdeploy.errors import GdsError
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.facts.document import Document
from gdsdeploy.lock import lockfile
from gdsdeploy.validate.fleet_validation import ValidateOptions, validate
from tests import commandline
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import ADDRESSES, Sshd

H100 = Path(__file__).parents[2] / "evidence" / "hosts" / "h100-libcufile-1.15.1.json"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fleet(sshd: Callable[..., Sshd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopbackFleet:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    return LoopbackFleet(tmp_path, sshd(), {"gpu1": {"profile": "right"}, "gpu2": {"profile": "right"}})


def change(fleet: LoopbackFleet, **keys: Any) -> None:
    value = yaml.safe_load(fleet.path.read_text())
    value["profiles"]["right"] = {**value["profiles"]["right"], **keys}
    fleet.path.write_text(yaml.safe_dump(value))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *argv: (commandline.run("cufile", "render", *argv), *capsys.readouterr())


def test_a_profile_that_is_fitted_to_nothing_asks_nobody(fleet: LoopbackFleet, run: Run, tmp_path: Path) -> None:
    code, out, _ = run(fleet.path, "gpu1")
    assert code == 0
    assert out.startswith("// Rendered by gdsdeploy")
    file = tmp_path / "cufile.json"
    code, nothing, _ = run(fleet.path, "gpu1", "--output", file)
    assert (code, nothing, file.read_text()) == (0, "", out)
    assert "matches" in run(fleet.path, "gpu1", "--output", file)[2]
    assert fleet.sessions() == 0
    assert "no host 'gpu3'; did you mean 'gpu" in run(fleet.path, "gpu3")[2]
    assert "cannot be written" in run(fleet.path, "gpu1", "--output", tmp_path / "none" / "x")[2]


def test_the_host_is_asked_for_its_file_and_its_facts(fleet: LoopbackFleet, run: Run) -> None:
    path = Path("/etc/cufile.json")
    before = path.read_text() if path.exists() else ""
    _, text, _ = run(fleet.path, "gpu1")
    code, out, _ = run(fleet.path, "gpu1", "--diff", "--json")
    report = json.loads(out)
    assert (code, report["host"], report["libcufile"], report["text"]) == (0, "gpu1", "1.9.1.3", text)
    lines = difflib.unified_diff(before.splitlines(True), text.splitlines(True), f"gpu1:{path}", "rendered")
    assert report["diff"] == "".join(lines)
    assert fleet.sessions() == 1
    change(fleet, fit={}, storage=[{"mount": "/"}])
    code, out, err = run(fleet.path, "gpu1", "--json")
    assert code == 0
    assert "properties.allow_compat_mode stays true on gpu1 until its paths are proven: / takes" in err
    assert json.loads(out)["document"]["properties"]["allow_compat_mode"] is True
    assert json.loads(out)["sources"]["logging.level"] == "the default of libcufile 1.9.1.3"
    assert fleet.sessions() == 2


def test_saved_evidence_stands_in_for_the_host(fleet: LoopbackFleet, run: Run, tmp_path: Path) -> None:
    change(fleet, fit={}, storage=[{"mount": "/"}])
    code, out, _ = run(fleet.path, "gpu1", "--evidence", H100, "--variant", "container")
    assert code == 0
    assert run(fleet.path, "gpu1", "--facts", H100, "--variant", "container")[:2] == (code, out), "the older name"
    assert '"max_device_pinned_mem_size_kb": 134217728' in out
    assert "CUFILE_ENV_PATH_JSON" in out
    (tmp_path / "broken.json").write_text("{}")
    for file, words in ((tmp_path / "broken.json", "not evidence"), (tmp_path / "none", "No such file")):
        code, _, err = run(fleet.path, "gpu1", "--evidence", file)
        assert (code, words in err) == (22, True)
    change(fleet, fit={"addresses": "all"})
    code, _, err = run(fleet.path, "gpu1", "--evidence", H100)
    assert code == 22
    assert "RDMA" in err
    assert fleet.sessions() == 0


def test_provision_gives_each_host_its_own_and_leaves_out_who_cannot_have_one(fleet: LoopbackFleet) -> None:
    change(fleet, fit={}, storage=[{"mount": "/"}])
    intent, lock = load_fleet(fleet.path), lockfile.read(lockfile.beside(fleet.path))
    assert names_to_fit(intent, ["gpu1", "build1"]) == ["gpu1"]
    answers = facts_to_fit(intent, lock, fleet.path, ["gpu1"])
    host = answers["gpu1"]
    assert not isinstance(host, GdsError)
    rendered = inventory(intent, lock, RunFiles(fits={"gpu1": host}))
    values = rendered["all"]["children"]["hosts"]["hosts"]
    assert '"allow_compat_mode": true' in values["gpu1"]["gds_cufile_content"]
    assert json.loads(values["gpu1"]["gds_host_expectation"])["cufile_sha256"]
    assert values["gpu2"]["gds_cufile_content"] == "", "it was not asked; its role refuses to write nothing"
    change(fleet, fit={"addresses": "all"})
    intent = load_fleet(fleet.path)
    refused = facts_to_fit(intent, lock, fleet.path, ["gpu1"])["gpu1"]
    assert isinstance(refused, GdsError)
    assert "RDMA" in refused.message


def test_a_plan_goes_on_without_the_host_whose_file_cannot_be_made(fleet: LoopbackFleet) -> None:
    change(fleet, fit={"addresses": "all"})
    value = yaml.safe_load(fleet.path.read_text())
    value["hosts"]["gpu2"] = {"profile": "wrong", "address": ADDRESSES[1]}
    fleet.path.write_text(yaml.safe_dump(value))
    intent, lock = load_fleet(fleet.path), lockfile.read(lockfile.beside(fleet.path))
    planned = plan_fleet(intent, lock, fleet.path, ["gpu1", "gpu2"])
    refused = planned.hosts["gpu1"]
    assert isinstance(refused, GdsError)
    assert "RDMA" in refused.message
    assert isinstance(planned.hosts["gpu2"], HostPlan)
    assert planned.files.fits == {}


def test_validate_holds_the_file_against_what_the_host_is(
    fleet: LoopbackFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(fleet, fit={}, storage=[{"mount": "/"}])
    intent, lock = load_fleet(fleet.path), lockfile.read(lockfile.beside(fleet.path))
    host = facts_to_fit(intent, lock, fleet.path, ["gpu1"])["gpu1"]
    assert not isinstance(host, GdsError)
    text = Machine(intent, lock, "gpu1").fitted(host).cufile
    real = Document.text
    monkeypatch.setattr(
        Document, "text", lambda self, path, *of: text if path == "/etc/cufile.json" else real(self, path, *of)
    )

    def verdict(**fit: str) -> tuple[str, str]:
        change(fleet, fit=fit)
        report = validate(
            load_fleet(fleet.path),
            lock,
            fleet.path,
            ["gpu1"],
            options=ValidateOptions(["cufile.rendered"]),
            progress=lambda _: None,
        )
        (finding,) = report.hosts[0].findings
        return finding.verdict, finding.found

    assert verdict() == ("pass", "/etc/cufile.json as rendered")
    assert verdict(addresses="all") == (
        "unknown",
        "the file is fitted to this host, and the host's facts don't decide its content",
    )
