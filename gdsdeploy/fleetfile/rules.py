"""The rules by which a fleet is judged: those of gdsdeploy, and its own in ``fleet.compat.yml`` beside ``fleet.yml``.

gdsdeploy/host/model/compat.py judges by them.  Both files have the same format: `gdsdeploy lock --prove` adds what it
learned from builds that failed, and people add what they know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from gdsdeploy import paths
from gdsdeploy.errors import FleetInvalid, did_you_mean
from gdsdeploy.files import output
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import Rule
from gdsdeploy.model.fleet import Driver, Fleet, GpuClass, Profile
from gdsdeploy.model.text import Model, matching
from gdsdeploy.platform import stack_platform_for, supported_systems

__all__ = ["Block", "RuleFile", "own_rules_of", "rules_of", "write_own"]

_ARCHES: Final = get_args(Profile.model_fields["arch"].annotation)
_PLATFORMS: Final = tuple(map(stack_platform_for, supported_systems()))
#: Subject → every word that it can be.
WORDS: Final[Mapping[str, Sequence[str]]] = {
    "flavour": get_args(Driver.model_fields["flavour"].annotation),
    "kernel_flavour": sorted({name for each in _PLATFORMS for arch in _ARCHES for name in each.kernel_flavours(arch)}),
    "nvme_hooks": ("kernel", "ofed"),
    "secure_boot": ("on", "off"),
    "gpu": get_args(GpuClass),
    "mode": get_args(Profile.model_fields["mode"].annotation),
    "rdma": get_args(Profile.model_fields["rdma"].annotation),
    "arch": _ARCHES,
    "os": supported_systems(),
    "family": sorted({each.family for each in _PLATFORMS}),
}
#: Subjects whose words are the makers of packages, in lower case.
_MAKERS: Final = ("driver_origin", "nvidia_fs_origin")


def _alternatives(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError('YAML reads on, off, yes and no as booleans: write the word in quotes, "on"')
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _checked(conditions: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The conditions, with makers in lower case; raises ValueError for what would never hold, or always."""
    compat.require_conditions(conditions)
    for subject in conditions.keys() - compat.VERSIONS.keys():
        for word in (part.strip() for text in conditions[subject] for part in text.split(",")):
            name = word.removeprefix("!=")
            if not name or name[0] in "<>=!":
                raise ValueError(f"{subject}: words are compared, so {word!r} is none; only != goes before one")
            if name not in WORDS.get(subject, (name,)):
                more = did_you_mean(name, WORDS[subject]) or f"; there are {', '.join(WORDS[subject])}"
                raise ValueError(f"{subject}: there is no {name!r}{more}")
    return {s: tuple(map(str.lower, texts)) if s in _MAKERS else texts for s, texts in conditions.items()}


Conditions = Annotated[
    dict[str, Annotated[tuple[str, ...], BeforeValidator(_alternatives), Field(min_length=1)]],
    AfterValidator(_checked),
]


class Block(Model):
    """One block of compat.yml, or of a fleet's own rules."""

    id: Annotated[str, matching(r"^[a-z0-9][a-z0-9.-]+$", "an id has a-z, 0-9, dots and dashes")]
    says: str
    known: Literal["measured", "source", "documentation"]
    source: str
    when: Conditions = Field(default_factory=dict)
    needs: Conditions = Field(default_factory=dict)
    refuses: Conditions = Field(default_factory=dict)
    warns: Conditions = Field(default_factory=dict)
    doubts: Conditions = Field(default_factory=dict)
    fixed: str = ""
    settles: bool = False

    @model_validator(mode="after")
    def _one_effect(self) -> Self:
        if sum(map(bool, (self.needs, self.refuses, self.warns, self.doubts))) != 1:
            raise ValueError("a rule has exactly one of needs, refuses, warns and doubts")
        if self.settles and not self.needs:
            raise ValueError("settles goes with needs only")
        return self

    def rule(self, place: str = "") -> Rule:
        """What programs judge by.  place: where it is, as file:line."""
        return Rule(**self.model_dump(), place=place)


class RuleFile(Model):
    """A file of rules."""

    rules: Annotated[tuple[Block, ...], Strict(False)] = ()

    def repeated(self, others: Sequence[Rule] = ()) -> list[tuple[tuple[str | int, ...], str]]:
        """Rules whose id another rule has: (path of keys, what is wrong there)."""
        ids, problems = {rule.id for rule in others}, list[tuple[tuple[str | int, ...], str]]()
        for number, rule in enumerate(self.rules):
            if rule.id in ids:
                problems.append((("rules", number, "id"), f"another rule has the id {rule.id}"))
            ids.add(rule.id)
        return problems


def own_rules_of(fleet: Path) -> Path:
    """Where the rules of a fleet file are: ``fleet.compat.yml`` for ``fleet.yml``."""
    own = paths.fleet_file(fleet)
    return own.with_name(f"{own.stem}.compat.yml")


def rules_of(fleet: Fleet) -> tuple[Rule, ...]:
    """Every rule that counts for a fleet: gdsdeploy's and its own."""
    return compat.rules_with(fleet._own_rules)


_HEAD: Final = """\
# This fleet's own compatibility rules; gdsdeploy judges its locks and its hosts by them and by those of gdsdeploy.
# `gdsdeploy lock --prove` adds stacks that don't build or would not load. To have one tried again, remove its rule.
"""


def write_own(fleet: Path, rules: Sequence[Block]) -> Path:
    """Write the rules beside a fleet file, sorted by id; raises FleetInvalid if that fails."""
    path = own_rules_of(fleet)
    content = {"rules": [_short(rule) for rule in sorted(rules, key=lambda rule: rule.id)]}
    text = _HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    output.write(path, text, error=FleetInvalid)
    return path


def _short(rule: Block) -> dict[str, object]:
    """A rule as a person writes it: without empty keys, and with a word in place of a list of one."""
    value = {}
    for key, inner in rule.model_dump(exclude_defaults=True).items():
        if isinstance(inner, dict):
            inner = {name: texts[0] if len(texts) == 1 else list(texts) for name, texts in inner.items()}
        value[key] = inner
    return value
