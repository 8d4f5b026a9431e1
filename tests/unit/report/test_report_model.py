"""What a report says of hosts and of work that is under way, and its text for a terminal at the size of a fleet."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from gdsdeploy.errors import ChecksUnknown
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from gdsdeploy.report import formats, html, model
from gdsdeploy.report.formats import compare, report_from
from gdsdeploy.report.model import (
    UNREACHABLE,
    Activity,
    HostReport,
    Report,
    Trouble,
    activity_lines,
    causes,
    check_id,
    examined,
    heartbeat,
    sentence,
    subject,
    trouble_from,
)
from gdsdeploy.validate import fleet_validation as validation
from tests.unit.report.sample_report import CHECKS, DOWN, PATH, PEERMEM, findings, report

GOOD = HostReport("good", "gds", findings())
BAD = HostReport("bad", "gds", findings(storage_path__mnt_nvme=PATH, peermem_usable=PEERMEM))
OPEN = HostReport("open", "gds", findings(peermem_usable=PEERMEM))
LOST = HostReport("lost", "gds", trouble=trouble_from(DOWN))


@pytest.mark.parametrize(
    ("hosts", "verdict"),
    [
        ((GOOD,), PASS),
        ((GOOD, OPEN), UNKNOWN),
        ((GOOD, OPEN, LOST), UNREACHABLE),
        ((GOOD, OPEN, LOST, BAD), FAIL),
        ((), UNKNOWN),
        ((HostReport("empty", "gds"),), UNKNOWN),
    ],
)
def test_the_worst_verdict_wins_and_nothing_proves_nothing(hosts: tuple[HostReport, ...], verdict: str) -> None:
    assert Report("f", "d", "w", hosts).verdict == verdict


def test_counts() -> None:
    assert BAD.verdict == FAIL
    assert [BAD.count(verdict) for verdict in (PASS, FAIL, UNKNOWN)] == [len(CHECKS) - 2, 1, 1]
    assert LOST.verdict == UNREACHABLE
    assert LOST.trouble == Trouble("HostUnreachable", DOWN.message, str(DOWN.hint), 20)
    assert sentence(report()) == "1 of 4 hosts pass, 2 FAIL, 1 UNREACHABLE; 47 checked"
    assert sentence(Report("f", "d", "w", (GOOD,))) == "1 of 1 hosts pass; 16 checked"


def test_checks_are_listed_once_without_their_subjects() -> None:
    checks = report().checks()
    assert checks.count("storage.path") == 1
    assert len(checks) == len(CHECKS) - 1
    assert (check_id(PATH), subject(PATH)) == ("storage.path", "/mnt/nvme")
    assert (check_id(PEERMEM), subject(PEERMEM)) == ("peermem.usable", "")


BUILD = "gds_modules: Build nvidia with DKMS"
STEP = Activity("Provisioning gpu[1-40]", "", 0.0, 900.0)
HOSTS = [
    Activity("gds_driver: Install the driver's packages", f"gpu{number}", 500.0 + number, 120.0)
    for number in range(1, 41)
]
BUILDER = Activity(BUILD, "build1", 300.0, 330.0)


def test_lines_have_the_steps_and_then_the_longest_work() -> None:
    assert activity_lines([STEP, *HOSTS, BUILDER], 720.0, 10) == [
        "‣ Provisioning gpu[1-40] for 12 min (usually 15 min)",
        "    build1: gds_modules: Build nvidia with DKMS for 7 min (usually 6 min)",
        "    40 hosts: gpu[1-40]: gds_driver: Install the driver's packages for 4 min (usually 2 min)",
    ]


def test_lines_fit_the_terminal() -> None:
    different = [Activity(f"task {number}", f"h{number}", float(number)) for number in range(50)]
    text = activity_lines([STEP, *different], 100.0, 5)
    assert len(text) == 5
    assert text[1] == "    h0: task 0 for 2 min"
    assert text[-1] == "    and 47 more"
    assert len(activity_lines([STEP, *different], 100.0, 0)) == 2, "of a terminal without rows"


def test_a_heartbeat_is_one_line() -> None:
    assert heartbeat([STEP, BUILDER], 720.0) == (
        "  still at work: Provisioning gpu[1-40] for 12 min (usually 15 min); "
        "build1: gds_modules: Build nvidia with DKMS for 7 min (usually 6 min)"
    )
    different = [Activity(f"task {number}", f"h{number}", float(number)) for number in range(5)]
    assert heartbeat([STEP, *different], 9.0).endswith("h2: task 2 for 7 s; and 2 more")
    assert heartbeat([STEP, Activity("Reading trixie", "", 5.0)], 9.0).endswith("; Reading trixie for 4 s")
    assert heartbeat([], 9.0) == ""


# -- A check that is not applicable, in every format: counted apart, never passed or failed.

CHECKED = Finding("os.release", PASS, "t", "e", "debian-13")
SKIPPED = Finding("rdma.link", NOT_APPLICABLE, "t", "a link", "not needed: the fleet asks for no RDMA")
HOST = HostReport("node1", "gds", (SKIPPED, CHECKED, replace(SKIPPED, check="rdma.addresses")))


def skipping(*hosts: HostReport) -> Report:
    return Report("fleet.yml", "sha256:" + "5e" * 32, "2026-11-21T08:15:00Z", hosts or (HOST,))


def test_the_headline_counts_both() -> None:
    assert (HOST.verdict, examined(HOST.findings)) == (PASS, "1 checked, 2 not applicable")
    assert sentence(skipping()) == "1 of 1 hosts pass; 1 checked, 2 not applicable"
    assert validation.line(HOST).startswith("  ✓ node1: pass (1 checked, 2 not applicable, ")


def test_the_text_folds_them_into_one_line_unless_it_is_verbose() -> None:
    assert model.sentence(skipping()) == "1 of 1 hosts pass; 1 checked, 2 not applicable"
    assert formats.details(skipping()) == ""
    line = "  – rdma.link (not applicable): not needed: the fleet asks for no RDMA, on node1"
    assert line in formats.details(skipping(), verbose=True).splitlines()
    assert "–" in [column.header for column in formats.fleet_table(skipping()).columns]


def test_junit_skips_with_the_reason() -> None:
    (suite,) = ET.fromstring(formats.junit_xml(skipping()))
    assert (suite.get("tests"), suite.get("skipped"), suite.get("errors"), suite.get("failures")) == (
        "3",
        "2",
        "0",
        "0",
    )
    skipped = suite.findall("testcase/skipped")
    assert [element.get("message") for element in skipped] == [SKIPPED.found] * 2


def test_prometheus_counts_them_and_has_no_sample_of_a_pass() -> None:
    output = formats.metrics(skipping())
    assert 'gdsdeploy_host_checks{host="node1",profile="gds",verdict="not-applicable"} 2' in output
    assert not [line for line in output.splitlines() if "check_passed{" in line and "rdma" in line]


def test_html_has_its_own_symbol_and_word() -> None:
    page = "".join(html.stream(skipping()))
    assert '"not-applicable":"–"' in page
    assert '"not-applicable":"not applicable"' in page
    assert "1 checked, 2 not applicable" in page


def test_json_counts_them_for_each_host() -> None:
    host = json.loads("".join(formats.json_pieces(skipping())))["hosts"]["node1"]
    assert host["counts"] == {"fail": 0, "unknown": 0, "waived": 0, "pass": 1, "not-applicable": 2}


def test_a_host_on_which_nothing_was_examined_is_not_healthy() -> None:
    idle = replace(HOST, findings=(SKIPPED,))
    assert idle.verdict == skipping(idle).verdict == UNKNOWN
    error = validation.outcome(skipping(idle))
    assert isinstance(error, ChecksUnknown)
    assert "node1 (nothing was examined)" in error.message


def parsed(*findings: Finding) -> dict[str, object]:
    return report_from(io.StringIO("".join(formats.json_pieces(skipping(replace(HOST, findings=findings))))))


def test_an_earlier_report_that_leaves_a_check_out_is_the_same() -> None:
    assert compare(parsed(CHECKED), parsed(CHECKED, SKIPPED)).changes == ()
    assert compare(parsed(CHECKED, SKIPPED), parsed(CHECKED)).changes == ()
    (change,) = compare(parsed(CHECKED, replace(SKIPPED, verdict=PASS)), parsed(CHECKED, SKIPPED)).changes
    assert (change.before, change.after, change.why) == (PASS, NOT_APPLICABLE, SKIPPED.found)
    reworded = replace(SKIPPED, found="another reason")
    assert compare(parsed(CHECKED, SKIPPED), parsed(CHECKED, reworded)).changes == ()


def test_a_report_without_counts_is_read() -> None:
    value = json.loads("".join(formats.json_pieces(skipping())))
    del value["hosts"]["node1"]["counts"]
    assert report_from(io.StringIO(json.dumps(value)))["hosts"]["node1"]["verdict"] == PASS


# -- The text for a terminal at the size of a fleet: alike hosts once, causes by the hosts they hit, few lines.

LINES = 60


def finding(check: str, verdict: str = FAIL, **more: object) -> Finding:
    values = {"title": f"{check} is right", "expected": "the locked one", "found": "another one", **more}
    hint = "Run `gdsdeploy provision fleet.yml --limit HOST`"
    return Finding(check, verdict, hint=hint, **values)  # type: ignore[arg-type]


def host(name: str, *findings: Finding, **more: object) -> HostReport:
    named = tuple(replace(each, hint=each.hint.replace("HOST", name)) for each in findings)
    return HostReport(name, "gds", named, **{"stack": (("kernel", "6.12"),), **more})  # type: ignore[arg-type]


def grouped(*hosts: HostReport) -> Report:
    return Report("fleet.yml", "sha256:0", "2026-11-21T08:15:00Z", hosts)


def shown(grouped: Report, *, verbose: bool = False) -> str:
    """Everything that `gdsdeploy validate` prints, 80 columns wide."""
    out = io.StringIO()
    Console(file=out, width=80).print(formats.fleet_table(grouped, verbose=verbose))
    rows = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return f"{model.sentence(grouped)}\n\n{rows}\n\n{formats.details(grouped, verbose=verbose)}"


def never_provisioned(name: str) -> HostReport:
    """Many checks fail, with long evidence that differs from host to host."""
    evidence = [f"{name}: line {number}" for number in range(30)]
    failing = [finding(f"driver.check{number}", found="a\n" * 20, evidence=evidence) for number in range(20)]
    return host(name, *failing, *(finding(f"gds.check{number}", UNKNOWN) for number in range(20)))


def test_five_hundred_identical_hosts_take_few_lines() -> None:
    output = shown(grouped(*(never_provisioned(f"node{number}") for number in range(1, 501))))
    assert len(output.splitlines()) <= LINES
    assert "✗ driver.check0 (FAIL) on 500 hosts: node[1-500]\n" in output
    assert "what to do: Run `gdsdeploy provision fleet.yml --limit 'node[1-500]'`\n" in output
    assert "    | on node1:\n" in output
    assert "(--verbose shows everything)" in output


def test_many_kinds_of_hosts_take_few_lines_too() -> None:
    hosts = [host(f"n{n}x{n * n}", *(finding(f"a.b{each}") for each in range(n))) for n in range(1, 60)]
    assert len(shown(grouped(*hosts)).splitlines()) <= LINES
    assert "and 47 more; --verbose" in shown(grouped(*hosts))


def test_the_golden_text() -> None:
    kernel, cufile = finding("kernel.running", found="6.1"), finding("cufile.rendered", evidence=["a", "b"])
    lost = [
        host(
            f"gpu{n}",
            trouble=Trouble("HostUnreachable", f"gpu{n} (192.0.2.{n}:22): cannot connect", "Start it", 20),
            stack=(),
        )
        for n in (20, 21)
    ]
    good = [host(f"gpu{n}", finding("os.release", PASS), finding("rdma.link", NOT_APPLICABLE)) for n in range(1, 8)]
    bad = [host(f"gpu{n}", kernel, cufile) for n in (8, 9, 11)]
    assert (
        shown(grouped(*good, *bad, host("login", cufile), *lost))
        == """\
