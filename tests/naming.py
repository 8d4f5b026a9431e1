"""Names that no other run of the tests has, and a list of the labs that have them, so that none outlives its run."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gdsdeploy import paths

#: The folder of this run, for all its processes; tests/conftest.py makes and removes it.
RUN = "GDSDEPLOY_TESTS_RUN"


def unique(what: str) -> str:
    """A name for a lab, and a note that it may exist.

    A process id comes again, and a run that was killed may have left the lab that had it.
    """
    name = f"{what}-{os.getpid()}-{secrets.token_hex(2)}"
    notes = Path(os.environ[RUN]) / "labs"
    notes.mkdir(exist_ok=True)
    (notes / name).write_text(str(paths.state()))
    return name
