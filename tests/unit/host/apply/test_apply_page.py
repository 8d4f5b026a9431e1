"""docs/apply.md says what the code says, and each resource has words for its page."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.host import errors
from gdsdeploy.host.apply import lock, model, registry

PAGE = (Path(__file__).parents[4] / "docs" / "apply.md").read_text()
SOURCES = sorted(Path(model.__file__).parent.rglob("*.py"))


def section(title: str) -> set[str]:
    """Every `id` in the first column of a section's table."""
    text = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert text is not None
    rows = [line.split("|")[1] for line in text[1].splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def constants(function: str, position: int, keyword: str) -> Iterator[str]:
    """Literal arguments of every call of ``function``."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                values = node.args[position : position + 1] + [k.value for k in node.keywords if k.arg == keyword]
                yield from (text for value in values for text in literals(value))


def literals(node: ast.AST) -> Iterator[str]:
    """Texts that an expression may be; keys of a lookup aren't."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from [*literals(node.body), *literals(node.orelse)]


@pytest.mark.parametrize("name", registry.names())
def test_a_resource_and_its_desired_state_are_described(name: str) -> None:
    resource = registry.resource(name)
    for described in (type(resource), resource.desired_type):
        # A dataclass without a docstring gets its signature for one.
        assert not (inspect.getdoc(described) or f"{described.__name__}(").startswith(f"{described.__name__}(")


def test_kinds_of_changes() -> None:
    assert section("Kinds of changes") == set(registry.kinds())


@pytest.mark.parametrize(
    ("title", "function", "position", "keyword"),
    [
        ("Kinds of changes", "Change", 0, "kind"),
        ("Reasons of changes", "Change", 4, "reason"),
        ("Refusals", "Refusal", 0, "id"),
        ("Kinds of errors", "ApplyError", 2, "kind"),
        ("Kinds of errors", "CannotTellError", 2, "kind"),
        ("Kinds of errors", "typed", 0, "kind"),
    ],
)
def test_ids(title: str, function: str, position: int, keyword: str) -> None:
    ids = {name for name in constants(function, position, keyword) if re.fullmatch(r"[a-z]+(-[a-z]+)*", name)}
    assert ids - section(title) == set()


def test_numbers() -> None:
    assert f"{lock.LEASE:.0f} seconds" in PAGE
    for status in (errors.FAILED, errors.UNUSABLE, errors.BUSY):
        assert f"\n| {status} |" in PAGE
