"""Fixes whose hints can destroy something; tests/cases/destroying.yml declares what each rests on and what is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DATA = ROOT / "gdsdeploy" / "host" / "data"
DECLARED: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "cases" / "destroying.yml").read_text())
#: What erases data, ends programs or takes a part out.
VERB = re.compile(
    r"\b(eras\w+|format the|wipe\w*|mkfs\S*|u(n)?mount (it|the)|reset (it|the|all)|reboots?|seat the"
    r"|power \w+( \w+)? off)\b",
    re.IGNORECASE,
)


@cache
def listed() -> dict[str, str]:
    """Id → fix, of the tables' rows with such a verb."""
    rows = [row for path in sorted(DATA.glob("*.json")) for row in json.loads(path.read_text()) if "fix" in row]
    return {row["id"]: row["fix"] for row in rows if VERB.search(row["fix"])}


def named(texts: Iterable[str]) -> set[str]:
    """Ids of the fixes with such a verb that are in ``texts``: of a table's row, or of what is declared."""
    told = {fix: ident for ident, fix in listed().items()}
    told.update({words: ident for ident, row in DECLARED.items() for words in row.get("words", [])})
    found = {text: [words for words in told if words.lower() in text.lower()] for text in filter(VERB.search, texts)}
    undeclared = [text for text, words in found.items() if not words]
    assert not undeclared, f"tests/cases/destroying.yml has no row for {undeclared}"
    return {told[max(words, key=len)] for words in found.values()}
