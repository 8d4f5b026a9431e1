"""The project doesn't grow: lines and statements of its parts are at most what tests/size.yml says.

The figures only go down.  A change that must raise one says so, and why, in its commit's message.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LIMITS = yaml.safe_load((ROOT / "tests/size.yml").read_text())
#: How far below a limit a part may be before the limit has to follow.
SLACK = 400


@cache
def size(folder: Path) -> dict[str, int]:
    """Files, lines and statements of the Python code below ``folder``; no formatting changes the last."""
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    return {
        "files": len(texts),
        "lines": sum(len(text.splitlines()) for text in texts),
        "statements": sum(isinstance(node, ast.stmt) for node in nodes),
    }


@pytest.mark.parametrize("part", sorted(LIMITS))
def test_part_does_not_grow(part: str) -> None:
    limits, actual = LIMITS[part], size(ROOT / part)
    grown = {what: (actual[what], limits[what]) for what in limits if actual[what] > limits[what]}
    assert not grown, f"{part} has grown (now, limit): {grown}.  Make it smaller, or say in the commit why it must grow"


@pytest.mark.parametrize("part", sorted(LIMITS))
def test_limit_follows_what_became_smaller(part: str) -> None:
    limits, actual = LIMITS[part], size(ROOT / part)
    loose = {what: actual[what] for what in ("lines", "statements") if limits[what] - actual[what] > SLACK}
    assert not loose, f"{part} is smaller than tests/size.yml says; write these figures there: {loose}"
