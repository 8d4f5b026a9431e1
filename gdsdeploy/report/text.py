"""The report for a terminal: a summary, the fleet, then causes by the number of hosts, and what to do about them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from gdsdeploy.host.explain import COMPAT
from gdsdeploy.host.io.wording import joined
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WAIVED, Finding
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.report import model
from gdsdeploy.report.model import (
    ORDER,
    SYMBOLS,
    UNREACHABLE,
    WORDS,
    HostReport,
    Report,
    causes,
    sentence,
    subject,
    troubles,
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
    for verdict in COLUMNS:
        yield "-" if host.trouble else str(host.count(verdict))
    yield "\n".join(f"{name} {value}" for name, value in host.stack) or "-"
    yield "\n".join(_paths(host)) or "-"


def _paths(host: HostReport) -> list[str]:
    """Each mount with its verdict and its path, if that is known; the reason follows in the details."""
    parts = [(SYMBOLS[mount.verdict], subject(mount), PATHS.get(mount.path, mount.path)) for mount in host.mounts()]
    return [" ".join(filter(None, words)) for words in parts]


def summary(report: Report) -> str:
    """The outcome in one line, and an empty one."""
    return f"{sentence(report)}\n"


def details(report: Report, *, verbose: bool = False) -> str:
    """Each cause once, with its hosts, expected, found and next step; then mounts in compat mode; empty: all is well.

    verbose: all lines of all causes, and each check that is not applicable with its reason.
    """
    blocks = [
        *_causes(report, FAIL, verbose), *_troubles(report, verbose), *_causes(report, UNKNOWN, verbose),
        *_causes(report, WAIVED, verbose), *([line] for line in _notes(report, verbose)),
    ]  # fmt: skip
    return joined(model.shown(blocks, whole=verbose))


def _causes(report: Report, verdict: str, verbose: bool) -> Iterator[list[str]]:
    for findings in causes(report, verdict, evidence=verbose):
        hosts, finding = list(findings), next(iter(findings.values()))
        until = " until {until}: {reason}".format(**finding.waiver) if verdict == WAIVED and finding.waiver else ""
        heading = f"{SYMBOLS[verdict]} {finding.check} ({WORDS[verdict]}{until}) on {model.on(hosts, whole=verbose)}"
        block = [heading, f"    {finding.title}"]
        for name in ("expected", "found"):
            block += _field(name, getattr(finding, name), verbose)
        if verdict != WAIVED:
            block += [*_field("what to do", model.for_all(finding.hint, hosts), verbose), *_evidence(findings, verbose)]
        yield block


def _evidence(findings: dict[str, Finding], verbose: bool) -> list[str]:
    """The first host's, named where others have other evidence."""
    host, finding = next(iter(findings.items()))
    lines = [f"    | {line}" for line in finding.evidence]
    if any(other.evidence != finding.evidence for other in findings.values()):
        lines.insert(0, f"    | on {host}:")
    return model.cut(lines, EVIDENCE_LINES, whole=verbose, indent="    | ")


def _troubles(report: Report, verbose: bool) -> Iterator[list[str]]:
    for alike_ones in troubles(report):
        hosts, first = list(alike_ones), next(iter(alike_ones.values()))
        message = first.message if len(hosts) == 1 else model.about(first.message, hosts[0])
        hint = model.for_all(first.hint, hosts)
        heading = f"{SYMBOLS[UNREACHABLE]} {first.kind} on {model.on(hosts, whole=verbose)}"
        yield [heading, *_field("", message, verbose), *_field("what to do", hint, verbose)]


def _notes(report: Report, verbose: bool) -> Iterator[str]:
    """What is accepted, and still shown: mounts that bounce through CPU memory, gaps, waivers that have ended."""

    def together(notes: Iterator[tuple[str, str]]) -> Iterator[str]:
        for words, hosts in grouped(notes).items():
            yield f"  {words}, on {model.on(hosts, whole=verbose)}"

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
    for waiver in report.waivers:
        if waiver.expired:
            yield f"the waiver of {waiver.check} ended on {waiver.until}: {waiver.reason}"


def _field(name: str, text: str, verbose: bool) -> list[str]:
    """A value under its name, continued lines aligned; nothing when there is no value."""
    labels = [f"{name}:" if name else "", *[""] * text.count("\n")]
    lines = [f"    {label:<{12 if name else 0}}{line}" for label, line in zip(labels, text.splitlines(), strict=False)]
    return model.cut(lines, FIELD_LINES, whole=verbose)
