"""What the gates of a fleet's hosts found, from the series of a Prometheus server: a few queries for all hosts.

The series of a host become the record that its gate wrote, with the findings that do not pass and the mounts; from
there on it is judged as ``validate --since-boot`` judges a record.  A host is left out, with the reason, unless every
part of that record is there once, fits the other parts, and is of the boot that runs.  So a series that is missing,
old, or there twice with other values never counts for a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from gdsdeploy.errors import GdsError, PrometheusUnusable
from gdsdeploy.fleetfile import waivers
from gdsdeploy.host import checks
from gdsdeploy.host.facts.stack import STACK
from gdsdeploy.host.gate import metrics
from gdsdeploy.host.gate.gate import CLOSED, OPEN
from gdsdeploy.host.io.phrases import first_few
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, VERDICTS, WAIVED, Finding
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.report.model import HostReport
from gdsdeploy.ssh.endpoint import Answer
from gdsdeploy.validate import fleet_validation
from gdsdeploy.validate.fleet_validation import ValidateOptions
from gdsdeploy.validate.prometheus_server import Sample, Server

#: The label whose value is the host's name in the fleet file, with or without a port.
LABEL: Final = "instance"
#: Of node_exporter: when the running boot began.
NODE_BOOT_TIME: Final = "node_boot_time_seconds"
#: The finding that stands for the checks that pass, which aren't listed one by one.
OTHERS: Final = "gate.checks"
#: Queries at the same time.
AT_ONCE: Final = 3
#: Seconds that a sample may be old.
AGE: Final = 900
#: Seconds by which two readings of one boot's time may differ, and by which a host's clock may be ahead.
SAME_BOOT, AHEAD = 5, 60
#: Why a host isn't judged.
MISSING, STALE, UNCLEAR = "missing", "stale", "unclear"
_SAMPLED = f"timestamp({metrics.OPEN})"
_NOT_PASSED = f"{metrics.CHECK} > 0"
_MOUNTS = f"{metrics.PATH} == 1"
#: All questions; each answer has the series of all hosts.
QUERIES: Final = (
    *(metrics.OPEN, _SAMPLED, metrics.TIMESTAMP, metrics.BOOT_TIME, NODE_BOOT_TIME),
    *(metrics.INFO, metrics.CHECKS, _NOT_PASSED, _MOUNTS),
)
#: When each host was there last, within a day.
LAST_SEEN: Final = f"max_over_time({_SAMPLED}[1d:10m])"
_CODES = {code: verdict for verdict, code in metrics.CODES.items()}


@dataclass(frozen=True)
class Gap:
    """Why a host isn't judged: ``kind`` is MISSING, STALE or UNCLEAR."""

    kind: str
    reason: str


class _GapError(Exception):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.gap = Gap(kind, reason)


#: query → host → its samples
_Tables = Mapping[str, Mapping[str, Sequence[Sample]]]


def judge(
    fleet: Fleet,
    lock: Lock,
    names: Sequence[str],
    server: Server,
    *,
    label: str = LABEL,
    options: ValidateOptions,
    now: Callable[[], float] = time.time,
) -> tuple[dict[str, HostReport], dict[str, Gap]]:
    """(host → its report, host → why it has none) for the hosts ``names``.

    Raises PrometheusUnusable where a query fails, and where the server has none of these hosts.
    """
    moment = now()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(lambda query: _by_host(server.query(query, moment), label), QUERIES)
        tables = dict(zip(QUERIES, answers, strict=True))
    if not any(name in table for table in tables.values() for name in names):
        words = f"{server.url}: it has {metrics.OPEN} of {len(tables[metrics.OPEN])} hosts, none of them in the fleet"
        hint = f"Name the label that has the hosts' names with --prometheus-label; {label!r} was read"
        raise PrometheusUnusable(words, hint=hint)
    reports: dict[str, HostReport] = {}
    gaps: dict[str, Gap] = {}
    for name in names:
        try:
            answer = Answer(name, _document(name, tables, moment), None, 0.0)
            of_host = [*waivers.of_host(fleet, name), *options.waivers]
            reports[name] = fleet_validation.recorded(answer, fleet.hosts[name].profile, lock.digest, options, of_host)
        except _GapError as error:
            gaps[name] = error.gap
        except GdsError as error:
            gaps[name] = Gap(UNCLEAR, error.message)
    if any(gap.kind == MISSING for gap in gaps.values()):
        gaps |= _seen_before(gaps, _by_host(server.query(LAST_SEEN, moment), label))
    return reports, gaps


