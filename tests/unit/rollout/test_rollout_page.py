"""docs/rollout.md has every key, event, step and outcome that there is, with its default, and its examples load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from gdsdeploy.cli.rollout import VERBS
from gdsdeploy.model.rollout_settings import Rollout, seconds

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "rollout.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")]
#: Described in paragraphs of their own.
ELSEWHERE = {"drain": "Taking hosts out of work", "notify": "Notifications"}


def keys(model: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Every key with dots, and its default."""
    defaults: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        defaults |= keys(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}": value}
    return defaults


@pytest.mark.parametrize("key", [key for key in keys(Rollout()) if key.partition(".")[0] not in ELSEWHERE])
def test_every_key_is_there_with_its_default(key: str) -> None:
    value = keys(Rollout())[key]
    words = re.compile(rf"`{re.escape(key)}`|`\.{re.escape(key.rpartition('.')[2])}`")
    (row,) = [line for line in ROWS if words.search(line.split("|")[1])]
    names = re.findall(r"`([^`]+)`", row.split("|")[1])
    cell = row.split("|")[3].strip()
    if value is None or value in ((), {}):
        assert cell in ("none", "the order of the fleet file", "always, `UTC`")
        return
    literals = re.findall(r"`([^`]+)`", cell)
    place = next(number for number, name in enumerate(names) if key == name or key.endswith(name))
    if key == "timezone":
        assert literals == [value]
        return
    shown = yaml.safe_load(literals[place] if len(literals) > 1 else literals[0])
    assert (seconds(shown) if isinstance(value, int) and isinstance(shown, str) else shown) == value


def test_what_is_shown_of_the_fleet_file_is_valid() -> None:
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    assert len(blocks) == 3
    for block in blocks:
        Rollout.model_validate(block["rollout"])


def test_verbs_exist() -> None:
    assert set(re.findall(r"^\| `(\w+) FLEET", PAGE, re.MULTILINE)) == set(VERBS)
    for verb in re.findall(r"gdsdeploy rollout ([a-z]+) ", PAGE):
        assert verb in VERBS
