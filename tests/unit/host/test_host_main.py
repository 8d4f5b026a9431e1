"""The command line of the program on the host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as program, checks
from gdsdeploy.host.cli import parsers, validate
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model import expectation as expected
from gdsdeploy.host.model.expectation import Expectation, NoExpectation
from tests.unit.host import hosts
from tests.unit.later_evidence import complete

EVIDENCE = Path(__file__).parents[2] / "evidence" / "hosts"
PASSING, FAILING = "lab-vm-provisioned.json", "lab-vm-bare.json"


def recorded_expectation() -> Expectation:
    return expected.from_json((EVIDENCE / "lab-vm.expectation.json").read_text())


@pytest.fixture
def expectation(tmp_path: Path) -> Path:
    path = tmp_path / "expectation.json"
    path.write_text(recorded_expectation().to_json())
    return path


@pytest.fixture
def passing(tmp_path: Path) -> Path:
    """The evidence of the provisioned host, with what is collected since it was recorded."""
    path = tmp_path / PASSING
    path.write_text(json.dumps(complete(json.loads((EVIDENCE / PASSING).read_text()))))
    return path


def run(*words: str | Path) -> int:
    return program.main([str(word) for word in words])


def test_a_host_as_expected_passes(expectation: Path, passing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--expectation", expectation, "--evidence", passing) == parsers.OK
    out = capsys.readouterr().out
    assert out.startswith("gpu1 (profile gds): os debian-13, kernel 6.12.")
    assert out.rstrip().endswith(" not applicable")
    assert " pass, 0 FAIL, 0 could not tell, " in out


def test_what_failed_comes_first_with_its_next_step(expectation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--expectation", expectation, "--evidence", EVIDENCE / FAILING) == parsers.FAILED
    lines = capsys.readouterr().out.splitlines()
    first_pass = next(number for number, line in enumerate(lines) if line.startswith("pass"))
    assert not [line for line in lines[first_pass:] if line.startswith(("FAIL  ", "could not tell  "))]
    failures = [number for number, line in enumerate(lines) if line.startswith("FAIL  ")]
    assert len(failures) > 5
    for number in failures:
        block = lines[number : lines.index("", number)]
        assert [line[:10].strip() for line in block[1:] if not line.startswith("            |")] == [
            "expected",
            "found",
            "to do",
        ]


def test_json_is_one_object_with_everything(
    expectation: Path, passing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["validate", "--json", "--with-evidence", "--expectation", expectation, "--evidence", passing]
    assert run(*words) == parsers.OK
    report = json.loads(capsys.readouterr().out)
    source = json.loads(passing.read_text())
    assert report["evidence"] == source
    assert report["boot_id"] == source["files"]["/proc/sys/kernel/random/boot_id"].strip()
    assert (report["host"], report["profile"], report["verdict"], report["gaps"]) == ("gpu1", "gds", "pass", [])
    assert [name for name, _ in report["stack"]] == ["os", "kernel", "driver", "nvidia-fs", "libcufile"]
    assert {finding["verdict"] for finding in report["findings"]} == {"pass", "not-applicable"}


def test_what_cannot_be_told_has_its_own_status(expectation: Path, tmp_path: Path) -> None:
    document = json.loads((EVIDENCE / PASSING).read_text())
    del document["commands"]["dpkg-query"]
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(document))
    assert run("validate", "--expectation", expectation, "--evidence", path) == parsers.UNDECIDED


def test_facts_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("facts", "--evidence", EVIDENCE / PASSING) == parsers.OK
    report = json.loads(capsys.readouterr().out)
    assert report["driver"]["flavour"] == "open"


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert run(*words) == parsers.UNUSABLE
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_without_an_expectation_it_judges_what_needs_none(
    monkeypatch: pytest.MonkeyPatch, passing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(validate, "EXPECTATION", str(tmp_path / "none.json"))
    assert run("validate", "--json", "--evidence", passing) == parsers.OK
    findings = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert {findings[check]["verdict"] for check in ("nouveau.absent", "driver.loaded-file", "kernel.taints")} == {
        "pass"
    }
    needing = {check for check, each in findings.items() if each["found"] == "this needs an expectation"}
    assert {"os.release", "host.provisioned", "packages.locked-versions", "storage.path"} <= needing
    assert {findings[check]["verdict"] for check in needing} == {"not-applicable"}
    assert run("validate", "--evidence", passing) == parsers.OK
    text = capsys.readouterr().out
    assert text.startswith("gpu1 (without an expectation): ")
    assert "\nneeds an expectation  os.release, " in text
    document = json.loads(passing.read_text())
    document["files"]["/proc/driver/nvidia/version"] = {"error": "ENOENT"}
    (tmp_path / "x.json").write_text(json.dumps(document))
    assert run("validate", "--evidence", tmp_path / "x.json") == parsers.FAILED
    text = capsys.readouterr().out
    assert "driver.loaded-version" in text
    assert "expected  nvidia" not in text, "nothing says which version"
    assert "--load" in refused(capsys, "validate", "--load")


@pytest.mark.parametrize("name", sorted(hosts.HOSTS))
def test_every_host_is_judged_without_an_expectation(name: str) -> None:
    findings = checks.run(facts_from(hosts.named(name)), NoExpectation())
    assert all("…" not in finding.found + finding.hint for finding in findings)
    assert {finding.check.partition(":")[0] for finding in findings} == {check.id for check in checks.listed()}


def test_an_unusable_expectation_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setattr(validate, "EXPECTATION", str(tmp_path / "broken.json"))
    assert "is not an expectation" in refused(capsys, "validate", "--evidence", EVIDENCE / PASSING)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "an expectation is a JSON object"),
        ("{}", "has version None; this program reads 1"),
        ('{"version": 1, "kernell": "x"}', "expectation.kernell: unknown key"),
        ('{"version": 1}', "expectation.host: this key is required"),
    ],
)
def test_a_bad_expectation_is_said_clearly(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    message = refused(capsys, "validate", "--expectation", path, "--evidence", EVIDENCE / PASSING)
    assert message.startswith(f"gdsdeploy-host: {path} is not an expectation: ")
    assert reason in message


def test_unreadable_files_are_named(expectation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = tmp_path / "none.json"
    assert (
        refused(capsys, "validate", "--expectation", none)
        == f"gdsdeploy-host: {none} cannot be read: No such file or directory\n"
    )
    assert "cannot be read: Is a directory" in refused(capsys, "validate", "--expectation", tmp_path)
    assert "not evidence: not JSON" in refused(capsys, "facts", "--evidence", write(tmp_path / "x.json", "{"))
    # Evidence that says little is judged, and nothing is told from it; what is no evidence is refused.
    poor = write(tmp_path / "poor.json", '{"files": {}}')
    assert run("validate", "--expectation", expectation, "--evidence", poor) == parsers.UNDECIDED
    capsys.readouterr()
    odd = write(tmp_path / "odd.json", "[1]")
    assert "JSON of another kind" in refused(capsys, "validate", "--expectation", expectation, "--evidence", odd)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_a_command_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "evidence" in refused(capsys)


def test_the_default_expectation_is_used_and_may_be_damaged_where_it_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, passing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "expectation.json", replace(recorded_expectation(), host="elsewhere").to_json())
    monkeypatch.setattr(validate, "EXPECTATION", str(path))
    assert run("validate", "--json", "--evidence", passing) == parsers.OK
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["host"] == "elsewhere"
    write(path, "{}")
    assert run("facts", "--evidence", EVIDENCE / PASSING) == parsers.OK
    capsys.readouterr()
    assert "is not an expectation" in refused(capsys, "validate", "--evidence", EVIDENCE / PASSING)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_look_is_as_fresh_as_it_was_asked_for_with_and_without_an_expectation(fresh: bool) -> None:
    for expectation in (None, recorded_expectation()):
        assert validate._request(expectation, load=False, fresh=fresh).fresh is fresh
