"""A host's words are its own line, in each verb and format: no line's start, no tag and no series is a host's.

Places of recorded answers get words that would begin a line, drive a terminal or a CI system, or be markup.
"""

from __future__ import annotations

import ast
import copy
import io
import json
import random
import re
import tarfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gdsdeploy import console
from gdsdeploy.builds.assign import Supply
from gdsdeploy.cli import explain as explain_verb, validate as validate_verb, watch as topology_verb
from gdsdeploy.converge import ansible, diff, plan_report
from gdsdeploy.errors import GdsError
from gdsdeploy.host import checks as host_report
from gdsdeploy.host.checks import run as run_checks
from gdsdeploy.host.explain import render_process
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.unknown import if_known
from gdsdeploy.host.io.wording import joined
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.model.finding import Finding
from gdsdeploy.host.subjects import programs
from gdsdeploy.host.watch.document import document as watch_document
from gdsdeploy.host.watch.look import Entry, Look
from gdsdeploy.model.events import Kind
from gdsdeploy.model.rollout import Step, Wave
from gdsdeploy.report import formats, html
from gdsdeploy.report.model import HostReport, Report, Trouble
from gdsdeploy.rollout import page as rollout_page, progress
from gdsdeploy.rollout.machine import fold
from gdsdeploy.ssh import endpoint, reply_schema
from gdsdeploy.ssh.endpoint import Answer
from gdsdeploy.validate import fleet_validation, support_bundle, watch
from gdsdeploy.validate.facts import require_topology
from tests.commandline import run
from tests.unit.host.programs import running
from tests.unit.hostile_words import places, with_value
from tests.unit.sample_rollouts import KEEPS, Story, plan as rollout_plan
from tests.unit.ssh.test_hostdata import EXPECTED, RECORDED, SHOWN, TESTS, report_of

#: Line ends of some program or another.
ENDS = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
FORGED = (
    "  ✓ honest: pass (99 checked, 0.1 s)",
    "::error file=x::owned",
    "##[error]owned",
    "##vso[task.setvariable variable=x]owned",
    "# owned",
    "| owned | owned |",
    "```",
    "</failure><img src=x onerror=alert(1)><script>alert(1)</script>]]>",
    'x"} 1\ngdsdeploy_host_passed{host="honest"} 0\n# TYPE owned gauge',
    "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eowned\u2066\u200f\u061c\u200b\ufe0f\u3164",
)
LINES = "".join(end + word for end in ENDS for word in FORGED)
OCTAL = r"\\012::error\\040file=x::owned\\012\\040\\040✓\\040honest:\\040pass"
#: What takes the place of a text; what is added to it, also as /proc/mounts and JSON write line ends.
CHANGES: tuple[Callable[[str], str], ...] = (
    lambda _: "✓ honest: pass (99 checked, 0.1 s)" + LINES,
    lambda _: "::error file=x::owned",
    lambda text: text + LINES,
    lambda text: re.sub(r"(?<=[\w/])(?=[ \n])", OCTAL, text),
    lambda text: text.replace('": "', '": "\\n::error file=x::owned\\n  ✓ honest: pass', 3),
    lambda text: text + " and more words " * 5 + "::error file=x::owned " * 30,
)
START = re.compile(
    r"[ \t]{0,3}(✓ honest|owned|# owned|```|\| owned|# TYPE owned|gdsdeploy_host_passed\{host=.honest.\} 0|</fail)"
)
COMMAND = re.compile(r"\s*::[\w-]+( [^\n]*)?::|.*##\w*\[")
SPLIT = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
#: Of a rollout, a plan, a bundle and others that aren't recorded: as many as there are places, or these.
SEEDS = range(12)
EVIDENCE = [json.loads(path.read_text()) for path in RECORDED]
HOSTS = [each for each in (value.get("evidence", value) for value in EVIDENCE) if len(each["files"]) > 60][::7]


