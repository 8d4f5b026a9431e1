"""Every finding that the code can make is documented, with the severities that it can have."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.gen import audit
from gdsdeploy.host.kmod import module

MEANINGS = audit.meanings()
HOST = Path(module.__file__).parents[1]
#: Every module of the rooms that make findings.
CODE = sorted(
    path for room in ("archive", "audit", "build", "kmod", "secure_boot") for path in (HOST / room).glob("*.py")
)
#: What makes a finding, with the id first and the severity second.
MAKERS = ("finding",)
#: What makes a finding that could not be decided, with the id first: always a warning.
UNDECIDED = ("unknown_finding",)
CONSTANTS = {name: getattr(module, name) for name in ("ERROR", "WARNING", "NOTE", "INCOMPLETE")}


@functools.cache
def calls() -> list[ast.Call]:
    """Every call in the code."""
    return [node for path in CODE for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def decided_findings() -> Iterator[tuple[str, frozenset[str]]]:
    """(id, severities at that place; empty if they are decided elsewhere) of every call in the code."""
    for node in calls():
        if callee(node) in MAKERS and len(node.args) >= 3:
            ident, severity = node.args[:2]
            for word in texts(ident):
                yield word, frozenset(texts(severity))


def undecided_ids() -> set[str]:
    """Ids of the findings that are made with the outcome ``unknown``."""
    return {word for node in calls() if callee(node) in UNDECIDED for word in texts(node.args[0])}


def callee(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*texts(node.body), *texts(node.orelse)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return [CONSTANTS[node.id]] if isinstance(node, ast.Name) and node.id in CONSTANTS else []


def test_every_finding_is_documented_and_no_other() -> None:
    assert {ident for ident, _ in decided_findings()} | undecided_ids() == {row.id for row in MEANINGS}


@pytest.mark.parametrize("meaning", MEANINGS, ids=lambda row: row.id)
def test_severities_are_those_that_are_documented(meaning: object) -> None:
    row = next(each for each in MEANINGS if each is meaning)
    severities_in_code = {
        severity for ident, severities in decided_findings() if ident == row.id for severity in severities
    }
    severities_in_code |= {module.WARNING} if row.id in undecided_ids() else set()
    assert severities_in_code <= set(row.severities), row.id
    assert len(set(row.severities)) == len(row.severities)


def test_ids_are_unique_and_what_cannot_be_told_is_no_error() -> None:
    names = [row.id for row in MEANINGS]
    assert len(set(names)) == len(names)
    assert undecided_ids() == {name for name in names if name.endswith("-unknown")}, "older programs go by it"
    assert all(row.severities == (module.WARNING,) for row in MEANINGS if row.id in undecided_ids())
    assert all(row.means and row.fix for row in MEANINGS)
