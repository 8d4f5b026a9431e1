"""The fifth verdict: a check that has nothing to examine neither passes nor fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdsdeploy.host.checks import registry
from gdsdeploy.host.checks.registry import text
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.gate import gate
from gdsdeploy.host.model.finding import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    UNKNOWN,
    WAIVED,
    Finding,
    Waiver,
    apply,
    finding_from,
    worst,
)
from tests.unit.host.checks.changes import BARE, EXPECTATION, GOOD, Document, findings, verdicts
from tests.unit.host.patches import patched

OF_PROVISION = {check.id for check in registry.listed() if check.of_provision}


def of(*verdicts: str) -> list[Finding]:
    return [Finding(f"x.{number}", verdict, "t", "e", "f") for number, verdict in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((), UNKNOWN),
        ((NOT_APPLICABLE, NOT_APPLICABLE), UNKNOWN),
        ((NOT_APPLICABLE, PASS), PASS),
        ((NOT_APPLICABLE, WAIVED, PASS), WAIVED),
        ((NOT_APPLICABLE, UNKNOWN, PASS), UNKNOWN),
        ((NOT_APPLICABLE, FAIL), FAIL),
    ],
)
def test_a_host_is_judged_by_what_was_examined(verdicts: tuple[str, ...], expected: str) -> None:
    assert worst(of(*verdicts)) == expected


def test_the_gate_opens_beside_checks_that_are_not_applicable_and_never_on_them_alone() -> None:
    assert gate.decide(of(NOT_APPLICABLE, PASS)) == (gate.OPEN, "1 checks passed")
    assert gate.decide(of(NOT_APPLICABLE)) == (gate.CLOSED, "no check applies to this host")
    assert gate.decide([]) == (gate.CLOSED, "no check applies to this host")


def test_a_waiver_does_not_cover_it() -> None:
    (finding,) = of(NOT_APPLICABLE)
    assert apply([finding], [Waiver("x.0", "2099-01-01", "r")], "2026-01-01") == [finding]


def test_it_is_read_back() -> None:
    (finding,) = of(NOT_APPLICABLE)
    assert finding_from(finding.as_dict()) == finding


def test_the_metrics_of_the_gate_count_it_and_do_not_call_it_passed_or_failed() -> None:
    rows = [finding.as_dict() for finding in of(NOT_APPLICABLE, PASS)]
    record = gate.Record(
        boot_id="b", when="2026-01-01T00:00:00Z", seconds=1.0, basis="x", state=gate.OPEN, reason="r", verdict=PASS,
        findings=rows,
    )  # fmt: skip
    output = gate.render(record)
    assert 'gdsdeploy_gate_checks{verdict="not-applicable"} 1' in output
    assert [line for line in output.splitlines() if line.startswith("gdsdeploy_check_verdict{")] == [
        'gdsdeploy_check_verdict{check="x.1",subject=""} 0'
    ]


def test_the_text_of_a_host_names_all_of_them_in_one_line() -> None:
    output = text(EXPECTATION, facts_from(GOOD), list(findings(GOOD).values()))
    (line,) = [line for line in output.splitlines() if line.startswith("not applicable")]
    assert "rdma.link" in line
    assert output.endswith(f"{sum(verdict == NOT_APPLICABLE for verdict in verdicts(GOOD).values())} not applicable")


@pytest.mark.parametrize("document", [GOOD, BARE, {}])
def test_every_check_is_listed_on_every_host(document: Document) -> None:
    bare_fleet = replace(EXPECTATION, storage=[], own_kernel=False)
    for expectation in (EXPECTATION, bare_fleet):
        names = {name.partition(":")[0] for name in findings(document, expectation)}
        assert names == {check.id for check in registry.listed()}


NEVER_PROVISIONED = {"files": {"/etc/modules-load.d/gdsdeploy.conf": {"error": "ENOENT"}}}


def test_the_checks_of_what_provision_writes() -> None:
    assert {
        "boot.autoload",
        "cufile.rendered",
        "nvidia-fs.driver-tree",
        "packages.drift",
        "packages.locked-versions",
    } == OF_PROVISION


@pytest.mark.parametrize("verdict", [PASS, UNKNOWN])
def test_only_a_failure_repeats_that_a_host_was_never_provisioned(
    monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    name = "packages.drift"
    answer = registry.Answer(verdict, "seen")
    changed = replace(registry.CHECKS[name], judge=lambda _facts, _expectation: answer)
    monkeypatch.setitem(registry.CHECKS, name, changed)
    assert verdicts(patched(BARE, NEVER_PROVISIONED))[name] == verdict