def changed(value: Any, seed: int, most: int = 40) -> Any:
    """A copy with hostile words at some places, the same ones each time."""
    chance = random.Random(seed)
    texts = [place for place in places(value) if place and isinstance(at(value, place), str)]
    whole = copy.deepcopy(value)
    for place in chance.sample(texts, min(most, len(texts))):
        whole = with_value(whole, place, chance.choice(CHANGES)(at(whole, place)))
    return whole


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def forged(text: str) -> list[str]:
    """Lines that a host begins, commands for CI systems, and what is hidden."""
    lines = [line for line in SPLIT.split(text) if START.match(line) or COMMAND.match(line)]
    hidden = {f"U+{ord(c):04X}" for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"U+000A"}
    return lines + sorted(hidden)


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]


def without_foreign_tags(text: str) -> None:
    tags = Tags(text).tags
    assert "img" not in tags
    assert tags.count("script") == text.count('<script type="application/json"') + 1
    assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"]


SAMPLE = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\\n]|\\[\\"n])*",?)*\})? [0-9.e+-]+')


def without_foreign_series(text: str, names: set[str]) -> None:
    """names: of metrics."""
    lines = SPLIT.split(text.removesuffix("\n"))
    comments = [line.split(" ")[2] for line in lines if line.startswith("# TYPE ")]
    assert sorted(comments) == sorted(names)
    for line in lines:
        assert line.startswith(("# HELP ", "# TYPE ")) or SAMPLE.fullmatch(line), line
    assert 'gdsdeploy_host_passed{host="honest",profile="gds"} 1' in lines
    assert not forged(text)


Captured = pytest.CaptureFixture[str]
HONEST = report_of(HOSTS[0], since_boot=False)
METRICS = set(re.findall(r"^# TYPE (\S+)", formats.metrics(Report("f", "", "2026-11-22T08:00:00Z", ())), re.MULTILINE))


def check_report(host: HostReport, capsys: Captured) -> None:
    """Each format of validate."""
    honest = HostReport("honest", "gds", tuple(f for f in HONEST.findings if f.verdict == "pass")[:3])
    report = Report("fleet.yml", "sha256:x", "2026-11-22T08:00:00Z", (host, honest))
    capsys.readouterr()
    for verbose in (False, True):
        validate_verb._show(report, as_json=False, verbose=verbose)
    console.say(fleet_validation.line(host))
    shown = "".join(capsys.readouterr())
    assert forged(shown) == []
    validate_verb._show(report, as_json=True, verbose=False)
    shown = capsys.readouterr().out
    assert json.loads(shown)["hosts"]["honest"]["verdict"] == "pass"
    assert forged(shown) == []
    junit = formats.junit_xml(report)
    assert forged(junit) == []
    root = ET.fromstring(junit)
    assert {each.tag for each in root.iter()} <= {
        "testsuites", "testsuite", "properties", "property", "testcase", "failure", "error", "skipped"
    }  # fmt: skip
    assert forged("\n".join(each.text or "" for each in root.iter())) == []
    without_foreign_tags("".join(html.stream(report)))
    without_foreign_series(formats.metrics(report), METRICS)
    # A report is saved, and read again.
    saved = json.loads("".join(formats.json_pieces(report)))
    other = json.loads("".join(formats.json_pieces(Report("fleet.yml", "", report.when, (HONEST, honest)))))
    compared = formats.compare(*(formats.report_from(io.StringIO(json.dumps(each))) for each in (other, saved)))
    console.data(formats.changes_text(compared))
    assert forged(capsys.readouterr().out) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_hosts_evidence_says(seed: int, capsys: Captured) -> None:
    """validate, explain and topology; of a bundle they are the same functions."""
    evidence = changed(HOSTS[seed % len(HOSTS)], seed)
    if seed == 0:
        evidence["host"]["name"] = "✓ honest: pass" + LINES
    check_report(report_of(evidence, since_boot=False), capsys)
    facts = facts_from(evidence)
    with suppress(GdsError):
        document, text = explain_verb._answer(facts, "gpu1", "")
        explain_verb._print(False, document, text)
    with suppress(GdsError):
        explain_verb._print(True, *explain_verb._answer(facts, "gpu1", ""))
    for program in if_known(lambda: facts.processes.programs, ()):
        console.data(render_process(programs.explain_process(facts, program.pid)))
    with suppress(GdsError):
        topology_verb._show({"gpu1": require_topology("gpu1", facts)}, False)
    console.data(host_report.text(EXPECTED, facts, run_checks(facts, EXPECTED)))
    assert forged("".join(capsys.readouterr())) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_gate_wrote_down(seed: int, capsys: Captured) -> None:
    """validate --since-boot."""
    check_report(report_of(changed(SHOWN, seed, 1 + seed % 6), since_boot=True), capsys)


