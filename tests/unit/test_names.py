"""Names say what a thing is: no bare participle, no ``found`` or ``item``; see docs/style.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("gdsdeploy", "lab", "plugins", "docs", "packaging", "tests", "benchmarks", "extensions")
    for path in (ROOT / folder).rglob("*.py")
    if "_share" not in path.parts and "sources" not in path.parts
)
REFUSED = frozenset(
    [
        *("asked", "called", "found", "given", "gone", "got", "held", "here", "item", "judged", "kept", "known"),
        *("looked", "made", "meant", "said", "seen", "taken", "there", "told", "wanted"),
    ]
)
#: Names that a format or an interface prescribes: keys of a JSON document or of a row, and arguments that pytest names.
FORMATS = frozenset(
    {
        ("gdsdeploy/converge/ansible.py", "said"),
        ("gdsdeploy/host/apply/packages/transaction.py", "wanted"),
        ("gdsdeploy/host/apply/restore.py", "held"),
        ("gdsdeploy/host/apply/restore.py", "known"),
        ("gdsdeploy/host/libcufile/errors.py", "seen"),
        ("gdsdeploy/host/model/finding.py", "found"),
        ("gdsdeploy/host/model/compat.py", "known"),
        ("gdsdeploy/lock/compat.py", "known"),
        ("gdsdeploy/lock/lockfile.py", "found"),
        ("gdsdeploy/model/rollout.py", "KEPT"),
        ("gdsdeploy/report/changes.py", "found"),
        ("gdsdeploy/rollout/steps/answers.py", "held"),
        ("gdsdeploy/ssh/reply_schema.py", "found"),
        ("tests/conftest.py", "item"),
        ("tests/lab/conftest.py", "item"),
        ("tests/unit/conftest.py", "item"),
    }
)


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every function, class, parameter and variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_are_nouns_and_verbs(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    names = [(line, name) for line, name in bound(ast.parse(path.read_text())) if name.strip("_").lower() in REFUSED]
    assert [(line, name) for line, name in names if (place, name) not in FORMATS] == []
