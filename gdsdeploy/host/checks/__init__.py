"""What a host must be: each check is one pure function from facts and expectation to a finding.

To add one, see docs/howto/add-a-check.md.
"""

from __future__ import annotations

# Importing a module registers its checks.
from . import (
    boot,
    container,
    cufile,
    drift,
    driver,
    gdscheck,
    health,
    kernel,
    load,
    modules,
    network,
    nvidia_fs,
    odirect,
    packages,
    peermem,
    secure_boot,
    storage,
    system,
    topology,
    userland,
)
from .registry import Check, listed, run

__all__ = [
    "Check",
    "boot",
    "container",
    "cufile",
    "drift",
    "driver",
    "gdscheck",
    "health",
    "kernel",
    "listed",
    "load",
    "modules",
    "network",
    "nvidia_fs",
    "odirect",
    "packages",
    "peermem",
    "run",
    "secure_boot",
    "storage",
    "system",
    "topology",
    "userland",
]
