"""The verbs odirect and proof of the program on the host, as its users type them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host import checks, evidence
from gdsdeploy.host.evidence import EvidenceRequest
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.expectation import from_json

EXPECTATION = from_json((Path(__file__).parents[3] / "evidence" / "hosts" / "lab-vm.expectation.json").read_text())


def test_text_says_what_was_tried_and_what_was_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["odirect", str(tmp_path), "/nowhere"]) == program.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{tmp_path}  ")
    assert any(line.startswith("    overwrite, unaligned memory   ") for line in lines)
    assert "  not proven: /nowhere could not be tried: there is no such folder" in lines
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a\nb"
    folder.mkdir()
    assert program.main(["odirect", "--json", str(folder), "/nowhere"]) == program.OK
    report = json.loads(capsys.readouterr().out)
    good, bad = report["paths"]
    assert (report["version"], good["path"], good["reason"]) == (1, str(folder), "")
    assert len(good["trials"]) == 13
    assert {"name", "result", "pages", "error"} == set(good["trials"][0])
    assert good["kept"]
    assert bad["result"] == "not proven"
    assert program.main(["odirect", str(folder)]) == program.OK
    assert "a b" in capsys.readouterr().out.splitlines()[0], "what a name says is not obeyed by the terminal"


@pytest.mark.parametrize("words", [["odirect"], ["odirect", "--timeout", "soon", "/tmp"], ["proof"]])
def test_bad_input_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(words)
    assert ended.value.code == program.UNUSABLE
    assert "usage:" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    assert program.main(["proof", str(tmp_path)]) == program.OK
    assert "not proven: " in capsys.readouterr().out
    assert program.main(["proof", "--json", str(tmp_path)]) == program.OK
    report = json.loads(capsys.readouterr().out)["proofs"][str(tmp_path)]
    assert "unknown" in report[0]["path"]
    assert list(tmp_path.iterdir()) == []


def test_a_mount_that_may_not_be_written_to_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit is made on mount points of the expectation, and on none that it forbids."""
    paths: list[str] = []

    def audited(path: str, _seconds: float) -> dict[str, object]:
        paths.append(path)
        return {}

    monkeypatch.setattr("gdsdeploy.host.odirect.trials.audit", audited)
    for scratch in (("/",), (), (str(tmp_path),)):
        evidence.collect(EvidenceRequest(mounts=("/",), scratch=scratch))
    assert paths == ["/"], "a folder that nothing is mounted on is not tried either"


def test_what_was_not_tried_is_said(tmp_path: Path) -> None:
    document = evidence.collect(EvidenceRequest(mounts=("/",)))
    for settings, verdict, words in (
        ({"path": "direct"}, "unknown", "/ was not tried"),
        (
            {"path": "direct", "scratch": "no"},
            "not-applicable",
            "not tried: the fleet file allows no scratch file on it",
        ),
        ({"path": "compat"}, "not-applicable", "not needed: the fleet accepts CPU memory here; not tried"),
    ):
        expectation = replace(EXPECTATION, storage=[{"mount": "/", **settings}])
        (finding,) = [i for i in checks.run(facts_from(document), expectation) if i.check == "odirect.bypass:/"]
        assert (finding.verdict, finding.found) == (verdict, words)
