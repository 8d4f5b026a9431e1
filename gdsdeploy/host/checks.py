"""Runs the checks of every page; findings of one host as text for a terminal and as a JSON document."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

from .facts import HostFacts, UndecidedError
from .facts.document import Reads
from .facts.unknown import Value, if_known
from .io.wording import aligned, joined
from .model.expectation import Expectation, NeedsExpectationError, NoExpectation
from .model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WAIVED, WORDS, Finding, worst
from .subjects.register import (
    ELSEWHERE,
    NEVER_PROVISIONED,
    NO_SUBJECT,
    Answer,
    Check,
    answers,
    listed,
    not_applicable,
    unknown,
)
from .subjects.stack import stack

__all__ = ["Check", "listed", "run"]

#: Lines of evidence that one finding carries, and their length.
EVIDENCE_LINES = 12
EVIDENCE_WIDTH = 240
#: The check whose failure says that the host was never provisioned.
PROVISIONED = "host.provisioned"


#: Takes a name and what computes a value, and returns the value: a new one, or one that it has remembered.
Remember = Callable[[str, Callable[[], Any]], Any]


def anew(_name: str, compute: Callable[[], Value]) -> Value:
    """Compute the value each time."""
    return compute()


def run(facts: HostFacts, expectation: Expectation, remember: Remember = anew) -> List[Finding]:
    """Every check, from the ground up; each has at least one finding."""
    return [finding for check in listed() for finding in remember(check.id, partial(_run, check, facts, expectation))]


class Memory:
    """What was found on other hosts: of a fleet's hosts most are alike in what a check reads of them."""

    #: values of one name that are kept, and kinds of hosts
    MOST = 16

    def __init__(self) -> None:
        self._kinds: List[Tuple[Any, Dict[str, List[Tuple[Reads, Any]]]]] = []

    def of(self, facts: HostFacts, expectation: Expectation) -> Remember:
        """Return an earlier host's value where ``compute`` would read the same of this one.  facts: watched."""
        kind = (replace(expectation, host=""), facts.rules, facts.document.own_reads)
        kept = next((findings for each, findings in self._kinds if each == kind), None)
        if kept is None:
            kept = {}
            self._kinds = [(kind, kept), *self._kinds[: self.MOST - 1]]

        def remember(name: str, compute: Callable[[], Any]) -> Any:
            earlier = kept.setdefault(name, [])
            for reads, value in earlier:
                if facts.document.same(reads):
                    return value
            value, reads = facts.document.watching(compute)
            # Another host has another name.
            if expectation.host not in repr(value):
                earlier[:] = [(reads, value), *earlier[: self.MOST - 1]]
            return value

        return remember


def _needs_expectation(check: Check, facts: HostFacts, expectation: Expectation) -> bool:
    """Whether it isn't judged because nothing says what the host should be."""
    try:
        _answers(check, facts, expectation)
    except NeedsExpectationError:
        return True
    except UndecidedError:
        pass
    return False


def _run(check: Check, facts: HostFacts, expectation: Expectation) -> List[Finding]:
    expected = ""
    # What is expected has no words where nothing is.
    with suppress(NeedsExpectationError, KeyError):
        expected = check.expects.format_map(vars(expectation))
        expected = if_known(lambda: check.expected(facts, expectation), "") or expected
    try:
        given = _answers(check, facts, expectation)
    except NeedsExpectationError:
        given = [not_applicable("this needs an expectation")]
    except UndecidedError as error:
        given = [unknown(str(error), error.hint or check.unknown_hint)]
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
        for answer in given
    ]


def _answers(check: Check, facts: HostFacts, expectation: Expectation) -> List[Answer]:
    """Raises UndecidedError and NeedsExpectationError."""
    # What provision writes is only missed on a host that was to be provisioned.
    if isinstance(expectation, NoExpectation) and (check.of_provision or check.id == PROVISIONED):
        raise NeedsExpectationError
    elsewhere = check.of_running and not expectation.own_kernel
    reason = ELSEWHERE if elsewhere else check.unless(facts, expectation)
    said = not_applicable(reason) if reason else check.judge(facts, expectation)
    given = [said] if isinstance(said, Answer) else answers(said) or [not_applicable(NO_SUBJECT)]
    if check.of_provision and _never_provisioned(facts):
        given = [not_applicable(NEVER_PROVISIONED) if each.verdict == FAIL else each for each in given]
    return given


def _never_provisioned(facts: HostFacts) -> bool:
    """Whether gdsdeploy's folders were looked for and don't exist, outside of a container, which may not show them."""
    environment = facts.environment
    return if_known(lambda: environment.container is None and environment.own_folders == (), False)


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
    of = "without an expectation" if isinstance(expectation, NoExpectation) else f"profile {expectation.profile}"
    lines = [f"{host} ({of}): {versions or 'nothing is known'}", ""]
    by_verdict = {verdict: [finding for finding in findings if finding.verdict == verdict] for verdict in WORDS}
    for verdict in (FAIL, UNKNOWN, WAIVED):
        for finding in by_verdict[verdict]:
            lines += _block(finding)
    lines += aligned([(WORDS[PASS], finding.check, finding.found) for finding in by_verdict[PASS]])
    unjudged = [check.id for check in listed() if _needs_expectation(check, facts, expectation)]
    skipped = [finding.check for finding in by_verdict[NOT_APPLICABLE] if finding.check not in unjudged]
    for word, checks in (("needs an expectation", unjudged), (WORDS[NOT_APPLICABLE], skipped)):
        lines += [f"{word}  {', '.join(checks)}"] if checks else []
    rare = (WAIVED, NOT_APPLICABLE)
    counts = [f"{len(by_verdict[key])} {word}" for key, word in WORDS.items() if key not in rare or by_verdict[key]]
    return joined([*lines, "", "{}: {}".format(WORDS[worst(list(findings))], ", ".join(counts))])


def _block(finding: Finding) -> List[str]:
    lines = [
        f"{WORDS[finding.verdict]}  {finding.check}: {finding.title}",
        *(["  expected  " + finding.expected] if finding.expected else []),
        "  found     " + finding.found,
        *("            | " + line for line in finding.evidence),
    ]
    if finding.verdict == WAIVED and finding.waiver:
        lines.append("  waived    until {until}: {reason}".format(**finding.waiver))
    return [*lines, "  to do     " + finding.hint, ""] if finding.hint else [*lines, ""]
