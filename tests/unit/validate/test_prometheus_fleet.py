"""Hosts are judged from their series only where these are a whole record of the running boot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gdsdeploy.errors import PrometheusUnusable
from gdsdeploy.host.gate import gate, metrics
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WAIVED, Finding
from gdsdeploy.host.model.waiver import Waiver
from gdsdeploy.report.model import HostReport
from gdsdeploy.validate import prometheus_fleet
from gdsdeploy.validate.fleet_validation import THIS_BOOT, ValidateOptions
from gdsdeploy.validate.prometheus_fleet import LAST_SEEN, MISSING, NODE_BOOT_TIME, QUERIES, STALE, UNCLEAR, Gap
from gdsdeploy.validate.prometheus_server import Sample
from tests.unit.converge.test_expectation import fleet, lock

#: 2026-11-21T08:00:00Z is 1795248000.
NOW, BOOT = 1795334400.0, 1795247900
WAIVER = {"until": "2026-12-31", "reason": "CHG-1", "was": UNKNOWN}
Change = Callable[[str, Sample], list[Sample]]


def finding(check: str, verdict: str, path: str = "", waiver: dict[str, str] | None = None) -> dict[str, Any]:
    return Finding(check, verdict, "title", "expected", "found", path=path, waiver=waiver).as_dict()


MOUNT = finding("storage.path:/mnt/nvme", PASS, "nvidia-fs")
GOOD = [finding("kernel.running", PASS), MOUNT, finding("rdma.link", NOT_APPLICABLE)]


def record(*more: dict[str, Any], **changes: Any) -> gate.Record:
    findings = [*GOOD, *more]
    state, reason = gate.decide([Finding(**each) for each in findings])
    fields = {
        "state": state, "reason": reason, "verdict": PASS, "boot_id": "b-1", "when": "2026-11-21T08:00:00Z",
        "seconds": 1.5, "host": "gpu1", "profile": "gds", "lock_digest": lock().digest, "boot_time": BOOT,
        "stack": [["kernel", "6.12.94"], ["driver", "550.1 open"], ["nvidia-fs", "2.19.7"]], "findings": findings,
    }  # fmt: skip
    return gate.Record(**{**fields, **changes})


def exported(text: str, instance: str) -> Iterator[tuple[str, Sample]]:
    """(name, sample) of the series in a text of the textfile collector."""
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        match = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line)
        assert match, line
        labels = dict(re.findall(r'([a-z_]+)="([^"]*)"', match[2] or ""))
        yield match[1], Sample({"instance": instance, "job": "node", **labels}, float(match[3]))


class Answers:
    """What a server answers that has scraped these hosts; ``change`` replaces a sample."""

    url = "http://prometheus"

    def __init__(self, *texts: tuple[str, str], change: Change = lambda _, sample: [sample]) -> None:
        self.tables: dict[str, list[Sample]] = {query: [] for query in (*QUERIES, LAST_SEEN)}
        for instance, text in texts:
            for name, sample in exported(text, instance):
                queries = [query for query in QUERIES if query.split(" ")[0] == name]
                is_listed = {metrics.CHECK: sample.value > 0, metrics.PATH: sample.value == 1}.get(name, True)
                for query in queries if is_listed else []:
                    self.tables[query] += change(query, sample)
            labels = {"instance": instance, "job": "node"}
            for query, value in ((NODE_BOOT_TIME, BOOT + 1.0), (f"timestamp({metrics.OPEN})", NOW - 10)):
                self.tables[query] += change(query, Sample(labels, value))

    def query(self, query: str, moment: float) -> list[Sample]:
        assert moment == NOW
        return self.tables[query]


def judge(server: Any, **options: Any) -> tuple[dict[str, HostReport], dict[str, Gap]]:
    chosen = ValidateOptions(day="2026-11-22", **options)
    return prometheus_fleet.judge(fleet(), lock(), ["gpu1"], server, options=chosen, now=lambda: NOW)


def report_of(judged_record: gate.Record, **options: Any) -> HostReport:
    reports, gaps = judge(Answers(("gpu1:9100", metrics.render(judged_record))), **options)
    assert gaps == {}
    return reports["gpu1"]


def gap_of(change: Change, *more: dict[str, Any], **changes: Any) -> Gap:
    reports, gaps = judge(Answers(("gpu1:9100", metrics.render(record(*more, **changes))), change=change))
    assert reports == {}
    return gaps["gpu1"]


def test_a_record_of_the_running_boot_passes() -> None:
    report = report_of(record())
    assert report.verdict == PASS
    verdicts = {each.check: (each.verdict, each.path) for each in report.findings}
    assert verdicts == {
        THIS_BOOT: (PASS, ""), "storage.path:/mnt/nvme": (PASS, "nvidia-fs"), "gate.checks": (PASS, ""),
    }  # fmt: skip
    assert report.findings[-1].found == "1 passed, 1 not applicable"
    assert report.boot_id == "b-1"
    assert dict(report.stack) == {"kernel": "6.12.94", "driver": "550.1 open", "nvidia-fs": "2.19.7"}


def test_labels_never_say_how_it_went() -> None:
    def labels(text: str) -> set[str]:
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

    passed = metrics.render(record(finding("boot.autoload", PASS)))
    failed = metrics.render(record(finding("boot.autoload", FAIL), verdict=FAIL))
    assert labels(passed) == labels(failed)
    assert passed != failed


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (finding("boot.autoload", FAIL), FAIL),
        (finding("boot.autoload", UNKNOWN), UNKNOWN),
        (finding("storage.path:/mnt/scratch", FAIL, "compat"), FAIL),
    ],
)
def test_what_does_not_pass_is_listed(other: dict[str, Any], verdict: str) -> None:
    report = report_of(record(other))
    assert report.verdict == verdict
    (worst,) = [each for each in report.findings if each.verdict == verdict]
    assert (worst.check, worst.path) == (other["check"], other.get("path", ""))
    assert worst.hint == "See the reason: gdsdeploy validate FLEET --since-boot --limit HOST"


def test_the_gate_that_failed_itself_is_undecided() -> None:
    report = report_of(record(state=gate.CLOSED, verdict=UNKNOWN, findings=[]))
    assert report.verdict == UNKNOWN


def test_a_path_that_is_only_expected_is_no_path() -> None:
    text = metrics.render(record(finding("storage.path:/mnt/a", UNKNOWN, "p2pdma")))
    assert 'gdsdeploy_mount_path{mount="/mnt/a",path="p2pdma"} 0' in text
    assert 'gdsdeploy_mount_path{mount="/mnt/a",path="unknown"} 1' in text
    assert 'gdsdeploy_mount_path{mount="/mnt/nvme",path="nvidia-fs"} 1' in text


def test_the_waivers_of_today_decide_what_the_gate_waived() -> None:
    waived = record(finding("boot.autoload", WAIVED, waiver=WAIVER))
    assert report_of(waived).verdict == FAIL
    assert report_of(waived, waivers=[Waiver("boot.autoload", "2026-11-22", "x")]).verdict == WAIVED
    assert report_of(waived, waivers=[Waiver("boot.autoload", "2026-11-21", "x")]).verdict == FAIL


def test_a_record_against_another_lock_fails() -> None:
    report = report_of(record(lock_digest="sha256:" + "2" * 64))
    assert report.verdict == FAIL
    assert "another lock" in report.findings[0].hint


NEEDED = [query for query in QUERIES if query != f"{metrics.CHECK} > 0" and query != f"{metrics.PATH} == 1"]


@pytest.mark.parametrize("query", NEEDED)
def test_without_one_of_the_series_nothing_passes(query: str) -> None:
    gap = gap_of(lambda name, sample: [] if name == query else [sample])
    assert gap.kind == (MISSING if query == metrics.OPEN else UNCLEAR)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0, 0.5, 1e300])
@pytest.mark.parametrize("query", [query for query in NEEDED if query != metrics.INFO])
def test_with_a_wrong_number_nothing_passes(query: str, value: float) -> None:
    is_later = query == f"timestamp({metrics.OPEN})" and value > NOW
    if is_later or (query == metrics.TIMESTAMP and value == 0.5):
        value = float("nan")
    gap_of(lambda name, sample: [sample._replace(value=value)] if name == query else [sample])


@pytest.mark.parametrize(
    ("query", "value", "kind", "words"),
    [
        (NODE_BOOT_TIME, BOOT + 600, STALE, "has not judged this boot"),
        (NODE_BOOT_TIME, BOOT - 600, STALE, "has not judged this boot"),
        (metrics.BOOT_TIME, 0, STALE, "has not judged this boot"),
        (f"timestamp({metrics.OPEN})", NOW - 901, STALE, "older than 15 minutes"),
        (metrics.TIMESTAMP, NOW + 61, STALE, "in the future"),
        (metrics.OPEN, 0, UNCLEAR, "differ"),
    ],
)
def test_what_is_old_or_contradicts_itself_is_told_apart(query: str, value: float, kind: str, words: str) -> None:
    gap = gap_of(lambda name, sample: [sample._replace(value=value)] if name == query else [sample])
    assert gap.kind == kind
    assert words in gap.reason


@pytest.mark.parametrize("query", QUERIES)
def test_two_series_that_differ_are_unclear_and_equal_ones_are_one(query: str) -> None:
    def twice(name: str, sample: Sample, value: float) -> list[Sample]:
        job = {**sample.labels, "job": "other"}
        return [sample, Sample(job, value)] if name == query else [sample]

    bad = finding("boot.autoload", FAIL)
    reports, gaps = judge(
        Answers(("gpu1", metrics.render(record(bad))), change=lambda name, sample: twice(name, sample, sample.value))
    )
    assert (reports["gpu1"].verdict, gaps) == (FAIL, {})
    if query not in (f"timestamp({metrics.OPEN})", f"{metrics.PATH} == 1", metrics.INFO):
        assert gap_of(lambda name, sample: twice(name, sample, sample.value - 1), bad).kind == UNCLEAR


def test_two_stacks_of_one_host_are_unclear() -> None:
    other = replace(record(), lock_digest="sha256:" + "2" * 64)
    texts = [("gpu1:9100", metrics.render(each)) for each in (record(), other)]
    reports, gaps = judge(Answers(*texts))
    assert (reports, gaps["gpu1"].kind) == ({}, UNCLEAR)


def test_two_paths_of_one_mount_are_unclear() -> None:
    def change(name: str, sample: Sample) -> list[Sample]:
        both = [sample, sample._replace(labels={**sample.labels, "path": "compat"})]
        return both if name == f"{metrics.PATH} == 1" else [sample]

    assert gap_of(change).kind == UNCLEAR


@pytest.mark.parametrize("verdict", [FAIL, UNKNOWN, WAIVED])
def test_a_check_that_a_relabelling_drops_is_missed(verdict: str) -> None:
    bad = finding("boot.autoload", verdict, waiver=WAIVER if verdict == WAIVED else None)
    gap = gap_of(lambda name, sample: [] if name == f"{metrics.CHECK} > 0" else [sample], bad)
    assert "differ" in gap.reason


@pytest.mark.parametrize("text", ["x y", "../etc", "é" * 70_000, "\n", "<script>"])
@pytest.mark.parametrize("label", ["boot_id", "lock", "driver", "profile"])
def test_labels_of_a_hostile_host_are_its_own_trouble(label: str, text: str) -> None:
    def change(name: str, sample: Sample) -> list[Sample]:
        return [sample._replace(labels={**sample.labels, label: text})] if name == metrics.INFO else [sample]

    reports, gaps = judge(
        Answers(("gpu1", metrics.render(record())), ("gpu2", metrics.render(record())), change=change)
    )
    # A driver may be called anything; it is shown as text.
    assert label in ("driver", "profile") or "gpu1" in gaps or reports["gpu1"].verdict == FAIL


def test_a_host_that_was_there_within_a_day_is_stale() -> None:
    server = Answers(("other", metrics.render(record())))
    server.tables[NODE_BOOT_TIME].append(Sample({"instance": "gpu1:9100"}, BOOT))
    assert judge(server)[1]["gpu1"].kind == MISSING
    server.tables[LAST_SEEN].append(Sample({"instance": "gpu1:9100"}, NOW - 4000))
    assert judge(server)[1]["gpu1"].kind == STALE


def test_a_server_without_any_host_of_the_fleet_is_the_wrong_one() -> None:
    with pytest.raises(PrometheusUnusable, match="1 hosts, none of them in the fleet") as caught:
        judge(Answers(("gpu1.example.org:9100", metrics.render(record()))))
    assert "--prometheus-label; 'instance' was read" in str(caught.value.hint)


def test_another_label_names_the_hosts() -> None:
    server = Answers(("10.0.0.1:9100", metrics.render(record())))
    for table in server.tables.values():
        table[:] = [sample._replace(labels={**sample.labels, "host": "gpu1"}) for sample in table]
    reports, _ = prometheus_fleet.judge(
        fleet(), lock(), ["gpu1"], server, label="host", options=ValidateOptions(), now=lambda: NOW
    )
    assert reports["gpu1"].verdict == PASS


def test_reasons_are_grouped() -> None:
    gaps = {f"gpu{number}": Gap(STALE, "old") for number in range(7)} | {"gpu9": Gap(MISSING, "none")}
    assert prometheus_fleet.summary(gaps, 2) == ["7 stale (old): gpu0, gpu1 and 5 more", "1 missing (none): gpu9"]
