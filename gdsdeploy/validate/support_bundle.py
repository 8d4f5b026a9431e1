"""Collect what a support bundle holds, and judge a bundle offline."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.errors import GdsError, HostUnreachable
from gdsdeploy.fleetfile import waivers
from gdsdeploy.fleetfile.masking import mask_fleet
from gdsdeploy.host.model.waiver import Waiver
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.report import json as json_object
from gdsdeploy.report.model import HostReport, Report, trouble_from
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.ask import ask
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.validate import bundle as bundles
from gdsdeploy.validate import waiver_report
from gdsdeploy.validate.bundle import Bundle
from gdsdeploy.validate.fleet_validation import (
    EVIDENCE,
    ValidateOptions,
    fit_expectation,
    host_report,
    line,
    report_without_evidence,
    utc_now,
)
from gdsdeploy.validate.redact import USER, Redactor

#: A numeric address.
_NUMERIC = re.compile(r"[\d.:a-fA-F]+")
#: What provision leaves in the folder of runs.
LOGS = "provision-*.log"


def pack_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    hide_names: bool = False,
    timeout: float = TIMEOUT,
    progress: Callable[[str], None],
) -> tuple[bytes, Mapping[str, int]]:
    """The archive of a support bundle, and kind → how many different things of it were replaced.

    timeout: seconds for each host; one that cannot be asked is in the bundle with the reason.
    """
    when, hosts = utc_now(), dict[str, bundles.BundleHost]()
    expected = {name: expectation(fleet, lock, name) for name in names}
    stdin = {name: expectation.to_json().encode() for name, expectation in expected.items()}
    evidence_of = partial(
        reply_schema.judge_reply, question="evidence", shape=reply_schema.Evidence, judge=dict[str, Any]
    )
    for answer, evidence in ask(fleet, fleet_path, names, EVIDENCE, evidence_of, timeout=timeout, stdin=stdin):
        name = answer.host
        trouble = trouble_from(evidence) if isinstance(evidence, GdsError) else None
        hosts[name] = bundles.BundleHost(
            fit_expectation(fleet, lock, expected[name], answer),
            None if isinstance(evidence, GdsError) else evidence,
            trouble,
            tuple(waivers.of_host(fleet, name)),
            answer.seconds,
        )
        progress(f"  {name}: {'no evidence' if answer.error else 'evidence'} ({answer.seconds:.1f} s)")
    whole = Bundle(fleet_path.name, lock.digest, when, {name: hosts[name] for name in names})
    redactor = redactor_for(whole, fleet, hide_names=hide_names)
    texts = {
        "fleet.yml": mask_fleet(fleet_path.read_text(encoding="utf-8"), redactor.secret),
        "gdsdeploy.lock": lockfile.beside(fleet_path).read_text(encoding="utf-8"),
        "report.json": json_object.render(judge(whole, progress=lambda _: None)),
        **bundles.last_log(paths.state() / "runs", LOGS),
    }
    redacted = bundles.redact_bundle(replace(whole, texts=texts), redactor)
    return bundles.pack(redacted, redactor.summary()), redactor.summary()


def judge(
    bundle: Bundle, options: ValidateOptions | None = None, *, fleet: str = "", progress: Callable[[str], None]
) -> Report:
    """The checks' verdict on a bundle's evidence, with the waivers of its day.  fleet: its name in the report."""
    options = replace(options or ValidateOptions(), day=bundle.when[:10])
    reports: list[HostReport] = []
    waivers_of = {name: [*host.waivers, *options.waivers] for name, host in bundle.hosts.items()}
    for name, host in bundle.hosts.items():
        report = _host_report(name, host, options, waivers_of[name])
        reports.append(report)
        progress(line(report))
    waiver_uses = waiver_report.waiver_uses(waivers_of, reports, options.today())
    return Report(fleet or bundle.fleet, bundle.lock, bundle.when, tuple(reports), waiver_uses)


def _host_report(
    name: str, host: bundles.BundleHost, options: ValidateOptions, waivers: Sequence[Waiver]
) -> HostReport:
    if host.evidence is None:
        trouble = host.trouble or trouble_from(HostUnreachable(f"{name}: the bundle has no evidence of it"))
        return HostReport(name, host.expectation.profile, trouble=trouble, seconds=host.seconds)
    try:
        with reply_schema.unexpected_errors(name):
            return host_report(host.expectation, host.evidence, options, waivers, host.seconds)
    except GdsError as error:
        return report_without_evidence(host.expectation, error, host.seconds)


def redactor_for(whole: Bundle, fleet: Fleet | None = None, *, hide_names: bool) -> Redactor:
    """The redactor for what identifies a bundle's site; it replaces the hosts' names only with ``hide_names``."""
    names = list(dict.fromkeys([*(fleet.everyone() if fleet else ()), *whole.hosts]))
    stand_ins = {name: f"host-{number}" for number, name in enumerate(names, 1)}
    versions = [text for host in whole.hosts.values() for text in _versions(host)]
    redactor = Redactor(versions=versions, names=stand_ins if hide_names else None)
    own = [str(((host.evidence or {}).get("host") or {}).get("name", "")) for host in whole.hosts.values()]
    for ssh in map(fleet.connection, fleet.everyone()) if fleet else ():
        if ssh.address and ssh.address not in names and not _NUMERIC.fullmatch(ssh.address):
            redactor.learn("address", ssh.address)
            own.append(ssh.address)
        redactor.learn(USER, ssh.user or "")
    for domain in (domain for name in (*names, *own) for domain in _domains(name)):
        redactor.learn("domain", domain)
    for word in (word for name in own for word in (name, name.partition(".")[0]) if hide_names):
        if word not in stand_ins:
            redactor.learn("host name", word)
    return redactor


def _domains(name: str) -> Iterator[str]:
    """The domains that a host's name is in, but for the topmost."""
    labels = [] if _NUMERIC.fullmatch(name) else name.split(".")
    return (".".join(labels[at:]) for at in range(1, len(labels) - 1))


def _versions(host: bundles.BundleHost) -> list[str]:
    """Texts whose dotted numbers are versions: the expectation's, and what package managers list."""
    commands = (host.evidence or {}).get("commands") or {}
    outputs = [commands[name].get("stdout", "") for name in ("dpkg-query", "rpm", "rpm-query") if name in commands]
    return [str(value) for value in [*asdict(host.expectation).values(), *outputs]]
