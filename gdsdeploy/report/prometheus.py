"""The report in Prometheus' text format, for node_exporter's textfile collector or a Pushgateway on the controller."""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator
from pathlib import PurePath

from gdsdeploy.host.io.prometheus import Metric, Sample, text
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS, VERDICTS
from gdsdeploy.report.model import ORDER, Report, check_id, subject


def render(report: Report) -> str:
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
