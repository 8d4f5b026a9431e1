"""What is particular to NVIDIA's modules: their file names, which file is which, what each must be built against.

*Storage drivers.*  nvidia-fs looks up a pair of symbols of each storage driver at run time (``__symbol_get``), which
have to speak the same version of that interface.  Without a matching pair, I/O takes the compat path and nothing
reports it.  Most kernels' own drivers have none: OFED or DOCA brings them.  The nvme of Canonical's linux-nvidia
kernels has them (flavour.py).  Since Linux 6.6 (stable kernels: September 2023) only GPL-only exports match.

*Origin.*  Driver branches with different interfaces share versions of nvidia_p2p_*.  ``kmod build`` records inside the
module what it was built against; a stock build by DKMS leaves it in the log beside its own copy.
"""

from __future__ import annotations

import os
import re
from typing import Container, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..errors import ElfError, TreeError
from ..paths import DKMS
from ..rootdir import inside, list_folder, read_text
from . import files, ofed
from .files import Elf, open_plain
from .flavour import has_nvme_hooks, series
from .kernel import Choice, Kernel
from .module import ERROR, NOTE, WARNING, Finding, Module, finding, name_of, some, unknown_finding

#: Storage driver (in-kernel name) → what its pair of symbols begins with (nvfs-dma.c of nvidia-fs 2.7 to 2.28).
DRIVERS = {
    "nvme": "nvme",
    "nvme_rdma": "nvme_rdma",
    "rpcrdma": "rpcrdma",
    "lnet": "lustre",
    "beegfs": "beegfs",
    "mmfslinux": "ibm_scale",
    "sfxvdriver": "sfxv",
    "nvmeib_common": "nvmesh",
    "scatefs": "scatefs",
    "scsi_mod": "scsi",
}
_NAME = re.compile(r"([a-z_]+?)(?:_(v\d+))?_(register|unregister)_(?:nvfs_dma_ops|dma_scsi_ops)")
_TEXT = re.compile(rb"[a-z_]+?(?:_v\d+)?_(?:un)?register_(?:nvfs_dma_ops|dma_scsi_ops)(?=\0)")
#: First release whose __symbol_get refuses what is not exported GPL-only, on every distribution's kernel.
_GPL_ONLY_FROM = (6, 6)
_PLAIN = "no version"
#: nvidia-fs 2.28 has 25 KB of them.
_CONSTANTS_LIMIT = 16 << 20


class Offer(NamedTuple):
    """What a driver of a kernel exports; versions are ``v1``, ``v2``, …, or empty for symbols without one."""

    #: version → whether both symbols are exported GPL-only
    pairs: Dict[str, bool]
    #: versions of which only one symbol of the pair is there
    half: Tuple[str, ...]


def requests_of(module: Module) -> Dict[str, Set[str]]:
    """Driver → versions of its interface that this nvidia-fs looks for; raises ElfError."""
    with open_plain(module.path) as file:
        elf = Elf(file, module.path)
        sections = [section for section in elf.sections if section.name.startswith(".rodata")]
        if sum(section.size for section in sections) > _CONSTANTS_LIMIT:
            raise elf.error("has more constants than any nvidia-fs")
        names = {text.decode("ascii") for section in sections for text in _TEXT.findall(elf.content(section))}
    return {name: versions for name, versions in ((driver, _pairs(names, driver)[0]) for driver in DRIVERS) if versions}


def offers_of(kernel: Kernel) -> Dict[str, Optional[Offer]]:
    """Driver → what it exports on this kernel, for those that export anything of the kind; None: it can't be read."""
    offers: Dict[str, Optional[Offer]] = {}
    builtin = {
        name: export.gpl
        for name, export in kernel.operations().items()
        if export.module == "vmlinux" and _NAME.fullmatch(name)
    }
    for driver in DRIVERS:
        exports = _exports(kernel, driver, builtin)
        if exports is None:
            offers[driver] = None
            continue
        pairs, half = _pairs(set(exports), driver)
        if pairs or half:
            gpl = {version: all(exports[name] for name in _names(exports, driver, version)) for version in pairs}
            offers[driver] = Offer(gpl, tuple(sorted(half)))
    return offers


