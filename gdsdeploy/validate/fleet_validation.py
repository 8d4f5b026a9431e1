"""Validate: evidence from every host in one round trip, judged on the controller by the checks the host itself has.

What the gate of a host wrote down in this boot is read by one ``cat`` in the login: no Python starts there.  The record
is data from the host: its size, its nesting and its shape are bounded as those of every answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsdeploy import console
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.converge.plan_fleet import EVIDENCE
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.errors import (
    ChecksFailed,
    ChecksUnknown,
    GdsError,
    HostUnfit,
    HostUnreachable,
    NameUnknown,
    did_you_mean,
    error_named,
    translated,
    with_fleet,
)
from gdsdeploy.fleetfile import selection
from gdsdeploy.host import checks
from gdsdeploy.host.evidence import longest, request_for
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.unknown import if_known
from gdsdeploy.host.gate import gate
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.wording import count
from gdsdeploy.host.model import finding as waiver
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding, Waiver
from gdsdeploy.host.subjects.stack import STACK, stack
from gdsdeploy.model import hostnames
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.report.model import SYMBOLS, WORDS, HostReport, Report, WaiverUse, check_id, examined, trouble_from
from gdsdeploy.ssh import machines, reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT, VALUES, Answer, Endpoint, Files, malformed
from gdsdeploy.ssh.machines import Identity
from gdsdeploy.ssh.transport import ask

GATE_QUESTION = "cat gate.json"
_GATE_HINT = "On the host, run systemctl start gds-gate and journalctl -u gds-gate; provision installs the gate"


def gate_document(host: Endpoint, text: str) -> dict[str, Any]:
    """``boot_id`` of the running boot, its ``record``, and the one that was ``kept``, or None; raises HostUnfit.

    text: of the files of GATE_FILES that are there, one after the other.
    """
    boot_id, _, rest = text.partition("\n")
    if not boot_id.strip():
        raise malformed(host.where(), GATE_QUESTION, "it has no id of the boot")
    now, *kept = re.split(rf"^{re.escape(boot_id)}$", rest, maxsplit=1, flags=re.MULTILINE)
    record = _record(host, now)
    return {"boot_id": boot_id.strip(), "record": record, "kept": _record(host, "".join(kept)) if not record else None}


def _record(host: Endpoint, text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    with translated(ValueError, lambda error: malformed(host.where(), GATE_QUESTION, str(error))):
        record = jsontext.loads(text, items=VALUES)
    if not isinstance(record, dict):
        raise malformed(host.where(), GATE_QUESTION, "the record isn't an object")
    return record


#: The running boot with its record, and again with the record that outlives a boot: either may be missing.
GATE_FILES = Files(
    tuple(
        path for folder in (gate.RUN_FOLDER, gate.STATE_FOLDER) for path in (gate.BOOT_ID, f"{folder}/{gate.RECORD}")
    ),
    gate_document,
)


def gate_record_of_this_boot(answer: Answer) -> tuple[str, gate.Record | None, str]:
    """(id of the boot, its record or None, why there is none); raises the host's error, or HostUnfit."""
    with reply_schema.unexpected_errors(answer.host):
        document = reply_schema.lines(answer.require_document())
    shown = reply_schema.parse_reply(answer.host, GATE_QUESTION, reply_schema.GateShown, document)
    return shown.boot_id, *gate.of_boot(shown.boot_id, shown.record, shown.kept)


def waiver_uses(
    waivers: Mapping[str, Sequence[Waiver]], hosts: Sequence[HostReport], day: str
) -> tuple[WaiverUse, ...]:
    """Every waiver of a run as it was met on ``day`` (YYYY-MM-DD).  waivers: host → those that hold for it."""

    def is_used(waiver: Waiver, host: HostReport) -> bool:
        return waiver in waivers.get(host.host, ()) and any(
            finding.waiver is not None and finding.waiver["until"] == waiver.until and waiver.covers(finding)
            for finding in host.findings
        )

    every = dict.fromkeys(waiver for listed_waivers in waivers.values() for waiver in listed_waivers)
    used = {waiver: tuple(host.host for host in hosts if is_used(waiver, host)) for waiver in every}
    return tuple(WaiverUse(each.check, each.until, each.reason, each.until < day, used[each]) for each in every)


#: The finding that says whether the gate has judged this boot.
THIS_BOOT = "gate.this-boot"


