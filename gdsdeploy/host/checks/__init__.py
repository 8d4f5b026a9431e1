"""The requirements on a host: each check is one pure function from facts and expectation to a finding.

To add one, see docs/guides/extend.md.
"""

from __future__ import annotations

from .. import subjects
from ..model.discovery import import_modules
from ..subjects.register import Check, listed
from .registry import run

__all__ = ["Check", "listed", "run"]

# Importing a module registers its checks.
import_modules(subjects.__name__)
import_modules(__name__)
