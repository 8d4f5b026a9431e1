"""docs/security.md names a test for each rule, and each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
#: ``path``, ``path::test``, ``path::Class::test``, or ``::test`` of the path before.
NAMED = re.compile(r"`([a-z_/]+\.py)?((?:::\w+)*)`")


def named() -> list[tuple[str, str]]:
    """(path below tests/, name of a test or "") of every row of a rule."""
    listed: list[tuple[str, str]] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and ".py" in line:
            path = ""
            for match in NAMED.finditer(line):
                path = match.group(1) or path
                listed.append((path, match.group(2).rpartition("::")[2]))
    return listed


def test_every_named_test_is_there() -> None:
    rows = named()
    assert len(rows) > 60
    for path, name in rows:
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert (name in tests) if name else any(test.startswith("test_") for test in tests), f"{path}::{name}"


def test_every_rule_names_one() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Rules\n")[2].partition("\n## Fuzzing\n")[0]
    rules = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| rule", "|--"))]
    assert rules
    assert [line for line in rules if not NAMED.search(line)] == []
