"""OFED and DOCA kernel trees: which one, if any, has the peer memory symbols of one kernel's RDMA core.

nvidia-peermem works only when it is compiled against that tree.  A tree has to be of the kernel in question: by its
folder or ``configure.mk.kernel``, and by the versions of the installed module.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..errors import ElfError, SymversError
from ..rootdir import inside, list_folder, read_file
from .files import sha256
from .kernel import Export, Kernel, read_symvers
from .module import name_of

#: What nvidia-peermem imports from the RDMA core, and what its build looks for.
SYMBOLS = ("ib_register_peer_memory_client", "ib_unregister_peer_memory_client")
#: The first is that of DKMS packages; drivers from about 590 on look there before the other.
_SOURCES = ("/usr/src/ofa_kernel-dkms", "/usr/src/ofa_kernel")
#: OFED's name in DKMS: of Debian packages, and of the RHEL family's since DOCA 3.2.
_DKMS = ("/var/lib/dkms/mlnx-ofed-kernel", "/var/lib/dkms/mlnx-ofa_kernel")
_SYMVERS = "Module.symvers"
_CONFIGURED = "configure.mk.kernel"
#: ``configure`` of the OFED sources writes it; KVERSION is the kernel that it was run for.
_DECLARED = re.compile(r"^KVERSION\s*:?=\s*(\S+)", re.MULTILINE)


class OfedTree(NamedTuple):
    """The tree whose symbols a kernel's RDMA core exports; ``path`` is of this machine."""

    path: str
    kernel_release: str
    #: ``sha256:…`` of its Module.symvers as it is stored
    symvers: str
    #: whether it is the kernel's own build folder, whose symbols need no mention
    own: bool = False

    def exports(self) -> Dict[str, Export]:
        """What the tree's modules export; raises SymversError."""
        return read_symvers(os.path.join(self.path, _SYMVERS))

    def as_dict(self) -> Dict[str, str]:
        return {"path": self.path, "kernel_release": self.kernel_release, "symvers": self.symvers}


class Search(NamedTuple):
    """``tree`` is the one to build against, or None; ``refused``: each other that was there, and why not."""

    tree: Optional[OfedTree]
    refused: Tuple[str, ...]

    def why_not(self) -> str:
        """One line for a user: why there is no tree."""
        return "; ".join(self.refused) or f"neither the kernel nor an OFED or DOCA tree exports {SYMBOLS[0]}"

    def stub_reason(self, release: str) -> str:
        """One line for a user: why nvidia-peermem can't be built for kernel ``release``."""
        message = f"nvidia-peermem for kernel {release} would be a stub that fails to load with 'Invalid argument'"
        return f"{message}: {self.why_not()}"


def search(kernel: Kernel) -> Search:
    """The OFED tree of ``kernel`` inside its root, or why there is none; unusable trees raise nothing."""
    refused: List[str] = []
    visited = set()
    for path, release, own in _candidates(kernel):
        place = os.path.realpath(path)
        if place in visited or not os.path.isfile(os.path.join(path, _SYMVERS)):
            continue
        visited.add(place)
        try:
            exports = kernel.symvers() if own else read_symvers(os.path.join(path, _SYMVERS))
        except SymversError as error:
            refused.append(f"{path} cannot be read: {error.message}")
            continue
        if not all(name in exports for name in SYMBOLS):
            if not own:
                refused.append(f"{path} doesn't export {SYMBOLS[0]}")
            continue
        reason = "" if own else _objection(kernel, path, release, exports)
        if reason:
            refused.append(f"{path} {reason}")
            continue
        digest = "sha256:" + sha256(os.path.join(path, _SYMVERS))
        return Search(OfedTree(path, kernel.release, digest, own), tuple(refused))
    return Search(None, tuple(refused))


def _candidates(kernel: Kernel) -> Iterator[Tuple[str, str, bool]]:
    """(folder on this machine, the kernel that its place says, whether it is the kernel's own), the best first."""
    root, release = kernel.root, kernel.release
    yield inside(root, f"/lib/modules/{release}/build"), release, True
    for base in _SOURCES:
        for name in list_folder(root, base):
            if release in list_folder(root, f"{base}/{name}"):
                yield inside(root, f"{base}/{name}/{release}"), release, False
        yield inside(root, f"{base}/{release}"), release, False
    # DKMS keeps the symbols of every kernel it built for.
    folders = [glob.escape(inside(root, folder)) for folder in _DKMS]
    for dkms in folders:
        for path in sorted(glob.glob(os.path.join(dkms, "*", glob.escape(release), "*", "module"))):
            yield path, release, False
    for base in _SOURCES:
        default = inside(root, base + "/default")
        yield default, _release_of(inside(root, base), default), False
    for dkms in folders:
        for path in sorted(glob.glob(os.path.join(dkms, "*", "build"))):
            yield path, "", False


def _release_of(base: str, path: str) -> str:
    """The kernel that the folder's own name, behind its links, says: ``ofa_kernel/[<arch>/]<release>``."""
    parts = os.path.relpath(path, base).split(os.sep)
    return parts[-1] if parts[-1] not in ("default", ".", "..") and ".." not in parts and len(parts) <= 2 else ""


def _objection(kernel: Kernel, path: str, release: str, exports: Mapping[str, Export]) -> str:
    """Why the tree is not this kernel's; empty when it is."""
    exporter = name_of(exports[SYMBOLS[0]].module)
    configured = ""
    try:
        with contextlib.suppress(FileNotFoundError):
            configured = read_file(inside(path, _CONFIGURED))
        match = _DECLARED.search(configured)
        installed = installed_exports(kernel, exporter)
    except ElfError as error:
        kernel.inputs.skip(error)
        return f"can't be compared with this kernel: {error.message}"
    except OSError as error:
        return f"doesn't say which kernel it was made for: {_CONFIGURED} cannot be read: {error.strerror}"
    declared = {name for name in (release, match.group(1) if match else "") if name}
    other = sorted(declared - {kernel.release})
    if other:
        return f"was made for kernel {other[0]}, not {kernel.release}"
    if installed:
        for name in SYMBOLS:
            have, want = installed.get(name), exports[name].crc
            if have is None:
                return f"exports {name}, and the {exporter} of kernel {kernel.release} does not"
            if kernel.versioned and have != want:
                text = f"has {name} as 0x{want:08x}, and the {exporter} of kernel {kernel.release} exports 0x{have:08x}"
                return f"{text}: it is of another build"
    if installed or declared:
        return ""
    return f"doesn't say which kernel it was made for, and kernel {kernel.release} has no {exporter} to compare"


def installed_exports(kernel: Kernel, name: str) -> Dict[str, int]:
    """Symbol → version (0 without one) of the module ``name`` that the kernel would load; empty without one.

    Raises ElfError.
    """
    choice = kernel.choose(name)
    exports = kernel.read(choice.file).exports if choice is not None else {}
    return {symbol: crc or 0 for symbol, (crc, _gpl) in exports.items()}
