"""The report for people and for programs; and what changed between two reports.

For a terminal: a summary, the fleet, then causes by the number of hosts, and what to do about them.

For programs: a JSON object, JUnit XML, and Prometheus' metrics.  ``report.schema.json`` beside this file has the shape
of the object, version 1.  The metrics are for node_exporter's textfile collector or a Pushgateway on the controller.

JUnit XML has a suite per host and a case per check.  A failed check is a ``failure``; one that could not tell, and a
host that gave no evidence, is an ``error``: CI systems count both, and neither passes.  One that is waived or not
applicable is ``skipped``, with the waiver or the reason.

Not counted as changes: when and how long a run took, which boot it saw, and what a check that passes found.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import PurePath
from typing import IO, Any
from xml.etree import ElementTree as ET  # nosec B405 # it only writes

from pydantic import BaseModel, ValidationError
from rich.table import Table
from rich.text import Text

from gdsdeploy import __version__
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.prometheus import Metric, Sample, text
from gdsdeploy.host.io.wording import count, joined, printable
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, VERDICTS, WAIVED, Finding
from gdsdeploy.host.subjects.condition import COMPAT
from gdsdeploy.model import hostnames
from gdsdeploy.model.hostnames import grouped, words
from gdsdeploy.report import model
from gdsdeploy.report.model import (
    ORDER,
    SYMBOLS,
    UNREACHABLE,
    WORDS,
    Cause,
    HostReport,
    Report,
    causes,
    check_id,
    on,
    subject,
)

STYLES = {PASS: "green", FAIL: "bold red", UNKNOWN: "yellow", WAIVED: "cyan", UNREACHABLE: "bold magenta"}
#: Verdicts with a column of their own.
COLUMNS = (PASS, FAIL, UNKNOWN, NOT_APPLICABLE)
#: Path of a mount → what the table of the fleet has; the others stand for themselves.
PATHS = {"none": "not mounted"}
#: Without --verbose: rows of the table, lines of evidence of one cause, and lines of one of its fields.
ROWS, EVIDENCE_LINES, FIELD_LINES = 12, 3, 6


def fleet_table(report: Report, *, verbose: bool = False) -> Table:
    """One row for all hosts that are alike: verdict, counts, what runs and the path of each mount; the worst first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("host", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verdict in COLUMNS:
        table.add_column(SYMBOLS[verdict], justify="right", no_wrap=True)
    table.add_column("runs", overflow="fold")
    table.add_column("storage paths", overflow="fold")
    groups = grouped((host.host, (host.verdict, *_cells(host))) for host in report.hosts)
    rows = sorted(groups.items(), key=lambda row: ORDER.index(row[0][0]))
    for (verdict, *cells), hosts in rows if verbose else rows[:ROWS]:
        words = Text(f"{SYMBOLS[verdict]} {WORDS[verdict]}", style=STYLES[verdict])
        table.add_row(Text(model.cell(hosts, whole=verbose), style="bold"), words, *map(Text, cells))
    if len(rows) > ROWS and not verbose:
        table.add_row(f"and {sum(len(hosts) for _, hosts in rows[ROWS:])} more; --verbose")
    return table


def _cells(host: HostReport) -> Iterator[str]:
    """What the row of a host has behind its verdict."""
    yield from ("-" if host.trouble else str(host.count(verdict)) for verdict in COLUMNS)
    yield "\n".join(f"{name} {value}" for name, value in host.stack) or "-"
    # Each mount with its verdict and its path, if that is known; the reason follows in the details.
    parts = [(SYMBOLS[mount.verdict], subject(mount), PATHS.get(mount.path, mount.path)) for mount in host.mounts()]
    yield "\n".join(" ".join(filter(None, words)) for words in parts) or "-"


def details(report: Report, *, verbose: bool = False) -> str:
    """Each cause once, with its hosts, expected, found and next step; then mounts in compat mode; empty: all is well.

    verbose: all lines of all causes, and each check that is not applicable with its reason.
    """
    blocks = [
        *(block for verdict in (FAIL, UNREACHABLE, UNKNOWN, WAIVED) for block in _causes(report, verdict, verbose)),
        *([line] for line in _notes(report, verbose)),
    ]
    return joined(model.shown(blocks, whole=verbose))


def _causes(report: Report, verdict: str, verbose: bool) -> Iterator[list[str]]:
    for cause in causes(report, verdict, evidence=verbose):
        until = " until {until}: {reason}".format(**cause.waiver) if verdict == WAIVED and cause.waiver else ""
        has_evidence = verdict != UNREACHABLE
        words = f" ({WORDS[verdict]}{until})" if has_evidence else ""
        yield [
            f"{SYMBOLS[verdict]} {cause.name}{words} on {model.on(cause.hosts, whole=verbose)}",
            *([f"    {cause.title}"] if has_evidence else []),
            *(line for name, value in cause.fields for line in _field(name if has_evidence else "", value, verbose)),
            *(_field("what to do", cause.hint, verbose) if verdict != WAIVED else []),
            *(_evidence(cause, verbose) if verdict != WAIVED else []),
        ]


def _evidence(cause: Cause, verbose: bool) -> list[str]:
    """The first host's, named where others have other evidence."""
    lines = [*([] if cause.alike else [f"on {cause.hosts[0]}:"]), *cause.evidence]
    return model.cut([f"    | {line}" for line in lines], EVIDENCE_LINES, whole=verbose, indent="    | ")


def _notes(report: Report, verbose: bool) -> Iterator[str]:
    """What is accepted, and still shown: mounts that bounce through CPU memory, gaps, waivers that have ended."""

    def together(notes: Iterator[tuple[str, str]]) -> Iterator[str]:
        yield from (f"  {note}, on {model.on(hosts, whole=verbose)}" for note, hosts in grouped(notes).items())

    each = [(host.host, finding) for host in report.hosts for finding in host.findings]
    mounts = ((name, one) for name, one in each if one.verdict == PASS and one.path == COMPAT)
    yield from together((name, f"{subject(mount)} takes {mount.found}") for name, mount in mounts)
    if verbose:
        skipped = ((name, one) for name, one in each if one.verdict == NOT_APPLICABLE)
        head = f"{SYMBOLS[NOT_APPLICABLE]} "
        yield from together(
            (name, f"{head}{one.check} ({WORDS[NOT_APPLICABLE]}): {one.found}") for name, one in skipped
        )
    yield from together((host.host, f"evidence is incomplete: {gap}") for host in report.hosts for gap in host.gaps)
    ended = (waiver for waiver in report.waivers if waiver.expired)
    yield from (f"the waiver of {waiver.check} ended on {waiver.until}: {waiver.reason}" for waiver in ended)


def _field(name: str, text: str, verbose: bool) -> list[str]:
    """A value under its name, continued lines aligned; nothing when there is no value."""
    labels = [f"{name}:" if name else "", *[""] * text.count("\n")]
    lines = [f"    {label:<{12 if name else 0}}{line}" for label, line in zip(labels, text.splitlines(), strict=False)]
    return model.cut(lines, FIELD_LINES, whole=verbose)


VERSION = 1


def json_pieces(report: Report) -> Iterator[str]:
    """One object, indented, hosts in the fleet's order; in parts of one host, so that it is never held whole."""
    head = {
        "version": VERSION,
        "tool": f"gdsdeploy {__version__}",
        "fleet": report.fleet,
        "lock": report.lock_digest,
        "when": report.when,
        "verdict": report.verdict,
        "counts": {verdict: report.count(verdict) for verdict in reversed(ORDER)},
        "waivers": [asdict(waiver) for waiver in report.waivers],
    }
    yield _text(head).removesuffix("\n}") + ',\n  "hosts": {'
    for number, host in enumerate(report.hosts):
        # A line end within a text is written as \\n.
        value = _text(_host(host)).replace("\n", "\n    ")
        yield f"{',' if number else ''}\n    {_text(host.host)}: {value}"
    yield "\n  }\n}\n" if report.hosts else "}\n}\n"


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _host(host: HostReport) -> dict[str, Any]:
    return {
        "profile": host.profile,
        "verdict": host.verdict,
        "counts": {verdict: host.count(verdict) for verdict in VERDICTS},
        "boot_id": host.boot_id,
        "seconds": round(host.seconds, 3),
        "stack": dict(host.stack),
        "gaps": list(host.gaps),
        "error": asdict(host.trouble) if host.trouble else None,
        "findings": [finding.as_dict() for finding in host.findings],
    }


#: Noncharacters, which XML 1.0 cannot carry even as references.
_NO_CHARACTER = re.compile("[\ufffe\uffff]")


def junit_xml(report: Report) -> str:
    """One ``testsuites`` document."""
    root = ET.Element("testsuites", name=_fit(f"gdsdeploy validate {report.fleet}"))
    root.extend(_suite(report, host) for host in report.hosts)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, host: HostReport) -> ET.Element:
    cases = len(host.findings) + (1 if host.trouble else 0)
    suite = ET.Element(
        "testsuite",
        name=_fit(host.host),
        hostname=_fit(host.host),
        timestamp=report.when.removesuffix("Z"),
        time=f"{host.seconds:.3f}",
        tests=str(cases),
        failures=str(host.count(FAIL)),
        errors=str(host.count(UNKNOWN) + (1 if host.trouble else 0)),
        skipped=str(host.count(WAIVED) + host.count(NOT_APPLICABLE)),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("lock", report.lock_digest), ("boot_id", host.boot_id), *host.stack):
        ET.SubElement(properties, "property", name=_fit(name), value=_fit(value))
    suite.extend(_case(host, finding) for finding in host.findings)
    if host.trouble:
        case = ET.SubElement(suite, "testcase", classname=_fit(host.host), name="reachable", time="0")
        error = ET.SubElement(case, "error", type=host.trouble.kind, message=_fit(host.trouble.message))
        error.text = _fit(host.trouble.hint)
    return suite


