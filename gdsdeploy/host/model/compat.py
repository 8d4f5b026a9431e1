"""Compatibility rules: which versions go together.  Pure.

gdsdeploy/lock/compat.yml has the rules.  ``python -m docs.gen.compat_rules`` writes them into data/compat.json, for
programs without a YAML parser.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import AbstractSet, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Tuple

from .. import data
from . import version_rules

#: What a combination can say; see the head of compat.yml.
SUBJECTS = (
    "driver", "driver_package", "driver_origin", "flavour", "kernel", "kernel_package", "kernel_flavour", "nvme_hooks",
    "nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin", "libcufile", "cuda", "doca", "dkms", "dkms_signs",
    "secure_boot", "gpu", "mode", "rdma", "arch", "os", "family",
)  # fmt: skip

#: Subjects that the sentence about a combination leaves out, because the rule's own words imply them.
_UNSAID = ("family", "os", "nvme_hooks")

#: Subject → its value; None: the combination has no such part.  A subject that is not a key is not decided yet.
Combination = Mapping[str, Optional[str]]
#: Subject → version expressions or words, of which one has to hold.
Conditions = Mapping[str, Tuple[str, ...]]


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

    @cached_property
    def looks_at(self) -> FrozenSet[str]:
        """Every subject that it asks about."""
        return frozenset((*self.when, *self.needs, *self.refuses, *self.warns))


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


def judge(combination: Combination, rules: Iterable[Rule]) -> List[Verdict]:
    """What the rules say about ``combination``, in their order.

    A rule speaks only if all its subjects are decided, none that it needs or refuses is absent, and its ``when``
    holds; so a combination can be judged while it is still being chosen.
    """
    verdicts: List[Verdict] = []
    for rule in rules:
        if not rule.looks_at <= combination.keys() or not _all(rule.when, combination):
            continue
        effect = rule.needs or rule.refuses or rule.warns
        if any(combination[subject] is None for subject in effect):
            continue
        holds = _all(effect, combination)
        if rule.warns and not holds:
            continue
        allowed = holds if rule.needs else not (rule.refuses and holds)
        stack = ", ".join(f"{_name(s)} {combination[s]}" for s in (*rule.when, *effect) if s not in _UNSAID)
        verdicts.append(Verdict(rule.id, allowed, f"{rule.says.strip()} Here: {stack}.", warning=bool(rule.warns)))
    return verdicts


def undecided(combination: Combination, unknown: AbstractSet[str], rules: Iterable[Rule]) -> Iterator[Tuple[str, str]]:
    """(id, subject) of each rule that would refuse ``combination`` with some value of the subject.

    unknown: subjects that the combination has, but whose values aren't known.
    """
    for rule in rules:
        missing = sorted(rule.looks_at & unknown)
        if not missing or rule.warns or not rule.looks_at <= combination.keys() | unknown:
            continue
        when = _without(unknown, rule.when)
        effect = rule.needs or rule.refuses
        decided = _without(unknown, effect)
        if not _all(when, combination) or any(combination[subject] is None for subject in decided):
            continue
        holds = _all(decided, combination)
        if (len(decided) < len(effect) or not holds) if rule.needs else holds:
            yield rule.id, missing[0]


def _without(unknown: AbstractSet[str], conditions: Conditions) -> Conditions:
    return {subject: texts for subject, texts in conditions.items() if subject not in unknown}


def _all(conditions: Conditions, combination: Combination) -> bool:
    """Whether each condition holds; of a part that the combination does not have, none does."""
    values = ((subject, texts, combination[subject]) for subject, texts in conditions.items())
    return all(value is not None and version_rules.holds(subject, texts, value) for subject, texts, value in values)


def _name(subject: str) -> str:
    return subject.replace("nvidia_fs", "nvidia-fs").replace("_", " ")
