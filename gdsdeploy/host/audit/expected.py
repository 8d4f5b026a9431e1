"""The audit as a host's expectation asks for it: one for the kernel guard, for evidence, and so for validation."""

from __future__ import annotations

import os
from typing import List, Optional

from ..kmod import tree
from ..kmod.driver import Expected
from ..kmod.findings import decisive
from ..kmod.kernel import Kernel
from ..model.expectation import Expectation
from .audit import Result, audit


def audited(kernel: Kernel, expectation: Optional[Expectation]) -> List[Result]:
    """Audit the modules that ``expectation`` needs on ``kernel``; without one, NVIDIA's that are there."""
    if expectation is None:
        return audit(kernel)
    return audit(kernel, expectation.modules(), _expected(expectation, kernel.root))


def objections(results: List[Result]) -> List[str]:
    """Why the modules may not be relied on: ``module: message`` of every error, and of what could not be told."""
    return [
        "{}: {}".format(result["module"] or result["file"], item["message"])
        for result in results
        for item in decisive(result["findings"])
    ]


def _expected(expectation: Expectation, root: str) -> Expected:
    digest = ""
    # Hosts that get their modules from a builder have no driver source.
    if root == "/" and os.path.isdir(expectation.driver_tree):
        digest = tree.digest(tree.expect(expectation.driver_tree))
    return Expected(
        expectation.driver_version,
        expectation.driver_flavour,
        digest,
        peermem=expectation.rdma == "peermem",
        nvidia_fs_version=expectation.nvidia_fs_version,
    )
