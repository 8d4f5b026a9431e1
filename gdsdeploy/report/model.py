"""What a validation found, in a shape that every report format reads; and what several hosts share, shown once.

Only as much as people read is shown; docs/command-line.md describes it.  Work that is under way is shown so too: as
lines for a live display, and as one line for a log.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gdsdeploy.errors import GdsError
from gdsdeploy.host.io.wording import count, line, quoted, span
from gdsdeploy.host.model.finding import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    UNKNOWN,
    WAIVED,
    WORDS as FINDING_WORDS,
    Finding,
    worst,
)
from gdsdeploy.model import hostnames
from gdsdeploy.model.hostnames import grouped

if TYPE_CHECKING:
    from gdsdeploy.host.subjects.topology import Topology

#: Lines of blocks that are shown in full, and headings after them.
LINES: Final = 32
HEADINGS: Final = 10
#: Hosts of which each has a line of its own while they are worked on.
FEW: Final = 16
#: Columns of the names in a row of a table.
CELL: Final = 24
MORE: Final = "--verbose shows everything"


def general(text: str, host: str) -> str:
    """``text`` as it would be for another host, to compare: without its name and address before it, and with HOST."""
    # Most texts don't name their host, and each name makes another expression.
    return _renamed((host,), "HOST", about(text, host)) if host in text else text


def about(text: str, host: str) -> str:
    """``text`` without the host that it begins with: ``gpu4 (192.0.2.14:22): cannot connect``."""
    return re.sub(rf"^{re.escape(host)}(?: \([^)]*\))?: ", "", text)


def for_all(text: str, hosts: Sequence[str]) -> str:
    """``text`` of the first of ``hosts``, or a general one, whose commands select all: ``--limit 'gpu[1-3]'``.

    Names that fill lines are left to the reader: ``--limit HOST,…``.
    """
    names = shlex.quote(hostnames.fold(hosts).replace(", ", ","))
    names = names if len(names) <= 2 * hostnames.WIDTH else "HOST,…"
    options = [f"--limit {name}" for name in (hosts[0], "HOST")]
    return _renamed(options, f"--limit {names}", text) if len(hosts) > 1 else text


def _renamed(names: Sequence[str], other: str, text: str) -> str:
    """``other`` in place of ``names``, where they are whole words."""
    return re.sub(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, names))})(?![\w-]|\.\w)", lambda _: other, text)


def on(hosts: Sequence[str], *, whole: bool = False) -> str:
    """``gpu1``, or ``3 hosts: gpu[1-3]``."""
    names = hostnames.words(hosts, 0 if whole else hostnames.WIDTH)
    return names if len(hosts) == 1 else f"{count(len(hosts), 'host')}: {names}"


def errors_alike(failures: Mapping[str, GdsError]) -> list[GdsError]:
    """One error for all hosts that failed alike, the most hosts first."""

    def key(host: str, error: GdsError) -> tuple[type[GdsError], str, str]:
        return type(error), general(error.message, host), general(error.hint or "", host)

    together: list[GdsError] = []
    for kind, hosts in hostnames.grouped((host, key(host, error)) for host, error in failures.items()).items():
        error = failures[hosts[0]]
        if len(hosts) > 1:
            hint = for_all(error.hint, hosts) if error.hint else None
            error = kind[0](f"{on(hosts)}: {about(error.message, hosts[0])}", hint=hint)
        together.append(error)
    return together


def failures_in(outcomes: Mapping[str, object]) -> str:
    """``2 of 3 hosts failed``, by the errors among the outcomes; empty: none did."""
    failed = sum(isinstance(outcome, GdsError) for outcome in outcomes.values())
    return f"{failed} of {count(len(outcomes), 'host')} failed" if failed else ""


def cell(hosts: Sequence[str], *, whole: bool = False) -> str:
    """``gpu1``, or ``gpu[1-3] (3)``, for a column of a table."""
    names = hostnames.words(hosts, 0 if whole else CELL)
    return names if len(hosts) == 1 else f"{names} ({len(hosts)})"


def shown(blocks: Iterable[Sequence[str]], *, whole: bool = False) -> list[str]:
    """The lines of the blocks: in full while there is room, then their first lines, then how many more there are."""
    lines: list[str] = []
    headings: list[str] = []
    for number, block in enumerate(blocks if whole else (cut(block, LINES) for block in blocks)):
        if whole or (not headings and (number == 0 or len(lines) + len(block) <= LINES)):
            lines += block
        else:
            headings.append(block[0])
    rest = len(headings) - HEADINGS
    more = f"and {rest} more; {MORE}" if rest > 0 else f"({MORE})"
    return [*lines, *headings[:HEADINGS], *([more] if headings else [])]


def cut(lines: Sequence[str], most: int, *, whole: bool = False, indent: str = "    ") -> list[str]:
    """At most ``most`` lines, and how many more there are."""
    rest = len(lines) - most
    return [*lines] if whole or rest < 2 else [*lines[:most], f"{indent}and {rest} more lines ({MORE})"]


#: Activities in one line.
FEW_ACTIVITIES: Final = 3
#: What a host keeps in host/build/kbuild.PROGRESS.
_BUILD: Final = re.compile(r"(nvidia(?:-(?:uvm|modeset|drm|peermem|fs))?) ([0-9]{1,6}) ([0-9]{1,6})\s*")


def build_words(text: str) -> str:
    """``compiling nvidia.ko, unit 212 of 640`` for a line of a build's progress; empty for any other text."""
    match = _BUILD.fullmatch(text)
    if match is None:
        return ""
    module, number, total = match[1], int(match[2]), int(match[3])
    if not number:
        return f"probing the kernel's headers for {module}.ko"
    return f"compiling {module}.ko, unit {number}" + (f" of {total}" if number <= total else "")


