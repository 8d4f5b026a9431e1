"""Faults in the kernel's log: which source counts, what a line means, and what an incomplete log leaves open."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest

from gdsdeploy.host.evidence.kernel import MESSAGES
from gdsdeploy.host.facts import Unknown, facts_from, kernel_messages
from gdsdeploy.host.facts.kernel_messages import UNLISTED, Meaning, meanings
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from tests.unit.host.checks.changes import EXPECTATION, GOOD, Change, Document, findings
from tests.unit.host.checks.faults_kernel_messages import PAGE_TABLE, only_in_the_journal, without_journal, wrapped
from tests.unit.host.checks.faults_stack import XIDS, kernel_log

RDMA = replace(EXPECTATION, rdma="peermem")
CHECKS = {"nvidia": "driver.errors", "nvidia-fs": "nvidia-fs.errors", "nvidia-peermem": "peermem.errors"}


def finding(ident: str, *changes: Change) -> Finding:
    document = copy.deepcopy(GOOD)
    for change in changes:
        change(document)
    return findings(document, RDMA)[ident]


@pytest.mark.parametrize("row", meanings(), ids=lambda row: row.id)
def test_a_sample_matches_its_row_only_and_is_collected(row: Meaning) -> None:
    assert [other.id for other in meanings() if re.search(other.pattern, row.sample)] == [row.id]
    assert re.search(MESSAGES, row.sample)
    (message,) = kernel_messages.messages([row.sample], row.module)
    assert message.meaning is row
    assert bool(message.xid) == row.id.startswith("xid-")


@pytest.mark.parametrize("row", meanings(), ids=lambda row: row.id)
def test_a_check_reports_the_row(row: Meaning) -> None:
    result = finding(CHECKS[row.module], kernel_log(row.sample))
    assert result.verdict == (FAIL if row.fault else PASS)
    assert row.what in result.found
    assert result.evidence == [row.sample]
    if row.fault:
        assert result.hint == row.fix[:1].upper() + row.fix[1:]
    others = set(CHECKS.values()) - {CHECKS[row.module]}
    assert {finding(name, kernel_log(row.sample)).found for name in others} == {"none in the kernel's messages"}


def test_an_unlisted_number_is_a_fault_and_named_so() -> None:
    result = finding("driver.errors", kernel_log("[ 90.4] NVRM: Xid (PCI:0000:3b:00): 790, pid=1, name=x"))
    assert (result.verdict, result.found) == (FAIL, f"Xid 790 on 0000:3b:00: {UNLISTED.what}")
    assert "catalog" in result.hint


def test_all_faults_are_named_with_their_fixes() -> None:
    result = finding("nvidia-fs.errors", kernel_log(PAGE_TABLE))
    assert result.evidence == PAGE_TABLE.split("\n")
    assert "can't be unloaded" in result.found
    assert "another page table" in result.found
    assert "rebuild nvidia-fs" in result.hint.lower()
    assert "then reboot" in result.hint


def test_what_nvidia_fs_printed_before_its_last_load_is_over() -> None:
    again = "\n[ 93.0] nvidia_fs: Initializing nvfs driver module"
    assert finding("nvidia-fs.errors", kernel_log(PAGE_TABLE + again)).verdict == PASS
    assert (
        finding("nvidia-fs.errors", kernel_log(again[1:] + "\n" + PAGE_TABLE.replace("[ 91", "[ 94"))).verdict == FAIL
    )


def test_a_refusal_to_be_loaded_is_over_once_peermem_is_loaded() -> None:
    def loaded(document: Document) -> None:
        document["files"]["/proc/modules"] += "nvidia_peermem 16384 0 - Live 0x0000000000000000\n"

    rows = {row.id: row for row in meanings()}
    refusal, mapping = rows["peermem-register"], rows["peermem-dma-map"]
    assert finding("peermem.errors", kernel_log(refusal.sample)).verdict == FAIL
    assert finding("peermem.errors", kernel_log(refusal.sample), loaded).verdict == PASS
    assert finding("peermem.errors", kernel_log(refusal.sample + "\n" + mapping.sample), loaded).verdict == FAIL


def test_a_journal_that_reaches_back_to_the_boot_suffices() -> None:
    assert finding("driver.errors", wrapped).verdict == PASS
    assert finding("driver.errors", only_in_the_journal).verdict == FAIL


def test_dmesg_from_the_boot_on_suffices_without_a_journal() -> None:
    assert finding("driver.errors", without_journal(lambda _: None)).verdict == PASS


def rotated(document: Document) -> None:
    run = document["commands"]["journal"]
    run["stdout"] = "".join(line for line in run["stdout"].splitlines(keepends=True) if "Linux version" not in line)


@pytest.mark.parametrize("change", [without_journal(wrapped), lambda d: (rotated(d), wrapped(d))])
def test_an_incomplete_log_without_a_fault_decides_nothing(change: Change) -> None:
    for name in CHECKS.values():
        result = finding(name, change)
        assert result.verdict == UNKNOWN
        assert "dmesg doesn't show the kernel's first message" in result.found
    # What it does show still counts.
    assert finding("driver.errors", kernel_log(XIDS[79]), change).verdict == FAIL


def test_output_that_was_cut_shows_faults_and_proves_no_absence() -> None:
    def cut(document: Document) -> None:
        for name in ("journal", "dmesg"):
            document["commands"][name]["error"] = "longer than 262144 bytes"

    assert finding("driver.errors", cut).verdict == UNKNOWN
    assert finding("driver.errors", kernel_log(XIDS[79]), cut).verdict == FAIL


def test_suppressed_messages_are_mentioned() -> None:
    line = "[ 95.0] nvfs_get_dma: 12 callbacks suppressed"
    result = finding("nvidia-fs.errors", kernel_log(line))
    assert result.found == "none in the kernel's messages; the kernel left out repeated messages"
    assert result.evidence == [line]
    assert re.search(MESSAGES, line)
    assert not re.search(MESSAGES, "[ 95.0] net_ratelimit: 12 callbacks suppressed")


def test_lines_of_both_sources_are_one_log_by_time() -> None:
    document = copy.deepcopy(GOOD)
    kernel_log(XIDS[79])(document)
    document["commands"]["dmesg"]["stdout"] += "[ 90.05] NVRM: later in dmesg only\n"
    log = facts_from(document).kernel.log
    assert log.lines[-2:] == ("[ 90.05] NVRM: later in dmesg only", XIDS[79])
    assert (log.since_boot, log.source) == (True, "dmesg")
    assert len(set(log.lines)) == len(log.lines)


def test_a_number_without_a_source_line_is_no_boot() -> None:
    """A message of a program that claims to be the kernel's first one, or comes later, doesn't count."""

    def later(document: Document) -> None:
        for name in ("journal", "dmesg"):
            run = document["commands"][name]
            run["stdout"] = run["stdout"].replace("[    0.000000]", "[  950.000000]")

    document = copy.deepcopy(GOOD)
    later(document)
    assert isinstance(facts_from(document).kernel.log.since_boot, Unknown)


def test_a_fleet_without_them_is_not_asked() -> None:
    document = copy.deepcopy(GOOD)
    kernel_log(PAGE_TABLE + "\n[ 92.0] nvidia-peermem nv_dma_map:219 error, incompatible dma mapping version 0x1")(
        document
    )
    results = findings(document, replace(EXPECTATION, mode="compat", nvidia_fs_version="", rdma="none"))
    assert {results[name].verdict for name in ("nvidia-fs.errors", "peermem.errors")} == {NOT_APPLICABLE}


def test_the_log_is_json() -> None:
    from gdsdeploy.host.facts import as_dict

    document = copy.deepcopy(GOOD)
    assert json.loads(json.dumps(as_dict(facts_from(document).kernel)))["log"]["since_boot"] is True
