"""What others have installed of this stack."""

from __future__ import annotations

from ..facts import HostFacts, UndecidedError, require
from ..foreign import Locked, findings, kind, words
from ..io.phrases import first_few
from ..model.expectation import Expectation
from .registry import Answer, check, failed, not_applicable, passed

#: Findings named in one answer; the evidence has all.
NAMED = 2


@check(
    "host.foreign",
    "nothing that others installed takes the place of the locked stack",
    expects="no driver of a run file or of a container; no module, DKMS package or library that nothing explains and"
    " that wins; no pin, lock or exclude that keeps the locked versions out",
    prevents="a driver that no package manager knows: modules and libraries of another version win after the next boot",
)
def foreign(facts: HostFacts, expectation: Expectation) -> Answer:
    manager = require(facts.environment.container)
    if manager is not None:
        return not_applicable(f"{manager}: the packages of its host are not visible")
    if not facts.foreign.modules:
        raise UndecidedError(facts.document.not_collected("what others have installed was", "foreign").reason)
    locked = Locked(expectation.kernel_release, expectation.packages, tuple(expectation.repositories))
    installs, unknown = findings(facts.foreign, locked)
    breaking = [one for one in installs if one.breaks]
    lines = [
        f"{one.kind}: {line}"
        for one in (*breaking, *(one for one in installs if not one.breaks))
        for line in words.evidence(one)
    ]
    if breaking:
        hints = [words.way_out(one, expectation.kernel_release) for one in breaking]
        return failed(
            first_few([words.sentence(one) for one in breaking], NAMED, "; "), ". ".join(hints[:NAMED]), lines
        )
    if unknown:
        raise UndecidedError("; ".join(unknown[:NAMED]))
    if not installs:
        return passed("nothing was found")
    return passed("; ".join(f"{kind(one.kind).title} ({len(one.traces)})" for one in installs), lines)