def hook_findings(kernel: Kernel, module: Module, required: Tuple[str, ...] = ()) -> List[Finding]:
    """Findings about the storage drivers that ``module``, an nvidia-fs, meets on this kernel.

    required: drivers (keys of DRIVERS) that have to let it in.
    """
    try:
        asks, offers = requests_of(module), offers_of(kernel)
    except ElfError as error:
        kernel.inputs.skip(error)
        return []
    if not asks:
        return []
    offering = ", ".join(
        f"{name} ({_versions(offer.pairs) if offer else 'cannot be read'})"
        for name, offer in offers.items()
        if not offer or offer.pairs
    )
    looks = ", ".join(f"{driver} ({_versions(versions)})" for driver, versions in asks.items())
    message = f"storage drivers of kernel {kernel.release} with symbols for nvidia-fs: {offering or 'none'}"
    results = [finding("hooks", NOTE, f"{message}; it looks for {looks}")]
    for driver in DRIVERS:
        severity = ERROR if driver in required else WARNING
        offer = offers.get(driver)
        if offer is not None:
            results += _of_storage_driver(kernel, driver, asks.get(driver, set()), offer, severity)
        elif driver in required and driver not in offers and driver in kernel.builtin and not kernel.symvers():
            message = f"{driver} is built into kernel {kernel.release}: whether it has symbols for nvidia-fs is unknown"
            results.append(unknown_finding("hook-unknown", message, "install the kernel's headers to decide it"))
        elif driver in required and driver not in offers:
            message = f"{driver} of kernel {kernel.release} has no symbols for nvidia-fs: its I/O takes the compat path"
            hint = f"install a {driver} that has them, such as OFED's or DOCA's for this kernel"
            if driver == "nvme" and has_nvme_hooks(kernel.release):
                hint = "this kernel's own nvme has them: remove the one that takes its place (package mlnx-nvme-dkms)"
            results.append(finding("hook-missing", ERROR, message, hint))
    return results


def _of_storage_driver(kernel: Kernel, driver: str, requests: Set[str], offer: Offer, severity: str) -> List[Finding]:
    common = requests & set(offer.pairs)
    if offer.half and not common:
        message = f"{driver} of kernel {kernel.release} exports only one of the two symbols for nvidia-fs"
        message += f" ({_versions(offer.half)}): nvidia-fs can't use it"
        return [finding("hook-half", severity, message, f"install another build of {driver}")]
    if not common:
        message = f"{driver} of kernel {kernel.release} speaks {_versions(offer.pairs)} with nvidia-fs, which looks for"
        message += f" {_versions(requests)}: its I/O silently takes the compat path"
        hint = f"take an nvidia-fs built for this kernel, and an OFED or DOCA release whose {driver} fits it"
        return [finding("hook-abi", severity, message, hint)]
    if not any(offer.pairs[version] for version in common) and series(kernel.release) >= _GPL_ONLY_FROM:
        message = f"{driver} exports its symbols for nvidia-fs to any module; kernel {kernel.release} gives only"
        message += " GPL-only ones to it: its I/O silently takes the compat path"
        hint = f"install a {driver} whose symbols are exported by EXPORT_SYMBOL_GPL"
        return [finding("hook-gpl", severity, message, hint)]
    return []


def _exports(kernel: Kernel, driver: str, builtin: Dict[str, bool]) -> Optional[Dict[str, bool]]:
    """Symbol → whether it is GPL-only, of the kernel where the driver is built in, else of the file that is loaded.

    None where that file can't be read.
    """
    choice = kernel.choose(driver) if driver not in kernel.builtin else None
    if choice is None:
        return builtin
    try:
        return {name: gpl for name, (_crc, gpl) in kernel.read(choice.file).exports.items()}
    except ElfError as error:
        kernel.inputs.skip(error)
        return None


