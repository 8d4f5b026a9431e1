"""Build nvidia-fs for a given kernel, running or not, against the one driver source tree that was meant.

What the stock Makefile leaves to chance is decided here: the driver's folder, the symbol versions (those of the target
kernel's own nvidia.ko), and that an unresolved symbol ends the build.  The result says inside what it was built against
and has passed its audit, or the file that was there before stays as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from . import driver as drivers
from .audit import Result, audit
from .driver import Expected
from .elf import Elf
from .errors import BuildError, KernelError, TreeError
from .kbuild import Log, check_headers, first_error, make_modules
from .kernel import Kernel
from .module import PROVENANCE, Module, read_module
from .symvers import Export, format_line, from_cmd_files, write_symvers
from .tree import Tree, digest, digest_files

#: The name that modpost writes into ``depends:`` is the last component of the exporter's path in Module.symvers.
_EXPORTER = "nvidia"
#: The only unit of the driver that exports nvidia_p2p_*.
_UNIT = "nvidia/nv-p2p.o"
_LABEL = "__export_symbol_"
_SKIPPED = ("*.o", "*.ko", "*.mod", "*.mod.c", ".*.cmd", "Module.symvers", "modules.order", "config-host.h", "conftest")
_SKIPPED_OF_DRIVER = ("*.o_binary", "nvidia-uvm", "nvidia-drm", "nvidia-modeset")


@dataclass(frozen=True)
class Job:
    """What to build against, and how."""

    kernel: Kernel
    tree: Tree
    jobs: int = 1
    #: further ``NAME=value`` for make, such as DKMS's LLVM=1
    variables: Sequence[str] = ()
    #: the driver of ``tree`` is to come: what is installed for this kernel does not count
    ahead: bool = False


@dataclass(frozen=True)
class Built:
    """A finished build; paths are of this machine."""

    file: str
    log: str
    #: ``module`` (the kernel's nvidia.ko) or ``compiled`` (only the exporting unit was built)
    versions_from: str
    module: Module
    audit: Result


def build_nvidia_fs(job: Job, source: str, output: str) -> Built:
    """Build nvidia-fs from ``source`` into the file ``output``; the log is kept in ``output``.log.

    Raises KernelError for headers that cannot build, BuildError for a failed build or audit.
    """
    output = os.path.abspath(output)
    _check_source(source)
    log = Log(output + ".log")
    work = tempfile.mkdtemp(prefix="gdsdeploy-nvidia-fs-")
    try:
        check_headers(log, job.kernel, os.path.join(work, "probe"), job.variables)
        symvers = os.path.join(work, "nvidia.symvers")
        extra, origin = _driver_symvers(job, log, symvers)
        folder = os.path.join(work, "nvidia-fs")
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*_SKIPPED))
        _configure(job, log, folder)
        built = _compile(job, log, folder, symvers)
        entries = provenance(job.tree, source)
        record(log, built, entries)
        result = _audited(job, log, built, extra, entries["tree"])
        result["file"] = output
        _place(built, output)
        return Built(output, log.path, origin, read_module(output), result)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def provenance(tree: Tree, source: str) -> Dict[str, str]:
    """What a build records inside the module, each key with PROVENANCE before it."""
    return {
        "driver": tree.version,
        "flavour": tree.flavour,
        "tree": digest(tree),
        "source": digest_files(source, _sources(source)),
    }


def record(log: Log, file: str, entries: Dict[str, str]) -> None:
    """Append ``entries`` to the modinfo of the module ``file``, so that modinfo(8) shows them; reads them back.

    It has to happen before the module is signed.
    """
    section = file + ".modinfo"
    folder = os.path.dirname(file)
    dump = log.run(["objcopy", "--dump-section", ".modinfo=" + section, file], folder)
    if dump.status != 0:
        raise BuildError("cannot read the modinfo of {}: {}".format(file, first_error(dump)), "install binutils")
    with open(section, "ab") as data:
        for key, value in entries.items():
            data.write("{}{}={}\0".format(PROVENANCE, key, value).encode("utf-8"))
    update = log.run(["objcopy", "--update-section", ".modinfo=" + section, file], folder)
    if update.status != 0 or read_module(file).provenance != entries:
        raise BuildError("cannot record the build in {}: {}".format(file, first_error(update)))


def _check_source(source: str) -> None:
    for name in ("Makefile", "configure", "nvfs-core.c"):
        if not os.path.isfile(os.path.join(source, name)):
            raise TreeError(
                "{} is not the source of nvidia-fs: it has no {}".format(source, name),
                "install nvidia-fs-dkms, or name the folder that has its Makefile",
            )


def _sources(source: str) -> List[str]:
    return [
        name
        for name in os.listdir(source)
        if name.endswith((".c", ".h")) or name in ("Makefile", "configure", "GDS_VERSION")
    ]


def _driver_symvers(job: Job, log: Log, path: str) -> Tuple[Dict[str, Export], str]:
    """Write the driver's Module.symvers to ``path``; return what the audit needs beyond the installed modules."""
    kernel, tree = job.kernel, job.tree
    place = None if job.ahead else drivers.find(kernel, _EXPORTER)
    if place is not None:
        module = kernel.read(place.file)
        if (module.version, drivers.flavour(module)) != (tree.version, tree.flavour):
            message = "kernel {} has nvidia.ko of driver {} ({}), but {} is the source of {} ({})".format(
                kernel.release, module.version, drivers.flavour(module), tree.path, tree.version, tree.flavour
            )
            raise BuildError(message, "build the driver for this kernel first, or say --ahead if it comes later")
        text, extra, origin = write_symvers(module, _EXPORTER, kernel.versioned), {}, "module"
    else:
        extra = compile_driver_symvers(job, log, os.path.join(os.path.dirname(path), "driver"))
        text, origin = "".join(format_line(name, item) for name, item in sorted(extra.items())), "compiled"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return extra, origin


