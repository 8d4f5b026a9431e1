"""The formats of a report: JSON and its schema, JUnit, text, HTML, metrics; what changed between two."""

from __future__ import annotations

import copy
import io
import json
import json as standard_json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from rich.console import Console

from gdsdeploy.cli import main, validate
from gdsdeploy.host.io.wording import line
from gdsdeploy.host.model.finding import FAIL, Finding, Waiver, apply
from gdsdeploy.report import formats, html, model
from gdsdeploy.report.model import HostReport, Report, WaiverUse
from tests.unit.report.sample_report import CHECKS, EVIL, PEERMEM, STACK, TREE, findings, report

# --- JSON ------------------------------------------------------------------------------------------------------------


def test_json_has_everything() -> None:
    document = standard_json.loads("".join(formats.json_pieces(report())))
    assert list(document) == ["version", "tool", "fleet", "lock", "when", "verdict", "counts", "waivers", "hosts"]
    assert (document["version"], document["fleet"], document["verdict"]) == (1, "fleet.yml", "fail")
    assert document["counts"] == {"pass": 1, "waived": 0, "unknown": 0, "unreachable": 1, "fail": 2}
    assert list(document["hosts"]) == ["gpu1", "gpu2", "gpu3", "gpu4"]
    gpu2 = document["hosts"]["gpu2"]
    assert gpu2["stack"] == dict(STACK)
    assert gpu2["error"] is None
    assert len(gpu2["findings"]) == len(CHECKS)
    tree = next(f for f in gpu2["findings"] if f["check"] == "nvidia-fs.driver-tree")
    assert set(tree) == {"check", "verdict", "title", "expected", "found", "hint", "evidence", "waiver"}
    assert tree["verdict"] == "fail"
    assert document["hosts"]["gpu3"]["gaps"] == ["programs: stopped after 60 s"]
    usable = next(f for f in document["hosts"]["gpu3"]["findings"] if f["check"] == "peermem.usable")
    assert usable["found"] == line(EVIL)
    assert document["hosts"]["gpu4"]["error"]["kind"] == "HostUnreachable"
    assert document["hosts"]["gpu4"]["error"]["exit_code"] == 20


# --- JUnit -----------------------------------------------------------------------------------------------------------


def test_junit_counts_agree_with_the_cases() -> None:
    root = ET.fromstring(formats.junit_xml(report()))
    assert root.tag == "testsuites"
    suites = root.findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["gpu1", "gpu2", "gpu3", "gpu4"]
    for element in (root, *suites):
        assert element.get("tests") == str(len(list(element.iter("testcase"))))
        assert element.get("failures") == str(len(list(element.iter("failure"))))
        assert element.get("errors") == str(len(list(element.iter("error"))))
    assert (root.get("failures"), root.get("errors")) == ("3", "2")


def test_junit_says_what_to_do() -> None:
    root = ET.fromstring(formats.junit_xml(report()))
    (failure,) = [
        c for c in root.iter("testcase") if c.get("name") == "nvidia-fs.driver-tree" and c.find("failure") is not None
    ]
    text = failure[0].text or ""
    assert failure.get("classname") == "gpu2.nvidia-fs.driver-tree"
    assert "expected: /usr/src/nvidia-current-open-550.163.01" in text
    assert "what to do: Run `gdsdeploy provision" in text
    assert "| nvidia_fs: no symbol version for nvidia_p2p_free_page_table" in text
    (lost,) = [c for c in root.iter("testcase") if c.get("name") == "reachable"]
    assert lost[0].tag == "error"
    assert "192.0.2.14:22" in (lost[0].get("message") or "")


# --- text ------------------------------------------------------------------------------------------------------------


def shown(report: Report, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(formats.fleet_table(report))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_names_every_host_and_verdict(width: int) -> None:
    table = shown(report(), width)
    for words in ("gpu1", "✓ pass", "gpu2", "✗ FAIL", "gpu4", "! UNREACHABLE", "✗ /mnt/nvme compat", "✓ /home compat"):
        assert words in table
    assert max(map(len, table.splitlines())) <= width


def test_the_table_shows_what_runs() -> None:
    lines = shown(report()).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("gpu2"))
    runs = ("kernel 6.12.94+deb13-amd64", "driver 550.163.01 open", "nvidia-fs 2.19.7", "libcufile 1.9.1.3")
    assert [words in line for words, line in zip(runs, lines[first:], strict=False)] == [True] * 4
    assert lines[first].split()[3:6] == ["14", "2", "0"]


