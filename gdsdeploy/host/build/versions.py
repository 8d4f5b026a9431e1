"""The symbol versions of the driver that modules are built against: those of the target kernel's own nvidia.ko.

In this order: the installed nvidia.ko; a Module.symvers of a build of this driver for this kernel (DKMS keeps it) that
the nvidia.ko beside it proves; the exports of a compilation of only the exporting unit.
"""

from __future__ import annotations

import glob
import os
from typing import Callable, Dict, NamedTuple, Optional, Sequence

from ..errors import BuildError, ElfError, SymversError
from ..kmod import driver as drivers
from ..kmod.files import SUFFIXES, Elf
from ..kmod.kernel import Export, Kernel, digest_name, format_line, from_cmd_files, read_symvers, write_symvers
from ..kmod.module import Module, read_module
from ..kmod.tree import Tree
from ..paths import DKMS
from ..rootdir import inside
from .kbuild import Log, first_error

#: The name that modpost writes into ``depends:`` is the last component of the exporter's path in Module.symvers.
EXPORTER = "nvidia"
#: The only unit of the driver that exports nvidia_p2p_*.
UNIT = "nvidia/nv-p2p.o"
_LABEL = "__export_symbol_"


class Versions(NamedTuple):
    """``path`` is a Module.symvers for modpost, ``extra`` what the audit needs beyond the installed modules."""

    path: str
    extra: Dict[str, Export]
    #: ``module``, ``symvers``, ``compiled``, or ``built`` by the same run
    origin: str


def find_versions(
    kernel: Kernel,
    tree: Tree,
    ahead: bool,
    folder: str,
    unit_folder: Callable[[], str],
    log: Log,
    settings: Sequence[str],
) -> Versions:
    """Find them and write ``folder``/nvidia.symvers; raises BuildError or SymversError."""
    path = os.path.join(folder, "nvidia.symvers")
    place = None if ahead else drivers.find(kernel, EXPORTER)
    if place is not None:
        module = kernel.read(place.file)
        if (module.version, drivers.flavour(module)) != (tree.version, tree.flavour):
            message = f"kernel {kernel.release} has nvidia.ko of driver {module.version} ({drivers.flavour(module)}),"
            message += f" but {tree.path} is the source of {tree.version} ({tree.flavour})"
            raise BuildError(message, "build the driver for this kernel first, or pass --ahead if it comes later")
        return _write(path, write_symvers(module, EXPORTER, kernel.versioned), {}, "module")
    exports, origin = earlier_exports(kernel, tree, log), "symvers"
    if exports is None:
        exports, origin = compile_unit(kernel, tree, unit_folder(), log, settings), "compiled"
    lines = (format_line(name, export) for name, export in sorted(exports.items()))
    return _write(path, "".join(lines), exports, origin)


def from_file(kernel: Kernel, nvidia: str, folder: str) -> Versions:
    """The versions of one file, which this run built."""
    module = read_module(nvidia)
    path = os.path.join(folder, "nvidia.symvers")
    extra = {name: Export(crc or 0, EXPORTER, gpl) for name, (crc, gpl) in module.exports.items()}
    return _write(path, write_symvers(module, EXPORTER, kernel.versioned), extra, "built")


def earlier_exports(kernel: Kernel, tree: Tree, log: Log) -> Optional[Dict[str, Export]]:
    """The driver's exports by a Module.symvers of this very driver and kernel; None without a trustworthy one."""
    base, version, release = map(glob.escape, (inside(kernel.root, DKMS), tree.version, kernel.release))
    for folder in [*sorted(glob.glob(os.path.join(base, "*", version, release, "*", "module"))), tree.path]:
        path = os.path.join(folder, "Module.symvers")
        if not os.path.isfile(path):
            continue
        try:
            exports = {
                name: export._replace(module=EXPORTER)
                for name, export in read_symvers(path).items()
                if digest_name(export.module) == EXPORTER
            }
            reason = _distrust(kernel, tree, folder, exports)
        except SymversError as error:
            reason = error.message
        if not reason:
            return exports
        log.note(f"{path} is not used: {reason}")
    return None


def _distrust(kernel: Kernel, tree: Tree, folder: str, exports: Dict[str, Export]) -> str:
    """Why a Module.symvers may be of another driver or kernel than the nvidia.ko beside it proves."""
    module = _nvidia_in(folder)
    if module is None:
        return "there is no nvidia.ko beside it"
    if (module.version, drivers.flavour(module)) != (tree.version, tree.flavour):
        return f"it is of driver {module.version} ({drivers.flavour(module)})"
    if module.vermagic != kernel.vermagic():
        return f"the nvidia.ko beside it was built for {module.vermagic!r}"
    if not exports or any(module.exports.get(name) != (each.crc, each.gpl) for name, each in exports.items()):
        return "the nvidia.ko beside it exports other versions"
    return ""


def _nvidia_in(folder: str) -> Optional[Module]:
    for suffix in SUFFIXES:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia*.ko" + suffix))):
            try:
                module = read_module(path)
            except ElfError:
                continue
            if module.name == EXPORTER:
                return module
    return None


def compile_unit(kernel: Kernel, tree: Tree, folder: str, log: Log, settings: Sequence[str]) -> Dict[str, Export]:
    """What nvidia.ko will export for nvidia-fs, by compiling only that unit in ``folder``, a copy of the tree."""
    argv = ["make", "-C", kernel.headers(), "M=" + folder, "NV_KERNEL_MODULES=nvidia", *settings]
    done = log.run([*argv, UNIT], folder, {"IGNORE_CC_MISMATCH": "1"})
    exports = _exports_of_unit(kernel, os.path.join(folder, "nvidia")) if done.status == 0 else {}
    if not exports:
        error = first_error(done).replace(folder + "/", "")
        message = f"cannot compile {UNIT} of {tree.path} for kernel {kernel.release}: {error}"
        raise BuildError(message, f"the log is {log.path}")
    return exports


def _exports_of_unit(kernel: Kernel, folder: str) -> Dict[str, Export]:
    if kernel.versioned:
        command = os.path.join(folder, ".nv-p2p.o.cmd")
        if not os.path.isfile(command):
            return {}
        with open(command, encoding="utf-8", errors="replace") as text:
            return from_cmd_files([text.read()], EXPORTER)
    # Without versions only the names count: kbuild labels each since Linux 6.4.
    path = os.path.join(folder, "nv-p2p.o")
    with open(path, "rb") as file:
        names = [symbol.name for symbol in Elf(file, path).symbols() if symbol.name.startswith(_LABEL)]
    return {name[len(_LABEL) :]: Export(0, EXPORTER, True) for name in names}


def _write(path: str, text: str, extra: Dict[str, Export], origin: str) -> Versions:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return Versions(path, extra, origin)
