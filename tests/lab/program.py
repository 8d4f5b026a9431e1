"""``gdsdeploy`` as a user starts it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
#: Seconds for one command; a machine with two busy cores needs a good part of it.
PATIENCE = 2400


def gdsdeploy(*argv: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does and hold its exit code against ``status``."""
    command = [BIN / "gdsdeploy", *argv]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
