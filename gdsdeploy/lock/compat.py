"""Compatibility rules: which versions go together.  This module reads and validates compat.yml.

gdsdeploy/host/model/compat.py judges the rules, on the controller and on hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gdsdeploy.files import yamlfile
from gdsdeploy.host.model import compat, version_rules
from gdsdeploy.host.model.compat import SUBJECTS, Combination, Rule, Verdict
from gdsdeploy.model.text import matching

__all__ = ["SUBJECTS", "Block", "Combination", "Rule", "Verdict", "judge", "load", "shipped"]


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


class Block(BaseModel):
    """One block of compat.yml, or of a fleet's own rules."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, matching(r"^[a-z0-9][a-z0-9.-]+$", "an id has a-z, 0-9, dots and dashes")]
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

    def rule(self) -> Rule:
        """What programs judge by."""
        return Rule(**self.model_dump())


def load(text: str) -> tuple[Rule, ...]:
    """Read rules; raises ValueError (pydantic's) for one that is malformed and for an id given twice."""
    rules = tuple(Block.model_validate(block).rule() for block in yamlfile.shipped(text)["rules"])
    for name, count in Counter(rule.id for rule in rules).items():
        if count > 1:
            raise ValueError(f"the rule id {name} is given twice")
    return rules


@cache
def shipped() -> tuple[Rule, ...]:
    """The rules of compat.yml."""
    return load(resources.files(__package__).joinpath("compat.yml").read_text(encoding="utf-8"))


def judge(combination: Combination, rules: Iterable[Rule] | None = None) -> list[Verdict]:
    """What the rules say about ``combination``, in their order: see gdsdeploy/host/model/compat.py."""
    return compat.judge(combination, shipped() if rules is None else rules)
