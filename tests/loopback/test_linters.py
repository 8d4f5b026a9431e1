"""Linters are tests: what they say is what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdsdeploy import resources

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: Plays outside of a playbook's folder, which ansible-lint takes for one only if they are named.
PLAYS = sorted(map(str, (ROOT / "gdsdeploy" / "carriers" / "plays").glob("*.yml")))
#: Not galaxy.yml, which would have to name a public address of the repository.
ANSIBLE = ["playbooks", "roles", "plugins", "meta", *PLAYS]


@pytest.mark.parametrize(
    "argv",
    [
        ["ruff", "check", "--quiet"],
        ["ruff", "format", "--check", "--quiet"],
        ["mypy"],
        ["ansible-lint", "--offline", "--profile", "production", "--strict", "-q", *ANSIBLE],
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_linter_is_silent(argv: list[str]) -> None:
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(resources.collections())}
    done = subprocess.run([BIN / argv[0], *argv[1:]], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"