@dataclass(frozen=True)
class Activity:
    """What is done, and on which host; without a host: a step of this program."""

    what: str
    host: str
    #: seconds of a clock that only advances
    since: float
    #: seconds; None: it isn't known
    usual: float | None = None
    #: whether its time says how long such work takes
    timed: bool = True
    #: the part of that work that it does now; empty: not known
    detail: Callable[[], str] = str


def activity_lines(activities: Iterable[Activity], now: float, rows: int) -> list[str]:
    """The steps, then the hosts at work, the longest first; ``rows``: lines at most."""
    steps, hosts = _activity_words(activities, now)
    text = [*(f"‣ {words}" for words in steps), *(f"    {words}" for words in hosts)]
    return text if len(text) <= rows else [*text[: max(1, rows - 1)], f"    and {len(text) - max(1, rows - 1)} more"]


def heartbeat(activities: Iterable[Activity], now: float) -> str:
    """``  still at work: …``; empty: nothing is under way."""
    steps, hosts = _activity_words(activities, now)
    # The outermost step, and what goes on in it.
    words = [*steps[:1], *(hosts or steps[1:])]
    rest = len(words) - 1 - FEW_ACTIVITIES
    more = [f"and {rest} more"] if rest > 0 else []
    return f"  still at work: {'; '.join([*words[: 1 + FEW_ACTIVITIES], *more])}" if words else ""


def _activity_words(activities: Iterable[Activity], now: float) -> tuple[list[str], list[str]]:
    ordered = sorted(activities, key=lambda each: each.since)
    steps = [_activity_line(_step_words(each), [each], now) for each in ordered if not each.host]
    return steps, list(_activities_of_hosts([each for each in ordered if each.host], now))


def _step_words(step: Activity) -> str:
    detail = step.detail()
    return f"{step.what}: {detail}," if detail else step.what


def _activities_of_hosts(ordered: list[Activity], now: float) -> Iterator[str]:
    of = {each.host: each for each in ordered}
    groups = grouped((each.host, f"{detail}," if (detail := each.detail()) else each.what) for each in ordered)
    for what, hosts in sorted(groups.items(), key=lambda group: of[group[1][0]].since):
        yield _activity_line(f"{on(hosts)}: {what}", [of[host] for host in hosts], now)


