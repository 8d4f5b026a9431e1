"""Text from a host or from a file is data: no code of ours makes a template, a statement or a program of it.

By the look of the code, so that it holds for what is written tomorrow; tests/loopback/hostile and
tests/roles/test_unsafe.py try it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("gdsdeploy", "lab/gdslab")
    for path in (ROOT / folder).rglob("*.py")
    if "_share" not in path.parts
)
#: What would run its argument, and where that is ours: what the controller sends to hosts, and a template of the lab.
RUNS = {"eval", "exec", "compile", "system", "popen", "from_string"}
RUNS_BY_DESIGN = {"gdsdeploy/zipapp/bootstrap.py", "lab/gdslab/fleet.py"}
#: Jinja is given names of files there.
TEMPLATES = {"gdsdeploy/report/html.py", "gdsdeploy/cufile/render.py", "lab/gdslab/fleet.py"}
FORMATS, STATEMENTS = {"format", "format_map"}, {"execute", "executemany", "executescript"}


def is_made(node: ast.expr) -> bool:
    """Whether a text is put together there, so that others' words may be in it; a name stands for one of ours."""
    if isinstance(node, ast.Call):
        # Markup("...").format escapes what it is given.
        return not (isinstance(node.func, ast.Name) and node.func.id == "Markup" and not any(map(is_made, node.args)))
    if isinstance(node, ast.BinOp):
        return is_made(node.left) or is_made(node.right)
    return isinstance(node, ast.JoinedStr)


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node, node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def wrong(path: Path) -> Iterator[str]:
    """Places where a text that was put together is a format or a statement, and where any text is run."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    for call, word in calls(path):
        text = ast.unparse(call)
        formats = word in FORMATS and isinstance(call.func, ast.Attribute) and is_made(call.func.value)
        states = word in STATEMENTS and is_made(call.args[0]) and "PRAGMA" not in text and "journal.sql" not in text
        runs = word in RUNS and name not in RUNS_BY_DESIGN and not text.startswith("re.compile(")
        if formats or states or runs or any(keyword.arg == "shell" for keyword in call.keywords):
            yield f"{name}:{call.lineno}: {text[:80]}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_text_is_a_format_a_statement_or_a_program(path: Path) -> None:
    assert list(wrong(path)) == []


def test_templates_are_files_of_ours() -> None:
    pattern = re.compile(r"^\s*(from|import) (jinja2|ansible\.template)", re.MULTILINE)
    users = {path.relative_to(ROOT).as_posix() for path in SOURCES if pattern.search(path.read_text())}
    assert users == TEMPLATES


@pytest.mark.parametrize(
    "source",
    [
        "f'{x} {{}}'.format(1)",
        "('a {}' + f'{x}').format(1)",
        "given().format(1)",
        "Markup(f'{x}').format(1)",
        "db.execute(f'select {x}')",
        "db.execute('select ' + name())",
        "eval(x)",
        "Environment().from_string(x)",
        "run(x, shell=True)",
    ],
)
def test_the_rule_sees(source: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(source)
    assert len(list(wrong(tmp_path / "x.py"))) == 1
