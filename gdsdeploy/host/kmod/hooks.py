"""Which storage drivers of a kernel let nvidia-fs in, and whether both speak the same version of that interface.

nvidia-fs looks up a pair of symbols of each driver at run time (``__symbol_get``).  Without a matching pair, I/O takes
the compat path and nothing reports it.  Most kernels' own drivers have none: OFED or DOCA brings them.  The nvme of
Canonical's linux-nvidia kernels has them (flavour.py).  Since Linux 6.6 (stable kernels: September 2023) only GPL-only
exports match.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..errors import ElfError
from .elf import Elf
from .files import open_plain
from .findings import ERROR, NOTE, WARNING, Finding, finding
from .flavour import has_nvme_hooks
from .kernel import Kernel
from .module import Module

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
    # Of tens of thousands, these are some hundreds.
    symvers = kernel.symvers()
    operations = {name: symvers[name] for name in symvers if name.endswith("_ops")}
    builtin = {
        name: export.gpl for name, export in operations.items() if export.module == "vmlinux" and _NAME.fullmatch(name)
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


def findings(kernel: Kernel, module: Module, required: Tuple[str, ...] = ()) -> List[Finding]:
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
    offering = ", ".join(f"{name} ({_offered(offer)})" for name, offer in offers.items() if not offer or offer.pairs)
    looks = ", ".join(f"{driver} ({_versions(versions)})" for driver, versions in asks.items())
    message = f"storage drivers of kernel {kernel.release} with symbols for nvidia-fs: {offering or 'none'}"
    results = [finding("hooks", NOTE, f"{message}; it looks for {looks}")]
    for driver in DRIVERS:
        severity = ERROR if driver in required else WARNING
        offer = offers.get(driver)
        if offer is not None:
            results += _driver(kernel, driver, asks.get(driver, set()), offer, severity)
        elif driver in required and driver not in offers:
            message = f"{driver} of kernel {kernel.release} has no symbols for nvidia-fs: its I/O takes the compat path"
            hint = f"install a {driver} that has them, such as OFED's or DOCA's for this kernel"
            if driver == "nvme" and has_nvme_hooks(kernel.release):
                hint = "this kernel's own nvme has them: remove the one that takes its place (package mlnx-nvme-dkms)"
            results.append(finding("hook-missing", ERROR, message, hint))
    return results


def _driver(kernel: Kernel, driver: str, requests: Set[str], offer: Offer, severity: str) -> List[Finding]:
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
    if not any(offer.pairs[version] for version in common) and _number(kernel.release) >= _GPL_ONLY_FROM:
        message = f"{driver} exports its symbols for nvidia-fs to any module; kernel {kernel.release} gives only"
        message += " GPL-only ones to it: its I/O silently takes the compat path"
        hint = f"install a {driver} whose symbols are exported by EXPORT_SYMBOL_GPL"
        return [finding("hook-gpl", severity, message, hint)]
    return []


def _exports(kernel: Kernel, driver: str, builtin: Dict[str, bool]) -> Optional[Dict[str, bool]]:
    """Symbol → whether it is GPL-only, of the file that would be loaded or, without one, of the kernel itself.

    None where that file can't be read.
    """
    choice = kernel.choose(driver)
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


def _offered(offer: Optional[Offer]) -> str:
    return _versions(offer.pairs) if offer is not None else "cannot be read"


def _versions(versions: Iterable[str]) -> str:
    return ", ".join(sorted(version or _PLAIN for version in versions)) or "nothing"


def _number(release: str) -> Tuple[int, ...]:
    match = re.match(r"(\d{1,18})\.(\d{1,18})", release)
    return (int(match.group(1)), int(match.group(2))) if match else ()
