"""The report as one self-contained HTML file: no remote assets; readable in light, dark and print and by keyboard."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from gdsdeploy import __version__, resources
from gdsdeploy.host.io.printable import HIDDEN
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.report.alike import for_all
from gdsdeploy.report.drawing import distance, draw
from gdsdeploy.report.model import (
    ORDER,
    SYMBOLS,
    WORDS,
    HostReport,
    Report,
    by_verdict,
    causes,
    check_id,
    examined,
    sentence,
    subject,
)


@dataclass(frozen=True)
class Cell:
    """One host × one check: the worst of its findings, or nothing when the host did not run it."""

    verdict: str
    #: fragment of the finding it leads to
    target: str
    title: str


@dataclass(frozen=True)
class Row:
    """A host with its number, which makes the fragments of the page."""

    number: int
    host: HostReport
    cells: tuple[Cell | None, ...]
    findings: tuple[tuple[str, Finding], ...]
    paths: tuple[tuple[str, Finding], ...]
    #: the PCIe tree; None where it is not known or has no device
    tree: Markup | None


@dataclass(frozen=True)
class Problem:
    """The same finding on one or more hosts: what has to be done once is shown once."""

    finding: Finding
    #: (host, fragment of its finding)
    hosts: tuple[tuple[str, str], ...]


def render(report: Report) -> str:
    """The whole page."""
    checks = report.checks()
    rows = [_row(number, host, checks) for number, host in enumerate(report.hosts)]
    return template("report.html.j2").render(
        report=report,
        sentence=sentence(report),
        examined=examined,
        tool=f"gdsdeploy {__version__}",
        checks=checks,
        rows=rows,
        problems=[*_problems(report, rows)],
        order=ORDER,
        symbols=SYMBOLS,
        words=WORDS,
    )


def _row(number: int, host: HostReport, checks: list[str]) -> Row:
    targets = {id(finding): f"h{number}f{place}" for place, finding in enumerate(host.findings)}

    def cell(check: str) -> Cell | None:
        findings = by_verdict([finding for finding in host.findings if check_id(finding) == check])
        if not findings:
            return None
        title = f"{host.host}: {findings[0].check}: {WORDS[findings[0].verdict]}"
        return Cell(findings[0].verdict, targets[id(findings[0])], title)

    return Row(
        number=number,
        host=host,
        cells=tuple(map(cell, checks)),
        findings=tuple((targets[id(finding)], finding) for finding in by_verdict(host.findings)),
        paths=tuple((subject(finding), finding) for finding in host.mounts()),
        tree=_tree(host),
    )


def _tree(host: HostReport) -> Markup | None:
    if host.topology is None or not host.topology.devices:
        return None
    paths = {subject(finding): finding.path or "its path is not known" for finding in host.mounts()}
    mounts: dict[str, list[tuple[str, str]]] = {}
    for point, address in ((point, address) for point, addresses in host.disks for address in addresses):
        mounts.setdefault(address, []).append((point, paths.get(point, "no path is asked for")))
    return draw(host.topology, mounts, f"PCIe tree of {host.host}; the distances are in the table below it")


def _problems(report: Report, rows: list[Row]) -> Iterator[Problem]:
    targets = {(row.host.host, finding.check): target for row in rows for target, finding in row.findings}
    for findings in (same for verdict in (FAIL, UNKNOWN) for same in causes(report, verdict)):
        first = next(iter(findings.values()))
        hosts = tuple((host, targets[host, first.check]) for host in findings)
        yield Problem(replace(first, hint=for_all(first.hint, list(findings))), hosts)


def _fit(value: object) -> object:
    """HTML has no control characters, and a host's text may have some."""
    return HIDDEN.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _code(text: str) -> Markup:
    """What stands between backticks is a command."""
    parts = [escape(HIDDEN.sub("\ufffd", part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


@functools.cache
def template(name: str) -> Template:
    """A page of templates/: what it is given is escaped, and undefined names are errors."""
    environment = Environment(
        loader=FileSystemLoader(resources.templates()),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )
    environment.globals["PASS"] = PASS
    environment.globals["distance"] = distance
    environment.filters["code"] = _code
    return environment.get_template(name)
