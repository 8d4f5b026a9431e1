"""Linters are tests: what they say is what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdsdeploy import resources
from gdsdeploy.host.apply import gate, guard, signing
from gdsdeploy.host.build import run

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: Not galaxy.yml, which would have to name a public address of the repository.
ANSIBLE = ["playbooks", "roles", "plugins", "meta", "extensions"]


#: Shell scripts without a name that says so.
PROGRAMS = (".ci/run", "packaging/reload")


@pytest.mark.parametrize(
    "argv",
    [
        ["ruff", "check", "--quiet"],
        ["ruff", "format", "--check", "--quiet"],
        ["mypy"],
        ["mypy", "--implicit-reexport", "--package=tests", "--package=benchmarks", "--cache-dir=.mypy_cache/tests"],
        ["mypy", "packaging/build.py"],
        ["lint-imports", "--no-cache"],
        ["bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", "gdsdeploy", "lab", "plugins"],
        ["antsibull-changelog", "lint"],
        ["ansible-lint", "--offline", "--profile", "production", "--strict", "-q", *ANSIBLE],
    ],
    ids=" ".join,
)
def test_linter_is_silent(argv: list[str]) -> None:
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(resources.collections())}
    done = subprocess.run([BIN / argv[0], *argv[1:]], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"


def _scripts(folder: Path) -> list[Path]:
    """Shell scripts of the tree, and in ``folder`` those that the host program writes."""
    written = {
        "slurm-health": gate._SLURM_HEALTH_TEXT,
        "sign-file": signing._SIGN_FILE_TEXT,
        "conftest": run._CONFTEST.format(answer="define", script="/x"),
        **{f"guard-{manager}": guard.hook(manager) for manager in guard.HOOKS},
    }
    for name, text in written.items():
        (folder / name).write_text(text)
    scripts = [
        *(ROOT / "gdsdeploy").rglob("*.sh"),
        *(ROOT / "lab").rglob("*.sh"),
        *(ROOT / "tests").rglob("*.sh"),
        *(ROOT / name for name in PROGRAMS),
    ]
    # NVIDIA's style, imitated.
    ours = [path for path in scripts if "sources" not in path.parts]
    guest = ROOT / "lab" / "gdslab" / "guest"
    return [*ours, guest / "grub-probe", guest / "seed", *(folder / name for name in written)]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_shellcheck_is_silent(shell: str, tmp_path: Path) -> None:
    named = [
        path for path in _scripts(tmp_path) if ("bash" in path.read_text().partition("\n")[0]) == (shell == "bash")
    ]
    assert len(named) >= 3
    # SC2016: what stands in single quotes is for an inner shell.
    argv = [BIN / "shellcheck", "--shell", shell, "--exclude", "SC2016", *named]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