def test_every_text_of_a_gates_record(capsys: Captured) -> None:
    """Each alone: one that is refused would hide the others."""
    for place in places(SHOWN):
        if place and isinstance(at(SHOWN, place), str):
            check_report(report_of(with_value(SHOWN, place, "x" + LINES), since_boot=True), capsys)
    capsys.readouterr()


CHANGE = {"kind": "write", "subject": "/etc/a", "before": "b", "after": "sha256:1", "reason": "content", "by": "",
          "disruption": "none", "resource": "cufile", "users": ["python3 (process 1)"]}  # fmt: skip
ASKED = {
    "build": [
        {"name": "preflight", "changes": [CHANGE], "refusals": [{"id": "os", "message": "m", "hint": "h"}],
         "unknown": ["why"], "report": {
            "foreign": {"unknown": ["why"], "installs": [
                {"kind": "runfile-driver", "traces": [{"name": "n", "detail": "d"}], "breaks": False}]},
            "removals": {"known": False, "why": "because"}}},
    ]
}  # fmt: skip


def test_what_a_host_answers_to_a_plan(capsys: Captured) -> None:
    told = 0
    for place in places(ASKED):
        if not place or not isinstance(at(ASKED, place), str):
            continue
        for change in CHANGES[:3]:
            try:
                variants = diff.variants(with_value(ASKED, place, change(at(ASKED, place))))
            except ValueError:
                continue
            told += 1
            plan = diff.plan("liar", variants, Supply("build", "it builds", "a" * 32), None)
            plans: Mapping[str, Any] = {"liar": plan, "honest": diff.HostPlan("honest")}
            for whole in (False, True):
                console.data(plan_report.text(plans, whole=whole))
            shown = capsys.readouterr().out
            assert "honest" in shown
            assert forged(shown) == [], place
            console.data(plan_report.to_json(plans, {}, fleet="fleet.yml", lock_digest=""))
            shown = capsys.readouterr().out
            assert set(json.loads(shown)["hosts"]) == {"liar", "honest"}
            assert forged(shown) == [], place
    assert told > 25


def watched() -> dict[str, Any]:
    program = running(
        pid=4711, name="python", unit="/system.slice/train.service", container=False, variables={}, base={},
        libraries={"/usr/lib/libcufile.so.1.15.1": "1.15.1"}, base_path="/etc/cufile.json", overlay=None,
        counters=counters.STATISTICS_OFF,
    )  # fmt: skip
    looked = watch_document(
        Look(1.8e9, (Entry(program, counters.route(counters.Observed(program.counters))),), None, 0)
    )
    return {**looked, "incomplete": "why"}


def test_what_processes_are_called(capsys: Captured) -> None:
    for place in places(watched()):
        if not place or not isinstance(at(watched(), place), str):
            continue
        answer = Answer("gpu1", with_value(watched(), place, "x" + LINES[:800]), None, 0.5)
        try:
            outcome: Any = reply_schema.judge_reply(answer, "watch", watch.Watched, watch._with_words)
        except GdsError as error:
            outcome = error
        console.data(joined(watch.text({"gpu1": outcome})))
        assert forged(capsys.readouterr().out) == [], place


