"""The report for a terminal: the fleet first, then what failed and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from gdsdeploy.host.explain import COMPAT
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WAIVED, Finding
from gdsdeploy.report.model import SYMBOLS, UNREACHABLE, WORDS, HostReport, Report, examined, sentence, subject

STYLES = {PASS: "green", FAIL: "bold red", UNKNOWN: "yellow", WAIVED: "cyan", UNREACHABLE: "bold magenta"}
#: Verdicts with a column of their own.
COLUMNS = (PASS, FAIL, UNKNOWN, NOT_APPLICABLE)
#: Path of a mount → what the table of the fleet has; the others stand for themselves.
PATHS = {"none": "not mounted"}
#: Lines of evidence shown for one finding; the other formats have all of them.
EVIDENCE_LINES = 5


def fleet_table(report: Report) -> Table:
    """One row per host: verdict, counts, what runs and the path of each mount."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("host", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verdict in COLUMNS:
        table.add_column(SYMBOLS[verdict], justify="right", no_wrap=True)
    table.add_column("runs", overflow="fold")
    table.add_column("storage paths", overflow="fold")
    for host in report.hosts:
        table.add_row(
            Text(host.host, style="bold"),
            Text(f"{SYMBOLS[host.verdict]} {WORDS[host.verdict]}", style=STYLES[host.verdict]),
            *(Text("-" if host.trouble else str(host.count(verdict))) for verdict in COLUMNS),
            Text(", ".join(f"{name} {value}" for name, value in host.stack) or "-"),
            Text("\n".join(_paths(host)) or "-"),
        )
    return table


def details(report: Report, *, verbose: bool = False) -> str:
    """What did not pass, with expected, found and next step; mounts in compat mode; then the outcome in one line.

    verbose: each check that is not applicable with its reason; otherwise the line of its host counts them.
    """
    expired = [f"the waiver of {w.check} ended on {w.until}: {w.reason}" for w in report.waivers if w.expired]
    blocks = [*(list(_host(host, verbose)) for host in report.hosts), expired, [sentence(report)]]
    return "\n".join(line for block in blocks if block for line in ("", *block))


def _paths(host: HostReport) -> list[str]:
    """Each mount with its verdict and its path, if that is known; the reason follows in the details."""
    parts = [(SYMBOLS[mount.verdict], subject(mount), PATHS.get(mount.path, mount.path)) for mount in host.mounts()]
    return [" ".join(filter(None, words)) for words in parts]


def _host(host: HostReport, verbose: bool) -> Iterator[str]:
    if host.trouble:
        yield f"{SYMBOLS[UNREACHABLE]} {host.host}: {host.trouble.kind}"
        yield from _field("", host.trouble.message)
        yield from _field("what to do", host.trouble.hint)
    else:
        yield f"{SYMBOLS[host.verdict]} {host.host} {WORDS[host.verdict]}  {examined(host.findings)}"
    for verdict in (FAIL, UNKNOWN):
        for finding in host.of(verdict):
            yield from _finding(host, finding)
    for finding in host.of(WAIVED):
        until = " until {until}: {reason}".format(**finding.waiver) if finding.waiver else ""
        yield f"{SYMBOLS[WAIVED]} {host.host}: {finding.check} ({WORDS[WAIVED]}{until})"
        yield from _field("expected", finding.expected)
        yield from _field("found", finding.found)
    for finding in host.of(PASS):
        # Accepted, and still shown: this mount bounces through CPU memory.
        if finding.path == COMPAT:
            yield f"  {host.host}: {subject(finding)} takes {finding.found}"
    for finding in host.of(NOT_APPLICABLE) if verbose else ():
        yield f"{SYMBOLS[NOT_APPLICABLE]} {host.host}: {finding.check} ({WORDS[NOT_APPLICABLE]}): {finding.found}"
    for gap in host.gaps:
        yield f"  {host.host}: evidence is incomplete: {gap}"


def _finding(host: HostReport, finding: Finding) -> Iterator[str]:
    yield f"{SYMBOLS[finding.verdict]} {host.host}: {finding.check} ({WORDS[finding.verdict]})"
    yield from _field("", finding.title)
    yield from _field("expected", finding.expected)
    yield from _field("found", finding.found)
    yield from _field("what to do", finding.hint)
    for line in finding.evidence[:EVIDENCE_LINES]:
        yield f"    | {line}"
    if len(finding.evidence) > EVIDENCE_LINES:
        yield f"    | and {len(finding.evidence) - EVIDENCE_LINES} more lines (see --html or --json)"


def _field(name: str, text: str) -> Iterator[str]:
    """A value under its name, continued lines aligned; nothing when there is no value."""
    for number, line in enumerate(text.splitlines()):
        label = f"{name}:" if name and number == 0 else ""
        yield f"    {label:<12}{line}" if name else f"    {line}"