def _case(host: HostReport, finding: Finding) -> ET.Element:
    name = _fit(finding.check)
    case = ET.Element("testcase", classname=_fit(f"{host.host}.{check_id(finding)}"), name=name, time="0")
    if finding.verdict == NOT_APPLICABLE:
        ET.SubElement(case, "skipped", type=finding.verdict, message=_fit(finding.found))
    elif finding.verdict != PASS:
        tag = {FAIL: "failure", WAIVED: "skipped"}.get(finding.verdict, "error")
        message = f"{finding.title}: expected {finding.expected}, found {finding.found}"
        if finding.waiver and finding.verdict == WAIVED:
            message = f"waived until {finding.waiver['until']}: {finding.waiver['reason']}; {message}"
        detail = ET.SubElement(case, tag, type=finding.verdict, message=_fit(message))
        lines = [f"expected: {finding.expected}", f"found: {finding.found}", f"what to do: {finding.hint}"]
        detail.text = _fit(joined([*lines, *(f"| {line}" for line in finding.evidence)]))
    return case


def _fit(text: str) -> str:
    """What XML 1.0 can carry, without hidden characters; the writer escapes the rest."""
    return _NO_CHARACTER.sub("\ufffd", printable(text))


def metrics(report: Report) -> str:
    """One text; the same report gives the same bytes."""
    return text(_metrics(report))


