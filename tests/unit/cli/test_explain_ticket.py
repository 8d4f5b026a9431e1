"""``gdsdeploy explain --ticket``: one file with a host's evidence, what explain says, and the logs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gdsdeploy.cli import group
from gdsdeploy.validate.ticket import REPORT

EVIDENCE = Path(__file__).parents[2] / "evidence" / "hosts" / "h100-libcufile-1.20.0.json"
LOG = Path(__file__).parents[2] / "evidence" / "h200" / "libcufile-1.15.1-trace.log"


def explain(*arguments: str | Path) -> Result:
    return CliRunner().invoke(group, ["explain", *map(str, arguments)])


def members(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            name.partition("/")[2]: archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            for name in archive.getnames()
        }


def test_a_ticket_has_the_explanation_the_logs_answer_and_the_evidence(tmp_path: Path) -> None:
    result = explain("--evidence", EVIDENCE, "--ticket", tmp_path, "--log", LOG)
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.iterdir()
    assert result.stdout.strip() == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    report = members(file)[REPORT]
    assert "===== What the host shows" in report
    assert "[udev.no-database]" in report
    assert "udev property not found: ID_FS_USAGE vda" in report


def test_explain_reads_a_ticket_as_evidence(tmp_path: Path) -> None:
    file = tmp_path / "case.tar.gz"
    assert explain("--evidence", EVIDENCE, "--ticket", file).exit_code == 0
    whole = json.loads(explain("--evidence", EVIDENCE, "--json").stdout)
    again = json.loads(explain("--evidence", file, "--json").stdout)
    assert again == whole
    assert explain("--evidence", file).exit_code == 0


def test_a_redacted_ticket_names_no_host(tmp_path: Path) -> None:
    evidence = json.loads(EVIDENCE.read_text())
    evidence["host"]["name"] = "gpu7.rack2.example.com"
    saved, log = tmp_path / "evidence.json", tmp_path / "kern.log"
    saved.write_text(json.dumps(evidence))
    log.write_text("Nov 26 12:00:00 storage9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, from 10.1.2.3\n")
    plain, hidden = tmp_path / "plain.tar.gz", tmp_path / "redacted.tar.gz"
    for file, more in ((plain, ()), (hidden, ("--redact",))):
        assert explain("--evidence", saved, "--ticket", file, "--log", log, *more).exit_code == 0
    for word in ("gpu7", "storage9", "10.1.2.3"):
        assert word in "".join(members(plain).values())
        assert word not in "".join([*members(hidden), *members(hidden).values()])
    assert "PCI:0000:3b:00): 79" in members(hidden)[REPORT]


@pytest.mark.parametrize("words", [("--error", "5027")])
def test_other_questions_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    assert explain("--ticket", tmp_path, *words).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_one_error(tmp_path: Path) -> None:
    result = explain("--evidence", EVIDENCE, "--ticket", tmp_path / "none" / "file.tar.gz")
    assert result.exit_code == 1
    assert "does not exist" in str(result.exception)
