"""Faults in the kernel's log: which source counts, what a line means, and what an incomplete log leaves open."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gdsdeploy.host.evidence.kernel import MESSAGES
from gdsdeploy.host.facts import facts_from, kernel
from gdsdeploy.host.facts.kernel import Meaning, meanings
from gdsdeploy.host.model.finding import FAIL, PASS, Finding
from tests.unit.host.checks.changes import EXPECTATION, GOOD, findings
from tests.unit.host.patches import patched

RDMA = replace(EXPECTATION, rdma="peermem")
CHECKS = {"nvidia": "driver.errors", "nvidia-fs": "nvidia-fs.errors", "nvidia-peermem": "peermem.errors"}


def finding(ident: str, *lines: str) -> Finding:
    return findings(patched(GOOD, {"$log": list(lines)}), RDMA)[ident]


@pytest.mark.parametrize("row", meanings(), ids=lambda row: row.id)
def test_a_sample_matches_its_row_only_and_is_collected(row: Meaning) -> None:
    assert [other.id for other in meanings() if re.search(other.pattern, row.sample)] == [row.id]
    assert re.search(MESSAGES, row.sample)
    (message,) = kernel.messages([row.sample], row.module)
    assert message.meaning is row
    assert bool(message.xid) == row.id.startswith("xid-")


@pytest.mark.parametrize("row", meanings(), ids=lambda row: row.id)
def test_a_check_reports_the_row(row: Meaning) -> None:
    result = finding(CHECKS[row.module], row.sample)
    assert result.verdict == (FAIL if row.fault else PASS)
    assert row.what in result.found
    assert result.evidence == [row.sample]
    if row.fault:
        assert result.hint == row.fix[:1].upper() + row.fix[1:]
    others = set(CHECKS.values()) - {CHECKS[row.module]}
    assert {finding(name, row.sample).found for name in others} == {"none in the kernel's messages"}


def test_repeated_messages_that_the_kernel_left_out_are_collected() -> None:
    assert re.search(MESSAGES, "[ 95.0] nvfs_get_dma: 12 callbacks suppressed")
    assert not re.search(MESSAGES, "[ 95.0] net_ratelimit: 12 callbacks suppressed")


def test_lines_of_both_sources_are_one_log_by_time() -> None:
    xid = "[ 90.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=train, GPU has fallen off the bus."
    document = patched(GOOD, {"$log": [xid]})
    document["commands"]["dmesg"]["stdout"] += "[ 90.05] NVRM: later in dmesg only\n"
    log = facts_from(document).kernel.log
    assert log.lines[-2:] == ("[ 90.05] NVRM: later in dmesg only", xid)
    assert (log.since_boot, log.source) == (True, "dmesg")
    assert len(set(log.lines)) == len(log.lines)
