"""The support matrix, from systems and from claims of tests: ``python -m docs.gen.support > docs/support.md``.

A test claims a cell by the marker ``proves(column, how)``.  The system, architecture and kernel flavour are the
marker's own, or the test's parameters of these names.  A claim goes with its test: without it the cell is empty.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from docs.gen import table_row
from gdsdeploy.platform import stack_platform_for, supported_systems

ROOT: Final = Path(__file__).parents[2]
ARCHES: Final = ("x86_64", "aarch64")
COLUMNS: Final = ("lock", "provision", "rollout", "Secure Boot")
#: How a cell is proven, the best first.
LEVELS: Final = ("real", "stand-in")
NOT: Final = "–"
#: Tests may claim cells in these folders; others aren't collected.
_CLAIM: Final = re.compile(r"\bproves\(")

HEAD = """\
# Support

`python -m docs.gen.support > docs/support.md` writes this page from the systems that the code knows and from the tests.
A test claims each cell, and `make test` runs all of these tests.

| cell | meaning |
|---|---|
| real | tests run it with the vendor's own packages: Debian's |
| stand-in | tests run it on packages that imitate the vendor's names, relations and layout |
| – | no test runs it |

- **lock**: the resolver takes this kernel flavour, and the driver and nvidia-fs that go with it.
- **provision**: a lab host is provisioned, validated and cleaned up again.
- **rollout**: lab hosts move to another lock and back.
- **Secure Boot**: a machine boots through UEFI Secure Boot, shim and a signed GRUB, and loads only modules that a key
  of its firmware has signed. It is emulated; its boot loaders have Microsoft's and Debian's own signatures.

What a stand-in can't show is in [lab.md](lab.md). No test has run on a host with a GPU and nvidia-fs. See also
[filesystems.md](filesystems.md), and [kernels.md](kernels.md) for kernels and drivers of Debian's archive.
"""


@dataclass(frozen=True)
class Row:
    """A system on one architecture with one of its kernel flavours."""

    os: str
    arch: str
    flavour: str


#: Row → column → how it is proven.
Matrix = Mapping[Row, Mapping[str, str]]


class Claims:
    """A plugin of pytest that notes what the collected tests claim."""

    def __init__(self) -> None:
        self.cells: dict[Row, dict[str, str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note every claim; raises ValueError for one that names no system, or words that the page doesn't know."""
        for test in items:
            callspec = getattr(test, "callspec", None)
            for mark in test.iter_markers("proves"):
                self.note(mark.args, {**getattr(callspec, "params", {}), **mark.kwargs}, test.nodeid)

    def note(self, words: tuple[Any, ...], names: Mapping[str, Any], nodeid: str) -> None:
        """Note one claim of the test ``nodeid``; the better one of two stays."""
        column, how = words
        arch = names.get("arch", ARCHES[0])
        if names.get("os") not in supported_systems() or column not in COLUMNS or how not in LEVELS:
            raise ValueError(f"{nodeid}: proves{words} of {names}")
        flavours = stack_platform_for(names["os"]).kernel_flavours(arch)
        flavour = names.get("flavour", flavours[0])
        if flavour not in flavours:
            raise ValueError(f"{nodeid}: {names['os']} has no kernel flavour {flavour} for {arch}")
        row = self.cells.setdefault(Row(names["os"], arch, flavour), {})
        row[column] = min(how, row.get(column, how), key=LEVELS.index)


def claimed() -> Matrix:
    """What the tests claim; raises RuntimeError if they can't be collected."""
    claims, output = Claims(), io.StringIO()
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _CLAIM.search(path.read_text())]
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", str(ROOT)]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.chdir(ROOT):
        status = pytest.main([*options, *files], plugins=[claims])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(output.getvalue())
    return claims.cells


def rows() -> Iterable[Row]:
    """Every kernel flavour of every system that the code knows."""
    for system in supported_systems():
        for arch in ARCHES:
            for flavour in stack_platform_for(system).kernel_flavours(arch):
                yield Row(system, arch, flavour)


def page(matrix: Matrix) -> str:
    """The whole page."""
    table = table_row("system", "architecture", "kernel flavour", *COLUMNS) + table_row(*["---"] * (3 + len(COLUMNS)))
    for row in rows():
        cells = matrix.get(row, {})
        table += table_row(row.os, row.arch, f"`{row.flavour}`", *(cells.get(column, NOT) for column in COLUMNS))
    return f"{HEAD}\n{table}"


def summary(matrix: Matrix) -> str:
    """The README's table: for each system the cells of its default kernel on x86_64, and how many flavours resolve."""
    table = table_row("system", *COLUMNS, "kernel flavours that lock") + table_row(*["---"] * (2 + len(COLUMNS)))
    for system in supported_systems():
        locked = [row for row in rows() if row.os == system and "lock" in matrix.get(row, {})]
        counts = [f"{sum(row.arch == arch for row in locked)} on {arch}" for arch in ARCHES]
        cells = matrix.get(Row(system, ARCHES[0], stack_platform_for(system).kernel_flavours(ARCHES[0])[0]), {})
        table += table_row(system, *(cells.get(column, NOT) for column in COLUMNS), ", ".join(counts))
    return table


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    print(page(claimed()), end="")
