"""nvidia-fs from its source, with what the stock Makefile guesses set explicitly.

That is the driver's folder, the symbol versions (those of the target kernel's own nvidia.ko), and that an unresolved
symbol ends the build.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import List

from ..errors import BuildError, KernelError, TreeError
from ..kmod.tree import digest_files
from .context import SKIPPED, BuildContext, BuildRequest, Built
from .kbuild import Log, first_error, make_modules, without_debug_information
from .place import audit_built, place, provenance, record


def build_nvidia_fs(context: BuildContext, source: str, output: str, log: Log) -> List[Built]:
    """Build nvidia-fs from ``source`` into the file ``output``.

    Raises TreeError for another source, KernelError for broken headers, BuildError for a failed build or audit.
    """
    request = context.request
    for name in ("Makefile", "configure", "nvfs-core.c"):
        if not os.path.isfile(os.path.join(source, name)):
            hint = "install nvidia-fs-dkms, or name the folder that has its Makefile"
            raise TreeError(f"{source} is not the source of nvidia-fs: it has no {name}", hint)
    context.check_headers(log)
    versions = context.versions(log)
    folder = os.path.join(context.folder, "nvidia-fs")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*SKIPPED))
    _configure(context, log, folder)
    built = _compile(request, log, folder, versions.path)
    record(log, built, {**provenance(request), "source": source_digest(source)})
    results = audit_built(request, log, [built], versions.extra, "nvidia-fs")
    return place([(built, os.path.abspath(output), results[0])])


def source_digest(source: str) -> str:
    """``sha256:…`` over what is compiled and how."""
    names = [
        name
        for name in os.listdir(source)
        if (name.endswith((".c", ".h")) and not name.endswith(".mod.c") and name != "config-host.h")
        or name in ("Makefile", "configure", "GDS_VERSION")
    ]
    return digest_files(source, names)


def source_version(source: str) -> str:
    """The version that the source gives its module, such as 2.19.7; empty without one."""
    try:
        with open(os.path.join(source, "nvfs-vers.h"), encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 16)
    except OSError:
        return ""
    parts = [re.search(rf"NVFS_DRIVER_{part}_VERSION\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part.group(1) for part in parts if part)


def _configure(context: BuildContext, log: Log, folder: str) -> None:
    """Run the source's own probes for the target kernel; their answers go to config-host.h."""
    release = context.request.kernel.release
    done = log.run(["bash", "./configure", release], folder, {"KVER": release})
    answers = re.findall(r"^[Cc]hecking .*?(yes|no)$", done.stdout, re.MULTILINE)
    if done.status != 0 or "yes" not in answers:
        # The headers were checked, so the compiler works; the script itself must be broken.
        message = f"every probe of nvidia-fs's configure answers no for kernel {release}"
        raise KernelError(message, f"its answers would be wrong, so nothing was built; the log is {log.path}")


def _compile(request: BuildRequest, log: Log, folder: str, symvers: str) -> str:
    release = request.kernel.release
    with open(os.path.join(folder, "GDS_VERSION"), encoding="utf-8", errors="replace") as file:
        version = file.read().strip()
    # The flags of the stock Makefile's "module" target from 2.7 to 2.28; the last one makes the bytes independent of
    # the build folder.
    flags = (
        f"-DCONFIG_NVFS_STATS=y -DGDS_VERSION={version} -DNVFS_ENABLE_KERN_RDMA_SUPPORT -DNVFS_BATCH_SUPPORT=y "
        f"-ffile-prefix-map={folder}=nvidia-fs"
    )
    settings = [
        "KVER=" + release,
        "NVIDIA_SRC_DIR=" + request.tree.headers,
        "KBUILD_EXTRA_SYMBOLS=" + symvers,
        # The Makefile sets it to 1, which turns unresolved symbols into warnings; the command line wins.
        "KBUILD_MODPOST_WARN=",
        *request.variables,
    ]
    env = {"KCPPFLAGS": flags, "CONFIG_NVFS_BATCH_SUPPORT": "y", "CONFIG_NVFS_STATS": "y"}
    env.update(without_debug_information(request.kernel))
    done = make_modules(log, request.kernel, folder, settings, request.jobs, env)
    built = os.path.join(folder, "nvidia-fs.ko")
    if done.status != 0 or not os.path.isfile(built):
        error = first_error(done).replace(folder + "/", "")
        message = f"nvidia-fs {source_version(folder)} doesn't build for kernel {release} against {request.tree.path}"
        raise BuildError(f"{message}: {error}".replace("  ", " "), f"the log is {log.path}")
    return built
