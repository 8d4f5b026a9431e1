"""What was found on one host is found on another only where the checks would read the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.model.expectation import Expectation, from_json
from gdsdeploy.host.subjects.register import failed
from gdsdeploy.validate.fleet_validation import ValidateOptions, host_report

EVIDENCE = Path(__file__).parents[3] / "evidence"
HOSTS = {
    "lab-vm": (
        json.loads((EVIDENCE / "hosts/lab-vm-provisioned.json").read_text()),
        from_json((EVIDENCE / "hosts/lab-vm.expectation.json").read_text()),
    ),
    **{
        name: (value["evidence"], from_json(json.dumps(value["expectation"])))
        for name in ("h100", "h200")
        for value in [json.loads((EVIDENCE / f"validate/{name}.json").read_text())]
    },
}
#: Entries of each host that are changed, one at a time.
ENTRIES = 30


def changed(evidence: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """The evidence with one entry changed, missing, or in error."""
    choice = random.Random(seed)
    places = [
        (section, key)
        for section, entries in evidence.items()
        if isinstance(entries, dict)
        for key in sorted(entries)
        if section != "host"
    ]
    for section, key in choice.sample(places, ENTRIES):
        entries = evidence[section]
        others = {name: value for name, value in entries.items() if name != key}
        record = entries[key]
        other = f"{record[: len(record) // 2]}9\n" if isinstance(record, str) else {"error": "EIO"}
        yield {**evidence, section: others}
        yield {**evidence, section: {**others, key: {"error": "EACCES"}}}
        yield {**evidence, section: {**others, key: other}}


def rows(evidence: dict[str, Any], expectation: Expectation, memory: checks.Memory | None = None) -> list[Any]:
    """What a report has of a host: its findings, its stack and its topology."""
    report = host_report(expectation, evidence, ValidateOptions(), [], memory=memory)
    return [*(finding.as_dict() for finding in report.findings), report.stack, report.topology]


@pytest.mark.parametrize("host", HOSTS)
def test_a_memory_changes_no_finding(host: str) -> None:
    evidence, expectation = HOSTS[host]
    memory = checks.Memory()
    rows(evidence, expectation, memory)
    differing = 0
    for number, other in enumerate(changed(evidence, 20261130)):
        expected = replace(expectation, host=f"host-number-{number}")
        judged = rows(other, expected)
        assert rows(other, expected, memory) == judged
        differing += judged != rows(evidence, expected, memory)
    assert differing > ENTRIES / 4, "most of these changes concern no check"


def test_what_is_expected_counts() -> None:
    evidence, expectation = HOSTS["lab-vm"]
    memory = checks.Memory()
    for expected in (expectation, replace(expectation, driver_version="1.2.3"), expectation):
        assert rows(evidence, expected, memory) == rows(evidence, expected)


def test_alike_hosts_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, expectation = HOSTS["lab-vm"]
    memory = checks.Memory()
    other = {**evidence, "collected_at": "2030-01-01T00:00:00Z", "host": {**evidence["host"], "name": "other"}}
    first = rows(evidence, replace(expectation, host="host-one"), memory)
    judged: list[str] = []
    run = checks._run
    monkeypatch.setattr(checks, "_run", lambda check, *rest: judged.append(check.id) or run(check, *rest))
    assert rows(other, replace(expectation, host="host-two"), memory) == first
    assert judged == []


def test_a_finding_that_names_the_host_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, expectation = HOSTS["lab-vm"]
    naming = checks.listed()[0]._replace(judge=lambda _, expected: failed("wrong", f"Repair {expected.host}"))
    monkeypatch.setattr(checks, "listed", lambda: (naming,))
    memory = checks.Memory()
    for name in ("host-one", "host-two"):
        own = replace(expectation, host=name)
        assert rows(evidence, own, memory) == rows(evidence, own)


@pytest.mark.parametrize(
    "read",
    [
        lambda section: section["one"],
        lambda section: section.get("one"),
        lambda section: "one" in section,
        lambda section: list(section),
        lambda section: list(section.items()),
        lambda section: list(section.values()),
        lambda section: list(section.keys()),
        lambda section: {**section},
        lambda section: dict(section),
        lambda section: len(section),
        lambda section: bool(section),
        lambda section: section == {},
    ],
)
def test_each_way_to_read_a_section_counts(read: Any) -> None:
    def result(files: Any) -> Any:
        try:
            return read(files)
        except KeyError:
            return "missing"

    document = Document({"files": {"one": "1"}}, watched=True)
    value, reads = document.watching(lambda: result(document.value["files"]))
    assert document.same(reads)
    for other in ({}, {"one": "2"}, {"one": "1", "two": "2"}):
        if result(other) != value:
            assert not Document({"files": other}, watched=True).same(reads), other
