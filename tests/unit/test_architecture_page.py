"""docs/architecture.md: its drawings come from the code, and every path that it names exists."""

from __future__ import annotations

import re

import pytest

from docs.gen import architecture

TEXT = architecture.PAGE.read_text()
#: Paths are in code spans and begin with a folder of the repository.
PATH = re.compile(r"`((?:gdsdeploy|playbooks|plugins|roles|templates|tests|docs)/[\w./-]*)`")


def test_the_drawings_are_todays() -> None:
    assert architecture.page(TEXT) == TEXT, architecture.__doc__


@pytest.mark.parametrize("path", sorted(set(PATH.findall(TEXT))))
def test_a_path_exists(path: str) -> None:
    file = architecture.ROOT / path
    assert file.is_dir() if path.endswith("/") else file.is_file()


def test_twenty_questions_have_one_path_each() -> None:
    rows = [row for row in TEXT.partition("## Twenty questions")[2].splitlines() if row.startswith("| ")][2:]
    assert len(rows) == 20
    assert all(row.count("`") >= 2 and len(PATH.findall(row)) == 1 for row in rows)


def test_implied_arrows_are_left_out() -> None:
    rooms = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset[str]()}
    assert architecture.reduced(rooms) == {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset()}
