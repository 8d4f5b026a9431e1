"""Linters are tests: what they say is what fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: Plays outside of a playbook's folder, which ansible-lint takes for one only if they are named.
PLAYS = sorted(map(str, (ROOT / "gdsdeploy" / "carriers" / "plays").glob("*.yml")))


@pytest.mark.parametrize(
    "argv",
    [
        ["ruff", "check", "--quiet"],
        ["ruff", "format", "--check", "--quiet"],
        ["mypy"],
        ["ansible-lint", "--offline", "--profile", "production", "--strict", "-q", "playbooks", "roles", *PLAYS],
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_linter_is_silent(argv: list[str]) -> None:
    done = subprocess.run([BIN / argv[0], *argv[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"
