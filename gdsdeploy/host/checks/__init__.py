"""What a host must be: each check is one pure function from facts and expectation to a finding.

To add one, add a file: see docs/howto/add-a-check.md.
"""

from __future__ import annotations

from ..model.discovery import import_modules
from .registry import Check, listed, run

__all__ = ["Check", "listed", "run"]

# Importing a module registers its checks; the page of the documentation is a program.
import_modules(__name__, skip=("page",))
