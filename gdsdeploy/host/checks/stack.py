"""The running set as a whole: kernel, driver, nvidia-fs, OFED and libcufile against the compatibility rules."""

from __future__ import annotations

from ..facts import HostFacts, UndecidedError
from ..facts.running_set import judge
from ..facts.stack import stack
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed, subject

subject("stack", after="packages")


@check(
    "stack.compatible",
    "no compatibility rule forbids what runs together",
    expects="kernel, driver, nvidia-fs, DOCA and libcufile that the rules of compat.yml allow together",
    prevents="a host that drifted into a combination that fails at the first transfer or the next build",
    of_running=True,
)
def compatible(facts: HostFacts, expectation: Expectation) -> Answer:
    verdict = judge(facts, expectation.mode, expectation.rdma)
    runs = ", ".join(f"{part} {version}" for part, version in stack(facts))
    if verdict.forbidden:
        rules = [verdict.rules[name] for name in verdict.forbidden]
        fixes = "; ".join(dict.fromkeys(rule.fixed for rule in rules if rule.fixed))
        hint = "Provision the host again" + (f"; the rules name what fits: {fixes}" if fixes else "")
        words = "; ".join(f"[{name}] {words}" for name, words in verdict.forbidden.items())
        return failed(words, hint, [f"{rule.id}: {rule.known}: {rule.source}" for rule in rules])
    if verdict.undecided:
        raise UndecidedError("; ".join(f"[{name}] {reason}" for name, reason in verdict.undecided.items()))
    warnings = [f"{name}: {words}" for name, words in verdict.warnings.items()]
    note = f"; rules with a warning: {', '.join(verdict.warnings)}" if warnings else ""
    return passed(runs + note, warnings)