def _metrics(report: Report) -> Iterator[Metric]:
    moment = calendar.timegm(time.strptime(report.when, "%Y-%m-%dT%H:%M:%SZ"))
    # Not its path, which depends on where the command was started.
    fleet = [("fleet", PurePath(report.fleet).name)]
    yield "gdsdeploy_validation_timestamp_seconds", "When the run began.", [(fleet, str(moment))]
    counts: list[Sample] = [([*fleet, ("verdict", verdict)], str(report.count(verdict))) for verdict in ORDER]
    yield "gdsdeploy_validation_hosts", "Number of hosts by verdict.", counts
    hosts = [(host, [("host", host.host), ("profile", host.profile)]) for host in report.hosts]
    passed: list[Sample] = [(names, _passes(host.verdict)) for host, names in hosts]
    yield "gdsdeploy_host_passed", "Whether every check passed on a host.", passed
    numbers: list[Sample] = [
        ([*names, ("verdict", verdict)], str(host.count(verdict))) for host, names in hosts for verdict in VERDICTS
    ]
    yield "gdsdeploy_host_checks", "Number of a host's checks by verdict.", numbers
    yield "gdsdeploy_host_seconds", "How long a host took to answer.", [(n, f"{host.seconds:.3f}") for host, n in hosts]
    about: list[Sample] = [
        ([*names, ("boot_id", host.boot_id), *((part.replace("-", "_"), value) for part, value in host.stack)], "1")
        for host, names in hosts
    ]
    yield "gdsdeploy_host_info", "What runs on a host.", about
    checks: list[Sample] = []
    for host, _ in hosts:
        # One that is not applicable neither passed nor didn't; the number above counts it.
        for finding in (finding for finding in host.findings if finding.verdict != NOT_APPLICABLE):
            labels = [("check", check_id(finding)), ("subject", subject(finding))]
            checks.append(([("host", host.host), *labels], _passes(finding.verdict)))
    yield "gdsdeploy_host_check_passed", "Whether a check passed; one that is waived or could not tell did not.", checks