@dataclass(frozen=True)
class ValidateOptions:
    """What a user asked of a run."""

    #: ids of checks, with or without a subject; empty: all
    only: Sequence[str] = ()
    #: beside those of the fleet file, for every host
    waivers: Sequence[Waiver] = ()
    #: YYYY-MM-DD, UTC: the day on which waivers are judged
    day: str = ""
    #: whether mounts for which the fleet has a threshold under load are read from; never from a bundle or a record
    load: bool = False
    #: whether libcufile is opened also where nothing has changed since its last answer
    fresh: bool = False

    def today(self) -> str:
        return self.day or waiver.today()


def validate(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    options: ValidateOptions = ValidateOptions(),
    since_boot: bool = False,
    progress: Callable[[str], None],
    warn: Callable[[str], None] = console.warn,
) -> Report:
    """Judge the hosts ``names``; the report has the reason for a host without evidence, or with two names.

    timeout: seconds for each host, beside those of reading under load.
    warn: takes what isn't an error: machines with the same machine id.
    since_boot: collects no evidence; the report has what each host's own gate found in the current boot.
    Raises LockStale and FleetInvalid where no expectation can be made, and Interrupted.
    """
    when = utc_now()
    expected = {name: expectation(Machine(fleet, lock, name)) for name in names}
    waivers_of = {name: [*selection.waivers_of(fleet, name), *options.waivers] for name in names}

    machine_ids: dict[str, str] = {}
    memory = checks.Memory()

    def judge(answer: Answer) -> HostReport:
        name = answer.host
        if since_boot:
            return recorded(answer, fleet.hosts[name].profile, lock.digest, options, waivers_of[name])

        def report(evidence: dict[str, Any]) -> HostReport:
            machine_ids[name] = evidence["host"].get("machine_id", "")
            expectation = fit_expectation(fleet, lock, expected[name], answer)
            return host_report(expectation, evidence, options, waivers_of[name], answer.seconds, memory)

        return reply_schema.judge_reply(answer, "evidence", reply_schema.Evidence, report)

    argv = (*EVIDENCE, *(["--load"] if options.load else []), *(["--fresh"] if options.fresh else []))
    stdin = {} if since_boot else {name: each.to_json().encode() for name, each in expected.items()}
    program = GATE_FILES if since_boot else None
    if options.load:
        loads = [request_for(each, load=True).load for each in expected.values()]
        timeout += max((sum(longest(seconds) for _, seconds in load) for load in loads), default=0.0)
    reports: dict[str, HostReport] = {}
    for answer, outcome in ask(
        fleet, fleet_path, names, argv, judge, timeout=timeout, stdin=stdin, program=program, read_only=True
    ):
        name = answer.host
        reports[name] = (
            report_without_evidence(expected[name], outcome, answer.seconds)
            if isinstance(outcome, GdsError)
            else outcome
        )
        progress(line(reports[name]))
    identities = {name: Identity(reports[name].boot_id, machine_ids.get(name, "")) for name in names}
    for words in machines.clones(identities):
        warn(words)
    for same, error in machines.same_boot(identities, fleet_path).items():
        for name in same:
            reports[name] = report_without_evidence(expected[name], error, reports[name].seconds)
            progress(line(reports[name]))
    hosts = tuple(_naming_fleet(reports[name], fleet_path) for name in names)
    return Report(str(fleet_path), lock.digest, when, hosts, waiver_uses(waivers_of, hosts, options.today()))


def _naming_fleet(report: HostReport, fleet_path: Path) -> HostReport:
    """The report, whose next steps name the fleet file and the host."""

    def step(hint: str) -> str:
        return with_fleet(hint, fleet_path).replace("--limit HOST", f"--limit {report.host}")

    named = ((each, step(each.hint)) for each in report.findings)
    findings = tuple(each if hint == each.hint else replace(each, hint=hint) for each, hint in named)
    trouble = report.trouble and replace(report.trouble, hint=step(report.trouble.hint))
    return replace(report, findings=findings, trouble=trouble)


def line(host: HostReport) -> str:
    """One host's outcome as progress."""
    checks = f"{examined(host.findings)}, " if host.findings else ""
    return f"  {SYMBOLS[host.verdict]} {host.host}: {WORDS[host.verdict]} ({checks}{host.seconds:.1f} s)"