def _activity_line(words: str, same: list[Activity], now: float) -> str:
    usual = next((each.usual for each in same if each.usual is not None), None)
    return f"{words} for {span(now - same[0].since)}" + ("" if usual is None else f" (usually {span(usual)})")


#: A host that gave no evidence, which differs from a check that could not tell.
UNREACHABLE = "unreachable"

#: From the worst on; a host's verdict and the fleet's are the first one that occurs.
ORDER = (FAIL, UNREACHABLE, UNKNOWN, WAIVED, PASS)

#: Verdict → what people read; the symbol and the word always go together.
SYMBOLS = {PASS: "✓", FAIL: "✗", UNKNOWN: "?", WAIVED: "~", UNREACHABLE: "!", NOT_APPLICABLE: "–"}
WORDS = {**FINDING_WORDS, UNREACHABLE: "UNREACHABLE"}


@dataclass(frozen=True)
class Trouble:
    """Why there is no evidence from a host: the error's class, its words, its next step and its exit code."""

    kind: str
    #: may have several lines, of which all but the first have a mark
    message: str
    hint: str
    exit_code: int

    def __post_init__(self) -> None:
        for name, words in (("kind", line(self.kind)), ("message", quoted(self.message)), ("hint", quoted(self.hint))):
            object.__setattr__(self, name, words)


@dataclass(frozen=True)
class HostReport:
    """One host: either ``findings`` or ``trouble``.  Each text is one line, whatever the host says."""

    host: str
    profile: str
    findings: tuple[Finding, ...] = ()
    trouble: Trouble | None = None
    #: Boot the evidence is from, as /proc/sys/kernel/random/boot_id has it.
    boot_id: str = ""
    #: (part of the stack, what runs), e.g. ("driver", "550.163.01 open"), in the order of reading.
    stack: tuple[tuple[str, str], ...] = ()
    #: Collectors that did not come to their end, each as one sentence.
    gaps: tuple[str, ...] = ()
    #: From the first packet to the last.
    seconds: float = 0.0
    #: The PCIe tree; None where the evidence does not tell it.
    topology: Topology | None = None

    def __post_init__(self) -> None:
        for name in ("host", "profile", "boot_id"):
            object.__setattr__(self, name, line(getattr(self, name)))
        object.__setattr__(self, "stack", tuple((line(part), line(what)) for part, what in self.stack))
        object.__setattr__(self, "gaps", tuple(map(line, self.gaps)))

    @property
    def verdict(self) -> str:
        return UNREACHABLE if self.trouble else worst(list(self.findings))

    def count(self, verdict: str) -> int:
        """Number of findings with that verdict."""
        return len(self.of(verdict))

    def mounts(self) -> list[Finding]:
        """The findings about the path of a mount, which is their subject."""
        return [finding for finding in self.findings if check_id(finding) == "storage.path"]

    def of(self, verdict: str) -> list[Finding]:
        """The findings with that verdict."""
        return [finding for finding in self.findings if finding.verdict == verdict]


