"""What changed between two reports, and what is no change."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cli import main
from gdsdeploy.report import formats
from tests.unit.report.sample_report import report

BEFORE = json.loads(formats.json_text(report()))


def changed(change: Callable[[dict[str, Any]], object]) -> tuple[formats.Change, ...]:
    after = copy.deepcopy(BEFORE)
    change(after)
    return formats.compare(BEFORE, after).changes


def finding(value: dict[str, Any], host: str, check: str) -> dict[str, Any]:
    row: dict[str, Any] = next(entry for entry in value["hosts"][host]["findings"] if entry["check"] == check)
    return row


def test_a_report_is_what_it_is() -> None:
    assert changed(lambda _: None) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda after: after.update(when="2027-01-01T00:00:00Z", fleet="other.yml"),
        lambda after: after["hosts"]["gpu1"].update(seconds=9.9, boot_id="another"),
        lambda after: finding(after, "gpu1", "os.release").update(found="in other words", evidence=["x"]),
        lambda after: finding(after, "gpu2", "nvidia-fs.driver-tree").update(hint="do that", evidence=[]),
    ],
)
def test_when_and_how_are_no_changes(change: Callable[[dict[str, Any]], object]) -> None:
    assert changed(change) == ()


def test_a_reboot_is_told_and_no_change() -> None:
    after = copy.deepcopy(BEFORE)
    after["hosts"]["gpu1"]["boot_id"] = "another"
    comparison = formats.compare(BEFORE, after)
    assert comparison.rebooted == ("gpu1",)
    assert "rebooted in between: gpu1\nnothing changed between" in formats.changes_text(comparison)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda after: after.update(lock="sha256:other"), ("", "lock", BEFORE["lock"], "sha256:other")),
        (lambda after: after["hosts"].pop("gpu1"), ("gpu1", "host", "pass", "not there")),
        (
            lambda after: after["hosts"]["gpu1"]["stack"].update(kernel="6.12.117"),
            ("gpu1", "stack.kernel", "6.12.94+deb13-amd64", "6.12.117"),
        ),
        (
            lambda after: after["hosts"]["gpu1"]["stack"].pop("nvidia-fs"),
            ("gpu1", "stack.nvidia-fs", "2.19.7", "not there"),
        ),
        (
            lambda after: finding(after, "gpu1", "os.release").update(verdict="fail", found="debian-12"),
            ("gpu1", "os.release", "pass", "fail"),
        ),
        (
            lambda after: finding(after, "gpu2", "nvidia-fs.driver-tree").update(verdict="waived"),
            ("gpu2", "nvidia-fs.driver-tree", "fail", "waived"),
        ),
        (
            lambda after: finding(after, "gpu2", "nvidia-fs.driver-tree").update(found="no driver"),
            ("gpu2", "nvidia-fs.driver-tree",
             f"fail, found {finding(BEFORE, 'gpu2', 'nvidia-fs.driver-tree')['found']}", "found no driver"),
        ),
        (
            lambda after: after["hosts"]["gpu3"]["findings"].remove(finding(after, "gpu3", "kernel.taint")),
            ("gpu3", "kernel.taint", "pass", "not there"),
        ),
    ],
)  # fmt: skip
def test_one_change_is_one(change: Callable[[dict[str, Any]], object], expected: tuple[str, str, str, str]) -> None:
    (diff,) = changed(change)
    assert (diff.host, diff.what, diff.before, diff.after) == expected


def test_a_host_that_went_away_is_one_change_with_its_reason() -> None:
    def lose(after: dict[str, Any]) -> None:
        error = BEFORE["hosts"]["gpu4"]["error"]
        after["hosts"]["gpu1"] = {**BEFORE["hosts"]["gpu4"], "error": {**error, "message": "no answer"}}

    (diff,) = changed(lose)
    assert (diff.host, diff.what, diff.before, diff.after) == ("gpu1", "host", "pass", "unreachable")
    assert diff.why == "no answer"


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    before.write_text(json.dumps(BEFORE))
    value = copy.deepcopy(BEFORE)
    finding(value, "gpu1", "os.release").update(verdict="fail", found="debian-12", expected="debian-13")
    after.write_text(json.dumps(value))

    def run(*argv: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["diff", *map(str, argv)])
        return (ended.value.code, *capsys.readouterr())

    code, out, err = run(before, after)
    assert code == 33
    assert "gpu1:\n  os.release: pass → fail\n    found debian-12, expected debian-13\n1 change between" in out
    assert err == ""
    code, out, _ = run(before, after, "--json")
    assert code == 33
    document = json.loads(out)
    assert not document["same"]
    assert document["changes"][0]["what"] == "os.release"
    assert run(before, before)[:2] == (0, f"nothing changed between {BEFORE['when']} and {BEFORE['when']}\n")
    after.write_text("{}")
    code, _, err = run(before, after)
    assert code == 1
    assert f"{after}: it isn't a validation report" in err
    assert f"gdsdeploy validate fleet.yml --json > {after}\n" in err
    after.write_text("{")
    assert "it isn't a report: not JSON" in run(before, after)[2]
    after.write_text(json.dumps({**BEFORE, "version": 2}))
    assert "it is a report of version 2" in run(before, after)[2]
    assert f"{tmp_path / 'c.json'}: cannot be read: No such file" in run(before, tmp_path / "c.json")[2]