def summary(gaps: Mapping[str, Gap], most: int = 5) -> list[str]:
    """A line for each reason, the most frequent first."""
    groups: dict[Gap, list[str]] = {}
    for name, gap in gaps.items():
        groups.setdefault(gap, []).append(name)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [f"{len(hosts)} {gap.kind} ({gap.reason}): {first_few(hosts, most)}" for gap, hosts in ordered]


def _by_host(samples: Sequence[Sample], label: str) -> dict[str, list[Sample]]:
    """Host → its samples; those without the label are of no host."""
    hosts: dict[str, list[Sample]] = {}
    for sample in samples:
        name, colon, port = sample.labels.get(label, "").rpartition(":")
        hosts.setdefault(name if colon and port.isdecimal() else sample.labels.get(label, ""), []).append(sample)
    return hosts


def _seen_before(gaps: Mapping[str, Gap], last: Mapping[str, Sequence[Sample]]) -> dict[str, Gap]:
    """The hosts of ``gaps`` that are missing now and were there within a day."""
    return {
        name: Gap(STALE, "its series have ended")
        for name, gap in gaps.items()
        if gap.kind == MISSING and last.get(name)
    }


def _document(name: str, tables: _Tables, moment: float) -> dict[str, Any]:
    """What ``gate_record.document`` makes of a host's files; raises _GapError."""

    def one(query: str) -> Sample:
        return _one(query, tables[query].get(name, ()))

    state = OPEN if _flag(one(metrics.OPEN)) else CLOSED
    when = _time(one(metrics.TIMESTAMP))
    if not moment - one(_SAMPLED).value <= AGE:
        raise _GapError(STALE, f"its series are older than {AGE // 60} minutes")
    if when > moment + AHEAD:
        raise _GapError(STALE, "its gate's time is in the future")
    boot_time = _time(one(metrics.BOOT_TIME))
    if not boot_time or abs(boot_time - _time(one(NODE_BOOT_TIME))) > SAME_BOOT:
        raise _GapError(STALE, "its gate has not judged this boot, or its clock was set since")
    about = one(metrics.INFO).labels
    counts = _counts(tables[metrics.CHECKS].get(name, ()))
    moment_of_gate = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
    findings = _findings(name, tables, moment_of_gate)
    _require_consistency(state, counts, findings)
    undecided = FAIL if counts[FAIL] else UNKNOWN
    # The boot is the running one, as its time shows.
    record = {
        "version": 1, "state": state, "reason": "", "verdict": undecided if state == CLOSED else PASS,
        "boot_id": about.get("boot_id", ""), "when": moment_of_gate, "seconds": 0.0, "host": name,
        "profile": about.get("profile", ""), "lock_digest": about.get("lock", ""), "basis": "",
        "stack": [[part, text] for part in STACK if (text := about.get(part.replace("-", "_")))],
        "findings": [each.as_dict() for each in (*_as_failed(findings), _others(counts, findings))], "gaps": [],
    }  # fmt: skip
    if not record["boot_id"] or not record["lock_digest"]:
        raise _GapError(UNCLEAR, f"{metrics.INFO} has no boot or no lock")
    return {"boot_id": record["boot_id"], "record": record}


def _one(query: str, samples: Sequence[Sample]) -> Sample:
    """The sample of a host's only series; others may repeat it, as two jobs do that scrape one exporter."""
    if not samples:
        raise _GapError(MISSING if query == metrics.OPEN else UNCLEAR, f"there is no {query}")
    kinds = {tuple(sample.labels.get(key, "") for key in ("boot_id", "profile", "lock", *_PARTS)) for sample in samples}
    values = {sample.value for sample in samples}
    # Two jobs scrape at two moments.
    if len(kinds) > 1 or (len(values) > 1 and query != _SAMPLED):
        raise _GapError(UNCLEAR, f"it has several series {query}, which differ")
    return min(samples, key=lambda sample: sample.value)


_PARTS = tuple(part.replace("-", "_") for part in STACK)


def _flag(sample: Sample) -> bool:
    if sample.value not in (0, 1):
        raise _GapError(UNCLEAR, f"{metrics.OPEN} is neither 0 nor 1")
    return sample.value == 1


def _time(sample: Sample) -> float:
    """Seconds since 1970, of a year with four digits."""
    if not 0 <= sample.value < 2.5e11:
        raise _GapError(UNCLEAR, "a time is not one")
    return sample.value


