"""Answers are what they are called, at every place of them; what real hosts say is taken as it is."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.converge.machine import Machine
from gdsdeploy.errors import GdsError, HostUnfit, HostUnreachable
from gdsdeploy.host import evidence
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.explain import render
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.gate import gate
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.model.finding import FAIL, Finding
from gdsdeploy.host.subjects import trees
from gdsdeploy.host.subjects.mechanisms import choose
from gdsdeploy.report import formats, html
from gdsdeploy.report.model import HostReport, Report
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import Answer, Endpoint
from gdsdeploy.ssh.reply_schema import Evidence, GateShown
from gdsdeploy.validate import fleet_validation
from gdsdeploy.validate.facts import explain_facts, require_topology
from tests.unit.converge.test_expectation import fleet, lock
from tests.unit.hostile_words import VALUES, WORDS, places, with_value
from tests.unit.rdma_host import host as rdma_host

TESTS = Path(__file__).parents[2]
RECORDED = sorted(
    path for path in (TESTS / "evidence").rglob("*.json") if '"collected_at"' in path.read_text()[:200_000]
)
WAIVER = {"until": "2026-12-31", "reason": "known", "was": FAIL}
FINDING = Finding("storage.path:/mnt", FAIL, "t", "e", "f", "h", ["line"], WAIVER, "compat").as_dict()
RECORD = gate.Record(
    gate.CLOSED, "why", FAIL, "b-1", "2026-11-21T08:00:00Z", 1.5, "gpu1", "gds", "sha256:x", "0" * 64,
    [["kernel", "6.12"], ["driver", "550.1 open"]], [FINDING], ["odirect: stopped"],
)  # fmt: skip
PASSED = {**FINDING, "verdict": "pass", "waiver": None}
SHOWN = {"boot_id": "b-1", "record": json.loads(RECORD.to_json())}
EXPECTED = fleet_validation.expectation(Machine(fleet(), lock(), "gpu1"))
OPTIONS = fleet_validation.ValidateOptions(day="2026-11-22")


def came(document: Any) -> Answer:
    """The answer as it comes from a host that sends this: half of a character cannot be sent otherwise."""
    try:
        value = jsontext.loads(json.dumps(document))
    except ValueError as error:
        return Answer("gpu1", None, HostUnfit(f"gpu1: {error}"), 0.5)
    return Answer("gpu1", value if isinstance(value, dict) else None, None, 0.5)


def report_of(document: Any, *, since_boot: bool) -> HostReport:
    try:
        if since_boot:
            return fleet_validation.recorded(came(document), EXPECTED.profile, EXPECTED.lock_digest, OPTIONS, ())
        answer = came(document)

        def report(evidence: dict[str, Any]) -> HostReport:
            expected = fleet_validation.fit_expectation(fleet(), lock(), EXPECTED, answer)
            return fleet_validation.host_report(expected, evidence, OPTIONS, (), answer.seconds)

        return reply_schema.judge_reply(answer, "evidence", reply_schema.Evidence, report)
    except (HostUnfit, HostUnreachable) as error:
        return fleet_validation.report_without_evidence(EXPECTED, error, 0.5)


def written(host: HostReport) -> str:
    """Every format of a report, in bytes that a file takes, with an honest host beside this one."""
    honest = HostReport("honest", "gds", (Finding("kernel.running", FAIL, "t", "e", "f"),))
    report = Report("fleet.yml", "sha256:x", "2026-11-22T08:00:00Z", (host, honest))
    writers = (html.stream, formats.junit_xml, formats.metrics, formats.json_pieces)
    texts = ["".join(write(report)) for write in writers]
    texts.append(formats.details(report))
    for document in texts:
        document.encode()
        assert "honest" in document
    lines = [line for line in texts[2].splitlines() if not line.startswith("#")]
    sample = re.compile(r'[a-z_]+\{([a-z_]+="([^"\\]|\\.)*",?)*\} \S+')
    assert all(sample.fullmatch(line) for line in lines), lines
    return texts[3]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_real_hosts_say_is_taken_as_it_is(path: Path) -> None:
    document = json.loads(path.read_text())
    document = document.get("evidence", document)
    if "files" not in document:
        pytest.fail(f"{path} holds no evidence")
    assert reply_schema.judge_reply(came(document), "evidence", Evidence, dict) == document


def test_every_section_that_is_recorded_has_its_shape() -> None:
    assert {*Recorder().document, "environment"} == Evidence.model_fields.keys()
    assert f"(version {evidence.VERSION})" in str(evidence.__doc__)


def test_a_record_of_the_gate_is_taken_as_it_is() -> None:
    assert reply_schema.parse_reply("gpu1", "cat gate.json", GateShown, SHOWN).record == RECORD
    report = report_of(SHOWN, since_boot=True)
    assert [finding.check for finding in report.findings] == ["gate.this-boot", "storage.path:/mnt"]
    assert (
        report_of({**SHOWN, "record": None}, since_boot=True).findings[0].found
        == "the gate has not judged this host yet"
    )
    earlier = report_of({**SHOWN, "boot_id": "b-2"}, since_boot=True)
    assert [finding.check for finding in earlier.findings] == ["gate.this-boot"]
    assert "its last verdict, closed of 2026-11-21T08:00:00Z, is of an earlier one" in earlier.findings[0].found


HOST = Endpoint("gpu1", "192.0.2.1", 22, "root", (), ())


@pytest.mark.parametrize(
    ("now", "kept", "found"),
    [
        (RECORD, RECORD, "closed since"),
        (RECORD, None, "closed since"),
        (RECORD, "not JSON", "closed since"),
        (None, RECORD, "the gate's verdict on this boot, closed of 2026-11-21T08:00:00Z, is no longer in /run"),
        (None, replace(RECORD, state=gate.OPEN), "the gate's verdict on this boot, open of"),
        (None, replace(RECORD, boot_id="b-0"), "the gate has not judged this boot; its last verdict, closed of"),
        (None, None, "the gate has not judged this host yet"),
        # Nothing failed, and yet it is closed: its verdict couldn't be kept.
        (replace(RECORD, findings=[PASSED]), None, "closed since 2026-11-21T08:00:00Z: why"),
    ],
)  # fmt: skip
def test_only_the_record_in_run_is_a_verdict_on_this_boot(
    now: gate.Record | None, kept: gate.Record | str | None, found: str
) -> None:
    text = "b-1\n" + (now.to_json() if now else "") + "b-1\n"
    text += kept.to_json() if isinstance(kept, gate.Record) else kept or ""
    findings = report_of(fleet_validation.gate_document(HOST, text), since_boot=True).findings
    assert findings[0].found.startswith(found)
    assert findings[0].verdict == FAIL
    assert [finding.check for finding in findings[1:]] == ["storage.path:/mnt"] * bool(now)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has no id of the boot"),
        ("\n{}", "it has no id of the boot"),
        ("b-1\n[]", "the record isn't an object"),
        ("b-1\n" + RECORD.to_json()[:-9], "not JSON"),
        ("b-1\n" + "[" * 70 + "]" * 70, "it is nested more than 64 deep"),
        ('b-1\n{"version": 1, "version": 1}', "an object has a key twice"),
        ('b-1\n{"seconds": 1e999}', "1e999 is no number"),
        ("b-1\n[" + "0," * 100_001 + "0]", "it has too many items"),
    ],
)
def test_a_record_that_is_no_record(text: str, words: str) -> None:
    with pytest.raises(HostUnfit, match=re.escape(words)) as refused:
        fleet_validation.gate_document(HOST, text)
    assert refused.value.message.startswith("gpu1 (192.0.2.1:22): its answer to cat gate.json is malformed")


@pytest.mark.parametrize("place", list(places(SHOWN)), ids=lambda place: ".".join(map(str, place)) or "all")
def test_a_record_with_another_value_at_any_place(place: tuple[Any, ...]) -> None:
    for value in (*VALUES, *WORDS):
        report = report_of(with_value(SHOWN, place, value), since_boot=True)
        assert report.trouble is None or report.trouble.message.startswith("gpu1: ")
        written(report)


def refusal(judge: Callable[..., Any], *arguments: Any) -> str:
    """Why a host is refused; empty where it is not."""
    try:
        judge(*arguments)
    except GdsError as error:
        return error.message
    return ""


def sample(document: dict[str, Any]) -> dict[str, Any]:
    """A few entries of each section: every kind of value, and not each of a thousand files."""

    def few(section: Any) -> Any:
        return dict(list(section.items())[:2]) if isinstance(section, dict) else section

    return {key: value if key == "host" else few(value) for key, value in document.items()}


@pytest.mark.parametrize("value", [*VALUES[::2], *WORDS[::6]], ids=lambda value: repr(value)[:16])
def test_evidence_with_another_value_at_any_place(value: Any) -> None:
    """Only its shape: what is made of it is tried with whole evidence below."""
    document = sample(rdma_host())
    for place in places(document):
        words = refusal(
            reply_schema.judge_reply, came(with_value(document, place, value)), "evidence", Evidence, facts_from
        )
        assert words.startswith("gpu1: ") or not words
        assert words.isprintable()


#: Where facts that other verbs than validate stand on are read.
TELLING = (
    ("files", "/proc/driver/nvidia/version"), ("files", "/proc/modules"), ("files", "/proc/cmdline"),
    ("files", "/proc/self/mountinfo"), ("files", "/sys/class/infiniband/mlx5_0/ports/1/state"),
    ("excerpts", "/proc/kallsyms"), ("excerpts", "/proc/meminfo"), ("listings", "/sys/class/infiniband"),
    ("listings", "/sys/bus/pci/devices"), ("listings", "/dev/nvidia*"), ("commands", "ip-address"), ("host", "uname"),
    ("files",), ("links",), ("listings",), ("excerpts",), ("commands",), ("binaries",),
)  # fmt: skip
MISSING: Any = object()


def without(document: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    copied = copy.deepcopy(document)
    inner = copied
    for part in place[:-1]:
        inner = inner[part]
    inner.pop(place[-1], None)
    return copied


@pytest.mark.parametrize("place", TELLING, ids=".".join)
@pytest.mark.parametrize("value", [{"error": "EACCES"}, MISSING, "", WORDS[0], []])
def test_verbs_live_with_what_could_not_be_read(place: tuple[str, ...], value: Any) -> None:
    """The choice of a mode met a traceback as soon as the driver's version could not be read."""
    whole = rdma_host()
    document = without(whole, place)
    if value is not MISSING:
        inner = document
        for part in place[:-1]:
            inner = inner[part]
        inner[place[-1]] = value
    # Not by way of the shapes, which refuse some of these: saved evidence is judged without.
    facts = facts_from(document)
    assert choose(facts).mode
    assert refusal(require_topology, "gpu1", facts).startswith("gpu1: ") or trees.text(require_topology("gpu1", facts))
    assert render(explain_facts(facts, ""))
    written(fleet_validation.host_report(EXPECTED, document, OPTIONS, ()))


def test_nobody_foresaw_it() -> None:
    """Whatever a document sets off is that host's trouble, and the next is judged."""

    def judge(name: str, _: str) -> str:
        return {"honest": "fine"}[name]

    results, errors = reply_schema.judge_each(
        {"liar\x1b": "x", "gone": HostUnreachable("gone: away"), "honest": "x"}, judge
    )
    assert results == {"honest": "fine"}
    assert {name: type(error) for name, error in errors.items()} == {"liar\x1b": HostUnfit, "gone": HostUnreachable}
    assert "cannot be judged: KeyError" in errors["liar\x1b"].message
    assert errors["liar\x1b"].hint


def test_every_section_of_the_evidence_arrives() -> None:
    """What the shape doesn't name is dropped, and its checks then can't tell."""
    assert set(Recorder(1.0).document) <= set(Evidence.model_fields)