def _passes(verdict: str) -> str:
    return str(int(verdict == PASS))


#: What a host is that only one of the reports has.
ABSENT = "not there"
#: Where the verdict of a whole host, and the lock of a run, stand among its checks and parts.
HOST, LOCK = "host", "lock"


@dataclass(frozen=True)
class Change:
    """One difference: of ``host`` (empty: of the whole run), what differs, and how it was and is."""

    host: str
    #: ``host``, ``lock``, ``stack.<part>`` or the id of a check
    what: str
    before: str
    after: str
    #: why, where a check or a host does not pass now
    why: str = ""


@dataclass(frozen=True)
class Changes:
    """All differences between two reports."""

    #: RFC 3339, UTC: when each of them was made
    before: str
    after: str
    changes: tuple[Change, ...] = ()
    #: hosts that were rebooted in between
    rebooted: tuple[str, ...] = ()


class _Finding(BaseModel):
    check: str
    verdict: str
    expected: str
    found: str


class _Host(BaseModel):
    verdict: str
    boot_id: str
    stack: dict[str, str]
    error: dict[str, Any] | None
    findings: list[_Finding]


class _Head(BaseModel):
    lock: str
    when: str


def report_from(file: IO[str]) -> dict[str, Any]:
    """What is compared of a report that ``validate --json`` printed, of any number of hosts.

    Raises OSError, UnicodeDecodeError, and ValueError that says what else the file is.
    """
    head, hosts, alike = dict[str, Any](), dict[str, Any](), dict[tuple[str, ...], dict[str, str]]()
    damage = ""
    try:
        for (name, *host), value in jsontext.members(file.read, "hosts"):
            if not host:
                head[name] = value
                continue
            if len(hosts) == hostnames.MOST:
                damage = f"it has more than {hostnames.MOST:,} hosts"
                break
            try:
                read = vars(_Host.model_validate(value))
            except ValidationError as error:
                damage = damage or _damage(error, "hosts", host[0])
                continue
            # Hosts of a fleet are alike.
            rows = [alike.setdefault(tuple(vars(each).values()), vars(each)) for each in read["findings"]]
            hosts[host[0]] = {**read, "findings": rows}
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise ValueError(f"it isn't a report: {error}") from None
    if "verdict" not in head or "hosts" in head:
        raise ValueError("it isn't a validation report; `gdsdeploy validate --json` prints one")
    if head.get("version") != VERSION:
        raise ValueError(f"it is a report of version {str(head.get('version'))[:20]}; this program reads {VERSION}")
    try:
        _Head.model_validate(head)
    except ValidationError as error:
        damage = _damage(error)
    if damage:
        raise ValueError(f"it is a damaged report: {damage}")
    return {**head, "hosts": hosts}


