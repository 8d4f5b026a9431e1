"""What the pages of subjects register: checks, each a pure function of facts and expectation that returns its answer.

A fact that isn't known ends a check with "could not tell" and the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Sequence, Union

from ..model.expectation import Expectation
from ..model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN

if TYPE_CHECKING:
    from ..facts import HostFacts


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
Judge = Callable[["HostFacts", Expectation], Answers]


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
