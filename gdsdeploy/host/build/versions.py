"""The symbol versions of the driver that modules are built against: those of the target kernel's own nvidia.ko.

In this order: the nvidia.ko that is installed for the kernel, whatever its compression; a Module.symvers that a build
of this driver for this kernel left (DKMS keeps it), vouched for by the nvidia.ko beside it; and, before that driver is
built, what compiling only the unit that exports the symbols says: a sixth of a whole driver's time.
"""

from __future__ import annotations

import glob
import os
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from ..errors import BuildError, ElfError, SymversError
from ..kmod import driver as drivers
from ..kmod.elf import Elf
from ..kmod.files import SUFFIXES
from ..kmod.kernel import Kernel
from ..kmod.module import Module, read_module
from ..kmod.symvers import Export, digest_name, format_line, from_cmd_files, read_symvers, write_symvers
from ..kmod.tree import Tree
from ..rootdir import inside
from .conftests import needed
from .kbuild import Log, first_error

#: The name that modpost writes into ``depends:`` is the last component of the exporter's path in Module.symvers.
EXPORTER = "nvidia"
#: The only unit of the driver that exports nvidia_p2p_*.
UNIT = "nvidia/nv-p2p.o"
_LABEL = "__export_symbol_"
_DKMS = "/var/lib/dkms"


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
            message = (
                f"kernel {kernel.release} has nvidia.ko of driver {module.version} ({drivers.flavour(module)}),"
                f" but {tree.path} is the source of {tree.version} ({tree.flavour})"
            )
            raise BuildError(message, "build the driver for this kernel first, or say --ahead if it comes later")
        return _written(path, write_symvers(module, EXPORTER, kernel.versioned), {}, "module")
    kept = kept_symvers(kernel, tree, log)
    if kept is not None:
        return _written(path, _lines(kept), kept, "symvers")
    found = compile_unit(kernel, tree, unit_folder(), log, settings)
    return _written(path, _lines(found), found, "compiled")


def from_file(kernel: Kernel, nvidia: str, folder: str) -> Versions:
    """The versions of one file, which this run built."""
    module = read_module(nvidia)
    path = os.path.join(folder, "nvidia.symvers")
    extra = {name: Export(crc or 0, EXPORTER, gpl) for name, (crc, gpl) in module.exports.items()}
    return _written(path, write_symvers(module, EXPORTER, kernel.versioned), extra, "built")


def kept_symvers(kernel: Kernel, tree: Tree, log: Log) -> Optional[Dict[str, Export]]:
    """The driver's exports by a Module.symvers of this very driver and kernel; None when there is none to trust."""
    base = inside(kernel.root, _DKMS)
    pattern = os.path.join(
        glob.escape(base), "*", glob.escape(tree.version), glob.escape(kernel.release), "*", "module"
    )
    for folder in [*sorted(glob.glob(pattern)), tree.path]:
        path = os.path.join(folder, "Module.symvers")
        if not os.path.isfile(path):
            continue
        reason = ""
        try:
            exports = {
                name: item._replace(module=EXPORTER)
                for name, item in read_symvers(path).items()
                if digest_name(item.module) == EXPORTER
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
    if not exports or any(module.exports.get(name) != (item.crc, item.gpl) for name, item in exports.items()):
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
    probes = needed(folder, UNIT[:-2] + ".c")
    done = log.run([*argv, *probes, UNIT], folder, {"IGNORE_CC_MISMATCH": "1"})
    if done.status != 0 and probes:
        # What its probes are was read from scripts that may be written in a new way: with all of them, then.
        done = log.run([*argv, UNIT], folder, {"IGNORE_CC_MISMATCH": "1"})
    found = _exports_of_unit(kernel, os.path.join(folder, "nvidia")) if done.status == 0 else {}
    if not found:
        message = "cannot compile {} of {} for kernel {}: {}"
        error = first_error(done).replace(folder + "/", "")
        raise BuildError(message.format(UNIT, tree.path, kernel.release, error), f"the log is {log.path}")
    return found


def _exports_of_unit(kernel: Kernel, folder: str) -> Dict[str, Export]:
    if kernel.versioned:
        command = os.path.join(folder, ".nv-p2p.o.cmd")
        if not os.path.isfile(command):
            return {}
        with open(command, encoding="utf-8", errors="replace") as text:
            return from_cmd_files([text.read()], EXPORTER)
    # Without versions, what counts is which names there are: kbuild labels each since Linux 6.4.
    path = os.path.join(folder, "nv-p2p.o")
    with open(path, "rb") as file:
        names: List[str] = [symbol.name for symbol in Elf(file, path).symbols() if symbol.name.startswith(_LABEL)]
    return {name[len(_LABEL) :]: Export(0, EXPORTER, True) for name in names}


def _lines(exports: Dict[str, Export]) -> str:
    return "".join(format_line(name, item) for name, item in sorted(exports.items()))


def _written(path: str, text: str, extra: Dict[str, Export], origin: str) -> Versions:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return Versions(path, extra, origin)
