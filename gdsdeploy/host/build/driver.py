"""The driver's own modules from its source tree, for one kernel."""

from __future__ import annotations

import glob
import os
import shutil
from typing import List

from ..errors import BuildError, TreeError
from ..io import atomic
from .context import SKIPPED, Bench, Built
from .kbuild import Log, first_error
from .peermem import NAME as PEERMEM
from .peermem import decided, usable
from .place import audited, placed, provenance, record


def build_driver(bench: Bench, output: str, log: Log) -> List[Built]:
    """Build every module of the driver into the folder ``output``, with its Module.symvers; all of them or none.

    Raises KernelError for headers that cannot build, BuildError for a failed build or audit, StubError where
    nvidia-peermem is required and would be a stub.
    """
    job = bench.job
    wanted = _wanted(bench)
    ofed = usable(bench) if job.peermem == "required" else bench.ofed().tree
    bench.check_headers(log)
    folder = os.path.join(bench.folder, "whole")
    shutil.copytree(job.tree.path, folder, ignore=shutil.ignore_patterns(*SKIPPED))
    modules = " ".join(wanted)
    # Its own Makefile, which knows workarounds for pahole and the compiler that the kernel was built with.
    argv = ["make", f"-j{max(job.jobs, 1)}", "modules", "KERNEL_UNAME=" + job.kernel.release]
    argv += ["NV_KERNEL_MODULES=" + modules, "NV_EXCLUDE_KERNEL_MODULES=", *decided(bench, folder, ofed)]
    done = log.run([*argv, *job.variables], folder, {"IGNORE_CC_MISMATCH": "1"})
    files = [os.path.join(folder, name + ".ko") for name in wanted]
    missing = [os.path.basename(file) for file in files if not os.path.isfile(file)]
    if done.status != 0 or missing:
        message = "driver {} ({}) does not build for kernel {} from {}: {}"
        error = first_error(done).replace(folder + "/", "") if done.status else "no " + ", ".join(missing)
        tree = job.tree
        raise BuildError(
            message.format(tree.version, tree.flavour, job.kernel.release, tree.path, error),
            f"the log is {log.path}",
        )
    entries = provenance(job)
    for name, file in zip(wanted, files):
        own = {"ofed": ofed.symvers} if name == PEERMEM and ofed is not None else {}
        record(log, file, {**entries, **own})
    results = audited(job, log, files, {}, "driver " + job.tree.version, peermem=job.peermem == "required")
    bench.take_versions(files[0])
    atomic.copy(os.path.join(folder, "Module.symvers"), os.path.join(output, "Module.symvers"))
    items = [
        (file, os.path.join(os.path.abspath(output), os.path.basename(file)), result)
        for file, result in zip(files, results)
    ]
    return placed(items)


def _wanted(bench: Bench) -> List[str]:
    """Names of the modules whose parts are in the tree, nvidia first; nvidia-peermem only where it is to be."""
    path = bench.job.tree.path
    found = [os.path.basename(os.path.dirname(item)) for item in glob.glob(os.path.join(glob.escape(path), "*", ""))]
    names = sorted(name for name in found if os.path.isfile(os.path.join(path, name, name + ".Kbuild")))
    if "nvidia" not in names:
        raise TreeError(
            f"{path} has no nvidia/nvidia.Kbuild: the driver cannot be built from it",
            "install the package with the driver's kernel module source",
        )
    if PEERMEM in names and bench.ofed().tree is None and bench.job.peermem == "optional":
        names.remove(PEERMEM)
        bench.notes.append(f"nvidia-peermem is left out, it would be a stub: {bench.ofed().why_not()}")
    if PEERMEM in names and bench.ofed().tree is None and bench.job.peermem == "stub":
        bench.notes.append(f"nvidia-peermem is a stub: {bench.ofed().why_not()}")
    return ["nvidia", *(name for name in names if name != "nvidia")]