def _pairs(names: Set[str], driver: str) -> Tuple[Set[str], Set[str]]:
    """The versions of which both symbols are among ``names``, and those of which one is."""
    kinds_by_version: Dict[str, Set[str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match.group(1) == DRIVERS[driver]:
            kinds_by_version.setdefault(match.group(2) or "", set()).add(match.group(3))
    pairs = {version for version, kinds in kinds_by_version.items() if len(kinds) == 2}
    return pairs, set(kinds_by_version) - pairs


def _names(names: Mapping[str, bool], driver: str, version: str) -> List[str]:
    matches = filter(None, map(_NAME.fullmatch, names))
    return [match.group(0) for match in matches if (match[1], match[2] or "") == (DRIVERS[driver], version)]


def _versions(versions: Iterable[str]) -> str:
    return ", ".join(sorted(version or _PLAIN for version in versions)) or "nothing"


#: What the stock Makefile of nvidia-fs prints before it builds.
_PICKED = re.compile(r"NVIDIA_SRC_DIR=(/\S+?)\.?(?:\s|$)")
#: The first driver with version 0x00020000 of the page table that it gives to peers; 0x00010002 before (nv-p2p.h of
#: all releases from 515 to 595).
NEW_PAGE_TABLE = 580
#: The first nvidia-fs that does not mark its mapping VM_IO, and the first kernel on which that was seen to fail.
_WITHOUT_VM_IO, _REFUSES_VM_IO = (2, 26, 6), (6, 6)


class Origin(NamedTuple):
    """A driver's source that a module was built against; ``log`` is where that is written if not in the module."""

    driver: str
    flavour: str
    tree: str
    log: str


def origin(kernel: Kernel, module: Module) -> Optional[Origin]:
    """What ``module`` was built against, or None where nothing says it."""
    built = module.provenance
    if built.get("driver"):
        return Origin(built["driver"], built.get("flavour", ""), built.get("tree", ""), "")
    return _beside(kernel, module)


def origin_findings(
    kernel: Kernel,
    module: Module,
    driver: Optional[Module],
    version: str,
    flavour: str,
    digest: str,
    is_packaged: bool = False,
) -> List[Finding]:
    """Findings about the origin of ``module``, an nvidia-fs, beside the driver that will be loaded.

    version, flavour, digest: of the expected driver and its source tree; empty where the lock doesn't say.
    is_packaged: a locked package brings this module, and its maker needn't record anything in it.
    """
    results: List[Finding] = []
    if not any(symbol.startswith("nvidia_p2p_") for symbol in module.imports):
        message = "looks up the driver's symbols while running: no symbol version protects it"
        results.append(finding("late-binding", NOTE, message, "nvidia-fs links them from 2.17.5 on"))
    if () < _version_number(module.version) < _WITHOUT_VM_IO and _version_number(kernel.release) >= _REFUSES_VM_IO:
        message = (
            f"nvidia-fs {module.version} marks its mappings VM_IO, and kernels from 6.6 on may refuse to pin those"
        )
        hint = "take 2.26.6 or newer, or prove a real transfer on this kernel"
        results.append(finding("vm-io", WARNING, f"{message} (EFAULT)", hint))
    built = origin(kernel, module)
    if built is None and is_packaged:
        message = "doesn't record the driver source it was built against, and its package doesn't tell it"
        hint = "prove a real transfer: gdsdeploy validate makes one on mounts of the profile"
        return [*results, finding("driver-tree-unrecorded", NOTE, message, hint)]
    if built is None:
        message = "doesn't record the driver source it was built against, and symbol versions don't tell"
        hint = "build it with gdsdeploy kmod build nvidia-fs"
        return [*results, unknown_finding("driver-tree-unknown", message, hint)]
    wrong = []
    if version and built.driver != version:
        wrong.append(f"driver {built.driver}, not {version}")
    if flavour and built.flavour and built.flavour != flavour:
        wrong.append(f"the {built.flavour} flavour, not {flavour}")
    if digest and built.tree != digest:
        wrong.append(f"the tree {built.tree or '?'}, not {digest}")
    if wrong:
        message = "was built against " + "; ".join(wrong) + (f" ({built.log})" if built.log else "")
        results.append(finding("driver-tree", ERROR, message, "rebuild nvidia-fs against the driver in use"))
    return results + page_table(built.driver, driver.version if driver is not None else version)


def page_table(compiled: str, used: str) -> List[Finding]:
    """What follows when a module compiled against one driver meets another: equal symbol versions hide it."""
    before, now = _version_number(compiled)[:1], _version_number(used)[:1]
    if not before or not now or (before < (NEW_PAGE_TABLE,)) == (now < (NEW_PAGE_TABLE,)):
        return []
    message = f"was compiled for the page table of driver {compiled}, and driver {used} has another since"
    message += (
        f" {NEW_PAGE_TABLE}: it loads, and the first mapping ends in a kernel oops ('Incompatible page table version')"
    )
    return [
        finding(
            "page-table",
            ERROR,
            message,
            "rebuild it against the driver in use; if it is loaded, drain the host and reboot it",
        )
    ]


def _beside(kernel: Kernel, module: Module) -> Optional[Origin]:
    """What DKMS's log of the build of this very file says."""
    if not module.build_id:
        return None
    for name in list_folder(kernel.root, DKMS):
        for version in list_folder(kernel.root, f"{DKMS}/{name}"):
            place = f"{DKMS}/{name}/{version}/{kernel.release}/{module.machine}"
            if _has_copy(kernel, place + "/module", module):
                return _read_log(kernel, place + "/log/make.log")
    return None


def _has_copy(kernel: Kernel, folder: str, module: Module) -> bool:
    base = os.path.basename(module.path).split(".ko")[0]
    name = next((name for name in list_folder(kernel.root, folder) if name.split(".ko")[0] == base), "")
    try:
        return bool(name) and kernel.read(inside(kernel.root, f"{folder}/{name}")).build_id == module.build_id
    except ElfError:
        return False


def _read_log(kernel: Kernel, log: str) -> Optional[Origin]:
    picked = _PICKED.findall(read_text(kernel.root, log))
    # The folder that has nv-p2p.h is one below the tree, or it is the tree's.
    for folder in (os.path.dirname(picked[-1]), picked[-1]) if picked else ():
        trees = files.identify(inside(kernel.root, folder))
        if len(trees) == 1:
            try:
                return Origin(trees[0].version, trees[0].flavour, files.digest(trees[0]), log)
            except TreeError:
                return None
    return None


def _version_number(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


#: Debian installs nvidia.ko as nvidia-current.ko, nvidia-current-open.ko, nvidia-tesla-535.ko, and so on; what the
#: file is called inside says which module it is.
_FILE = re.compile(r"nvidia(_current|_tesla|_legacy)?(_\d+[a-z]*)?(_open)?(_uvm|_modeset|_drm|_peermem)?")
#: Modules made from the driver's own source, all of one version.
PARTS = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
#: What a transfer into GPU memory can't do without, where it is installed.
_NEEDED = ("nvidia", "nvidia_uvm", "nvidia_fs")
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
#: Licenses of the open flavour's nvidia.ko.
OPEN = ("Dual MIT/GPL", "Dual BSD/GPL", "GPL", "GPL v2")


class Expected(NamedTuple):
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


def stack_names(kernel: Kernel) -> List[str]:
    """Names of all module files of the driver, of nvidia-fs and of what nvidia-peermem replaces, sorted."""
    return sorted(name for name in kernel.by_name if _FILE.fullmatch(name) or name in ("nvidia_fs", "nv_peer_mem"))


def find(kernel: Kernel, name: str) -> Optional[Choice]:
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
    return Choice(choice.file, choice.others + tuple(rest), sure)


def flavour(module: Module) -> str:
    """``open`` or ``proprietary``, by the license that nvidia.ko declares."""
    return "open" if module.license in OPEN else "proprietary"


def place_findings(kernel: Kernel, name: str, place: Choice) -> List[Finding]:
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
    refusal = next((kernel.refusals[each] for each in (name, mapped, place.name) if each in kernel.refusals), "")
    if refusal:
        message = f"modprobe.d has {refusal} run in place of loading {name}"
        # Others may be unwanted on purpose, as on a host without a display.
        severity = "error" if name in _NEEDED else "warning"
        results.append(finding("name", severity, message, f"remove that line: grep -r '{refusal}' /etc/modprobe.d"))
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
        return _of_nvidia(module, expected)
    if module.name in PARTS:
        return _part(kernel, module, driver, expected)
    if module.name == "nvidia_fs":
        version = expected.driver_version or (driver.version if driver is not None else "")
        kind = expected.driver_flavour or (flavour(driver) if driver is not None else "")
        results = _nvidia_fs(module, expected)
        is_packaged = module.path in expected.packaged
        results += origin_findings(kernel, module, driver, version, kind, expected.tree_digest, is_packaged)
        return results + hook_findings(kernel, module, expected.storage)
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


def _of_nvidia(module: Module, expected: Expected) -> List[Finding]:
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
    installed = ofed.search(kernel).tree if used else None
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
            results += page_table(module.version, driver.version)
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