def test_a_mount_in_compat_mode_is_told_even_where_it_is_accepted() -> None:
    good = Report("f", "d", "w", report().hosts[:1])
    assert formats.details(good) == "  /home takes compat, on gpu1"


# --- HTML ------------------------------------------------------------------------------------------------------------

VOID = {"meta", "wbr", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps ids, links and text."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.outside: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: list[str] = []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if attributes.get("id"):
            self.ids.append(str(attributes["id"]))
        self.links += [str(attributes["href"])] if "href" in attributes else []
        self.outside += [
            str(v) for k, v in attrs if k in {"src", "href", "srcset", "action"} and not str(v).startswith("#")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and self.tags[-1][1].get("type") == "application/json":
            self.data.append(data)
        elif self.open[-1:] not in (["style"], ["script"]):
            self.text += data

    def texts(self) -> list[str]:
        """The texts of the page's data, which its script shows."""
        return list(standard_json.loads(self.data[-1]))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page("".join(html.stream(report())))


def test_the_page_is_well_formed_and_needs_nothing_else(page: Page) -> None:
    source = "".join(html.stream(report()))
    assert source.lstrip().startswith("<!DOCTYPE html>")
    assert page.outside == []
    assert "://" not in source
    assert "@import" not in source
    assert "url(" not in source


def test_every_link_leads_to_a_place_that_exists_once(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_colour_never_stands_alone(page: Page) -> None:
    """Each verdict is a word, and a symbol that is not read aloud."""
    classes = [str(attributes.get("class")) for _, attributes in page.tags]
    badges = [place for place, name in enumerate(classes) if name.startswith("badge ")]
    assert len(badges) == 1 + 4 + 2
    assert all(page.tags[place + 1] == ("span", {"aria-hidden": "true"}) for place in badges)
    for word in ("✓", "✗", "?", "!", "pass", "FAIL", "could not tell", "UNREACHABLE"):
        assert word in page.text


def test_the_same_problem_on_two_hosts_is_told_once(page: Page) -> None:
    before_hosts = page.text.split("What to do")[-1].split("Hosts that")[0]
    assert before_hosts.count("storage.path:/mnt/nvme") == 1


def test_a_report_without_hosts_or_findings_still_renders() -> None:
    for hosts in ((), (HostReport("empty", "gds"),), report().hosts[3:]):
        empty = Report("f", "sha256:0", "2026-01-01T00:00:00Z", hosts)
        Page("".join(html.stream(empty)))
        ET.fromstring(formats.junit_xml(empty))
        standard_json.loads("".join(formats.json_pieces(empty)))
        assert model.sentence(empty) + formats.details(empty)


def test_the_topology_of_a_host_is_shown_as_text() -> None:
    (shown,) = re.findall(r'<pre class="topology"[^>]*>(.*?)</pre>', "".join(html.stream(report())), re.DOTALL)
    assert re.search(r"^NVME1 +SYS +SYS +SYS +X +1$", shown, re.MULTILINE)
    assert "degraded link: NVME1 0000:81:00.0 runs at 16 GT/s x2 of 16 GT/s x4" in shown
    assert "ACS sends GPU0-NVME0 up to the host bridge" in shown


def test_prometheus_has_a_sample_for_each_check_of_each_host() -> None:
    samples = [line for line in formats.metrics(report()).splitlines() if not line.startswith("#")]
    assert len([line for line in samples if line.startswith("gdsdeploy_host_check_passed{")]) == sum(
        len(host.findings) for host in report().hosts
    )
    assert 'gdsdeploy_validation_hosts{fleet="fleet.yml",verdict="unreachable"} 1' in samples
    assert 'gdsdeploy_host_passed{host="gpu4",profile="storage"} 0' in samples
    assert 'gdsdeploy_host_check_passed{host="gpu2",check="storage.path",subject="/mnt/nvme"} 0' in samples
    moment = datetime(2026, 11, 21, 8, 15, tzinfo=UTC).timestamp()
    assert f'gdsdeploy_validation_timestamp_seconds{{fleet="fleet.yml"}} {moment:.0f}' in samples
    sample = re.compile(r'[a-z_]+(\{[a-z_]+="([^"\\\n]|\\[\\n"])*"(,[a-z_]+="([^"\\\n]|\\[\\n"])*")*\})? [0-9.]+')
    assert all(sample.fullmatch(line) for line in samples)


def test_a_page_has_room_for_so_much_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host can say a lot; the same lines on another host take no room."""
    loud = Finding("os.release", FAIL, "t", "e", "f", evidence=["x" * 1000, "y" * 1000])
    hosts = tuple(HostReport(name, "gds", (replace(loud, evidence=list(loud.evidence)),)) for name in ("a", "b"))
    more = HostReport("c", "gds", (replace(loud, evidence=["z" * 1000]),))
    monkeypatch.setattr(html, "PROBLEMS_ROOM", 2500)
    texts = Page("".join(html.stream(Report("f", "d", "w", (*hosts, more))))).texts()
    assert [text for text in texts if len(text) == 1000] == loud.evidence
    assert "1 line, which `validate --json` has: this page has no room for more" in texts


def many(number: int) -> Report:
    first = report().hosts[0]
    return replace(report(), hosts=tuple(replace(first, host=f"gpu{n}") for n in range(number)))


@pytest.mark.parametrize(
    "whole",
    [report(), many(0), many(1), many(3), replace(many(1), hosts=(replace(many(1).hosts[0], host='a"\n  b'),))],
    ids=["sample", "no host", "one", "three", "a name"],
)
def test_the_parts_are_the_document_as_json_writes_it(whole: Report) -> None:
    text = "".join(formats.json_pieces(whole))
    assert text == standard_json.dumps(standard_json.loads(text), indent=2, ensure_ascii=False) + "\n"
    assert list(standard_json.loads(text)["hosts"]) == [host.host for host in whole.hosts]


def test_a_part_has_one_host_at_most_and_the_others_are_not_yet_there() -> None:
    whole = many(300)
    size = len("".join(formats.json_pieces(whole)))
    tracemalloc.start()
    parts = [len(part) for part in formats.json_pieces(whole)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parts) == 302
    assert sum(parts) == size
    assert max(parts) < size / 100
    assert peak < size / 4


def test_validate_prints_the_parts_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, printed = list(formats.json_pieces(many(3))), list[str]()

    def pieces(_: Report) -> Iterator[str]:
        for part in parts:
            yield part
            printed.append(capsys.readouterr().out)

    monkeypatch.setattr(formats, "json_pieces", pieces)
    validate._show(many(3), as_json=True, verbose=False)
    assert printed == parts


SCHEMA = json.loads(resources.files("gdsdeploy.report").joinpath("report.schema.json").read_text())


def waived() -> dict[str, Any]:
    """The sample with a waiver that holds on one host and one that is over."""
    original = report()
    waivers = [Waiver("nvidia-fs.driver-tree", "2026-12-31", "waits for the maintenance of week 50")]
    hosts = [replace(host, findings=tuple(apply(host.findings, waivers, "2026-11-21"))) for host in original.hosts]
    accepted = WaiverUse(waivers[0].check, waivers[0].until, waivers[0].reason, expired=False, hosts=("gpu2",))
    text = "".join(formats.json_pieces(replace(original, hosts=tuple(hosts), waivers=(accepted,))))
    value: dict[str, Any] = json.loads(text)
    return value


def valid(value: object) -> None:
    jsonschema.validate(value, SCHEMA, format_checker=jsonschema.FormatChecker())


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_report_conforms() -> None:
    valid(json.loads("".join(formats.json_pieces(report()))))
    value = waived()
    valid(value)
    finding = {entry["check"]: entry for entry in value["hosts"]["gpu2"]["findings"]}["nvidia-fs.driver-tree"]
    assert finding["verdict"] == "waived"
    assert finding["waiver"]["was"] == "fail"
    assert TREE.found == finding["found"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), "good"),
        (("when",), None),
        (("counts", "pass"), -1),
        (("hosts", "gpu1", "surplus"), 1),
        (("hosts", "gpu1", "error"), {"kind": "x", "message": "", "hint": "", "exit_code": 1}),
        (("hosts", "gpu4", "error"), None),
        (("hosts", "gpu2", "findings", 0, "verdict"), "waived"),
        (("waivers", 0, "until"), "soon"),
    ],
)
def test_it_refuses_what_is_never_printed(path: tuple[str | int, ...], value: object) -> None:
    broken = copy.deepcopy(waived())
    place: Any = broken
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        valid(broken)


def test_a_waiver_covers_subjects_and_what_could_not_be_told_and_nothing_that_passes() -> None:
    every = list(findings(peermem_usable=PEERMEM))
    covered = apply(
        every, [Waiver("peermem.usable", "2026-11-21", "r"), Waiver("storage.path", "2026-11-21", "r")], "2026-11-21"
    )
    verdicts = {finding.check: finding.verdict for finding in covered}
    assert verdicts["peermem.usable"] == "waived"
    assert verdicts["storage.path:/home"] == "pass"


def test_a_waiver_that_is_over_fails_and_says_so() -> None:
    (finding,) = apply([TREE], [Waiver("nvidia-fs.driver-tree", "2026-11-20", "week 47")], "2026-11-21")
    assert finding.verdict == "fail"
    assert "its waiver ended on 2026-11-20 (week 47)" in finding.hint


def test_the_longest_of_several_waivers_counts() -> None:
    waivers = [Waiver("nvidia-fs.driver-tree", day, day) for day in ("2026-11-20", "2026-11-30", "2026-11-19")]
    (finding,) = apply([TREE], waivers, "2026-11-21")
    assert finding.verdict == "waived"
    assert finding.waiver == {"until": "2026-11-30", "reason": "2026-11-30", "was": "fail"}


BEFORE = json.loads("".join(formats.json_pieces(report())))


def changed(change: Callable[[dict[str, Any]], object]) -> tuple[formats.Change, ...]:
    after = copy.deepcopy(BEFORE)
    change(after)
    return formats.compare(BEFORE, after).changes


def finding(value: dict[str, Any], host: str, check: str) -> dict[str, Any]:
    row: dict[str, Any] = next(entry for entry in value["hosts"][host]["findings"] if entry["check"] == check)
    return row


@pytest.mark.parametrize(
    "change",
    [
        lambda after: after.update(when="2027-01-01T00:00:00Z", fleet="other.yml"),
        lambda after: after["hosts"]["gpu1"].update(seconds=9.9, boot_id="another"),
        lambda after: finding(after, "gpu1", "os.release").update(found="in other words", evidence=["x"]),
        lambda after: finding(after, "gpu2", "nvidia-fs.driver-tree").update(hint="do that", evidence=[]),
    ],
)
def test_when_and_how_are_no_changes(change: Callable[[dict[str, Any]], object]) -> None:
    assert changed(change) == ()


def test_a_reboot_is_told_and_no_change() -> None:
    after = copy.deepcopy(BEFORE)
    after["hosts"]["gpu1"]["boot_id"] = "another"
    comparison = formats.compare(BEFORE, after)
    assert comparison.rebooted == ("gpu1",)
    assert "rebooted in between: gpu1\nnothing changed between" in formats.changes_text(comparison)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda after: after.update(lock="sha256:other"), ("", "lock", BEFORE["lock"], "sha256:other")),
        (lambda after: after["hosts"].pop("gpu1"), ("gpu1", "host", "pass", "not there")),
        (
            lambda after: after["hosts"]["gpu1"]["stack"].update(kernel="6.12.117"),
            ("gpu1", "stack.kernel", "6.12.94+deb13-amd64", "6.12.117"),
        ),
        (
            lambda after: after["hosts"]["gpu1"]["stack"].pop("nvidia-fs"),
            ("gpu1", "stack.nvidia-fs", "2.19.7", "not there"),
        ),
        (
            lambda after: finding(after, "gpu1", "os.release").update(verdict="fail", found="debian-12"),
            ("gpu1", "os.release", "pass", "fail"),
        ),
        (
            lambda after: finding(after, "gpu2", "nvidia-fs.driver-tree").update(verdict="waived"),
            ("gpu2", "nvidia-fs.driver-tree", "fail", "waived"),
        ),
        (
            lambda after: finding(after, "gpu2", "nvidia-fs.driver-tree").update(found="no driver"),
            ("gpu2", "nvidia-fs.driver-tree",
             f"fail, found {finding(BEFORE, 'gpu2', 'nvidia-fs.driver-tree')['found']}", "found no driver"),
        ),
        (
            lambda after: after["hosts"]["gpu3"]["findings"].remove(finding(after, "gpu3", "kernel.taint")),
            ("gpu3", "kernel.taint", "pass", "not there"),
        ),
    ],
)  # fmt: skip
def test_one_change_is_one(change: Callable[[dict[str, Any]], object], expected: tuple[str, str, str, str]) -> None:
    (diff,) = changed(change)
    assert (diff.host, diff.what, diff.before, diff.after) == expected


def test_a_host_that_went_away_is_one_change_with_its_reason() -> None:
    def lose(after: dict[str, Any]) -> None:
        error = BEFORE["hosts"]["gpu4"]["error"]
        after["hosts"]["gpu1"] = {**BEFORE["hosts"]["gpu4"], "error": {**error, "message": "no answer"}}

    (diff,) = changed(lose)
    assert (diff.host, diff.what, diff.before, diff.after) == ("gpu1", "host", "pass", "unreachable")
    assert diff.why == "no answer"


def test_reports_of_ten_thousand_hosts(tmp_path: Path) -> None:
    """Of small hosts; those of the usual size are in benchmarks/fleet/round_trip.py."""
    hosts = json.dumps({**BEFORE["hosts"]["gpu1"], "gaps": ["x" * 7000]})
    file = tmp_path / "a.json"
    with file.open("w") as text:
        text.write(json.dumps({**BEFORE, "hosts": {}}).replace('"hosts": {}', '"hosts": {').removesuffix("}"))
        text.writelines(f'{"," if number else ""}\n"gpu{number:05}": {hosts}' for number in range(10_000))
        text.write("}}")
    with file.open() as text:
        report = formats.report_from(text)
    assert len(report["hosts"]) == 10_000
    assert formats.compare(report, report).changes == ()


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    before.write_text(json.dumps(BEFORE))
    value = copy.deepcopy(BEFORE)
    finding(value, "gpu1", "os.release").update(verdict="fail", found="debian-12", expected="debian-13")
    after.write_text(json.dumps(value))

    def run(*argv: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["diff", *map(str, argv)])
        return (ended.value.code, *capsys.readouterr())

    code, out, err = run(before, after)
    assert code == 33
    assert "gpu1:\n  os.release: pass → fail\n    found debian-12, expected debian-13\n1 change between" in out
    assert err == ""
    code, out, _ = run(before, after, "--json")
    assert code == 33
    document = json.loads(out)
    assert not document["same"]
    assert document["changes"][0]["what"] == "os.release"
    assert run(before, before)[:2] == (0, f"nothing changed between {BEFORE['when']} and {BEFORE['when']}\n")
    after.write_text("{}")
    code, _, err = run(before, after)
    assert code == 1
    assert f"{after}: it isn't a validation report" in err
    assert f"gdsdeploy validate fleet.yml --json > {after}\n" in err
    after.write_text("{")
    assert "it isn't a report: not JSON" in run(before, after)[2]
    after.write_text(json.dumps({**BEFORE, "version": 2}))
    assert "it is a report of version 2" in run(before, after)[2]
    assert f"{tmp_path / 'c.json'}: cannot be read: No such file" in run(before, tmp_path / "c.json")[2]
