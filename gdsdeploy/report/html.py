"""The report as one self-contained HTML file: what to do first; each host's details are data that the page shows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from gdsdeploy.host.facts.pci import Topology
from gdsdeploy.host.io.wording import count
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.host.topology import text as topology
from gdsdeploy.model import hostnames
from gdsdeploy.report import page
from gdsdeploy.report.alike import about, for_all
from gdsdeploy.report.model import (
    ORDER,
    SYMBOLS,
    UNREACHABLE,
    WORDS,
    HostReport,
    Report,
    Trouble,
    causes,
    examined,
    sentence,
    troubles,
)

#: Causes with a card of their own, and columns for the names of a cause's hosts.
CAUSES, NAMES = 100, 400
#: Lines of evidence in a card.
LINES = 5
#: Topologies; hosts with the same devices share one.
TOPOLOGIES = 200
#: Characters of evidence that no other finding has: of problems, and of the rest.  Then only the JSON report has it.
PROBLEMS_ROOM, OTHER_ROOM = 8 << 20, 4 << 20


@dataclass(frozen=True)
class Cause:
    """What has to be done once is shown once."""

    #: its place among all causes
    number: int
    verdict: str
    #: the check, or the class of the error
    name: str
    title: str
    #: (label, value)
    fields: tuple[tuple[str, str], ...]
    hint: str
    evidence: tuple[str, ...]
    hosts: tuple[str, ...]

    @property
    def on(self) -> str:
        """Its hosts in few words."""
        return hostnames.words(self.hosts, NAMES)


def render(report: Report) -> str:
    """The whole page."""
    return "".join(stream(report))


def stream(report: Report) -> Iterator[str]:
    """The page in parts: a large fleet's is never held whole."""
    every_cause = list(_causes(report))
    records = _Records(every_cause)
    names: dict[str, list[str]] = {verdict: [] for verdict in ORDER}
    for host in report.hosts:
        names[host.verdict].append(host.host)
    return page.stream(
        "report",
        [
            ("words", [[SYMBOLS, WORDS, list(ORDER)], report.checks()]),
            ("hosts", map(records.host, report.hosts)),
            ("findings", records.findings),
            ("lists", records.lists),
            ("texts", records.texts),
        ],
        report=report,
        sentence=sentence(report),
        causes=every_cause[:CAUSES],
        more=every_cause[CAUSES:],
        counts={verdict: len(hosts) for verdict, hosts in names.items()},
        hosts=[(verdict, hostnames.fold(hosts)) for verdict, hosts in names.items() if hosts and verdict != PASS],
        topologies=records.topologies,
        topology_text=topology.text,
        order=ORDER,
        symbols=SYMBOLS,
        words=WORDS,
    )


def _causes(report: Report) -> Iterator[Cause]:
    """The worst verdict first, and of one verdict those that hit the most hosts."""
    number = 0
    for verdict in (FAIL, UNREACHABLE, UNKNOWN):
        if verdict == UNREACHABLE:
            for hosts in troubles(report):
                yield _of_trouble(number, hosts)
                number += 1
        for findings in causes(report, verdict):
            yield _of_findings(number, verdict, findings)
            number += 1


def _of_trouble(number: int, hosts: dict[str, Trouble]) -> Cause:
    names, first = tuple(hosts), next(iter(hosts.values()))
    message = first.message if len(names) == 1 else about(first.message, names[0])
    return Cause(number, UNREACHABLE, first.kind, "", (("found", message),), for_all(first.hint, names), (), names)


def _of_findings(number: int, verdict: str, findings: dict[str, Finding]) -> Cause:
    hosts, first = tuple(findings), next(iter(findings.values()))
    fields = (("expected", first.expected), ("found", first.found))
    # Other hosts have other evidence, which their details show.
    evidence = tuple(first.evidence[:LINES])
    return Cause(number, verdict, first.check, first.title, fields, for_all(first.hint, hosts), evidence, hosts)


class _Records:
    """Hosts as templates/report.js reads them; texts, findings and lists of findings that hosts share are kept once."""

    def __init__(self, every_cause: Sequence[Cause]) -> None:
        self._cause = {(host, cause.name): cause.number for cause in every_cause for host in cause.hosts}
        self.texts, self.findings, self.lists = page.Texts(), page.Table(), page.Table()
        self._room = {True: PROBLEMS_ROOM, False: OTHER_ROOM}
        #: topology → its place
        self.topologies: dict[Topology, int] = {}

    def host(self, host: HostReport) -> tuple[object, ...]:
        """One line of the data."""
        texts, trouble = self.texts, host.trouble
        findings = self.lists.place(tuple(self.findings.place(self._finding(host, one)) for one in host.findings))
        return (
            host.host,
            *texts.each(host.verdict, host.profile, examined(host.findings) if host.findings else ""),
            findings,
            round(host.seconds, 1),
            host.boot_id,
            [texts.each(*part) for part in host.stack],
            texts.each(*host.gaps),
            self._topology(host),
            (*texts.each(trouble.kind, trouble.message, trouble.hint), self._cause[host.host, trouble.kind])
            if trouble
            else 0,
        )

    def _finding(self, host: HostReport, finding: Finding) -> tuple[Hashable, ...]:
        texts, waiver = self.texts, finding.waiver
        return (
            *texts.each(finding.check, finding.verdict, finding.title, finding.expected, finding.found, finding.hint),
            texts.each(*self._evidence(finding)),
            texts.each(waiver["until"], waiver["reason"], WORDS[waiver["was"]]) if waiver else (),
            self._cause.get((host.host, finding.check), -1),
        )

    def _evidence(self, finding: Finding) -> Sequence[str]:
        is_problem = finding.verdict in (FAIL, UNKNOWN)
        added = sum(len(line) for line in finding.evidence if line not in self.texts)
        if added > self._room[is_problem]:
            return (
                f"{count(len(finding.evidence), 'line')}, which `validate --json` has: this page has no room for more",
            )
        self._room[is_problem] -= added
        return finding.evidence

    def _topology(self, host: HostReport) -> int:
        """The place of the host's topology; -1: there is none, -2: the page has enough of them."""
        if host.topology is None or not host.topology.devices:
            return -1
        if host.topology not in self.topologies and len(self.topologies) == TOPOLOGIES:
            return -2
        return self.topologies.setdefault(host.topology, len(self.topologies))
