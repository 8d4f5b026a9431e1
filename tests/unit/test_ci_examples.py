"""The examples for CI: their YAML is whole, and the command line takes their commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.docs_commands import Shown, _in_line, problem

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "ci").glob("*.yml"))


def scripts(value: Any) -> Iterator[str]:
    """Every text below ``run`` and ``script``."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key in ("run", "script"):
                yield from below if isinstance(below, list) else [below]
            else:
                yield from scripts(below)
    elif isinstance(value, list):
        for below in value:
            yield from scripts(below)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_commands_of_an_example_parse(path: Path) -> None:
    lines = [line for text in scripts(yaml.safe_load(path.read_text())) for line in text.splitlines()]
    commands = [words for line in lines for words in _in_line(line.strip())]
    assert len(commands) >= 2
    assert {words: problem(Shown(1, words, is_whole=True)) for words in commands} == dict.fromkeys(commands, "")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_no_text_of_an_event_becomes_a_word_of_the_shell(path: Path) -> None:
    """An expression in a script is replaced before the shell reads it: the title of a pull request could run there."""
    assert [text for text in scripts(yaml.safe_load(path.read_text())) if "${{" in text] == []