def compile_driver_symvers(job: Job, log: Log, folder: str) -> Dict[str, Export]:
    """What nvidia.ko will export for nvidia-fs, by compiling only that unit: a sixth of a whole driver's time."""
    kernel, tree = job.kernel, job.tree
    shutil.copytree(tree.path, folder, ignore=shutil.ignore_patterns(*_SKIPPED, *_SKIPPED_OF_DRIVER))
    headers = kernel.headers()
    sources = os.path.join(kernel.folder, "source")
    sources = os.path.realpath(sources) if os.path.isdir(sources) else headers
    machine = os.uname().machine
    argv = ["make", "-j{}".format(max(job.jobs, 1)), "-C", headers, "M=" + folder]
    argv += ["ARCH=" + {"aarch64": "arm64"}.get(machine, machine), "NV_KERNEL_MODULES=nvidia", "NV_SPECTRE_V2=0"]
    argv += ["NV_KERNEL_SOURCES=" + sources, "NV_KERNEL_OUTPUT=" + headers, *job.variables, _UNIT]
    done = log.run(argv, folder, {"IGNORE_CC_MISMATCH": "1"})
    found = _exports_of_unit(kernel, os.path.join(folder, "nvidia")) if done.status == 0 else {}
    if not found:
        message = "cannot compile {} of {} for kernel {}: {}"
        message = message.format(_UNIT, tree.path, kernel.release, first_error(done).replace(folder + "/", ""))
        raise BuildError(message, "the log is {}".format(log.path))
    return found


def _exports_of_unit(kernel: Kernel, folder: str) -> Dict[str, Export]:
    if kernel.versioned:
        command = os.path.join(folder, ".nv-p2p.o.cmd")
        if not os.path.isfile(command):
            return {}
        with open(command, encoding="utf-8", errors="replace") as text:
            return from_cmd_files([text.read()], _EXPORTER)
    # Without versions, what counts is which names there are: kbuild labels each since Linux 6.4.
    path = os.path.join(folder, "nv-p2p.o")
    with open(path, "rb") as file:
        names = [symbol.name for symbol in Elf(file, path).symbols() if symbol.name.startswith(_LABEL)]
    return {name[len(_LABEL) :]: Export(0, _EXPORTER, True) for name in names}


