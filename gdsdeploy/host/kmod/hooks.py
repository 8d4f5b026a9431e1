"""Which storage drivers of a kernel let nvidia-fs in, and whether both speak the same version of that interface.

nvidia-fs looks for a pair of symbols of each driver while it runs (``__symbol_get``), by names that are texts in its
file.  A driver that has none of them, or those of another version, is not reported by anybody: its I/O takes the compat
path.  From Linux 6.6 on, and in stable kernels since September 2023, only symbols that are exported GPL-only are found.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Set, Tuple

from ..errors import ElfError
from .elf import Elf
from .files import open_plain
from .findings import ERROR, NOTE, WARNING, Finding, finding
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
    whole: Dict[str, bool]
    #: versions of which only one symbol of the pair is there
    half: Tuple[str, ...]


def asked(module: Module) -> Dict[str, Set[str]]:
    """Driver → versions of its interface that this nvidia-fs looks for; raises ElfError."""
    with open_plain(module.path) as file:
        elf = Elf(file, module.path)
        pieces = [item for item in elf.sections if item.name.startswith(".rodata")]
        if sum(item.size for item in pieces) > _CONSTANTS_LIMIT:
            raise elf.error("has more constants than any nvidia-fs")
        names = {found.decode("ascii") for item in pieces for found in _TEXT.findall(elf.content(item))}
    return {driver: versions for driver, versions in ((item, _pairs(names, item)[0]) for item in DRIVERS) if versions}


def offered(kernel: Kernel) -> Dict[str, Offer]:
    """Driver → what it exports on this kernel, for those that export anything of the kind."""
    found = {}
    builtin = {name: item.gpl for name, item in kernel.symvers().items() if item.module == "vmlinux"}
    builtin = {name: gpl for name, gpl in builtin.items() if name.endswith("_ops") and _NAME.fullmatch(name)}
    for driver in DRIVERS:
        exports = _exports(kernel, driver, builtin)
        whole, half = _pairs(set(exports), driver)
        if whole or half:
            gpl = {version: all(exports[name] for name in _names(exports, driver, version)) for version in whole}
            found[driver] = Offer(gpl, tuple(sorted(half)))
    return found


def findings(kernel: Kernel, module: Module, wanted: Tuple[str, ...] = ()) -> List[Finding]:
    """What is to be said about the storage drivers that ``module``, an nvidia-fs, meets on this kernel.

    wanted: drivers (keys of DRIVERS) that have to let it in.
    """
    try:
        asks, offers = asked(module), offered(kernel)
    except ElfError:
        # Reported where the module itself is read; what has no readable constants is no nvidia-fs.
        return []
    if not asks:
        return []
    found = [_said(kernel, asks, offers)]
    for driver in DRIVERS:
        severity = ERROR if driver in wanted else WARNING
        if driver in offers:
            found += _driver(kernel, driver, asks.get(driver, set()), offers[driver], severity)
        elif driver in wanted:
            message = f"{driver} of kernel {kernel.release} has no symbols for nvidia-fs: its I/O takes the compat path"
            hint = f"install a {driver} that has them, such as OFED's or DOCA's for this kernel"
            found.append(finding("hook-missing", ERROR, message, hint))
    return found


def _said(kernel: Kernel, asks: Mapping[str, Set[str]], offers: Mapping[str, Offer]) -> Finding:
    there = [f"{driver} ({_versions(offer.whole)})" for driver, offer in offers.items() if offer.whole]
    looks = [f"{driver} ({_versions(versions)})" for driver, versions in asks.items()]
    message = "storage drivers of kernel {} with symbols for nvidia-fs: {}; it looks for {}".format(
        kernel.release, ", ".join(there) or "none", ", ".join(looks)
    )
    return finding("hooks", NOTE, message)


def _driver(kernel: Kernel, driver: str, asks: Set[str], offer: Offer, severity: str) -> List[Finding]:
    found = []
    common = asks & set(offer.whole)
    if offer.half and not common:
        message = (
            f"{driver} of kernel {kernel.release} exports only one of the two symbols for nvidia-fs"
            f" ({_versions(offer.half)}): it is not let in"
        )
        found.append(finding("hook-half", severity, message, f"install another build of {driver}"))
    elif not common:
        message = "{} of kernel {} speaks {} with nvidia-fs, which looks for {}: its I/O silently takes the compat path"
        message = message.format(driver, kernel.release, _versions(offer.whole), _versions(asks))
        hint = f"take an nvidia-fs built for this kernel, and an OFED or DOCA release whose {driver} fits it"
        found.append(finding("hook-abi", severity, message, hint))
    elif not any(offer.whole[version] for version in common) and _number(kernel.release) >= _GPL_ONLY_FROM:
        message = "{} exports its symbols for nvidia-fs to any module; kernel {} gives only GPL-only ones to it"
        message = message.format(driver, kernel.release) + ": its I/O silently takes the compat path"
        hint = f"install a {driver} whose symbols are exported by EXPORT_SYMBOL_GPL"
        found.append(finding("hook-gpl", severity, message, hint))
    return found


def _exports(kernel: Kernel, driver: str, builtin: Dict[str, bool]) -> Dict[str, bool]:
    """Symbol → whether it is GPL-only, of the file that would be loaded or, without one, of the kernel itself."""
    choice = kernel.choose(driver)
    if choice is None:
        return builtin
    try:
        return {name: gpl for name, (_crc, gpl) in kernel.read(choice.file).exports.items()}
    except ElfError:
        return {}


def _pairs(names: Set[str], driver: str) -> Tuple[Set[str], Set[str]]:
    """The versions of which both symbols are among ``names``, and those of which one is."""
    there: Dict[str, Set[str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match.group(1) == DRIVERS[driver]:
            there.setdefault(match.group(2) or "", set()).add(match.group(3))
    whole = {version for version, kinds in there.items() if len(kinds) == 2}
    return whole, set(there) - whole


def _names(names: Mapping[str, bool], driver: str, version: str) -> List[str]:
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    return [
        name
        for name, found in matches
        if found and (found.group(1), found.group(2) or "") == (DRIVERS[driver], version)
    ]


def _versions(versions: Iterable[str]) -> str:
    return ", ".join(sorted(version or _PLAIN for version in versions)) or "nothing"


def _number(release: str) -> Tuple[int, ...]:
    match = re.match(r"(\d{1,18})\.(\d{1,18})", release)
    return (int(match.group(1)), int(match.group(2))) if match else ()
