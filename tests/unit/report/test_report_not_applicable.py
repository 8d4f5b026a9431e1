"""A check that is not applicable, in every format: counted apart, never passed or failed."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

from gdsdeploy.errors import ChecksUnknown
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS, UNKNOWN, Finding
from gdsdeploy.report import formats, html
from gdsdeploy.report.formats import compare, report_from
from gdsdeploy.report.model import HostReport, Report, by_verdict, examined, sentence
from gdsdeploy.validate import fleet_validation as validation

CHECKED = Finding("os.release", PASS, "t", "e", "debian-13")
SKIPPED = Finding("rdma.link", NOT_APPLICABLE, "t", "a link", "not needed: the fleet asks for no RDMA")
HOST = HostReport("node1", "gds", (SKIPPED, CHECKED, replace(SKIPPED, check="rdma.addresses")))


def report(*hosts: HostReport) -> Report:
    return Report("fleet.yml", "sha256:" + "5e" * 32, "2026-11-21T08:15:00Z", hosts or (HOST,))


def test_the_headline_counts_both() -> None:
    assert (HOST.verdict, examined(HOST.findings)) == (PASS, "1 checked, 2 not applicable")
    assert sentence(report()) == "1 of 1 hosts pass; 1 checked, 2 not applicable"
    assert by_verdict(HOST.findings)[0] == CHECKED
    assert validation.line(HOST).startswith("  ✓ node1: pass (1 checked, 2 not applicable, ")


def test_the_text_folds_them_into_one_line_unless_it_is_verbose() -> None:
    assert formats.summary(report()) == "1 of 1 hosts pass; 1 checked, 2 not applicable\n"
    assert formats.details(report()) == ""
    line = "  – rdma.link (not applicable): not needed: the fleet asks for no RDMA, on node1"
    assert line in formats.details(report(), verbose=True).splitlines()
    assert "–" in [column.header for column in formats.fleet_table(report()).columns]


def test_junit_skips_with_the_reason() -> None:
    (suite,) = ET.fromstring(formats.junit_xml(report()))
    assert (suite.get("tests"), suite.get("skipped"), suite.get("errors"), suite.get("failures")) == (
        "3",
        "2",
        "0",
        "0",
    )
    skipped = suite.findall("testcase/skipped")
    assert [element.get("message") for element in skipped] == [SKIPPED.found] * 2


def test_prometheus_counts_them_and_has_no_sample_of_a_pass() -> None:
    output = formats.metrics(report())
    assert 'gdsdeploy_host_checks{host="node1",profile="gds",verdict="not-applicable"} 2' in output
    assert not [line for line in output.splitlines() if "check_passed{" in line and "rdma" in line]


def test_html_has_its_own_symbol_and_word() -> None:
    page = html.render(report())
    assert '"not-applicable":"–"' in page
    assert '"not-applicable":"not applicable"' in page
    assert "1 checked, 2 not applicable" in page


def test_json_counts_them_for_each_host() -> None:
    host = json.loads(formats.json_text(report()))["hosts"]["node1"]
    assert host["counts"] == {"fail": 0, "unknown": 0, "waived": 0, "pass": 1, "not-applicable": 2}


def test_a_host_on_which_nothing_was_examined_is_not_healthy() -> None:
    idle = replace(HOST, findings=(SKIPPED,))
    assert idle.verdict == report(idle).verdict == UNKNOWN
    error = validation.outcome(report(idle))
    assert isinstance(error, ChecksUnknown)
    assert "node1 (nothing was examined)" in error.message


def parsed(*findings: Finding) -> dict[str, object]:
    return report_from(formats.json_text(report(replace(HOST, findings=findings))))


def test_an_earlier_report_that_leaves_a_check_out_is_the_same() -> None:
    assert compare(parsed(CHECKED), parsed(CHECKED, SKIPPED)).changes == ()
    assert compare(parsed(CHECKED, SKIPPED), parsed(CHECKED)).changes == ()
    (change,) = compare(parsed(CHECKED, replace(SKIPPED, verdict=PASS)), parsed(CHECKED, SKIPPED)).changes
    assert (change.before, change.after, change.why) == (PASS, NOT_APPLICABLE, SKIPPED.found)
    reworded = replace(SKIPPED, found="another reason")
    assert compare(parsed(CHECKED, SKIPPED), parsed(CHECKED, reworded)).changes == ()


def test_a_report_without_counts_is_read() -> None:
    value = json.loads(formats.json_text(report()))
    del value["hosts"]["node1"]["counts"]
    assert report_from(json.dumps(value))["hosts"]["node1"]["verdict"] == PASS