def _distinct(query: str, samples: Sequence[Sample], keys: Sequence[str]) -> dict[tuple[str, ...], float]:
    """The values of these labels → the value of the series."""
    values: dict[tuple[str, ...], float] = {}
    for sample in samples:
        key = tuple(sample.labels.get(label, "") for label in keys)
        if values.setdefault(key, sample.value) != sample.value:
            raise _GapError(UNCLEAR, f"it has several series {query}, which differ")
    return values


def _counts(samples: Sequence[Sample]) -> dict[str, int]:
    """Verdict → number of checks."""
    values = {verdict: value for (verdict,), value in _distinct(metrics.CHECKS, samples, ["verdict"]).items()}
    if set(values) != set(VERDICTS) or not all(value >= 0 and value.is_integer() for value in values.values()):
        raise _GapError(UNCLEAR, f"{metrics.CHECKS} does not have a number for each verdict")
    return {verdict: int(value) for verdict, value in values.items()}


def _findings(name: str, tables: _Tables, when: str) -> list[Finding]:
    """The checks that do not pass, and the mounts; those that pass have no words."""
    codes = _distinct(metrics.CHECK, tables[_NOT_PASSED].get(name, ()), ["check", "subject"])
    mounts = _distinct(metrics.PATH, tables[_MOUNTS].get(name, ()), ["mount", "path"])
    paths = {mount: path.replace(metrics.UNPROVEN, "") for mount, path in mounts}
    if len(mounts) > len(paths):
        raise _GapError(UNCLEAR, f"a mount has several paths in {metrics.PATH}")
    findings: list[Finding] = []
    for (check, subject), code in codes.items():
        if code not in _CODES:
            raise _GapError(UNCLEAR, f"{metrics.CHECK} has the value {code:g}")
        ident = f"{check}:{subject}" if subject else check
        path = paths.pop(subject, "") if check == "storage.path" else ""
        verdict = _CODES[int(code)]
        words = {FAIL: "failed", UNKNOWN: "could not tell", WAIVED: "was waived"}[verdict]
        findings.append(
            Finding(
                *(ident, verdict, _titles().get(check, check), "the check passes", f"it {words} at {when}"),
                hint="See the reason: gdsdeploy validate FLEET --since-boot --limit HOST",
                path=path,
            )
        )
    return findings + [_mount(mount, path) for mount, path in paths.items()]


def _mount(mount: str, path: str) -> Finding:
    words = ("the path of the fleet file", path or "no proof of a path")
    return Finding(f"storage.path:{mount}", PASS, _titles()["storage.path"], *words, path=path)


@cache
def _titles() -> dict[str, str]:
    """Id of a check → what it asserts."""
    return {check.id: check.title for check in checks.listed()}


def _require_consistency(state: str, counts: Mapping[str, int], findings: Sequence[Finding]) -> None:
    """The numbers, the checks and the state are of one record; otherwise something dropped or changed series."""
    for verdict in (FAIL, UNKNOWN, WAIVED, PASS):
        number = sum(finding.verdict == verdict for finding in findings)
        if number > counts[verdict] or (number < counts[verdict] and verdict != PASS):
            raise _GapError(UNCLEAR, f"{metrics.CHECK} and {metrics.CHECKS} differ")
    passes = not counts[FAIL] and not counts[UNKNOWN] and bool(counts[PASS] or counts[WAIVED])
    if passes != (state == OPEN):
        raise _GapError(UNCLEAR, f"{metrics.OPEN} and {metrics.CHECKS} differ")


def _as_failed(findings: Sequence[Finding]) -> list[Finding]:
    """With those that the gate waived as failed: the fleet file's waivers of today decide."""
    return [replace(finding, verdict=FAIL) if finding.verdict == WAIVED else finding for finding in findings]


def _others(counts: Mapping[str, int], findings: Sequence[Finding]) -> Finding:
    passed = counts[PASS] - sum(finding.verdict == PASS for finding in findings)
    verdict = PASS if passed else NOT_APPLICABLE if any(counts.values()) else UNKNOWN
    words = f"{passed} passed, {counts[NOT_APPLICABLE]} not applicable"
    hint = "On the host, run journalctl -u gds-gate" if verdict == UNKNOWN else ""
    return Finding(OTHERS, verdict, "The other checks of the gate pass", "each passes", words, hint)
