"""What has to compile on every Python 3, so that it can say that one is too old; and that this is really looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.zipapp import bootstrap, hostapp
from tests.oldsyntax import newer


@pytest.mark.parametrize("source", [Path(bootstrap.__file__).read_text(), hostapp._MAIN], ids=["bootstrap.py", "_MAIN"])
def test_it_compiles_on_every_python_3(source: str) -> None:
    # What comes after the version is known is imported by then only.
    early, mark, _ = source.partition("\nfrom gdsdeploy.")
    assert newer(early) == []
    assert newer(source) == ([f"line {early.count(chr(10)) + 2}: import of gdsdeploy.host.__main__"] if mark else [])


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('x = 1\ny = f"{x}"\n', "JoinedStr"),
        ("x: int = 1\n", "AnnAssign"),
        ("x: int\n", "AnnAssign"),
        ("if (x := 1):\n    pass\n", "NamedExpr"),
        ("def f(a, /):\n    pass\n", "positional-only arguments"),
        ("x = []\ny = [1, *x]\n", "unpacking in a display"),
        ("x = {}\ny = {**x}\n", "unpacking in a dict"),
        ("print(*[1], *[2])\n", "several unpacked arguments"),
        ("print(\n    *[1],\n)\n", "several unpacked arguments"),
        ("async def f():\n    pass\n", "AsyncFunctionDef"),
        ("def f():\n    yield from ()\n", "YieldFrom"),
        ("x = 1_000\n", "Underscores in numeric literals"),
        ("with open('a') as a, open('b') as b:\n    pass\n", "with of several things"),
        ("raise OSError from None\n", "raise from None"),
        ("x = u''\n", "u before a string"),
        ("match 1:\n    case _:\n        pass\n", "Match"),
        ("from typing import BinaryIO\n", "import of typing"),
    ],
)
def test_newer_syntax_is_named(source: str, what: str) -> None:
    assert any(what in line for line in newer(source)), newer(source)


def test_old_syntax_is_let_through() -> None:
    assert newer("import os\n\ndef f(a: int, *, b=1) -> 'x':\n    a, *rest = {1, 2}\n    os.write(1, *rest)\n") == []
