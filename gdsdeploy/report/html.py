"""Self-contained HTML pages, written in parts: no outside references, and a policy that lets only our scripts run.

What hosts say is escaped, or stands in JSON that no browser runs: templates/page.js shows it as text.  The report's
page has first what to do first; each host's details are data that the page shows.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gdsdeploy import __version__, resources
from gdsdeploy.host.io.wording import HIDDEN, count
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.model import hostnames
from gdsdeploy.report.model import (
    ORDER,
    SYMBOLS,
    UNREACHABLE,
    WORDS,
    Cause,
    HostReport,
    Report,
    causes,
    examined,
    sentence,
)

if TYPE_CHECKING:
    from gdsdeploy.host.subjects.topology import Topology

T = TypeVar("T", bound=Hashable)
#: Parts of the template that are written together.
_TOGETHER = 64


class Table(dict[T, int]):
    """Values and their places: each is in the page once, and everything else has its place."""

    def place(self, value: T) -> int:
        """The place of ``value``, from 0."""
        return self.setdefault(value, len(self))

    def each(self, *values: T) -> tuple[int, ...]:
        """Their places."""
        return tuple([self.setdefault(value, len(self)) for value in values])


class Texts(Table[str]):
    """The texts of a page."""

    def __iter__(self) -> Iterator[str]:
        return map(fit, super().__iter__())


def page(name: str, data: Iterable[tuple[str, Iterable[object]]], **values: object) -> Iterator[str]:
    """The page of templates/NAME.html.j2 in parts, with NAME.css and NAME.js.

    data: (id, values) of each block of JSON, read in this order after the rest of the page was written.
    """
    style, script = (_source("page", name, kind) for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    )
    template = _environment().get_template(f"{name}.html.j2")
    blocks = ((ident, _lines(block)) for ident, block in data)
    parts = template.stream(
        style=style, script=script, policy=policy, data=blocks, tool=f"gdsdeploy {__version__}", **values
    )
    parts.enable_buffering(_TOGETHER)
    yield from parts


def fit(text: str) -> str:
    """HTML has no control characters, and a host's text may have some."""
    return re.sub(HIDDEN, "\ufffd", text)


def _lines(values: Iterable[object]) -> Iterator[Markup]:
    """A list as JSON, a line for each value.  No text in it can end the script that it stands in."""
    yield Markup("[")
    for number, value in enumerate(values):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        yield Markup(("," if number else "") + "\n" + fit(text).replace("<", "\\u003c"))  # noqa: S704 # nosec B704
    yield Markup("]")


@functools.cache
def _source(common: str, name: str, kind: str) -> Markup:
    """Our own files: what both pages share, then the page's."""
    files = (resources.templates() / f"{part}.{kind}" for part in (common, name))
    return Markup("\n" + "\n".join(file.read_text("utf-8") for file in files))  # noqa: S704 # nosec B704


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _code(text: str) -> Markup:
    """What stands between backticks is a command."""
    parts = [escape(fit(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


@functools.cache
def _environment() -> Environment:
    """What templates are given is escaped, and undefined names are errors."""
    environment = Environment(
        loader=FileSystemLoader(resources.templates()),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: fit(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {
        "code": _code,
        # Lines end between the names.
        "names": lambda folded: Markup(",<wbr>").join(map(fit, folded.split(","))),
        "folded": lambda hosts: hostnames.words(hosts, NAMES),
    }
    return environment


#: Causes with a card of their own, and columns for the names of a cause's hosts.
CAUSES, NAMES = 100, 400
#: Lines of evidence in a card.
LINES = 5
#: Topologies; hosts with the same devices share one.
TOPOLOGIES = 200
#: Characters of evidence that no other finding has: of problems, and of the rest.  Then only the JSON report has it.
PROBLEMS_ROOM, OTHER_ROOM = 8 << 20, 4 << 20


def stream(report: Report) -> Iterator[str]:
    """The page in parts: a large fleet's is never held whole."""
    # A rollout's page, made by this module, too, has no facts.
    from gdsdeploy.host.subjects import trees

    every_cause = [cause for verdict in (FAIL, UNREACHABLE, UNKNOWN) for cause in causes(report, verdict)]
    records = _Records(every_cause)
    names: dict[str, list[str]] = {verdict: [] for verdict in ORDER}
    for host in report.hosts:
        names[host.verdict].append(host.host)
    return page(
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
        topology_text=trees.text,
        lines=LINES,
        order=ORDER,
        symbols=SYMBOLS,
        words=WORDS,
    )


class _Records:
    """Hosts as templates/report.js reads them; texts, findings and lists of findings that hosts share are kept once."""

    def __init__(self, every_cause: Sequence[Cause]) -> None:
        self._cause = {(host, cause.name): at for at, cause in enumerate(every_cause) for host in cause.hosts}
        self.texts, self.findings = Texts(), Table[tuple[Hashable, ...]]()
        self.lists = Table[tuple[int, ...]]()
        self._room = {True: PROBLEMS_ROOM, False: OTHER_ROOM}
        #: topology → its place
        self.topologies: Table[Topology] = Table()

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
        return self.topologies.place(host.topology)
