"""The register of checks: one decorator adds a check, one function runs them all.

A check is a pure function of facts and expectation that returns its answer.  Where a fact is unknown,
:func:`~gdsdeploy.host.facts.require` ends the check with "could not tell" and the reason.

Findings of one host as text for a terminal and as a JSON document.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple, Union

from ..facts import HostFacts, UndecidedError
from ..facts.host_facts import stack
from ..facts.unknown import if_known
from ..io.wording import aligned, joined
from ..model.expectation import Expectation
from ..model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WAIVED, WORDS, Finding, worst

#: Lines of evidence that one finding carries, and their length.
EVIDENCE_LINES = 12
EVIDENCE_WIDTH = 240


@dataclass(frozen=True)
class Answer:
    """A check's answer.  ``expected`` replaces the check's own words where they depend on the facts."""

    verdict: str
    observation: str
    hint: str = ""
    evidence: Sequence[str] = ()
    expected: str = ""
    #: the mount point or the like, for a check that runs once for each
    subject: str = ""
    #: the path of a mount, as in finding.PATHS
    path: str = ""


#: Several answers: one for each subject.  No answer at all becomes one that is not applicable.
Answers = Union[Answer, Iterable[Answer]]
Judge = Callable[[HostFacts, Expectation], Answers]


@dataclass(frozen=True)
class Check:
    """A registered check.  ``expects`` may name fields of the expectation in braces."""

    id: str
    title: str
    expects: str
    #: the failure in production that it prevents, for the documentation
    prevents: str
    #: what to do when it could not tell
    unknown_hint: str
    #: whether it is about the running kernel, which some hosts don't choose themselves
    of_running: bool
    #: whether it is about what provision writes: where that never ran, its failure only repeats host.provisioned
    of_provision: bool
    judge: Judge


CHECKS: Dict[str, Check] = {}
#: First words of check ids, in the order of every report, from the ground up.
SUBJECTS = (
    *("os", "host", "container", "kernel", "topology", "gpu", "nic", "nvme", "driver", "nouveau", "nvidia-fs"),
    *("peermem", "rdma", "modules", "secure-boot", "packages", "stack", "boot", "cufile", "gdscheck", "storage"),
    "odirect",
)
#: The observation where a check that runs once for each subject has none.
NO_SUBJECT = "this host has nothing that the check is about"
#: The answer of checks of the running kernel on a host that doesn't choose it.
ELSEWHERE = "not checked: this host doesn't choose its kernel"
#: The answer of checks of what provision wrote that would fail on a host that it never changed.
NEVER_PROVISIONED = "the host was never provisioned: see host.provisioned"
#: What to do when the evidence doesn't decide; it fits most reasons.
UNKNOWN_HINT = "Read the reason above; if it is about permission, run this as root"


def check(
    ident: str,
    title: str,
    *,
    expects: str,
    prevents: str,
    unknown_hint: str = UNKNOWN_HINT,
    of_running: bool = False,
    of_provision: bool = False,
) -> Callable[[Judge], Judge]:
    """Register a function as the check ``ident``."""

    def register(judge: Judge) -> Judge:
        if ident.partition(".")[0] not in SUBJECTS:
            raise ValueError(f"the check {ident} has a subject that SUBJECTS doesn't have")
        if ident in CHECKS:
            raise ValueError(f"two checks have the id {ident}")
        CHECKS[ident] = Check(ident, title, expects, prevents, unknown_hint, of_running, of_provision, judge)
        return judge

    return register


def passed(observation: str, evidence: Sequence[str] = (), subject: str = "", expected: str = "") -> Answer:
    return Answer(PASS, observation, evidence=evidence, subject=subject, expected=expected)


def failed(observation: str, hint: str, evidence: Sequence[str] = (), subject: str = "", expected: str = "") -> Answer:
    return Answer(FAIL, observation, hint, evidence, expected, subject)


def unknown(observation: str, hint: str, subject: str = "", expected: str = "") -> Answer:
    return Answer(UNKNOWN, observation, hint, (), expected, subject)


def not_applicable(observation: str, subject: str = "", expected: str = "") -> Answer:
    """The host has nothing to examine; ``observation`` says why.  Only evidence decides it, never its absence."""
    return Answer(NOT_APPLICABLE, observation, expected=expected, subject=subject)


def capitalized(text: str) -> str:
    """``text`` with a capital first letter, and no other change."""
    return text[:1].upper() + text[1:]


def run(facts: HostFacts, expectation: Expectation) -> List[Finding]:
    """Every check, from the ground up; each has at least one finding."""
    values = {field.name: getattr(expectation, field.name) for field in fields(expectation)}
    return [finding for check in listed() for finding in _run(check, facts, expectation, values)]


def _run(check: Check, facts: HostFacts, expectation: Expectation, values: Mapping[str, Any]) -> List[Finding]:
    expected = check.expects.format_map(values)
    try:
        elsewhere = check.of_running and not expectation.own_kernel
        answer_or_answers = not_applicable(ELSEWHERE) if elsewhere else check.judge(facts, expectation)
        answers = [answer_or_answers] if isinstance(answer_or_answers, Answer) else list(answer_or_answers)
        answers = answers or [not_applicable(NO_SUBJECT)]
        if check.of_provision and _never_provisioned(facts):
            answers = [not_applicable(NEVER_PROVISIONED) if each.verdict == FAIL else each for each in answers]
    except UndecidedError as reason:
        answers = [unknown(str(reason), reason.hint or check.unknown_hint)]
    return [
        Finding(
            check=check.id + (":" + answer.subject if answer.subject else ""),
            verdict=answer.verdict,
            title=check.title,
            expected=answer.expected or expected,
            found=answer.observation,
            hint=answer.hint,
            evidence=[line[:EVIDENCE_WIDTH] for line in list(answer.evidence)[:EVIDENCE_LINES]],
            path=answer.path,
        )
        for answer in answers
    ]


def _never_provisioned(facts: HostFacts) -> bool:
    """Whether gdsdeploy's folders were looked for and don't exist, outside of a container, which may not show them."""
    environment = facts.environment
    return if_known(lambda: environment.container is None and environment.own_folders == (), False)


def listed() -> Tuple[Check, ...]:
    """All checks, in the order of a report."""
    return tuple(sorted(CHECKS.values(), key=lambda check: SUBJECTS.index(check.id.partition(".")[0])))


def document(expectation: Expectation, facts: HostFacts, findings: Sequence[Finding]) -> Dict[str, Any]:
    """One JSON object: host, profile, boot_id, verdict, stack, findings, gaps, collected_at, seconds, lock_digest."""
    return {
        "version": 1,
        "host": expectation.host or if_known(lambda: facts.name, "this host"),
        "profile": expectation.profile,
        "lock_digest": expectation.lock_digest,
        "boot_id": if_known(lambda: facts.kernel.boot_id, ""),
        "collected_at": facts.collected_at,
        "seconds": facts.seconds,
        "verdict": worst(list(findings)),
        "stack": [list(part) for part in stack(facts)],
        "findings": [finding.as_dict() for finding in findings],
        "gaps": list(facts.gaps),
    }


def text(expectation: Expectation, facts: HostFacts, findings: Sequence[Finding]) -> str:
    """The failures with their hints, then the undecided and the waived checks, then a line for each passed check.

    All checks that are not applicable share one line.
    """
    versions = ", ".join("{} {}".format(*part) for part in stack(facts))
    host = expectation.host or if_known(lambda: facts.name, "this host")
    lines = ["{} (profile {}): {}".format(host, expectation.profile, versions or "nothing is known"), ""]
    by_verdict = {verdict: [finding for finding in findings if finding.verdict == verdict] for verdict in WORDS}
    for verdict in (FAIL, UNKNOWN, WAIVED):
        for finding in by_verdict[verdict]:
            lines += _block(finding)
    lines += aligned([(WORDS[PASS], finding.check, finding.found) for finding in by_verdict[PASS]])
    skipped = by_verdict[NOT_APPLICABLE]
    if skipped:
        lines.append("{}  {}".format(WORDS[NOT_APPLICABLE], ", ".join(finding.check for finding in skipped)))
    rare = (WAIVED, NOT_APPLICABLE)
    counts = [f"{len(by_verdict[key])} {word}" for key, word in WORDS.items() if key not in rare or by_verdict[key]]
    return joined([*lines, "", "{}: {}".format(WORDS[worst(list(findings))], ", ".join(counts))])


def _block(finding: Finding) -> List[str]:
    lines = [
        f"{WORDS[finding.verdict]}  {finding.check}: {finding.title}",
        "  expected  " + finding.expected,
        "  found     " + finding.found,
        *("            | " + line for line in finding.evidence),
    ]
    if finding.verdict == WAIVED and finding.waiver:
        lines.append("  waived    until {until}: {reason}".format(**finding.waiver))
    return [*lines, "  to do     " + finding.hint, ""] if finding.hint else [*lines, ""]