7 of 13 hosts pass, 4 FAIL, 2 UNREACHABLE; 14 checked, 7 not applicable

host             verdict        ✓  ✗  ?  –  runs         storage paths
gpu[8-9,11] (3)  ✗ FAIL         0  2  0  0  kernel 6.12  -
login            ✗ FAIL         0  1  0  0  kernel 6.12  -
gpu[20-21] (2)   ! UNREACHABLE  -  -  -  -  -            -
gpu[1-7] (7)     ✓ pass         1  0  0  1  kernel 6.12  -

✗ cufile.rendered (FAIL) on 4 hosts: gpu[8-9,11], login
    cufile.rendered is right
    expected:   the locked one
    found:      another one
    what to do: Run `gdsdeploy provision fleet.yml --limit 'gpu[8-9,11],login'`
    | a
    | b
✗ kernel.running (FAIL) on 3 hosts: gpu[8-9,11]
    kernel.running is right
    expected:   the locked one
    found:      6.1
    what to do: Run `gdsdeploy provision fleet.yml --limit 'gpu[8-9,11]'`
! HostUnreachable on 2 hosts: gpu[20-21]
    cannot connect
    what to do: Start it"""
    )


def test_causes_come_by_the_hosts_that_they_hit() -> None:
    rare, common = finding("a.rare"), finding("b.common")
    each = grouped(host("n1", rare, common), host("n2", common), host("n3", replace(common, found="a third one")))
    assert [(dict(one.fields)["found"], [*one.hosts]) for one in causes(each, FAIL)] == [
        ("another one", ["n1", "n2"]), ("another one", ["n1"]), ("a third one", ["n3"]),
    ]  # fmt: skip


def test_verbose_keeps_every_host_and_every_line() -> None:
    hosts = [never_provisioned(f"node{number * 2}") for number in range(100)]
    output = shown(grouped(*hosts), verbose=True)
    for number in range(100):
        assert output.count(f"| node{number * 2}: line 29\n") == 20
    assert "more" not in output


def test_evidence_that_differs_is_one_cause_unless_verbose() -> None:
    same = grouped(*(host(f"n{n}", finding("a.b", evidence=[f"pid {n}"])) for n in (1, 2)))
    assert [one.hosts for one in causes(same, FAIL)] == [("n1", "n2")]
    assert [one.hosts for one in causes(same, FAIL, evidence=True)] == [("n1",), ("n2",)]


def test_a_name_is_replaced_as_a_whole_word() -> None:
    assert model.general("gpu1 (192.0.2.1:22): gpu1 is not gpu10, gpu1.example or x-gpu1", "gpu1") == (
        "HOST is not gpu10, gpu1.example or x-gpu1"
    )
    assert model.for_all("run `x --limit gpu1`, not --limit gpu11", ["gpu1", "gpu2", "a"]) == (
        "run `x --limit 'a,gpu[1-2]'`, not --limit gpu11"
    )
    assert model.for_all("x --limit gpu1", ["gpu1"]) == "x --limit gpu1"
    assert model.for_all("x --limit a0x0", [f"a{n}x{n}" for n in range(99)]) == "x --limit HOST,…"


def test_blocks_are_shown_in_full_while_there_is_room() -> None:
    blocks = [[f"heading {number}", *["line"] * 9] for number in range(20)]
    lines = model.shown(blocks)
    assert len([line for line in lines if line == "line"]) == 9 * (model.LINES // 10)
    assert lines[-1] == f"and {20 - model.LINES // 10 - model.HEADINGS} more; --verbose shows everything"
    assert len(model.shown(blocks, whole=True)) == 200
    assert len(model.shown([["a"] * 100])) == model.LINES + 1, "no block takes more than all the room"
