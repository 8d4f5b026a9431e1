"""Validate: evidence from every host in one round trip, judged on the controller by the checks the host itself has."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gdsdeploy import atomic, hostapp, transport
from gdsdeploy.answer import Answer
from gdsdeploy.cufile.fit import Host
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, FleetInvalid, GdsError, HostUnfit, HostUnreachable, all_errors
from gdsdeploy.expect import expectation
from gdsdeploy.host import checks
from gdsdeploy.host.expectation import Expectation
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.finding import FAIL, UNKNOWN, Finding
from gdsdeploy.host.report import stack
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.report.model import SYMBOLS, WORDS, HostReport, Report, check_id, trouble_from

#: Seconds for one host: its evidence is bounded by itself, and a slow virtual machine needs most of it.
TIMEOUT = 300.0
#: The host program reads its expectation from standard input.
EVIDENCE = ("evidence", "--json", "--expectation", "-")


def validate(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    only: Sequence[str] = (),
    progress: Callable[[str], None],
) -> Report:
    """Judge the hosts ``names``; a host that gives no evidence is in the report as such, and the others go on.

    timeout: seconds for each host.  only: ids of checks, with or without a subject; empty: all.
    Raises LockStale and FleetInvalid where no expectation can be made, and Interrupted.
    """
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    expected = {name: expectation(fleet, lock, name) for name in names}
    found: dict[str, HostReport] = {}
    for answer in transport.fan_out(
        transport.endpoints(fleet, fleet_path.resolve().parent, names),
        hostapp.build(),
        EVIDENCE,
        stdin={name: item.to_json().encode() for name, item in expected.items()},
        timeout=timeout,
    ):
        host = _judge(_fitted(fleet, lock, expected[answer.host], answer), answer, only)
        found[answer.host] = host
        progress(f"  {SYMBOLS[host.verdict]} {host.host}: {WORDS[host.verdict]} ({host.seconds:.1f} s)")
    return Report(str(fleet_path), lock.digest, when, tuple(found[name] for name in names))


def selected(finding: Finding, only: Sequence[str]) -> bool:
    """Whether ``only`` names this finding or its check; an empty one names all."""
    return not only or finding.check in only or check_id(finding) in only


def outcome(report: Report) -> GdsError | None:
    """The error that a run with this report ends in: a failed check wins over a host without evidence over unknown."""
    failed = [f"{host.host} ({_count(host, FAIL)})" for host in report.hosts if host.verdict == FAIL]
    lost = [host for host in report.hosts if host.trouble]
    unknown = [f"{host.host} ({_count(host, UNKNOWN)})" for host in report.hosts if host.verdict == UNKNOWN]
    hint = "What to do is said with each check above"
    if failed:
        return ChecksFailed(f"checks failed on {', '.join(failed)}", hint=hint)
    if lost and lost[0].trouble:
        kinds = {kind.__name__: kind for kind in all_errors()}
        kind = kinds.get(lost[0].trouble.kind, HostUnreachable)
        return kind(f"no evidence from {', '.join(host.host for host in lost)}", hint="The reason is said above")
    if report.verdict == UNKNOWN:
        return ChecksUnknown(f"could not tell on {', '.join(unknown) or 'any host: there is none'}", hint=hint)
    return None


def _fitted(fleet: Fleet, lock: Lock, expected: Expectation, answer: Answer) -> Expectation:
    """The expectation with what follows from the host's own facts, where its file is fitted to them."""
    if answer.document is None or expected.cufile_sha256:
        return expected
    try:
        return expectation(fleet, lock, answer.host, Host(answer.host, facts_from(answer.document), settled=True))
    except HostUnfit:
        return expected


def _judge(expected: Expectation, answer: Answer, only: Sequence[str]) -> HostReport:
    if answer.error is not None or answer.document is None:
        error = answer.error or HostUnreachable(f"{answer.host}: no answer")
        return HostReport(answer.host, expected.profile, trouble=trouble_from(error), seconds=answer.seconds)
    facts = facts_from(answer.document)
    findings = tuple(finding for finding in checks.run(facts, expected) if selected(finding, only))
    return HostReport(
        host=answer.host,
        profile=expected.profile,
        findings=findings,
        boot_id="" if isinstance(facts.kernel.boot_id, Unknown) else facts.kernel.boot_id,
        stack=tuple(stack(facts)),
        gaps=tuple(facts.gaps),
        seconds=answer.seconds,
    )


def _count(host: HostReport, verdict: str) -> str:
    number = host.count(verdict)
    return f"{number} check{'' if number == 1 else 's'}"


def known_check(name: str) -> str:
    """``name`` if it is the id of a check, with or without a subject; raises FleetInvalid naming the nearest one."""
    known = [check.id for check in checks.listed()]
    if name.partition(":")[0] in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise FleetInvalid(f"--check: there is no check {name!r}{meant}", hint=f"The checks are: {', '.join(known)}")


def require_folder(file: Path | None) -> None:
    """Raise GdsError when ``file`` cannot be written for want of its folder: better before the hosts are asked."""
    if file is not None and not file.absolute().parent.is_dir():
        raise GdsError(f"{file}: the folder {file.parent} does not exist", hint=f"Try: mkdir -p {file.parent}")


def write(file: Path, text: str) -> None:
    """Write a report in one step; raises GdsError."""
    try:
        atomic.write(file, text)
    except OSError as caught:
        raise GdsError(f"{file}: cannot be written: {caught.strerror}") from None
