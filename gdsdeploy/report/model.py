"""A validation's result: one verdict per host with everything behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdsdeploy.errors import GdsError
from gdsdeploy.host.facts.pci import Topology
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, VERDICTS, WAIVED, Finding, worst
from gdsdeploy.host.model.finding import WORDS as FINDING_WORDS
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.report.alike import general

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
    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True)
class HostReport:
    """One host: either ``findings`` or ``trouble``."""

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


def sentence(report: Report) -> str:
    """The outcome in one line: ``2 of 3 hosts pass, 1 FAIL; 42 checked, 90 not applicable``."""
    others = [f"{report.count(v)} {WORDS[v]}" for v in ORDER if v != PASS and report.count(v)]
    hosts = ", ".join([f"{report.count(PASS)} of {len(report.hosts)} hosts pass", *others])
    findings = [finding for host in report.hosts for finding in host.findings]
    return f"{hosts}; {examined(findings)}" if findings else hosts


def causes(report: Report, verdict: str, *, evidence: bool = False) -> list[dict[str, Finding]]:
    """Host → finding of each cause with that verdict; the causes that hit the most hosts first.

    Findings are of one cause where check, expected, found and next step are equal, apart from the host's own name.
    evidence: where their evidence is equal, too.
    """
    findings = {(host.host, one.check): one for host in report.hosts for one in host.of(verdict)}

    def key(name: str, one: Finding) -> tuple[object, ...]:
        texts = (general(text, name) for text in (one.expected, one.found, one.hint))
        return (*texts, *sorted((one.waiver or {}).items()), *(one.evidence if evidence else ()))

    keys = ((name, (check, key(name, one))) for (name, check), one in findings.items())
    return [{name: findings[name, check] for name in hosts} for (check, _), hosts in grouped(keys).items()]


def troubles(report: Report) -> list[dict[str, Trouble]]:
    """Host → trouble of each reason why hosts gave no evidence; the reasons of the most hosts first."""
    each = {host.host: host.trouble for host in report.hosts if host.trouble}
    keys = ((name, (one.kind, general(one.message, name))) for name, one in each.items())
    return [{name: each[name] for name in hosts} for hosts in grouped(keys).values()]


def examined(findings: Sequence[Finding]) -> str:
    """How many checks examined something, and how many had nothing to examine: ``14 checked, 30 not applicable``."""
    skipped = sum(finding.verdict == NOT_APPLICABLE for finding in findings)
    return f"{len(findings) - skipped} checked" + (f", {skipped} {WORDS[NOT_APPLICABLE]}" if skipped else "")


def by_verdict(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: VERDICTS.index(finding.verdict))