def utc_now() -> str:
    """RFC 3339, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def selected(finding: Finding, only: Sequence[str]) -> bool:
    """Whether ``only`` names this finding or its check; an empty one names all."""
    return not only or finding.check in only or check_id(finding) in only


def outcome(report: Report) -> GdsError | None:
    """The error that a run with this report ends in: a failed check wins over a host without evidence over unknown."""
    hint = "Follow the next step that each check above gives"
    if failed := _counted(report, FAIL):
        return ChecksFailed(f"checks failed on {failed}", hint=hint)
    if troubles := {host.host: host.trouble for host in report.hosts if host.trouble}:
        kind = error_named(next(iter(troubles.values())).kind, HostUnreachable)
        return kind(f"no evidence from {hostnames.words(troubles)}", hint="See the reason above")
    if report.verdict == UNKNOWN:
        return ChecksUnknown(f"could not tell on {_counted(report, UNKNOWN) or 'any host: there is none'}", hint=hint)
    return None


def _counted(report: Report, verdict: str) -> str:
    """The hosts with that verdict, with the number of their checks that have it."""
    counts = hostnames.grouped((host.host, host.count(verdict)) for host in report.hosts if host.verdict == verdict)
    return ", ".join(
        f"{hostnames.words(hosts)} ({count(number, 'check') if number else 'nothing was examined'}"
        f"{' each' if number and len(hosts) > 1 else ''})"
        for number, hosts in counts.items()
    )


def host_report(
    expected: Expectation,
    evidence: Mapping[str, Any],
    options: ValidateOptions,
    waivers: Sequence[Waiver],
    seconds: float = 0.0,
    memory: checks.Memory | None = None,
) -> HostReport:
    """The checks' report on a host's evidence, wherever it is from.  memory: of the other hosts."""
    facts = facts_from(evidence, watched=memory is not None)
    remember = memory.of(facts, expected) if memory else checks.anew
    findings = tuple(finding for finding in checks.run(facts, expected, remember) if selected(finding, options.only))
    return HostReport(
        host=expected.host,
        profile=expected.profile,
        findings=tuple(waiver.apply(findings, waivers, options.today())),
        boot_id=if_known(lambda: facts.kernel.boot_id, ""),
        stack=remember("stack", lambda: tuple(stack(facts))),
        gaps=tuple(facts.gaps),
        seconds=seconds,
        topology=remember("topology", lambda: if_known(lambda: facts.topology, None)),
    )


def fit_expectation(fleet: Fleet, lock: Lock, expected: Expectation, answer: Answer) -> Expectation:
    """The expectation with what follows from the host's own facts, where its file is fitted to them."""
    if answer.document is None or expected.cufile_sha256:
        return expected
    try:
        host = FitTarget(answer.host, facts_from(answer.document), settled=True)
        return expectation(Machine(fleet, lock, answer.host).fitted(host))
    except HostUnfit:
        return expected


def report_without_evidence(expected: Expectation, error: GdsError, seconds: float) -> HostReport:
    """A host of which nothing could be judged, and why."""
    return HostReport(expected.host, expected.profile, trouble=trouble_from(error), seconds=seconds)


def recorded(
    answer: Answer, profile: str, lock_digest: str, options: ValidateOptions, waivers: Sequence[Waiver]
) -> HostReport:
    """What the host's own gate found in this boot, against that lock; raises why nothing is known of it."""
    boot_id, record, reason = gate_record_of_this_boot(answer)
    findings = [_this_boot(lock_digest, record, reason)]
    if record is not None:
        findings += [finding for finding in record.findings if selected(finding, options.only)]
    return HostReport(
        host=answer.host,
        profile=profile,
        findings=tuple(waiver.apply(findings, waivers, options.today())),
        boot_id=boot_id,
        stack=tuple((row[0], row[1]) for row in record.stack if len(row) == 2 and row[0] in STACK) if record else (),
        gaps=tuple(record.gaps) if record else (),
        seconds=answer.seconds,
    )


def _this_boot(lock_digest: str, record: gate.Record | None, reason: str) -> Finding:
    title = "The host's own gate has judged this boot, against this lock"
    verdict = f"a verdict of this boot against {lock_digest}"
    if record is None:
        return Finding(THIS_BOOT, FAIL, title, verdict, reason, _GATE_HINT)
    if record.state == gate.CLOSED and gate.decide(record.findings)[0] == gate.OPEN:
        return Finding(THIS_BOOT, FAIL, title, verdict, f"closed since {record.when}: {record.reason}", _GATE_HINT)
    present = f"{record.state} since {record.when}, against {record.lock_digest or 'no lock'}"
    if record.lock_digest == lock_digest:
        return Finding(THIS_BOOT, PASS, title, verdict, present)
    hint = "Provision this host: its expectation is of another lock"
    return Finding(THIS_BOOT, FAIL, title, verdict, present, hint)


def require_check(name: str, option: str = "--check") -> str:
    """``name`` if it is the id of a check, with or without a subject; raises NameUnknown naming the nearest one."""
    ids = [check.id for check in checks.listed()]
    if name.partition(":")[0] in ids:
        return name
    words = f"{option}: there is no check {name!r}{did_you_mean(name, ids)}"
    raise NameUnknown(words, hint=f"The checks are: {', '.join(ids)}")
