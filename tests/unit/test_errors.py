"""Every error has its own exit code, and the documentation lists exactly those."""

from __future__ import annotations

import re
from pathlib import Path

from gdsdeploy.errors import all_errors

DOCS = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def test_exit_codes_are_unique() -> None:
    codes = [error.exit_code for error in all_errors()]
    assert len(codes) == len(set(codes))


def test_every_error_says_what_it_means() -> None:
    assert all(error.__doc__ for error in all_errors())


def test_the_documentation_lists_every_code() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCS.read_text(), re.MULTILINE))
    assert rows == {str(error.exit_code): error.__name__ for error in all_errors()}
