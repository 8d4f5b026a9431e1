"""``gdsdeploy`` as a user starts it, inside the test's own process."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gdsdeploy.cli import main

#: ``gdsdeploy`` with these arguments → its exit code, standard output and standard error.
Run = Callable[..., tuple[int, str, str]]


def run(*arguments: object) -> int:
    """The exit code of ``gdsdeploy`` with these arguments."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def plain(text: str) -> str:
    """Without terminal colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
