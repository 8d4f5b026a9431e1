"""What is particular to NVIDIA's modules: their file names, which file is which, what each must be built against."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Container, List, Mapping, NamedTuple, Optional, Tuple

from ..errors import ElfError
from . import hooks, ofed, origin
from .findings import ERROR, WARNING, Finding, finding, some
from .kernel import Kernel
from .module import Module, name_of

#: Debian installs nvidia.ko as nvidia-current.ko, nvidia-current-open.ko, nvidia-tesla-535.ko, and so on; what the
#: file is called inside says which module it is.
_FILE = re.compile(r"nvidia(_current|_tesla|_legacy)?(_\d+[a-z]*)?(_open)?(_uvm|_modeset|_drm|_peermem)?")
#: Modules made from the driver's own source, all of one version.
PARTS = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
#: Licenses of the open flavour's nvidia.ko.
OPEN = ("Dual MIT/GPL", "Dual BSD/GPL", "GPL", "GPL v2")


@dataclass(frozen=True)
class Expected:
    """What the lock says; empty where it says nothing."""

    driver_version: str = ""
    #: ``open`` or ``proprietary``
    driver_flavour: str = ""
    #: ``sha256:…`` as ``tree.digest`` gives it
    tree_digest: str = ""
    #: whether nvidia-peermem has to work; without it a stub isn't a fault
    peermem: bool = False
    #: storage drivers, as ``hooks.DRIVERS`` names them, that have to let nvidia-fs in
    storage: Tuple[str, ...] = ()
    nvidia_fs_version: str = ""
    #: paths of modules that are as their locked packages have them
    packaged: Container[str] = ()


class Place(NamedTuple):
    """The file that is loaded for a module, and every other one that claims to be it."""

    file: str
    others: Tuple[str, ...]
    #: whether nothing but the order of a directory listing decides
    sure: bool
    #: file name, as depmod knows it
    name: str


def stack_names(kernel: Kernel) -> List[str]:
    """Names of all module files of the driver, of nvidia-fs and of what nvidia-peermem replaces, sorted."""
    return sorted(name for name in kernel.by_name if _FILE.fullmatch(name) or name in ("nvidia_fs", "nv_peer_mem"))


def find(kernel: Kernel, name: str) -> Optional[Place]:
    """Where the module ``name`` is, for modules of the driver under any file name; None when there is none."""
    groups = [group for group in _groups(kernel, name) if kernel.by_name.get(group)]
    if not groups:
        return None
    mapped = kernel.renames.get(name)
    # modprobe's own configuration decides between file names; then the module's own name; then what there is.
    group = next((candidate for candidate in (mapped, name) if candidate in groups), groups[0])
    choice, *others = filter(None, map(kernel.choose, [group, *(other for other in groups if other != group)]))
    rest = [file for other in others for file in (other.file, *other.others)]
    sure = choice.sure and (len(groups) == 1 or group in (mapped, name))
    return Place(choice.file, choice.others + tuple(rest), sure, group)


def flavour(module: Module) -> str:
    """``open`` or ``proprietary``, by the license that nvidia.ko declares."""
    return "open" if module.license in OPEN else "proprietary"


def place_findings(kernel: Kernel, name: str, place: Place) -> List[Finding]:
    """Findings about where a module is: several files, a stale index, a name that modprobe doesn't know."""
    results = []
    others = ", ".join(place.others)
    if others and place.sure:
        message = f"there are several files of {name}: {place.file} is loaded, not {others}"
        results.append(finding("duplicate", "warning", message, f"remove {others}"))
    elif others:
        message = f"there are several files of {name} and nothing that chooses between them: {place.file}, {others}"
        hint = f"remove all but one, then run depmod -a {kernel.release}"
        results.append(finding("duplicate", "error", message, hint))
    if kernel.dependencies and place.file not in kernel.dependencies:
        message = f"modules.dep doesn't list {place.file}: modprobe loads another file, or none"
        results.append(finding("depmod-stale", "error", message, f"run depmod -a {kernel.release}"))
    mapped = kernel.renames.get(name, name)
    if mapped not in (name, place.name):
        message = f"modprobe.d turns {name} into {mapped}, and this kernel has no such file"
        hint = f"build {mapped} for this kernel, or remove the modprobe.d line"
        results.append(finding("name", "error", message, hint))
    elif place.name not in (name, mapped):
        base = os.path.basename(place.file)
        message = f"modprobe {name} finds nothing: the file is {base} and modprobe.d does not map the name"
        results.append(finding("name", "warning", message, f"run modprobe {place.name}"))
    for file in kernel.dependencies.get(place.file, []):
        group = name_of(file)
        other = _inner(kernel, group) if _FILE.fullmatch(group) and group in kernel.by_name else ""
        right = find(kernel, other) if other else None
        if right is not None and right.file != file:
            message = f"modprobe {name} would load {file} for {other}, not {right.file}"
            hint = f"remove {file}, then run depmod -a {kernel.release}"
            results.append(finding("dependency-file", "error", message, hint))
    return results


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
        results = _nvidia_fs(module, expected)
        is_packaged = module.path in expected.packaged
        results += origin.findings(kernel, module, driver, version, kind, expected.tree_digest, is_packaged)
        return results + hooks.findings(kernel, module, expected.storage)
    return []


