"""A fleet's own compatibility rules: ``fleet.compat.yml`` beside ``fleet.yml``, in the format of compat.yml.

`gdsdeploy lock --prove` adds what it learned from builds that failed, and people add what they know.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict

from gdsdeploy import atomic
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.load import Problem, parse_document
from gdsdeploy.lock.compat import Block, shipped

_HEAD: Final = """\
# This fleet's own compatibility rules; `gdsdeploy lock` judges by them and by those of gdsdeploy.
# `gdsdeploy lock --prove` adds stacks that don't build or would not load. To have one tried again, remove its rule.
"""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: tuple[Block, ...] = ()


def beside(fleet: Path) -> Path:
    """Where the rules of a fleet file are: ``fleet.compat.yml`` for ``fleet.yml``."""
    return fleet.with_name(f"{fleet.stem}.compat.yml")


def read(fleet: Path) -> tuple[Block, ...]:
    """The rules beside a fleet file, none without the file; raises FleetInvalid with every problem and its place."""
    path = beside(fleet)
    if not path.exists():
        return ()
    return parse_document(yamlfile.read(path, error=FleetInvalid), _File, error=FleetInvalid, also=_twice).rules


def _twice(file: _File) -> list[Problem]:
    """Rules whose id another rule has."""
    ids, problems = {rule.id for rule in shipped()}, list[Problem]()
    for number, rule in enumerate(file.rules):
        if rule.id in ids:
            problems.append((("rules", number, "id"), f"another rule has the id {rule.id}"))
        ids.add(rule.id)
    return problems


def write(fleet: Path, rules: Sequence[Block]) -> Path:
    """Write the rules beside a fleet file, sorted by id; raises FleetInvalid if that fails."""
    path = beside(fleet)
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