@dataclass(frozen=True)
class WaiverUse:
    """A waiver as a run met it."""

    check: str
    #: the last day on which it holds, YYYY-MM-DD in UTC
    until: str
    reason: str
    #: whether that day is over
    expired: bool
    #: hosts on which it covers, or did cover, something that does not pass
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """One validation run."""

    #: the fleet file, as the user named it
    fleet: str
    lock_digest: str
    #: RFC 3339, UTC: when it began
    when: str
    hosts: tuple[HostReport, ...]
    #: every waiver that was given, whether or not anything needed it
    waivers: tuple[WaiverUse, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst verdict of any host; no hosts prove nothing."""
        verdicts = {host.verdict for host in self.hosts}
        return next((verdict for verdict in ORDER if verdict in verdicts), UNKNOWN)

    def count(self, verdict: str) -> int:
        """Number of hosts with that verdict."""
        return sum(host.verdict == verdict for host in self.hosts)

    def checks(self) -> list[str]:
        """Ids of all checks without their subjects, in the order in which the hosts ran them."""
        return list(dict.fromkeys(check_id(finding) for host in self.hosts for finding in host.findings))


def check_id(finding: Finding) -> str:
    """The check without its subject: ``storage.path`` of ``storage.path:/mnt/nvme``."""
    return finding.check.partition(":")[0]


def subject(finding: Finding) -> str:
    """What a check that runs per subject looked at; empty for the others."""
    return finding.check.partition(":")[2]


def trouble_from(error: GdsError) -> Trouble:
    """An error as a report keeps it."""
    return Trouble(type(error).__name__, error.message, error.hint or "", error.exit_code)


def outcome(report: Report) -> str:
    """How many hosts have which verdict: ``2 of 3 hosts pass, 1 FAIL``."""
    others = [f"{report.count(v)} {WORDS[v]}" for v in ORDER if v != PASS and report.count(v)]
    return ", ".join([f"{report.count(PASS)} of {len(report.hosts)} hosts pass", *others])


def sentence(report: Report) -> str:
    """The outcome in one line: ``2 of 3 hosts pass, 1 FAIL; 42 checked, 90 not applicable``."""
    findings = [finding for host in report.hosts for finding in host.findings]
    return f"{outcome(report)}; {examined(findings)}" if findings else outcome(report)


@dataclass(frozen=True)
class Cause:
    """What has to be done once is shown once: with what its first host says."""

    verdict: str
    #: the check, or the class of the error
    name: str
    #: (label, value)
    fields: tuple[tuple[str, str], ...]
    hint: str
    hosts: tuple[str, ...]
    title: str = ""
    evidence: tuple[str, ...] = ()
    #: whether all hosts have that evidence
    alike: bool = True
    waiver: Mapping[str, str] | None = None


def causes(report: Report, verdict: str, *, evidence: bool = False) -> list[Cause]:
    """Each cause with that verdict, or reason why hosts gave no evidence; those that hit the most hosts first.

    Findings are of one cause where check, expected, found and next step are equal, apart from the host's own name.
    evidence: where their evidence is equal, too.
    """
    findings = {(host.host, one.check): one for host in report.hosts for one in host.of(verdict)}
    troubles = {host.host: host.trouble for host in report.hosts if host.trouble and verdict == UNREACHABLE}

    def key(name: str, one: Finding) -> tuple[object, ...]:
        texts = (general(text, name) for text in (one.expected, one.found, one.hint))
        return (*texts, *sorted((one.waiver or {}).items()), *(one.evidence if evidence else ()))

    found: list[Cause] = []
    for names in grouped((name, (one.kind, general(one.message, name))) for name, one in troubles.items()).values():
        said = troubles[names[0]]
        message = said.message if len(names) == 1 else about(said.message, names[0])
        found.append(Cause(verdict, said.kind, (("found", message),), for_all(said.hint, names), tuple(names)))
    for (check, _), names in grouped(
        (name, (check, key(name, one))) for (name, check), one in findings.items()
    ).items():
        first = findings[names[0], check]
        fields = (("expected", first.expected), ("found", first.found))
        alike = all(findings[name, check].evidence == first.evidence for name in names)
        shared = (first.title, tuple(first.evidence), alike, first.waiver)
        found.append(Cause(verdict, check, fields, for_all(first.hint, names), tuple(names), *shared))
    return found


def examined(findings: Sequence[Finding]) -> str:
    """How many checks examined something, and how many had nothing to examine: ``14 checked, 30 not applicable``."""
    skipped = sum(finding.verdict == NOT_APPLICABLE for finding in findings)
    return f"{len(findings) - skipped} checked" + (f", {skipped} {WORDS[NOT_APPLICABLE]}" if skipped else "")
