"""What may be locked: the rules of compat.yml and of the fleet, stacks that were proven, and how old an index may be.

gdsdeploy/host/model/compat.py judges the rules, on the controller and on hosts.  A fleet's own rules are in
``fleet.compat.yml`` beside ``fleet.yml``, in the format of compat.yml: `gdsdeploy lock --prove` adds what it learned
from builds that failed, and people add what they know.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gdsdeploy import atomic
from gdsdeploy.errors import FleetInvalid, RepositoryUntrusted
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.load import Problem, parse_document
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import SUBJECTS, Combination, Rule, Verdict
from gdsdeploy.model.fleet import Repository
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.model.text import matching

__all__ = ["SUBJECTS", "Block", "Combination", "Rule", "Verdict", "judge", "load", "shipped"]


def _alternatives(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _require_subjects(conditions: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    for subject, expressions in conditions.items():
        if subject not in SUBJECTS:
            raise ValueError(f"there is no subject {subject!r}; there are {', '.join(SUBJECTS)}")
        for text in expressions if subject in compat.VERSIONS else ():
            compat.parse_versions(text)
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


_HEAD: Final = """\
# This fleet's own compatibility rules; `gdsdeploy lock` judges by them and by those of gdsdeploy.
# `gdsdeploy lock --prove` adds stacks that don't build or would not load. To have one tried again, remove its rule.
"""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: tuple[Block, ...] = ()


def own_rules_of(fleet: Path) -> Path:
    """Where the rules of a fleet file are: ``fleet.compat.yml`` for ``fleet.yml``."""
    return fleet.with_name(f"{fleet.stem}.compat.yml")


def read_own(fleet: Path) -> tuple[Block, ...]:
    """The rules beside a fleet file, none without the file; raises FleetInvalid with every problem and its place."""
    path = own_rules_of(fleet)
    if not os.path.lexists(path):
        return ()
    return parse_document(
        yamlfile.read(path, error=FleetInvalid, links=False), _File, error=FleetInvalid, also=_twice
    ).rules


def _twice(file: _File) -> list[Problem]:
    """Rules whose id another rule has."""
    ids, problems = {rule.id for rule in shipped()}, list[Problem]()
    for number, rule in enumerate(file.rules):
        if rule.id in ids:
            problems.append((("rules", number, "id"), f"another rule has the id {rule.id}"))
        ids.add(rule.id)
    return problems


def write_own(fleet: Path, rules: Sequence[Block]) -> Path:
    """Write the rules beside a fleet file, sorted by id; raises FleetInvalid if that fails."""
    path = own_rules_of(fleet)
    content = {"rules": [_short(rule) for rule in sorted(rules, key=lambda rule: rule.id)]}
    text = _HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    try:
        atomic.write(path, text, mode=0o644)
    except OSError as error:
        hint = f"Make {path.parent.resolve()} writable, or free some space"
        raise FleetInvalid(f"{path}: cannot be written: {error.strerror}", hint=hint) from error
    return path


def _short(rule: Block) -> dict[str, object]:
    """A rule as a person writes it: without empty keys, and with a word in place of a list of one."""
    value = {}
    for key, inner in rule.model_dump(exclude_defaults=True).items():
        if isinstance(inner, dict):
            inner = {name: texts[0] if len(texts) == 1 else list(texts) for name, texts in inner.items()}
        value[key] = inner
    return value


#: The packages that modules are built from.
_PARTS: Final = (
    *("kernel-image", "kernel-headers", "driver-source", "driver-modules", "nvidia-fs-source", "nvidia-fs-modules"),
    "doca",
)


def ingredients(target: Target, *, nvidia_fs: bool = True) -> str:
    """``sha256:…`` over the packages and pins that the modules of ``target`` depend on.

    nvidia_fs: whether with those of nvidia-fs, on which the driver's own modules don't depend.
    """
    lines = sorted(
        f"{package.package} {package.version} {package.architecture} {package.sha256}"
        for package in target.packages
        if package.part in _PARTS and (nvidia_fs or package.part != "nvidia-fs-source")
    )
    lines += [f"{key}={target.pins.get(key, '')}" for key in ("flavour", "mode", "rdma")]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_proven(target: Target) -> bool:
    """Whether `gdsdeploy lock --prove` saw every module of exactly these packages build, and audited it."""
    return bool(target.proof) and target.proof == ingredients(target)


def keep_proof(target: Target, before: Target | None) -> Target:
    """``target`` with the proof of ``before``, if its modules are made from the same."""
    same = before is not None and is_proven(before) and before.proof == ingredients(target)
    return target.model_copy(update={"proof": before.proof}) if before is not None and same else target


#: An older index gets a warning unless its Valid-Until ends it within that time; stable releases get new indices more
#: often.
OLD_INDEX: Final = timedelta(days=180)
#: The rule's name in warnings.
INDEX_AGE: Final = "index-age"
#: The same for an index without a signature.
UNSIGNED_INDEX: Final = "unsigned-index"


def judge_ages(indices: Iterable[Index], repositories: Mapping[str, Repository], now: datetime | None) -> list[Verdict]:
    """A warning for each old index, without Valid-Until or with one far away, whose repository has no ``max_age``.

    repositories: name → its entry in the fleet file.  now: aware; by default this machine's clock.
    Raises RepositoryUntrusted listing every index that is older than the ``max_age`` of its repository.
    """
    moment, refused, warnings = now or datetime.now(UTC), list[str](), list[Verdict]()
    for index in indices:
        date = datetime.fromisoformat(index.date)
        age, ends = moment - date, index.valid_until
        entry = repositories.get(index.repository)
        if entry and entry.max_age is not None:
            if age > timedelta(seconds=entry.max_age):
                most = f"max_age of repositories.{index.repository} is {_words(timedelta(seconds=entry.max_age))}"
                refused.append(f"{_dated(index, age)}, and {most}")
        elif age > OLD_INDEX and (ends is None or datetime.fromisoformat(ends) - date > OLD_INDEX):
            until = "has no Valid-Until" if ends is None else f"is valid until {ends}"
            words = f"{_dated(index, age)}, and {until}: is that mirror up to date? max_age makes this an error"
            warnings.append(Verdict(INDEX_AGE, allowed=True, words=words, warning=True))
        if index.metadata == "unsigned":
            keys = ", ".join(index.package_keys)
            words = f"{index.uri}: the index of {index.repository} is used unsigned ({index.why}): its server chooses"
            words += f" which packages are on offer, and each locked one is signed by {keys}"
            warnings.append(Verdict(UNSIGNED_INDEX, allowed=True, words=words, warning=True))
    if refused:
        raise RepositoryUntrusted(
            "\n".join(refused),
            hint="The mirror is stale, or an attacker replays an old state: use another mirror. If this machine's "
            "clock is wrong, correct it",
        )
    return warnings


def _dated(index: Index, age: timedelta) -> str:
    subject = f"{index.uri}: the index of {index.repository} {index.suite}".rstrip()
    return f"{subject} is dated {index.date}, {_words(age)} ago"


def _words(age: timedelta) -> str:
    return f"{age.days} days" if age >= timedelta(days=3) else f"{age / timedelta(hours=1):.0f} hours"
