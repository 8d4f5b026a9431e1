"""The schema that is shipped describes what `validate --json` prints, and refuses what it never prints."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import pytest

from gdsdeploy.host.model.finding import Waiver, apply
from gdsdeploy.report import formats
from gdsdeploy.report.model import WaiverUse
from tests.unit.report.sample_report import PEERMEM, TREE, findings, report

SCHEMA = json.loads(resources.files("gdsdeploy.report").joinpath("report.schema.json").read_text())


def waived() -> dict[str, Any]:
    """The sample with a waiver that holds on one host and one that is over."""
    original = report()
    waivers = [Waiver("nvidia-fs.driver-tree", "2026-12-31", "waits for the maintenance of week 50")]
    hosts = [replace(host, findings=tuple(apply(host.findings, waivers, "2026-11-21"))) for host in original.hosts]
    accepted = WaiverUse(waivers[0].check, waivers[0].until, waivers[0].reason, expired=False, hosts=("gpu2",))
    text = formats.json_text(replace(original, hosts=tuple(hosts), waivers=(accepted,)))
    value: dict[str, Any] = json.loads(text)
    return value


def valid(value: object) -> None:
    jsonschema.validate(value, SCHEMA, format_checker=jsonschema.FormatChecker())


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_report_conforms() -> None:
    valid(json.loads(formats.json_text(report())))
    value = waived()
    valid(value)
    finding = {entry["check"]: entry for entry in value["hosts"]["gpu2"]["findings"]}["nvidia-fs.driver-tree"]
    assert finding["verdict"] == "waived"
    assert finding["waiver"]["was"] == "fail"
    assert TREE.found == finding["found"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), "good"),
        (("when",), None),
        (("counts", "pass"), -1),
        (("hosts", "gpu1", "surplus"), 1),
        (("hosts", "gpu1", "error"), {"kind": "x", "message": "", "hint": "", "exit_code": 1}),
        (("hosts", "gpu4", "error"), None),
        (("hosts", "gpu2", "findings", 0, "verdict"), "waived"),
        (("waivers", 0, "until"), "soon"),
    ],
)
def test_it_refuses_what_is_never_printed(path: tuple[str | int, ...], value: object) -> None:
    broken = copy.deepcopy(waived())
    place: Any = broken
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        valid(broken)


def test_a_waiver_covers_subjects_and_what_could_not_be_told_and_nothing_that_passes() -> None:
    every = list(findings(peermem_usable=PEERMEM))
    covered = apply(
        every, [Waiver("peermem.usable", "2026-11-21", "r"), Waiver("storage.path", "2026-11-21", "r")], "2026-11-21"
    )
    verdicts = {finding.check: finding.verdict for finding in covered}
    assert verdicts["peermem.usable"] == "waived"
    assert verdicts["storage.path:/home"] == "pass"


def test_a_waiver_that_is_over_fails_and_says_so() -> None:
    (finding,) = apply([TREE], [Waiver("nvidia-fs.driver-tree", "2026-11-20", "week 47")], "2026-11-21")
    assert finding.verdict == "fail"
    assert "its waiver ended on 2026-11-20 (week 47)" in finding.hint


def test_the_longest_of_several_waivers_counts() -> None:
    waivers = [Waiver("nvidia-fs.driver-tree", day, day) for day in ("2026-11-20", "2026-11-30", "2026-11-19")]
    (finding,) = apply([TREE], waivers, "2026-11-21")
    assert finding.verdict == "waived"
    assert finding.waiver == {"until": "2026-11-30", "reason": "2026-11-30", "was": "fail"}