def _configure(job: Job, log: Log, folder: str) -> None:
    """Run the source's own probes for the target kernel; their answers go to config-host.h."""
    release = job.kernel.release
    done = log.run(["bash", "./configure", release], folder, {"KVER": release})
    answers = re.findall(r"^[Cc]hecking .*?(yes|no)$", done.stdout, re.MULTILINE)
    if done.status != 0 or "yes" not in answers:
        # check_headers passed, so the compiler works; something about the script itself must be broken.
        message = "every probe of nvidia-fs's configure answers no for kernel {}".format(release)
        raise KernelError(message, "its answers would be wrong, so nothing was built; the log is {}".format(log.path))


def _compile(job: Job, log: Log, folder: str, symvers: str) -> str:
    release = job.kernel.release
    with open(os.path.join(folder, "GDS_VERSION"), encoding="utf-8", errors="replace") as file:
        version = file.read().strip()
    # The flags of the stock Makefile's own "module" target, the same from 2.7 to 2.28; the last one keeps the name of
    # the build folder out of the module, so that the same sources give the same bytes.
    flags = (
        "-DCONFIG_NVFS_STATS=y -DGDS_VERSION={} -DNVFS_ENABLE_KERN_RDMA_SUPPORT -DNVFS_BATCH_SUPPORT=y "
        "-ffile-prefix-map={}=nvidia-fs"
    ).format(version, folder)
    settings = [
        "KVER=" + release,
        "NVIDIA_SRC_DIR=" + job.tree.headers,
        "KBUILD_EXTRA_SYMBOLS=" + symvers,
        # The Makefile sets it to 1, which turns unresolved symbols into warnings; the command line wins.
        "KBUILD_MODPOST_WARN=",
        *job.variables,
    ]
    env = {"KCPPFLAGS": flags, "CONFIG_NVFS_BATCH_SUPPORT": "y", "CONFIG_NVFS_STATS": "y"}
    done = make_modules(log, job.kernel, folder, settings, job.jobs, env)
    built = os.path.join(folder, "nvidia-fs.ko")
    if done.status != 0 or not os.path.isfile(built):
        message = "nvidia-fs does not build for kernel {} against {}: {}"
        message = message.format(release, job.tree.path, first_error(done).replace(folder + "/", ""))
        raise BuildError(message, "the log is {}".format(log.path))
    return built


def _audited(job: Job, log: Log, built: str, extra: Dict[str, Export], tree_digest: str) -> Result:
    kernel, tree = job.kernel, job.tree
    expected = Expected(driver_version=tree.version, driver_flavour=tree.flavour, tree_digest=tree_digest)
    result = audit(kernel, [built], expected, extra)[0]
    wrong = [item for item in result["findings"] if item["severity"] == "error"]
    problems = ["[{}] {}".format(item["id"], item["message"]) for item in wrong]
    module = read_module(built)
    if module.vermagic != kernel.vermagic():
        problems.append("[vermagic] is {!r}, the kernel's {!r}".format(module.vermagic, kernel.vermagic()))
    if job.ahead and tree.flavour == "proprietary" and any(name.startswith("nvidia_p2p_") for name in module.imports):
        # The audit itself sees this only in a driver that is installed.
        problems.append("[gpl-proprietary] links the proprietary driver's symbols; nvidia-fs needs the open modules")
    if problems:
        message = "nvidia-fs was built for kernel {} against {}, but its audit says: {}"
        message = message.format(kernel.release, tree.path, "; ".join(problems))
        raise BuildError(message, "the log is {}".format(log.path))
    return result


def _place(built: str, output: str) -> None:
    """Move the file into place so that at every moment either the old or the new one is there, whole."""
    temporary = output + ".new"
    try:
        shutil.copyfile(built, temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, output)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise BuildError("cannot write {}: {}".format(output, error.strerror)) from None
