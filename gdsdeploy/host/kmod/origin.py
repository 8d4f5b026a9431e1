"""What a module was built against, because driver branches with different interfaces share versions of nvidia_p2p_*.

``kmod build`` records it inside the module; a stock build by DKMS leaves it in the log beside its own copy.
"""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Optional, Tuple

from ..errors import ElfError, TreeError
from ..paths import DKMS
from ..rootdir import inside, list_folder, read_text
from . import tree
from .findings import ERROR, NOTE, WARNING, Finding, finding, unknown_finding
from .kernel import Kernel
from .module import Module

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


def findings(
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
    if () < _number(module.version) < _WITHOUT_VM_IO and _number(kernel.release) >= _REFUSES_VM_IO:
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
    before, now = _number(compiled)[:1], _number(used)[:1]
    if not before or not now or (before < (NEW_PAGE_TABLE,)) == (now < (NEW_PAGE_TABLE,)):
        return []
    message = f"was compiled for the page table of driver {compiled}, and driver {used} has another since"
    message += (
        f" {NEW_PAGE_TABLE}: it loads, and the first mapping ends in a kernel oops ('Incompatible page table version')"
    )
    return [finding("page-table", ERROR, message, "rebuild it against the driver in use, and reboot if it is loaded")]


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
        trees = tree.identify(inside(kernel.root, folder))
        if len(trees) == 1:
            try:
                return Origin(trees[0].version, trees[0].flavour, tree.digest(trees[0]), log)
            except TreeError:
                return None
    return None


def _number(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
