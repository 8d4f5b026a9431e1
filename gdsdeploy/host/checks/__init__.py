"""What a host must be: each check is one pure function from facts and expectation to a finding.

To add one, see docs/howto/add-a-check.md.
"""

from __future__ import annotations

# Importing a module registers its checks.
from . import boot, cufile, drift, driver, gdscheck, kernel, nvidia_fs, packages, peermem, storage, system
from .registry import Check, listed, run

__all__ = [
    "Check",
    "boot",
    "cufile",
    "drift",
    "driver",
    "gdscheck",
    "kernel",
    "listed",
    "nvidia_fs",
    "packages",
    "peermem",
    "run",
    "storage",
    "system",
]
