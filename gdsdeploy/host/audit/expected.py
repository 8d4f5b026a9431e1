"""The audit against a host's expectation, for the kernel guard and for evidence."""

from __future__ import annotations

import os
from typing import List, Optional

from ..kmod import tree
from ..kmod.driver import Expected
from ..kmod.findings import decisive
from ..kmod.kernel import Kernel
from ..model.expectation import Expectation
from .audit import Result, audit
from .packaged import audit_packaged


def audit_expected(kernel: Kernel, expectation: Optional[Expectation]) -> List[Result]:
    """Audit the modules that ``expectation`` needs on ``kernel``; without one, NVIDIA's that are there."""
    if expectation is None:
        return audit(kernel)
    digest = ""
    # Hosts that get their modules from a builder have no driver source.
    if kernel.root == "/" and os.path.isdir(expectation.driver_tree):
        digest = tree.digest(tree.expect(expectation.driver_tree))
    expected = Expected(
        expectation.driver_version,
        expectation.driver_flavour,
        digest,
        peermem=expectation.rdma == "peermem",
        nvidia_fs_version=expectation.nvidia_fs_version,
    )
    # Of another kernel, the lock knows no packages.
    if expectation.packaged and kernel.release == expectation.kernel_release:
        return audit_packaged(kernel, expectation.modules(), expected, expectation.packaged)
    return audit(kernel, expectation.modules(), expected)


def objections(results: List[Result]) -> List[str]:
    """Why the modules are unreliable: ``module: message`` of every decisive finding."""
    return [
        f"{result['module'] or result['file']}: {finding['message']}"
        for result in results
        for finding in decisive(result["findings"])
    ]