def peer_memory(kernel: Kernel, imports: Mapping[str, Optional[int]]) -> List[Finding]:
    """Findings about ``imports`` (symbol → CRC or None) of OFED's peer memory that no module of ``kernel`` exports."""
    search = ofed.search(kernel)
    if search.tree is None:
        message = f"nothing on this host exports {some(sorted(imports))}: {search.why_not()}"
        hint = f"install OFED or DOCA for kernel {kernel.release}, then rebuild the driver's modules"
        return [finding("symbol-missing", ERROR, message, hint)]
    tree, exports = search.tree, search.tree.exports()
    message = f"needs the RDMA core of {tree.path}, which kernel {kernel.release} doesn't have installed"
    results = [finding("ofed-missing", ERROR, message, "install OFED's or DOCA's modules for this kernel")]
    wrong = [
        f"{name} (0x{crc or 0:08x}, exported 0x{exports[name].crc:08x})"
        for name, crc in sorted(imports.items())
        if kernel.versioned and crc != exports[name].crc
    ]
    if wrong:
        message = f"was built against other versions of {tree.path}'s symbols: {some(wrong)}"
        results.append(finding("symbol-crc", ERROR, message, "rebuild it against this kernel and this OFED"))
    return results


def _driver(module: Module, expected: Expected) -> List[Finding]:
    results = []
    if expected.driver_version and module.version != expected.driver_version:
        message = f"is driver {module.version}, expected {expected.driver_version}"
        results.append(finding("driver-version", "error", message, "install the expected driver for this kernel"))
    if expected.driver_flavour and flavour(module) != expected.driver_flavour:
        message = f"is the {flavour(module)} flavour ({module.license}), expected {expected.driver_flavour}"
        results.append(finding("driver-flavour", "error", message, "install the other flavour's kernel modules"))
    return results


def _provenance(kernel: Kernel, module: Module, expected: Expected) -> List[Finding]:
    """Findings about what ``kmod build`` recorded inside one of the driver's modules."""
    results = []
    tree, used = module.provenance.get("tree", ""), module.provenance.get("ofed", "")
    if tree and expected.tree_digest and tree != expected.tree_digest:
        message = f"was built from the tree {tree}, not {expected.tree_digest}"
        results.append(finding("driver-tree", ERROR, message, "rebuild the driver's modules from the tree in use"))
    installed = ofed.find(kernel) if used else None
    if installed is not None and installed.symvers != used:
        message = f"was built against another OFED than {installed.path}: only the versions of its symbols are compared"
        results.append(finding("ofed-tree", WARNING, message, "rebuild it against the OFED that is installed"))
    return results


def _nvidia_fs(module: Module, expected: Expected) -> List[Finding]:
    if module.version == (expected.nvidia_fs_version or module.version):
        return []
    message = f"is version {module.version or 'unknown'}, expected {expected.nvidia_fs_version}"
    return [finding("nvidia-fs-version", ERROR, message, "build the expected nvidia-fs for this kernel")]


def _part(kernel: Kernel, module: Module, driver: Optional[Module], expected: Expected) -> List[Finding]:
    results = []
    if driver is not None and module.version and module.version != driver.version:
        message = f"is of driver {module.version}, nvidia.ko of {driver.version}"
        results.append(finding("driver-version", "error", message, "rebuild the driver's modules together"))
        if module.name in _PEERMEM:
            results += origin.page_table(module.version, driver.version)
    results += _provenance(kernel, module, expected)
    if module.name in _PEERMEM and ofed.SYMBOLS[0] not in module.imports:
        message = "is a stub, built without OFED's peer memory symbols: loading it ends with 'Invalid argument'"
        search = ofed.search(kernel)
        hint = "install OFED or DOCA, then rebuild the driver; or use DMA-BUF and don't load it"
        if search.tree is not None:
            hint = f"rebuild it against {search.tree.path}, which is of this kernel"
        elif search.refused:
            hint = f"{hint}; {search.why_not()}"
        results.append(finding("peermem-stub", ERROR if expected.peermem else WARNING, message, hint))
    return results


def _groups(kernel: Kernel, name: str) -> List[str]:
    """The file names that ``name`` may have, sorted."""
    if name != "nvidia" and name not in PARTS:
        return [name]
    return sorted(group for group in kernel.by_name if _FILE.fullmatch(group) and _inner(kernel, group) == name)


def _inner(kernel: Kernel, group: str) -> str:
    choice = kernel.choose(group)
    assert choice is not None
    try:
        return kernel.read(choice.file).name
    except ElfError:
        # Only the name of a damaged file says what it is.
        match = _FILE.fullmatch(group)
        return "nvidia" + ((match.group(4) or "") if match else "")
