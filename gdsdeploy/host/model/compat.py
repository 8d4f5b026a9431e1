"""Compatibility rules: which versions go together.  Pure.

The rules come from gdsdeploy/lock/compat.yml, which the controller reads.  The host program has the same rules in
data/compat.json, which ``python -m docs.gen.compat_rules`` writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Container, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Protocol, Tuple

from .. import data
from . import version_rules

#: What a combination can say; see the head of compat.yml.
SUBJECTS = (
    "driver", "driver_package", "driver_origin", "flavour", "kernel", "kernel_package", "nvidia_fs",
    "nvidia_fs_package", "nvidia_fs_origin", "libcufile", "cuda", "doca", "gpu", "mode", "rdma", "arch", "os", "family",
)  # fmt: skip

#: Subject → its value; None: the combination has no such part.  A subject that is not a key is not decided yet.
Combination = Mapping[str, Optional[str]]
#: Subject → version expressions or words, of which one has to hold.
Conditions = Mapping[str, Tuple[str, ...]]


class AnyRule(Protocol):
    """A rule as the controller reads it from compat.yml, or as the host program has it."""

    @property
    def id(self) -> str: ...
    @property
    def says(self) -> str: ...
    @property
    def when(self) -> Conditions: ...
    @property
    def needs(self) -> Conditions: ...
    @property
    def refuses(self) -> Conditions: ...
    @property
    def warns(self) -> Conditions: ...


@dataclass(frozen=True)
class Rule:
    """One block of compat.yml; its head says what the keys mean."""

    id: str
    says: str
    known: str
    source: str
    when: Conditions = field(default_factory=dict)
    needs: Conditions = field(default_factory=dict)
    refuses: Conditions = field(default_factory=dict)
    warns: Conditions = field(default_factory=dict)
    fixed: str = ""


@dataclass(frozen=True)
class Verdict:
    """What one rule says about one combination that it speaks about."""

    rule: str
    allowed: bool
    #: for a user: what the rule says, and what was found
    words: str
    #: allowed, but the user has to know
    warning: bool = False


@lru_cache(maxsize=1)
def shipped() -> Tuple[Rule, ...]:
    """The rules of the host program."""
    return data.rows("compat", Rule)


def looks_at(rule: AnyRule) -> FrozenSet[str]:
    """Every subject that a rule asks about."""
    return frozenset((*rule.when, *rule.needs, *rule.refuses, *rule.warns))


def judge(combination: Combination, rules: Iterable[AnyRule]) -> List[Verdict]:
    """What the rules say about ``combination``, in their order.

    A rule speaks only if all its subjects are decided, none that it needs or refuses is absent, and its ``when``
    holds; so a combination can be judged while it is still being chosen.
    """
    verdicts: List[Verdict] = []
    for rule in rules:
        if not looks_at(rule) <= combination.keys() or not _all(rule.when, combination):
            continue
        effect = rule.needs or rule.refuses or rule.warns
        if any(combination[subject] is None for subject in effect):
            continue
        holds = _all(effect, combination)
        if rule.warns and not holds:
            continue
        allowed = holds if rule.needs else not (rule.refuses and holds)
        stack = ", ".join(f"{_name(s)} {combination[s]}" for s in (*rule.when, *effect) if s not in ("family", "os"))
        verdicts.append(Verdict(rule.id, allowed, f"{rule.says.strip()} Here: {stack}.", warning=bool(rule.warns)))
    return verdicts


def undecided(combination: Combination, unknown: Container[str], rules: Iterable[AnyRule]) -> Iterator[Tuple[str, str]]:
    """(id, subject) of each rule that would refuse ``combination`` with some value of the subject.

    unknown: subjects that the combination has, but whose values aren't known.
    """
    for rule in rules:
        subjects = looks_at(rule)
        missing = sorted(subject for subject in subjects if subject in unknown)
        if not missing or rule.warns or any(s not in combination and s not in unknown for s in subjects):
            continue
        effect = rule.needs or rule.refuses
        if not _all(_decided(rule.when, unknown), combination):
            continue
        if any(combination[subject] is None for subject in _decided(effect, unknown)):
            continue
        holds = _all(_decided(effect, unknown), combination)
        open_effect = any(subject in unknown for subject in effect)
        if (open_effect or not holds) if rule.needs else holds:
            yield rule.id, missing[0]


def _decided(conditions: Conditions, unknown: Container[str]) -> Conditions:
    return {subject: texts for subject, texts in conditions.items() if subject not in unknown}


def _all(conditions: Conditions, combination: Combination) -> bool:
    """Whether each condition holds; of a part that the combination does not have, none does."""
    values = ((subject, texts, combination[subject]) for subject, texts in conditions.items())
    return all(value is not None and version_rules.holds(subject, texts, value) for subject, texts, value in values)


def _name(subject: str) -> str:
    return subject.replace("nvidia_fs", "nvidia-fs").replace("_", " ")
