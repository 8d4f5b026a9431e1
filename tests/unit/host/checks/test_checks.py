"""Checks: their register, and hosts as a whole; tests/cases/checks has what each says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.checks import listed, text
from gdsdeploy.host.facts import UndecidedError, Unknown, facts_from
from gdsdeploy.host.gate import gate
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    UNKNOWN,
    WAIVED,
    Finding,
    Waiver,
    apply,
    worst,
)
from gdsdeploy.host.subjects import register
from gdsdeploy.host.subjects.condition import Cause, Condition
from gdsdeploy.host.subjects.kernel import MESSAGES, RECOVERY, UNTOLD, Meaning, meanings, messages
from gdsdeploy.host.subjects.register import Answer, check, passed
from tests.unit.host.checks.changes import BARE, EXPECTATION, GOOD, HOSTS, Document, findings, verdicts
from tests.unit.host.checks.faults import FAULTS
from tests.unit.host.patches import patched


def test_ids_are_words_under_a_subject_and_in_its_order() -> None:
    ids = [entry.id for entry in listed()]
    assert all(re.fullmatch(r"[a-z-]+\.[a-z0-9-]+", ident) for ident in ids)
    subjects = [*dict.fromkeys(ident.split(".")[0] for ident in ids)]
    assert subjects == [name for name in register.ORDER if name in subjects]
    assert set(register.ORDER) == {*subjects, *register.collectors()}


def test_every_check_says_what_it_asserts_expects_and_prevents() -> None:
    names = {field.name for field in fields(Expectation)}
    for entry in listed():
        assert all((entry.title, entry.expects, entry.prevents, entry.unknown_hint))
        assert set(re.findall(r"\{(\w+)\}", entry.expects)) <= names
        assert not entry.title.endswith(".")


def test_an_id_is_taken_once() -> None:
    with pytest.raises(ValueError, match=re.escape("two checks have the id os.release")):
        check("os.release", "x", expects="x", prevents="x")(lambda _facts, _expectation: passed("x"))


def test_what_conditions_say() -> None:
    """The first that doesn't hold decides, even after one that isn't known, which alone never passes."""
    holds, fails = Condition(True), Condition(False, Cause("x.y", "it is off", "turn it on: x", ("/x: 0",)))
    unseen, suspect = (
        Condition(Unknown("not seen")),
        Condition(Unknown("perhaps"), Cause("x.z", "z", "look"), suspect=True),
    )

    def ends(*steps: Condition | Answer) -> Iterator[Condition | Answer]:
        yield from steps
        raise UndecidedError("no fact")

    off = Answer(FAIL, "it is off", "Turn it on: x", ("/x: 0",))
    assert register.answers([holds, passed("on")]) == [passed("on")]
    assert register.answers([holds, unseen, fails, passed("on")]) == [off]
    for steps, reason, hint in (
        ([holds, unseen, suspect, passed("on")], "not seen", ""),
        ([holds, suspect, passed("on")], "perhaps", "Look"),
        (ends(holds, passed("on")), "no fact", ""),
        (ends(unseen), "not seen", ""),
    ):
        with pytest.raises(UndecidedError, match=reason) as error:
            register.answers(steps)
        assert error.value.hint == hint
    assert register.answer([unseen], "Try", expected="e", subject="s") == Answer(
        UNKNOWN, "not seen", "Try", (), "e", "s"
    )
    assert register.answer(ends(fails), subject="s") == off._replace(subject="s")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_comes_with_words(fault: str) -> None:
    """Which checks fail is the case's to say."""
    for finding in findings(FAULTS[fault].document()).values():
        if finding.verdict not in (PASS, NOT_APPLICABLE):
            assert all((finding.hint, finding.expected, finding.found)), finding


@pytest.mark.parametrize(("release", "logged_values"), [("1.15.1", 33), ("1.20.0", 63)])
def test_values_of_hosts_with_a_gpu_are_the_intended_ones(release: str, logged_values: int) -> None:
    document = json.loads((HOSTS / f"h100-libcufile-{release}.json").read_text())
    config = {"properties": {"allow_compat_mode": True, "io_batchsize": 128, "posix_pool_slab_count": [128, 64, 64]}}
    document["files"]["/etc/cufile.json"] = json.dumps(config)
    expectation = replace(EXPECTATION, libcufile_version=release)
    text = findings(document, expectation)["cufile.effective"].found
    assert text == f"3 values as intended, of {logged_values} that libcufile logs"


def test_every_check_is_seen_failing() -> None:
    names = {name.partition(":")[0] for case in FAULTS.values() for name in case.steps[0]["failing"]}
    names |= {name.partition(":")[0] for name, verdict in verdicts(BARE).items() if verdict == FAIL}
    # By cases of their own: they depend on what the fleet asks for, or need a host with a GPU.
    elsewhere = {"odirect.bypass", "odirect.conditions", "driver.services", "gpu.present"}
    elsewhere |= {check.id for check in checks.listed() if check.id.startswith(("peermem.", "rdma.", "topology."))}
    assert {check.id for check in checks.listed()} - names == elsewhere


