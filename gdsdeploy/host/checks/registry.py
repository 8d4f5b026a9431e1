"""The register of checks: one decorator puts a check in, one function runs them all.

A check is a pure function of facts and expectation.  It returns what it found; where a fact is not known, asking for it
with :func:`~gdsdeploy.host.facts.known` ends the check with "could not tell" and the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Callable, Dict, Iterable, List, Sequence, Tuple, Union

from ..facts import HostFacts, UndecidedError
from ..model.expectation import Expectation
from ..model.finding import FAIL, PASS, UNKNOWN, Finding

#: Lines of evidence that one finding carries, and their length.
EVIDENCE_LINES = 12
EVIDENCE_WIDTH = 240


@dataclass(frozen=True)
class Answer:
    """What a check found.  ``expected`` replaces the check's own words where they depend on the facts."""

    verdict: str
    found: str
    hint: str = ""
    evidence: Sequence[str] = ()
    expected: str = ""
    #: what the answer is about, where a check runs per subject
    subject: str = ""
    #: the path of a mount, as in finding.PATHS
    path: str = ""


#: No answer: the check does not apply to this host.
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
    #: whether it is about what runs, which is not for a host to answer whose kernel is chosen elsewhere
    of_running: bool
    judge: Judge


CHECKS: Dict[str, Check] = {}
#: First words of check ids, in the order of every report: from the ground up.
SUBJECTS = (
    "os",
    "container",
    "kernel",
    "topology",
    "driver",
    "nouveau",
    "nvidia-fs",
    "peermem",
    "rdma",
    "modules",
    "secure-boot",
    "packages",
    "boot",
    "cufile",
    "gdscheck",
    "storage",
    "odirect",
)
#: Found by checks of what runs on a host that has no say in that.
ELSEWHERE = "not asked: the kernel that runs is not this host's to choose"
#: What to do when the evidence does not decide; better than nothing, and true for most reasons.
UNKNOWN_HINT = "Read the reason above; if it is about permission, run this as root"


def check(
    ident: str,
    title: str,
    *,
    expects: str,
    prevents: str,
    unknown_hint: str = UNKNOWN_HINT,
    of_running: bool = False,
) -> Callable[[Judge], Judge]:
    """Register a function as the check ``ident``."""

    def register(judge: Judge) -> Judge:
        if ident in CHECKS:
            raise ValueError(f"two checks have the id {ident}")
        CHECKS[ident] = Check(ident, title, expects, prevents, unknown_hint, of_running, judge)
        return judge

    return register


def passed(found: str, evidence: Sequence[str] = (), subject: str = "", expected: str = "") -> Answer:
    return Answer(PASS, found, evidence=evidence, subject=subject, expected=expected)


def failed(found: str, hint: str, evidence: Sequence[str] = (), subject: str = "", expected: str = "") -> Answer:
    return Answer(FAIL, found, hint, evidence, expected, subject)


def unknown(found: str, hint: str, subject: str = "", expected: str = "") -> Answer:
    return Answer(UNKNOWN, found, hint, (), expected, subject)


def run(facts: HostFacts, expectation: Expectation) -> List[Finding]:
    """Every check, from the ground up; those that do not apply leave nothing."""
    return [finding for item in listed() for finding in _run(item, facts, expectation)]


def _run(item: Check, facts: HostFacts, expectation: Expectation) -> List[Finding]:
    expected = item.expects.format(**{field.name: getattr(expectation, field.name) for field in fields(expectation)})
    try:
        elsewhere = item.of_running and not expectation.own_kernel
        answers = passed(ELSEWHERE, expected="nothing") if elsewhere else item.judge(facts, expectation)
        found = [answers] if isinstance(answers, Answer) else list(answers)
    except UndecidedError as reason:
        found = [unknown(str(reason), item.unknown_hint)]
    return [
        Finding(
            check=item.id + (":" + answer.subject if answer.subject else ""),
            verdict=answer.verdict,
            title=item.title,
            expected=answer.expected or expected,
            found=answer.found,
            hint=answer.hint,
            evidence=[line[:EVIDENCE_WIDTH] for line in list(answer.evidence)[:EVIDENCE_LINES]],
            path=answer.path,
        )
        for answer in found
    ]


def listed() -> Tuple[Check, ...]:
    """All checks, in the order of a report."""
    return tuple(sorted(CHECKS.values(), key=lambda item: SUBJECTS.index(item.id.partition(".")[0])))
