"""Molecule's scenario for the role gds_host, as its users run it: on a light host that it starts and ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdslab as labs
from gdsdeploy import paths
from gdslab import Lab
from tests.lab.roleplay import connections
from tests.naming import unique

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: Seconds on a busy machine.
PATIENCE = 900


@pytest.fixture
def lab_name() -> Iterator[str]:
    """The name of the lab, which also ends after a scenario that didn't end it."""
    name = unique("molecule")
    yield name
    if Lab(name).exists():
        labs.down(Lab(name))


def test_the_scenario_passes(lab_name: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "GDSDEPLOY_CACHE_DIR": str(paths.cache()),
        "GDSDEPLOY_STATE_DIR": str(paths.state()),
        "GDSDEPLOY_MOLECULE_LAB": lab_name,
        "MOLECULE_COMMAND_BORDERS": "0",
        "NO_COLOR": "1",
    }
    argv = [BIN / "molecule", "test"]
    with connections() as own:
        done = subprocess.run(
            argv, cwd=ROOT, env={**env, **own}, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for step in ("create", "converge", "idempotence", "verify", "destroy"):
        assert f"{step}: Executed: Successful" in output, output
    assert re.search(r"(?m)^build1 +: ok=\d+ +changed=2 ", output), "the role changes the host"
    assert re.search(r"\b2 passed\b", output), output
    assert not Lab(lab_name).exists()
