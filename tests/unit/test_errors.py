"""Every error has its own exit code, and the documentation lists exactly those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gdsdeploy.errors import GdsError, all_errors, with_fleet
from gdslab.errors import LabUnavailable

DOCS = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def test_exit_codes_are_unique() -> None:
    codes = [error.exit_code for error in all_errors()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"gdsdeploy lock FLEET --check" tells', '"gdsdeploy lock my.yml --check" tells'),
        ("Begin one: gdsdeploy rollout start FLEET", "Begin one: gdsdeploy rollout start my.yml"),
        ("gdsdeploy support-bundle FLEET -o FILE", "gdsdeploy support-bundle my.yml -o FILE"),
        ('kmod keygen --name "NAME OF YOUR FLEET"', 'kmod keygen --name "NAME OF YOUR FLEET"'),
        ("gdsdeploy lock FLEETS", "gdsdeploy lock FLEETS"),
    ],
)
def test_commands_name_the_fleet_file(text: str, expected: str) -> None:
    assert with_fleet(text, Path("my.yml")) == expected


def test_a_path_is_one_word_of_the_command() -> None:
    error = GdsError("stale", hint="Run: gdsdeploy lock FLEET")
    error.name_fleet(r"my \1 fleet.yml")
    assert error.hint == r"Run: gdsdeploy lock 'my \1 fleet.yml'"


def test_the_documentation_lists_every_code() -> None:
    assert LabUnavailable in all_errors()
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCS.read_text(), re.MULTILINE))
    assert rows == {str(error.exit_code): error.__name__ for error in all_errors()}
