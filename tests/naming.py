"""Unique names for labs, and a list of these labs for the cleanup of a run."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gdsdeploy import paths

#: The folder of this run, for all its processes; tests/conftest.py makes and removes it.
RUN = "GDSDEPLOY_TESTS_RUN"


def unique(what: str) -> str:
    """A new name for a lab, which is noted for the cleanup.

    The process id alone isn't unique: a killed run may have left a lab with the same one.
    """
    name = f"{what}-{os.getpid()}-{secrets.token_hex(2)}"
    notes = Path(os.environ[RUN]) / "labs"
    notes.mkdir(exist_ok=True)
    (notes / name).write_text(str(paths.state()))
    return name
