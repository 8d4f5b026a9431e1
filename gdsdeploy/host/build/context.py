"""The request of a build, and what the modules of one run share."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ..kmod.kernel import Kernel
from ..kmod.module import Module
from ..kmod.ofed import Search, search
from ..kmod.tree import Tree
from .kbuild import Log, check_headers
from .versions import Versions, find_versions, from_file

#: What earlier builds leave in source folders.
SKIPPED = (
    *("*.o", "*.ko", "*.mod", "*.mod.c", ".*.cmd", "Module.symvers", "modules.order", "config-host.h", "conftest"),
    ".gdsdeploy-build-*",
)
#: Not needed for the unit that exports nvidia_p2p_* nor for nvidia-peermem.
SKIPPED_OF_DRIVER = ("*.o_binary", "nvidia-uvm", "nvidia-drm", "nvidia-modeset")


@dataclass(frozen=True)
class BuildRequest:
    """What to build against, and how."""

    kernel: Kernel
    tree: Tree
    jobs: int = 1
    #: further ``NAME=value`` for make, such as DKMS's LLVM=1
    variables: Sequence[str] = ()
    #: the driver of ``tree`` will be installed later: ignore what is installed for this kernel
    ahead: bool = False
    #: nvidia-peermem: ``required``, ``optional`` (left out where it would be a stub) or ``stub`` (DKMS needs the file)
    peermem: str = "optional"


@dataclass(frozen=True)
class Built:
    """One finished module file; the path is of this machine."""

    file: str
    module: Module
    audit: Dict[str, Any]

    def as_dict(self) -> Dict[str, Any]:
        return {
            "name": self.module.name,
            "file": self.file,
            "version": self.module.version,
            "provenance": self.module.provenance,
            "audit": self.audit,
        }


@dataclass
class BuildContext:
    """A folder for intermediate files; headers are checked once, symbol versions are looked up once."""

    request: BuildRequest
    folder: str
    _checked: bool = False
    _versions: Optional[Versions] = None
    _ofed: Optional[Search] = None
    #: remarks for the user, one line each
    notes: List[str] = field(default_factory=list)

    def check_headers(self, log: Log) -> None:
        """Build an empty module, once; raises KernelError."""
        if not self._checked:
            check_headers(log, self.request.kernel, os.path.join(self.folder, "probe"), self.request.variables)
            self._checked = True

    def versions(self, log: Log) -> Versions:
        """The driver's symbol versions for this kernel; raises BuildError or SymversError."""
        if self._versions is None:
            kernel, tree, ahead = self.request.kernel, self.request.tree, self.request.ahead
            settings = self.settings()
            self._versions = find_versions(kernel, tree, ahead, self.folder, self.unit_folder, log, settings)
        return self._versions

    def use_versions_of(self, nvidia: str) -> None:
        """Take the versions of ``nvidia``, the nvidia.ko that this run built."""
        self._versions = from_file(self.request.kernel, nvidia, self.folder)

    @property
    def versions_origin(self) -> str:
        """Where the versions came from; empty if no module needed them."""
        return self._versions.origin if self._versions is not None else ""

    def ofed(self) -> Search:
        """The OFED tree of the kernel, searched once."""
        self._ofed = self._ofed or search(self.request.kernel)
        return self._ofed

    def unit_folder(self) -> str:
        """A copy of the driver's tree for compiling its small parts and for their probes' answers."""
        folder = os.path.join(self.folder, "driver")
        if not os.path.isdir(folder):
            shutil.copytree(self.request.tree.path, folder, ignore=shutil.ignore_patterns(*SKIPPED, *SKIPPED_OF_DRIVER))
        return folder

    def settings(self) -> List[str]:
        """Variables for the driver's Kbuild; its own Makefile would set them, with folders of the running kernel."""
        kernel = self.request.kernel
        headers = kernel.headers()
        sources = os.path.join(kernel.folder, "source")
        sources = os.path.realpath(sources) if os.path.isdir(sources) else headers
        machine = os.uname().machine
        return [
            f"-j{max(self.request.jobs, 1)}",
            "ARCH=" + {"aarch64": "arm64"}.get(machine, machine),
            "NV_SPECTRE_V2=0",
            "NV_KERNEL_SOURCES=" + sources,
            "NV_KERNEL_OUTPUT=" + headers,
            *self.request.variables,
        ]
