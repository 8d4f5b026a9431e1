"""The rules that keep the tree readable: who may import what, who may do what, and how long a file may be."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gdsdeploy"
LAB = PACKAGE.parent / "lab"
MODULES = sorted(p for p in [*PACKAGE.rglob("*.py"), *(LAB / "gdslab").rglob("*.py")] if "_share" not in p.parts)

#: Pure layers: they compute, and touch neither files nor network nor processes nor the terminal.
PURE = (
    "model/",
    "lock/resolve/",
    "lock/compat.py",
    "converge/inventory.py",
    "converge/machine.py",
    "converge/expectation.py",
    "validate/redact.py",
    "fleetfile/selection.py",
    "host/facts/",
    "host/checks.py",
    "host/explain.py",
    "host/subjects/",
    "report/",
    "rollout/page.py",
    "rollout/preview.py",
    "rollout/progress.py",
    "rollout/hoststate.py",
    "rollout/machine.py",
    "rollout/waves.py",
    "cufile/render.py",
    "cufile/document.py",
    "cufile/check.py",
)
EFFECTS = {
    "gdsdeploy.run",
    "gdsdeploy.ssh.transport",
    "gdsdeploy.repo.fetch",
    "gdsdeploy.console",
    "subprocess",
    "socket",
    "httpx",
    "paramiko",
    "sqlite3",
}
MAX_LINES = 800
MAX_FUNCTION = 60


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else LAB).as_posix()


@functools.cache
def imports(path: Path) -> set[str]:
    """Absolute names of everything a module imports, relative imports resolved."""
    names: set[str] = set()
    package = path.relative_to(PACKAGE.parent if path.is_relative_to(PACKAGE) else LAB).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names.add(module)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def users_of(name: str) -> set[str]:
    return {relative(p) for p in MODULES if any(i == name or i.startswith(name + ".") for i in imports(p))}


@pytest.mark.parametrize("path", [p for p in MODULES if relative(p).startswith(PURE)], ids=relative)
def test_pure_layers_have_no_effects(path: Path) -> None:
    assert not {i for i in imports(path) if any(i == e or i.startswith(e + ".") for e in EFFECTS)}


#: Programs of their own, and what the Python that they are started with has.
LIBRARIES = {"host/apply/packages/dnf_child.py": {"dnf", "hawkey"}}


@pytest.mark.parametrize("path", [p for p in MODULES if relative(p).startswith("host/")], ids=relative)
def test_host_program_needs_the_standard_library_only(path: Path) -> None:
    for name in imports(path):
        top = name.split(".")[0]
        if top == "gdsdeploy":
            assert name.startswith("gdsdeploy.host"), f"{name} does not travel to the host"
        else:
            others = LIBRARIES.get(relative(path), set())
            assert top in sys.stdlib_module_names or top in others, f"{name} is not in the standard library"


def test_one_module_starts_processes_on_each_side() -> None:
    assert users_of("subprocess") == {"run.py", "host/process.py"}


def test_one_module_writes_to_the_terminal() -> None:
    allowed = {"console.py", "report/formats.py"}  # report/formats.py builds a table; console prints them
    assert users_of("rich") <= allowed


#: Own processes, which write to whoever started them, in a format of ours.
CHILDREN = {"zipapp/bootstrap.py", "converge/callbacks/gds_events.py"}
WRITERS = {"print", "click.echo", "click.secho", "click.echo_via_pager", "sys.stdout", "sys.stderr", "sys.__stdout__"}


@functools.cache
def names(path: Path) -> set[str]:
    """Names, and attributes of names, that a module has."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    dotted = {f"{n.value.id}.{n.attr}" for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    return dotted | {n.id for n in nodes if isinstance(n, ast.Name)}


def test_the_controller_writes_to_the_terminal_through_the_console() -> None:
    writers = {relative(p) for p in MODULES if not relative(p).startswith("host/") and names(p) & WRITERS}
    assert writers == {*CHILDREN, "console.py"}


def test_the_host_program_prints_through_what_makes_text_printable() -> None:
    assert users_of("gdsdeploy.host.io.streams.Printable") == {"host/__main__.py"}
    for path in (p for p in MODULES if relative(p).startswith("host/")):
        text = path.read_text()
        assert not any(word in text for word in ("stdout.buffer", "stderr.buffer", "sys.__std")), path


def test_assertions_narrow_types_and_guard_nothing() -> None:
    """``python -O`` leaves them out."""
    for path in (p for p in MODULES if "assert " in p.read_text()):
        for node in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)):
            text = ast.unparse(node.test)
            assert text.endswith(" is not None") or text.startswith("isinstance("), f"{path}:{node.lineno}: {text}"


def test_only_the_command_line_knows_click() -> None:
    assert {u for u in users_of("click") if not u.startswith(("cli/", "gdslab/cli/"))} == set()


def test_only_the_transport_knows_paramiko() -> None:
    assert users_of("paramiko") == {"ssh/transport.py"}


def test_only_the_journal_knows_sql() -> None:
    assert users_of("sqlite3") == {"rollout/journal.py"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_functions_stay_readable(path: Path) -> None:
    """Without its docstring, which for a command is its help."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        body = function.body[1:] if ast.get_docstring(function) is not None else function.body
        text = (function.body[0].end_lineno or 0) - function.body[0].lineno + 1 if body is not function.body else 0
        assert (function.end_lineno or 0) - function.lineno + 1 - text <= MAX_FUNCTION, function.name
