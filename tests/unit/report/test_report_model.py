from __future__ import annotations

import pytest

from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN
from gdsdeploy.report.model import (
    UNREACHABLE,
    HostReport,
    Report,
    by_verdict,
    check_id,
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


def test_trouble_keeps_the_error() -> None:
    trouble = trouble_from(DOWN)
    assert (trouble.kind, trouble.exit_code) == ("HostUnreachable", 20)
    assert trouble.message == DOWN.message
    assert trouble.hint == DOWN.hint
