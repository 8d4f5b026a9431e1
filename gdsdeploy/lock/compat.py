"""Compatibility rules: which versions go together.  The rules are data (compat.yml); judging them is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gdsdeploy.host.model import version_rules

#: What a combination can say; see the head of compat.yml.
SUBJECTS = (
    "driver", "driver_package", "driver_origin", "flavour", "kernel", "kernel_package", "nvidia_fs",
    "nvidia_fs_package", "nvidia_fs_origin", "libcufile", "cuda", "doca", "gpu", "mode", "rdma", "arch", "os", "family",
)  # fmt: skip

#: Subject → its value; None: the combination has no such part.  A subject that is not a key is not decided yet.
Combination = Mapping[str, str | None]


def _alternatives(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _require_subjects(conditions: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    for subject, expressions in conditions.items():
        if subject not in SUBJECTS:
            raise ValueError(f"there is no subject {subject!r}; there are {', '.join(SUBJECTS)}")
        for text in expressions if subject in version_rules.VERSIONS else ():
            version_rules.parse(text)
    return conditions


Conditions = Annotated[
    dict[str, Annotated[tuple[str, ...], BeforeValidator(_alternatives), Field(min_length=1)]],
    AfterValidator(_require_subjects),
]


class Rule(BaseModel):
    """One block of compat.yml; its head says what the keys mean."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]+$")]
    says: str
    known: Literal["measured", "source", "documentation"]
    source: str
    when: Conditions = Field(default_factory=dict)
    needs: Conditions = Field(default_factory=dict)
    refuses: Conditions = Field(default_factory=dict)
    warns: Conditions = Field(default_factory=dict)
    fixed: str = ""

    @model_validator(mode="after")
    def _one_effect(self) -> Self:
        if sum(map(bool, (self.needs, self.refuses, self.warns))) != 1:
            raise ValueError("a rule has exactly one of needs, refuses and warns")
        return self

    @cached_property
    def looks_at(self) -> frozenset[str]:
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


def load(text: str) -> tuple[Rule, ...]:
    """Read rules; raises ValueError (pydantic's) for one that is malformed and for an id given twice."""
    rules = tuple(Rule.model_validate(rule) for rule in yaml.safe_load(text)["rules"])
    for name, count in Counter(rule.id for rule in rules).items():
        if count > 1:
            raise ValueError(f"the rule id {name} is given twice")
    return rules


@cache
def shipped() -> tuple[Rule, ...]:
    """The rules of compat.yml."""
    return load(resources.files(__package__).joinpath("compat.yml").read_text(encoding="utf-8"))


def judge(combination: Combination, rules: Iterable[Rule] | None = None) -> list[Verdict]:
    """What the rules say about ``combination``, in their order.

    A rule speaks only if all its subjects are decided, none that it needs or refuses is absent, and its ``when``
    holds; so a combination can be judged while it is still being chosen.
    """
    verdicts: list[Verdict] = []
    for rule in shipped() if rules is None else rules:
        if not rule.looks_at <= combination.keys() or not _all(rule.when, combination):
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


def _all(conditions: Mapping[str, tuple[str, ...]], combination: Combination) -> bool:
    """Whether each condition holds; of a part that the combination does not have, none does."""
    values = ((subject, texts, combination[subject]) for subject, texts in conditions.items())
    return all(value is not None and version_rules.holds(subject, texts, value) for subject, texts, value in values)


def _name(subject: str) -> str:
    return subject.replace("nvidia_fs", "nvidia-fs").replace("_", " ")