GDSCHECK = HOSTS.parent / "gdscheck"
LIVE = HOSTS.parent / "gdscheck-live"
FORCED = LIVE / "gdscheck-p.libcufile-1.9.1.3.forced-compat.txt"
HOOKLESS = LIVE / "gdscheck-p.libcufile-1.9.1.3.no-sections.txt"


def recorded(name: str) -> Path:
    return GDSCHECK / f"gdscheck-p.libcufile-{name}.txt"


@pytest.mark.parametrize(
    ("recording", "status", "verdict", "words"),
    [
        (recorded("1.9.1.ngpu0.no-nvidia-fs.noconfig"), None, PASS, "for a reason found here too"),
        (
            recorded("1.15.1.json-badtype"), None, FAIL,
            "which nothing found here explains: json type mismatch",
        ),
        (recorded("1.9.1.no-nvfs.compat-false"), None, FAIL, "nvidia-fs driver is not loaded"),
        (recorded("1.9.1.nvfs-version-2.3"), None, FAIL, "it sees nvidia-fs 2.3; loaded here is"),
        (
            recorded("1.9.1.ngpu1.nvfs-2.28.proprietary-driver"), None, FAIL,
            "it sees the proprietary driver; found here: open",
        ),
        (
            recorded("1.9.1.ngpu1.no-nvidia-fs.noconfig"), None, FAIL,
            "it does not see nvidia-fs, which is loaded here",
        ),
        (recorded("1.20.0.ngpu1.nvfs-2.28.open-driver"), None, FAIL, "the nvme driver has no hooks for nvidia-fs"),
        (FORCED, 0, PASS, "compat: the same driver, nvidia-fs and storage"),
        (HOOKLESS, 0, PASS, "compat: the same driver, nvidia-fs and storage"),
        (HOOKLESS, 134, UNKNOWN, "gdscheck ended with status 134 after a whole report"),
        (
            recorded("1.9.1.nvfs-version-2.3"), 0, FAIL,
            "an impossible direct path: the loaded nvidia-fs 2.3 is older than the minimum 2.12",
        ),
    ],
)  # fmt: skip
def test_gdscheck_is_held_against_the_other_findings(
    recording: Path, status: int | None, verdict: str, words: str
) -> None:
    text, _, ended = recording.read_text().rstrip().rpartition("\nrc=")
    if recording in (FORCED, HOOKLESS):
        # Recorded with nvidia-fs 2.28, where the host runs 2.19.7.
        text = text.replace("nvidia_fs version:  2.28 ", "nvidia_fs version:  2.19 ")
    run = {"stdout": text, "stderr": "", "status": int(ended) if status is None else status}
    finding = findings({**GOOD, "commands": {**GOOD["commands"], "gdscheck": {**GOOD["commands"]["gdscheck"], **run}}})
    assert (finding["gdscheck.agrees"].verdict, words in finding["gdscheck.agrees"].found) == (verdict, True), finding


def test_a_cut_gdscheck_cannot_be_told() -> None:
    text, _, _ = recorded("1.9.1.ngpu1.nvfs-2.28.open-driver").read_text().partition("GPU INFO")
    document = patched(GOOD, {"commands": {"gdscheck": {"stdout": text, "stderr": "", "status": 0}}})
    assert findings(document)["gdscheck.agrees"].verdict == UNKNOWN


RDMA = replace(EXPECTATION, rdma="peermem")
CHECKS = {"nvidia": "driver.errors", "nvidia-fs": "nvidia-fs.errors", "nvidia-peermem": "peermem.errors"}


def finding(ident: str, *lines: str) -> Finding:
    return findings(patched(GOOD, {"$log": list(lines)}), RDMA)[ident]


@pytest.mark.parametrize("row", meanings(), ids=lambda row: row.id)
def test_a_sample_matches_its_row_only_and_is_collected(row: Meaning) -> None:
    assert [other.id for other in meanings() if re.search(other.pattern, row.sample)] == [row.id]
    assert re.search(MESSAGES, row.sample)
    (message,) = messages([row.sample], row.module)
    assert message.meaning is row
    assert bool(message.xid) == row.id.startswith("xid-")


@pytest.mark.parametrize("row", meanings(), ids=lambda row: row.id)
def test_a_check_reports_the_row(row: Meaning) -> None:
    result = finding(CHECKS[row.module], row.sample)
    assert result.verdict == (FAIL if row.fault else PASS)
    assert row.what in result.found
    assert result.evidence == [row.sample]
    if row.fault:
        assert result.hint == row.fix[:1].upper() + row.fix[1:] + (UNTOLD if row.over == RECOVERY else "")
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
        assert names == {check.id for check in checks.listed()}


NEVER_PROVISIONED = {"files": {"/etc/modules-load.d/gdsdeploy.conf": {"error": "ENOENT"}}}


@pytest.mark.parametrize("verdict", [PASS, UNKNOWN])
def test_only_a_failure_repeats_that_a_host_was_never_provisioned(
    monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    name = "packages.drift"
    answer = Answer(verdict, "seen")
    changed = register.CHECKS[name]._replace(judge=lambda _facts, _expectation: answer)
    listed = tuple(changed if check.id == name else check for check in register.listed())
    monkeypatch.setattr(checks, "listed", lambda: listed)
    assert verdicts(patched(BARE, NEVER_PROVISIONED))[name] == verdict