ERROR = {"kind": "ModuleBuildFailed", "message": "gpu1: it does not build\n  | make: *** [x] Error 2", "hint": "Run it"}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_rollouts_journal_has_of_hosts(seed: int, capsys: Captured) -> None:
    words = changed({"reason": "it broke", "note": "a note", "kernel": "6.1", "verdict": "pass", "error": ERROR}, seed)
    waves = (Wave("canary", ("gpu1",), canary=True), Wave("w", ("honest",)))
    story = Story(rollout_plan(waves, settings=KEEPS))
    story.say(Kind.OPENED, wave="canary")
    story.step("gpu1", Step.PREFLIGHT, kernel=words["kernel"], verdict=words["verdict"])
    story.say(Kind.NOTE, "gpu1", text=words["note"])
    for step in (Step.DRAIN, Step.SNAPSHOT, Step.APPLY):
        story.step("gpu1", step)
    story.step("gpu1", Step.MODULES, error=words["error"])
    story.say(Kind.OUTCOME, "gpu1", outcome="kept", reason=words["reason"])
    story.say(Kind.HALTED, reason=words["reason"])
    status = fold(story.events)
    for event in story.events:
        console.say(progress.sentence(event))
        console.data(json.dumps(progress.to_json(event, "r", "fleet.yml"), ensure_ascii=False))
    for whole in (False, True):
        console.data(joined(progress.lines(status, now=story.time, whole=whole, latest={"gpu1": words["note"]})))
    console.data(rollout_page.to_json(status))
    assert forged("".join(capsys.readouterr())) == []
    without_foreign_tags("".join(rollout_page.stream(status, live=False)))


def test_each_layer_keeps_it_alone(capsys: Captured) -> None:
    """What holds where another layer fails: what models take, and what each format is given."""
    said = "x" + LINES
    finding = Finding(said, "fail", said, said, said, said, [said], {"until": said, "reason": said, "was": "fail"})
    host = HostReport("liar", said, (finding,), stack=((said, said),), boot_id=said, gaps=(said,))
    waived = finding.waiver or {}
    kept = [finding.check, finding.title, finding.expected, finding.found, finding.hint, *finding.evidence]
    kept += [*waived.values(), host.profile, host.boot_id, *host.gaps, *host.stack[0]]
    error = Trouble("HostUnfit", said, said, 22)
    assert [text for text in kept if "\n" in text or forged(text)] == []
    assert forged(error.message + "\n" + error.hint) == []
    (result,) = diff.variants({"build": [{**ASKED["build"][0], "unknown": [said]}]})["build"]
    assert "\n" not in result.unknown[0]
    record = {**SHOWN["record"], "reason": said}
    _, gate, _ = fleet_validation.gate_record_of_this_boot(Answer("gpu1", {**SHOWN, "record": record}, None, 0.5))
    assert gate is not None
    assert "\n" not in gate.reason
    assert "\n" not in progress.plain(said)
    # The name of a fleet file is no host's, and no model changes it.
    report = Report(said, said, "2026-11-22T08:00:00Z", (HONEST, HostReport("honest", "gds", HONEST.findings[:0])))
    junit = formats.junit_xml(report)
    ET.fromstring(junit)
    assert {c for c in junit if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c != "\n"} == set()
    lines = SPLIT.split(formats.metrics(report).removesuffix("\n"))
    assert [line for line in lines if not line.startswith(("# HELP ", "# TYPE ")) and not SAMPLE.fullmatch(line)] == []
    validate_verb._show(report, as_json=True, verbose=False)
    assert forged(capsys.readouterr().out) == []


def test_what_is_printed_was_joined_line_by_line() -> None:
    """A new verb can't forget it: lines that are joined by hand are printed nowhere."""
    by_hand = []
    for file in sorted((TESTS.parent / "gdsdeploy").rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)):
            prints = ast.unparse(call.func) == "print" or ast.unparse(call.func).startswith("console.")
            if prints and any("'\\n'.join" in ast.unparse(argument) for argument in call.args):
                by_hand.append(f"{file.name}:{call.lineno}")
    assert by_hand == []


