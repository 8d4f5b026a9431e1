"""What is particular to NVIDIA's modules: their file names, which file is which, what each must be built against."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import List, Mapping, NamedTuple, Optional, Tuple

from ..errors import ElfError
from . import hooks, ofed, origin
from .depmod import Choice
from .findings import ERROR, WARNING, Finding, finding, some
from .kernel import Kernel
from .module import Module, name_of

#: Debian installs nvidia.ko as nvidia-current.ko, nvidia-current-open.ko, nvidia-tesla-535.ko, and so on; what the
#: file is called inside says which module it is.
_FILE = re.compile(r"nvidia(_current|_tesla|_legacy)?(_\d+[a-z]*)?(_open)?(_uvm|_modeset|_drm|_peermem)?")
#: Modules made from the driver's own source, all of one version.
PARTS = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_OPEN = ("Dual MIT/GPL", "Dual BSD/GPL", "GPL", "GPL v2")


@dataclass(frozen=True)
class Expected:
    """What the lock says; empty where it says nothing."""

    driver_version: str = ""
    #: ``open`` or ``proprietary``
    driver_flavour: str = ""
    #: ``sha256:…`` as ``tree.digest`` gives it
    tree_digest: str = ""
    #: whether nvidia-peermem has to work; without it a stub is no fault
    peermem: bool = False
    #: storage drivers, as ``hooks.DRIVERS`` names them, that have to let nvidia-fs in
    storage: Tuple[str, ...] = ()
    nvidia_fs_version: str = ""


class Place(NamedTuple):
    """The file that is loaded for a module, and every other one that claims to be it."""

    file: str
    others: Tuple[str, ...]
    #: whether nothing but the order of a directory listing decides
    sure: bool
    #: file name, as depmod knows it
    name: str


def find(kernel: Kernel, name: str) -> Optional[Place]:
    """Where the module ``name`` is, for modules of the driver under any file name; None when there is none."""
    groups = [group for group in _groups(kernel, name) if kernel.by_name.get(group)]
    if not groups:
        return None
    mapped = kernel.renames.get(name)
    # modprobe's own configuration decides between file names; then the module's own name; then what there is.
    group = next((item for item in (mapped, name) if item in groups), groups[0])
    choice = kernel.choose(group)
    assert choice is not None
    rest = [file for item in groups if item != group for file in _all(kernel.choose(item))]
    sure = choice.sure and (len(groups) == 1 or group in (mapped, name))
    return Place(choice.file, choice.others + tuple(rest), sure, group)


def flavour(module: Module) -> str:
    """``open`` or ``proprietary``, by the license that nvidia.ko declares."""
    return "open" if module.license in _OPEN else "proprietary"


def place_findings(kernel: Kernel, name: str, place: Place) -> List[Finding]:
    """What is to be said about where a module is: several files, a stale index, a name that modprobe does not know."""
    found = []
    if place.others:
        message = "there are several files of {}: {} is loaded, not {}".format(
            name, place.file, ", ".join(place.others)
        )
        if place.sure:
            found.append(finding("duplicate", "warning", message, "remove those that are not meant"))
        else:
            message = "there are several files of {} and nothing that chooses between them: {}".format(
                name, ", ".join((place.file, *place.others))
            )
            found.append(finding("duplicate", "error", message, "remove those that are not meant, then run depmod -a"))
    if kernel.dependencies and place.file not in kernel.dependencies:
        message = f"modules.dep does not know {place.file}: modprobe loads another file, or none"
        found.append(finding("depmod-stale", "error", message, f"run depmod -a {kernel.release}"))
    mapped = kernel.renames.get(name, name)
    if mapped not in (name, place.name):
        message = f"modprobe.d turns {name} into {mapped}, and this kernel has no such file"
        found.append(finding("name", "error", message, "build that one for this kernel, or remove the modprobe.d line"))
    elif place.name not in (name, mapped):
        base = os.path.basename(place.file)
        message = f"modprobe {name} finds nothing: the file is {base} and modprobe.d does not map the name"
        found.append(finding("name", "warning", message, f"load it as {place.name}"))
    for file in kernel.dependencies.get(place.file, []):
        other = _belongs(kernel, file)
        right = find(kernel, other) if other else None
        if right is not None and right.file != file:
            message = f"modprobe {name} would load {file} for {other}, not {right.file}"
            found.append(
                finding("dependency-file", "error", message, "remove the one that is not meant, run depmod -a")
            )
    return found


def findings(kernel: Kernel, module: Module, chosen: Mapping[str, Module], expected: Expected) -> List[Finding]:
    """What NVIDIA's modules have to agree on beyond symbol versions, which are equal across many driver branches."""
    driver = chosen.get("nvidia")
    if module.name == "nvidia":
        return _driver(module, expected)
    if module.name in PARTS:
        return _part(kernel, module, driver, expected)
    if module.name == "nvidia_fs":
        version = expected.driver_version or (driver.version if driver is not None else "")
        kind = expected.driver_flavour or (flavour(driver) if driver is not None else "")
        found = _nvidia_fs(module, expected)
        found += origin.findings(kernel, module, driver, version, kind, expected.tree_digest)
        return found + hooks.findings(kernel, module, expected.storage)
    return []