def _damage(error: ValidationError, *above: str) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, (*above, *first['loc'])))[:200]}: {first['msg']}"


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """The differences in the order of the later report's hosts, then those that are gone."""
    locks = before["lock"], after["lock"]
    changes = [] if locks[0] == locks[1] else [Change("", LOCK, *locks)]
    rebooted: list[str] = []
    for name in dict.fromkeys([*after["hosts"], *before["hosts"]]):
        old, new = before["hosts"].get(name), after["hosts"].get(name)
        changes += _host_changes(name, old, new)
        boots = {host["boot_id"] for host in (old, new) if host}
        if len(boots) == 2 and all(boots):
            rebooted.append(name)
    return Changes(before["when"], after["when"], tuple(changes), tuple(rebooted))


def changes_json(changes: Changes) -> str:
    """One object: version, before, after, same, changes, rebooted."""
    value = {"version": VERSION, "same": not changes.changes, **asdict(changes)}
    return json.dumps(value, indent=2, ensure_ascii=False)


def changes_text(changes: Changes) -> str:
    """A block for hosts with the same changes, the reasons below each change; then the outcome in one line."""
    lines: list[str] = []
    each = groupby(changes.changes, key=lambda change: change.host)
    groups = grouped((name, tuple(replace(one, host="") for one in of)) for name, of in each)
    for same, hosts in sorted(groups.items(), key=lambda group: group[1] != [""]):
        indent = "  " if hosts != [""] else ""
        lines += [f"{on(hosts)}:"] if indent else []
        for change in same:
            lines.append(f"{indent}{change.what}: {change.before} → {change.after}")
            lines += [f"{indent}  {line}" for line in change.why.splitlines()]
    if changes.rebooted:
        lines.append(f"rebooted in between: {words(changes.rebooted)}")
    number = count(len(changes.changes), "change") if changes.changes else "nothing changed"
    return joined([*lines, f"{number} between {changes.before} and {changes.after}"])


def _host_changes(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Change]:
    before, after = (host["verdict"] if host else ABSENT for host in (old, new))
    error = (new or {}).get("error") or {}
    if before != after or (error and error != ((old or {}).get("error") or {})):
        yield Change(name, HOST, before, after, str(error.get("message", "")))
    # What is unknown of a host without evidence has not changed; its verdict says that it is.
    if not old or not new or old["error"] or new["error"]:
        return
    for part in dict.fromkeys([*new["stack"], *old["stack"]]):
        values = [host["stack"].get(part, ABSENT) for host in (old, new)]
        if values[0] != values[1]:
            yield Change(name, f"stack.{part}", *values)
    yield from _check_changes(name, old, new)


def _check_changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    earlier, later = ({finding["check"]: finding for finding in host["findings"]} for host in (old, new))
    for check in dict.fromkeys([*later, *earlier]):
        before, after = earlier.get(check), later.get(check)
        verdicts = [finding["verdict"] if finding else ABSENT for finding in (before, after)]
        passes = after is None or after["verdict"] in (PASS, NOT_APPLICABLE)
        why = after["found"] if verdicts[1] == NOT_APPLICABLE and after else ""
        if set(verdicts) == {ABSENT, NOT_APPLICABLE}:
            # Earlier releases left such a check out.
            continue
        why = why if passes or after is None else f"found {after['found']}, expected {after['expected']}"
        if verdicts[0] != verdicts[1]:
            yield Change(name, check, verdicts[0], verdicts[1], why)
        elif before and after and not passes and before["found"] != after["found"]:
            yield Change(name, check, f"{verdicts[0]}, found {before['found']}", f"found {after['found']}")
