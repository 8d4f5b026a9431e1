"""Completion in a real bash, as a page shows it, and output that nothing reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
set -eu
eval "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_gdsdeploy_completion gdsdeploy
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "expected"), [(["pl"], ["plan"]), (["plan", "--lim"], ["--limit"]), (["plan", "--limit", "gp"], ["gpu1"])]
)
def test_bash_completes(words: list[str], expected: list[str], tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
    (line,) = re.findall(r"^\| bash, in .* \| `(.+)` \|$", page, re.MULTILINE)
    (tmp_path / "fleet.yml").write_text(
        "version: 1\nrepositories: {debian: {suites: [trixie]}}\n"
        "profiles: {gds: {os: debian-13, repositories: [debian]}}\nhosts: {gpu1: gds, login: gds}\n"
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", line, "gdsdeploy", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == expected


def test_a_reader_that_ends_early_ends_the_program_as_sigpipe_does() -> None:
    command = [Path(sys.executable).parent / "gdsdeploy", "help"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