def errors() -> Iterator[GdsError]:
    """Errors that are made of a host's words."""
    host = endpoint.Endpoint("gpu1", "192.0.2.1", 22, "admin", (), ())
    said = "x" + LINES
    yield endpoint.refusal("gpu1", {"message": said, "hint": said})
    for status in (None, endpoint.TOO_OLD, 1, 127):
        for words in (said, f"sudo: {said}", f"python3: {said}"):
            yield endpoint._did_not_begin(host, endpoint.Output(b"", words, status))
    with pytest.raises(GdsError) as caught:
        endpoint.document(host, b"m", endpoint.Output(b"m", said, 1))
    yield caught.value
    typed = [{"kind": kind, "message": said, "hint": said} for kind in ("", "build", "refused")]
    quoted = [{"msg": said}, {"msg": "m", "stderr": said}, {"msg": "m", "stdout": said}]
    for detail in (*quoted, *({"gds_error": error} for error in typed)):
        for status_word in ("failed", "unreachable"):
            yield ansible.failure("gpu1", "gds_preflight", "task", status_word, detail, Path("log"))


def test_what_an_error_quotes(capsys: Captured) -> None:
    for error in errors():
        console.error(error.message, error.hint)
        assert forged("".join(capsys.readouterr())) == [], error.message[:60]
        plans = {"liar": error}
        console.data(plan_report.text(plans))
        assert forged(capsys.readouterr().out) == []
        trouble = Trouble("HostUnfit", error.message, error.hint or "", 22)
        check_report(HostReport("liar", "gds", trouble=trouble), capsys)


def test_the_files_of_a_support_bundle() -> None:
    trouble = Trouble("HostUnfit", "x" + LINES, LINES, 22)
    hosts = {"liar": support_bundle.BundleHost(EXPECTED, changed(HOSTS[0], 1), trouble, (), 0.5)}
    packed = support_bundle.pack(
        support_bundle.Bundle("fleet.yml", "sha256:x", "2026-11-22T08:00:00Z", hosts), {"a": 1}
    )
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        texts = {Path(name).name: file.read().decode() for name, file in files.items() if file is not None}
    assert set(json.loads(texts["manifest.json"])["hosts"]) == {"liar"}
    assert json.loads(texts["evidence.json"])
    assert forged(texts["README.txt"] + texts["manifest.json"]) == []


@pytest.mark.parametrize("seed", range(6))
def test_foreign_logs_and_outputs(seed: int, tmp_path: Path, capsys: Captured) -> None:
    chance = random.Random(seed)
    recorded = sorted((TESTS / "evidence" / "gdscheck").glob("*.txt"))[seed * 4]
    lines = recorded.read_text().splitlines()
    for number in chance.sample(range(len(lines)), 12):
        lines[number] += "".join(word for word in FORGED if "\n" not in word) + "\r  ✓ honest: pass\x0b::error x::owned"
    lines.insert(3, "::error file=x::owned")
    (tmp_path / "log").write_text("\n".join(lines))
    run("gdscheck", "parse", tmp_path / "log")
    run("explain", "--log", tmp_path / "log")
    assert forged("".join(capsys.readouterr())) == []


def test_a_saved_report_is_a_strangers(capsys: Captured, tmp_path: Path) -> None:
    """diff: each text of a report."""
    host = report_of(SHOWN, since_boot=True)
    saved = json.loads(
        "".join(formats.json_pieces(Report("fleet.yml", "sha256:x", "2026-11-22T08:00:00Z", (HONEST, host))))
    )
    before = {**saved, "lock": "sha256:y", "hosts": {}}
    (tmp_path / "a").write_text(json.dumps(before))
    for seed in SEEDS:
        after = changed(saved, seed)
        after["hosts"] = {name + LINES * (seed % 2): value for name, value in after["hosts"].items()}
        after["version"] = saved["version"]
        (tmp_path / "b").write_text(json.dumps(after))
        for flags in ([], ["--json"]):
            run("diff", tmp_path / "a", tmp_path / "b", *flags)
            run("diff", tmp_path / "b", tmp_path / "a", *flags)
    assert forged("".join(capsys.readouterr())) == []