def peer_memory(kernel: Kernel, imports: Mapping[str, Optional[int]]) -> List[Finding]:
    """What is to be said about imports of OFED's peer memory symbols that no module of ``kernel`` exports.

    imports: symbol → CRC, or None where the module has none for it.
    """
    search = ofed.search(kernel)
    if search.tree is None:
        message = f"nothing on this host exports {some(sorted(imports))}: {search.why_not()}"
        hint = f"install OFED or DOCA for kernel {kernel.release}, then rebuild the driver's modules"
        return [finding("symbol-missing", ERROR, message, hint)]
    tree, exports = search.tree, search.tree.exports()
    message = f"needs the RDMA core of {tree.path}, and kernel {kernel.release} has not got it installed"
    found = [finding("ofed-missing", ERROR, message, "install OFED's or DOCA's modules for this kernel")]
    wrong = [
        f"{name} (0x{crc or 0:08x}, exported 0x{exports[name].crc:08x})"
        for name, crc in sorted(imports.items())
        if kernel.versioned and crc != exports[name].crc
    ]
    if wrong:
        message = f"was built against other versions of {tree.path}'s symbols: {some(wrong)}"
        found.append(finding("symbol-crc", ERROR, message, "rebuild it against this kernel and this OFED"))
    return found


def _driver(module: Module, expected: Expected) -> List[Finding]:
    found = []
    if expected.driver_version and module.version != expected.driver_version:
        message = f"is driver {module.version}, expected {expected.driver_version}"
        found.append(finding("driver-version", "error", message, "install the expected driver for this kernel"))
    if expected.driver_flavour and flavour(module) != expected.driver_flavour:
        message = f"is the {flavour(module)} flavour ({module.license}), expected {expected.driver_flavour}"
        found.append(finding("driver-flavour", "error", message, "install the other flavour's kernel modules"))
    return found


def _recorded(kernel: Kernel, module: Module, expected: Expected) -> List[Finding]:
    """What a build of ours wrote into one of the driver's modules beside its version."""
    found = []
    tree, used = module.provenance.get("tree", ""), module.provenance.get("ofed", "")
    if tree and expected.tree_digest and tree != expected.tree_digest:
        message = f"was built from the tree {tree}, not {expected.tree_digest}"
        found.append(finding("driver-tree", ERROR, message, "rebuild the driver's modules from the tree in use"))
    there = ofed.find(kernel) if used else None
    if there is not None and there.symvers != used:
        message = f"was built against another OFED than {there.path}: only the versions of its symbols are compared"
        found.append(finding("ofed-tree", WARNING, message, "rebuild it against the OFED that is installed"))
    return found


def _nvidia_fs(module: Module, expected: Expected) -> List[Finding]:
    if module.version == (expected.nvidia_fs_version or module.version):
        return []
    message = "is version {}, expected {}".format(module.version or "unknown", expected.nvidia_fs_version)
    return [finding("nvidia-fs-version", ERROR, message, "build the expected nvidia-fs for this kernel")]


def _part(kernel: Kernel, module: Module, driver: Optional[Module], expected: Expected) -> List[Finding]:
    found = []
    if driver is not None and module.version and module.version != driver.version:
        message = f"is of driver {module.version}, nvidia.ko of {driver.version}"
        found.append(finding("driver-version", "error", message, "rebuild the driver's modules together"))
        if module.name in _PEERMEM:
            found += origin.page_table(module.version, driver.version)
    found += _recorded(kernel, module, expected)
    if module.name in _PEERMEM and ofed.SYMBOLS[0] not in module.imports:
        message = "is a stub, built without OFED's peer memory symbols: loading it ends with 'Invalid argument'"
        search = ofed.search(kernel)
        hint = "install OFED or DOCA, then rebuild the driver; or use DMA-BUF and do not load it"
        if search.tree is not None:
            hint = f"rebuild it against {search.tree.path}, which is of this kernel"
        elif search.refused:
            hint = f"{hint}; {search.why_not()}"
        found.append(finding("peermem-stub", ERROR if expected.peermem else WARNING, message, hint))
    return found


def _all(choice: Optional[Choice]) -> Tuple[str, ...]:
    return () if choice is None else (choice.file, *choice.others)


def _groups(kernel: Kernel, name: str) -> List[str]:
    """The file names under which ``name`` may be found, sorted."""
    if name != "nvidia" and name not in PARTS:
        return [name]
    return sorted(item for item in kernel.by_name if _FILE.fullmatch(item) and _inner(kernel, item) == name)


def _inner(kernel: Kernel, group: str) -> str:
    choice = kernel.choose(group)
    assert choice is not None
    try:
        return kernel.read(choice.file).name
    except ElfError:
        # A damaged file still is what its name says, as far as that goes.
        match = _FILE.fullmatch(group)
        return "nvidia" + ((match.group(4) or "") if match else "")


def _belongs(kernel: Kernel, file: str) -> str:
    """The in-kernel name of a driver's file, or nothing for any other."""
    group = name_of(file)
    return _inner(kernel, group) if _FILE.fullmatch(group) and group in kernel.by_name else ""
