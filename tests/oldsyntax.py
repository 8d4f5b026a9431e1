"""Find syntax newer than Python 3.0 in code that has to compile on any Python 3 to print its error."""

from __future__ import annotations

import ast
import re

#: Nodes that Python 3.0 has no syntax for, by their names: some are newer than the Python of the tests.
_NEWER = {
    "AnnAssign", "AsyncFor", "AsyncFunctionDef", "AsyncWith", "Await", "FormattedValue", "JoinedStr", "MatMult",
    "Match", "NamedExpr", "TemplateStr", "TryStar", "TypeAlias", "YieldFrom",
}  # fmt: skip
#: Modules that every Python 3 has, unlike ``typing``, which came with 3.5.
_MODULES = {"io", "json", "os", "select", "signal", "stat", "struct", "sys", "tempfile", "time"}


def newer(source: str) -> list[str]:
    """``line N: what`` for each syntax element and top-level import that Python 3.0 doesn't have.

    ``ast.parse`` with an old ``feature_version`` detects only some of them.
    """
    problems = []
    try:
        ast.parse(source, feature_version=(3, 4))
    except SyntaxError as error:
        problems.append(f"line {error.lineno}: {error.msg}")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        problems += [f"line {getattr(node, 'lineno', 0)}: {what}" for what in _newer(node, source)]
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        problems += [f"line {node.lineno}: import of {name}" for name in names if name not in _MODULES]
    return sorted(set(problems))


def _newer(node: ast.AST, source: str) -> list[str]:
    """The too new elements of one node, without its children."""
    name = type(node).__name__
    problems = [name] if name in _NEWER else []
    if isinstance(node, ast.arguments) and node.posonlyargs:
        problems.append("positional-only arguments")
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        problems += ["unpacking in a display" for element in node.elts if isinstance(element, ast.Starred)]
    if isinstance(node, ast.Dict) and None in node.keys:
        problems.append("unpacking in a dict")
    if isinstance(node, ast.With) and len(node.items) > 1:
        problems.append("with of several things")
    if isinstance(node, ast.Raise) and isinstance(node.cause, ast.Constant):
        problems.append("raise from None")
    if isinstance(node, ast.Constant) and node.kind == "u":
        problems.append("u before a string")
    if isinstance(node, ast.Call):
        stars = [element for element in node.args if isinstance(element, ast.Starred)]
        stars += [element.value for element in node.keywords if element.arg is None]
        if len(stars) > 1 or (stars and re.search(r",\s*\)$", ast.get_source_segment(source, node) or "")):
            problems.append("several unpacked arguments, or a comma after one")
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        problems += ["type parameters"] if getattr(node, "type_params", ()) else []
    return problems
