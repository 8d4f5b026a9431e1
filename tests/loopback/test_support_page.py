"""The support matrix in the docs and in the README is what the systems and the tests' claims make today."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs.gen import support

ROOT = Path(__file__).parents[2]
#: A process of its own: pytest doesn't collect tests within a test.
PROGRAM = """
import json
from docs.gen import support
matrix = support.claimed()
print(json.dumps([support.page(matrix), support.summary(matrix)]))
"""


def test_the_pages_are_todays() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    page, summary = json.loads(done.stdout)
    assert (ROOT / "docs/support.md").read_text() == page, support.__doc__
    assert summary in (ROOT / "README.md").read_text(), f"the README's table has to be:\n{summary}"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("lock", "real"), {"os": "debian-1"}),
        (("lock", "real"), {}),
        (("locks", "real"), {"os": "debian-13"}),
        (("lock", "seen"), {"os": "debian-13"}),
        (("lock", "real"), {"os": "debian-13", "flavour": "generic"}),
    ],
)
def test_a_claim_that_names_no_cell_is_an_error(words: tuple[str, str], names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^test_x"):
        support.Claims().note(words, names, "test_x")


def test_the_better_of_two_claims_stays_and_an_unclaimed_cell_is_empty() -> None:
    claims = support.Claims()
    for how in ("stand-in", "real", "stand-in"):
        claims.note(("provision", how), {"os": "rocky-9"}, "test_x")
    assert claims.cells == {support.Row("rocky-9", "x86_64", "kernel"): {"provision": "real"}}
    assert "| rocky-9 | x86_64 | `kernel` | – | real | – | – |\n" in support.page(claims.cells)
    assert "| rocky-9 | – | real | – | – | 0 on x86_64, 0 on aarch64 |\n" in support.summary(claims.cells)
