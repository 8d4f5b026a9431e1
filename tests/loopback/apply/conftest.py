from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loopback.apply.throwaway import System


@pytest.fixture
def system() -> Iterator[System]:
    """This system, with a layer that is thrown away."""
    folder = Path(tempfile.mkdtemp(prefix="gdsdeploy-", dir="/dev/shm"))
    machine = System(folder)
    try:
        done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
        if os.geteuid() != 0 or done.returncode != 0:
            pytest.skip("mounting needs root")
        yield machine
    finally:
        shutil.rmtree(folder)
