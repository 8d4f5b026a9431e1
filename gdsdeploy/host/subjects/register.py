"""What the pages of subjects register: their collectors and their checks.

A check is a pure function of facts and expectation.  It yields the conditions that have to hold, then what it observed.
A fact that isn't known ends it with "could not tell" and the reason.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..facts.unknown import UndecidedError, Unknown
from ..model.discovery import import_modules
from ..model.expectation import Expectation
from ..model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN
from .condition import Cause, Condition
from .types import EvidenceRequest, HostFacts, Recorder

#: Subjects and their collectors, from the ground up: the order of reports and of collections.  A subject is the first
#: word of its checks' ids; programs that can hang come last.  What isn't here follows, in the order of pages' names.
ORDER = (
    *("os", "host", "container", "kernel", "topology", "gpu", "nic", "nvme", "pci", "fit", "driver", "nouveau"),
    *("nvidia-fs", "peermem", "rdma", "modules", "secure-boot", "packages", "sources", "drift", "stack", "boot"),
    *("cufile", "environment", "processes", "gdscheck", "storage", "odirect", "load", "audits", "userland"),
    *("programs", "foreign", "proof", "registration"),
)


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


Collector = Callable[["Recorder", "EvidenceRequest"], None]
_COLLECTORS: Dict[str, Collector] = {}


def collector(name: str) -> Callable[[Collector], Collector]:
    """Register a function that records evidence, under the name by which the document speaks of its gaps."""

    def register(collect: Collector) -> Collector:
        if _COLLECTORS.setdefault(name, collect) is not collect:
            raise ValueError(f"two collectors have the name {name}")
        return collect

    return register


def collectors() -> Dict[str, Collector]:
    """Every collector of the pages by its name, in their order."""
    import_modules(__package__)
    return {name: _COLLECTORS[name] for name in sorted(_COLLECTORS, key=_place)}


class Answer(NamedTuple):
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


#: Conditions and the answer where they hold; or several answers: one for each mount or the like.
Steps = Iterable[Union[Condition, Answer]]
Judge = Callable[["HostFacts", Expectation], Union[Answer, Steps]]
#: Why a check is not about a host, or what it expects there; empty: it is, or what ``expects`` says.
Words = Callable[["HostFacts", Expectation], str]


def _nothing(_facts: HostFacts, _expectation: Expectation) -> str:
    return ""


class Check(NamedTuple):
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
    #: why it isn't about a host, or empty: then it's not applicable
    unless: Words
    #: what it expects where that depends on the facts
    expected: Words
    judge: Judge


CHECKS: Dict[str, Check] = {}
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
    unless: Words = _nothing,
    expected: Words = _nothing,
) -> Callable[[Judge], Judge]:
    """Register a function as the check ``ident``."""

    def register(judge: Judge) -> Judge:
        if ident in CHECKS:
            raise ValueError(f"two checks have the id {ident}")
        flags = (of_running, of_provision)
        CHECKS[ident] = Check(ident, title, expects, prevents, unknown_hint, *flags, unless, expected, judge)
        return judge

    return register


@lru_cache(maxsize=1)
def listed() -> Tuple[Check, ...]:
    """All checks of the pages, in the order of a report."""
    import_modules(__package__)
    return tuple(sorted(CHECKS.values(), key=lambda check: _place(check.id.partition(".")[0])))


def answers(steps: Steps) -> List[Answer]:
    """What a check says: why the first condition doesn't hold, else what it observed.

    Raises UndecidedError where all conditions hold that are known, and one isn't.
    """
    observed: List[Answer] = []
    undecided: List[UndecidedError] = []
    try:
        for step in steps:
            if isinstance(step, Answer):
                observed.append(step)
            elif isinstance(step.holds, Unknown):
                undecided.append(UndecidedError(step.holds.reason, capitalized(step.cause.fix) if step.cause else ""))
            elif not step.holds:
                return [refused(step.cause)]
    except UndecidedError as error:
        undecided.append(error)
    if undecided and not any(each.verdict == FAIL for each in observed):
        raise undecided[0]
    return observed


def answer(steps: Steps, unknown_hint: str = UNKNOWN_HINT, **of_all: str) -> Answer:
    """The one answer of ``steps``, with the fields ``of_all`` whatever it is: its subject, what is expected."""
    try:
        (one,) = answers(steps)
    except UndecidedError as error:
        one = unknown(str(error), error.hint or unknown_hint)
    return one._replace(**of_all)


def refused(cause: Optional[Cause]) -> Answer:
    """A failure in the words of its cause."""
    assert cause is not None, "a condition of a check has a cause"
    return failed(cause.what, capitalized(cause.fix), cause.evidence)


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
