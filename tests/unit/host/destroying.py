"""Fixes whose hints can destroy something; tests/cases/destroying.yml declares what each rests on."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy.host.model.causes import filled

ROOT = Path(__file__).parents[3]
HOST = ROOT / "gdsdeploy" / "host"
DECLARED: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "cases" / "destroying.yml").read_text())
#: What erases data, ends programs, or takes power or a part away.  A reboot that provision makes ("let it
#: reboot") isn't one: it asks the profile first, and a rollout drains the host.
VERB = re.compile(
    r"\b(eras(es?|ing)|(re)?format (the|it)|wipe\w*|mkfs\S*|u(n)?mount (it|the)|(re)?seat (the|it)|reset (it|the|all)"
    r"|power (it |the \w+ )?off|(?<!first )(?<!next )(?<!the )(?<!a )(?<!no )(?<!it )reboots?(?! pending))\b",
    re.IGNORECASE,
)
#: What follows the last such verb where something else to try stands behind it.
BEHIND = re.compile(r";(?! if | with gdsdeploy:)|, or (?!have)|\bor (use|install|run|write|let)\b")
#: Words that say what is lost: programs are drained or ended first, or data is erased.
LOSES = re.compile(r"\b(drain\w*|end the programs|erases)\b")


@cache
def fixes() -> dict[str, str]:
    """Id → fix, of the tables' rows with such a verb; place → text, of the strings of the program."""
    rows = [row for path in sorted(HOST.glob("data/*.json")) for row in json.loads(path.read_text()) if "fix" in row]
    found = {row.get("id") or row["cause"]: filled(row["fix"], {}) for row in rows}
    for folder in ("subjects", "kmod"):
        for path in sorted((HOST / folder).glob("*.py")):
            found.update({f"{folder}/{path.name}:{line}": text for line, text in _strings(ast.parse(path.read_text()))})
    return {ident: text for ident, text in found.items() if VERB.search(text)}


def _strings(tree: ast.AST) -> Iterable[tuple[int, str]]:
    """The texts of a module, without docstrings; {} stands for what a text is completed with."""
    nodes = list(ast.walk(tree))
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            # A pattern is no fix.
            yield node.lineno, node.value if "\\" not in node.value else ""


def named(texts: Iterable[str]) -> set[str]:
    """Ids of the fixes with such a verb that are in ``texts``: of a table's row, or of what is declared."""
    told = {fix: ident for ident, fix in fixes().items() if any(fnmatchcase(ident, row) for row in DECLARED)}
    told.update({words: ident for ident, row in DECLARED.items() for words in row.get("words", [])})
    found = {text: [words for words in told if words.lower() in text.lower()] for text in filter(VERB.search, texts)}
    undeclared = [text for text, words in found.items() if not words]
    assert not undeclared, f"tests/cases/destroying.yml has no row for {undeclared}"
    return {told[max(words, key=len)] for words in found.values()}
