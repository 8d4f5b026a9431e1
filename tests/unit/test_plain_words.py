"""Texts in the code: no phrase that docs/style.md refuses, in messages, help, docstrings, task names and comments."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.unit.docs_pages import refused_phrases

ROOT = Path(__file__).parents[2]
#: Code inside of texts: conditions in f-strings, and what Jinja evaluates.
CODE = re.compile(r"\bNone\b|\{\{.*?\}\}|\{%.*?%\}")
#: Files on hosts have these texts as comments; other words would be a change on every host.
ON_HOSTS = {"gdsdeploy/host/apply/gate.py", "gdsdeploy/host/apply/guard.py", "gdsdeploy/host/apply/recipes.py"}
ON_HOSTS |= {"gdsdeploy/host/apply/signing.py"}
PYTHON = sorted(
    path
    for folder in ("gdsdeploy", "lab", "plugins", "docs", "packaging", "extensions")
    for path in (ROOT / folder).rglob("*.py")
    if "_share" not in path.parts and path.relative_to(ROOT).as_posix() not in ON_HOSTS
)
OTHERS = sorted(
    path
    for folder in ("changelogs", "extensions", "gdsdeploy", "lab", "playbooks", "roles", "templates")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".yml", ".j2", ".json", ".sh"} and "_share" not in path.parts
)


def texts(path: Path) -> list[tuple[int, str]]:
    """(line, text) of every string and comment of a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [(token.start[0], token.string) for token in tokens if token.type in (tokenize.STRING, tokenize.COMMENT)]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_python_says_it_plainly(path: Path) -> None:
    assert [(line, phrase) for line, text in texts(path) for phrase in refused_phrases(CODE.sub("", text))] == []


@pytest.mark.parametrize("path", OTHERS, ids=name)
def test_other_files_say_it_plainly(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), 1)
    assert [(number, phrase) for number, line in lines for phrase in refused_phrases(CODE.sub("", line))] == []
