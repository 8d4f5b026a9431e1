"""The driver's own modules from its source tree, for one kernel."""

from __future__ import annotations

import os
import shutil
from typing import List

from ..errors import BuildError, TreeError
from ..io import atomic
from .context import SKIPPED, BuildContext, Built
from .kbuild import Log, first_error, without_debug_information
from .peermem import NAME as PEERMEM
from .peermem import ofed_settings, require_ofed
from .place import audit_built, place, provenance, record


def build_driver(context: BuildContext, output: str, log: Log) -> List[Built]:
    """Build every module of the driver into the folder ``output``, with its Module.symvers; all of them or none.

    Raises KernelError for headers that can't build, BuildError for a failed build or audit, StubError where
    nvidia-peermem is required and would be a stub.
    """
    request, tree = context.request, context.request.tree
    names = modules(context)
    ofed = require_ofed(context) if request.peermem == "required" else context.ofed().tree
    context.check_headers(log)
    folder = os.path.join(context.folder, "all")
    shutil.copytree(tree.path, folder, ignore=shutil.ignore_patterns(*SKIPPED))
    # Its own Makefile has workarounds for pahole and for the kernel's compiler.
    argv = ["make", f"-j{max(request.jobs, 1)}", "modules", "KERNEL_UNAME=" + request.kernel.release]
    argv += ["NV_KERNEL_MODULES=" + " ".join(names), "NV_EXCLUDE_KERNEL_MODULES="]
    argv += [*ofed_settings(context, folder, ofed), *request.variables]
    done = log.run(argv, folder, {"IGNORE_CC_MISMATCH": "1", **without_debug_information(request.kernel)})
    files = [os.path.join(folder, name + ".ko") for name in names]
    missing = [os.path.basename(file) for file in files if not os.path.isfile(file)]
    if done.status != 0 or missing:
        error = first_error(done).replace(folder + "/", "") if done.status else "no " + ", ".join(missing)
        message = f"driver {tree.version} ({tree.flavour}) doesn't build for kernel {request.kernel.release}"
        raise BuildError(f"{message} from {tree.path}: {error}", f"the log is {log.path}")
    for name, file in zip(names, files):
        extra = {"ofed": ofed.symvers} if name == PEERMEM and ofed is not None else {}
        record(log, file, {**provenance(request), **extra})
    results = audit_built(request, log, files, {}, "driver " + tree.version, peermem=request.peermem == "required")
    context.use_versions_of(files[0])
    atomic.copy(os.path.join(folder, "Module.symvers"), os.path.join(output, "Module.symvers"))
    targets = [os.path.join(os.path.abspath(output), os.path.basename(file)) for file in files]
    return place(list(zip(files, targets, results)))


def modules(context: BuildContext) -> List[str]:
    """Names of the modules whose parts are in the tree, nvidia first; nvidia-peermem only as requested."""
    path, names = context.request.tree.path, context.request.tree.modules()
    if "nvidia" not in names:
        message = f"{path} has no nvidia/nvidia.Kbuild: the driver can't be built from it"
        raise TreeError(message, "install the package with the driver's kernel module source")
    if PEERMEM in names and context.ofed().tree is None:
        reason = context.ofed().why_not()
        if context.request.peermem == "optional":
            names.remove(PEERMEM)
            context.notes.append(f"nvidia-peermem is left out, it would be a stub: {reason}")
        elif context.request.peermem == "stub":
            context.notes.append(f"nvidia-peermem is a stub: {reason}")
    return ["nvidia", *(name for name in names if name != "nvidia")]
