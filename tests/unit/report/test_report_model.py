"""What a report says of hosts and of work that is under way: verdicts, counts, the order of findings, durations."""

from __future__ import annotations

import pytest

from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN
from gdsdeploy.report.model import (
    UNREACHABLE,
    Activity,
    HostReport,
    Report,
    activity_lines,
    by_verdict,
    check_id,
    heartbeat,
    sentence,
    subject,
    trouble_from,
)
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
    assert sentence(report()) == "1 of 4 hosts pass, 2 FAIL, 1 UNREACHABLE; 47 checked"
    assert sentence(Report("f", "d", "w", (GOOD,))) == "1 of 1 hosts pass; 16 checked"


def test_checks_are_listed_once_without_their_subjects() -> None:
    checks = report().checks()
    assert checks.count("storage.path") == 1
    assert len(checks) == len(CHECKS) - 1
    assert (check_id(PATH), subject(PATH)) == ("storage.path", "/mnt/nvme")
    assert (check_id(PEERMEM), subject(PEERMEM)) == ("peermem.usable", "")


def test_the_worst_findings_come_first_and_otherwise_keep_their_order() -> None:
    ordered = by_verdict(BAD.findings)
    assert ordered[:2] == [PATH, PEERMEM]
    assert [f.check for f in ordered[2:]] == [f.check for f in BAD.findings if f.verdict == PASS]


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
