"""What a run of the build works on, and what the modules that it builds share."""

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
class Job:
    """What to build against, and how."""

    kernel: Kernel
    tree: Tree
    jobs: int = 1
    #: further ``NAME=value`` for make, such as DKMS's LLVM=1
    variables: Sequence[str] = ()
    #: the driver of ``tree`` is to come: what is installed for this kernel does not count
    ahead: bool = False
    #: nvidia-peermem beside the driver's other modules: ``required``, ``optional`` (left out where it would be a stub)
    #: or ``stub`` (built all the same, for a DKMS that insists on the file)
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
class Bench:
    """A folder for everything intermediate; the headers are checked once, and symbol versions are found once."""

    job: Job
    folder: str
    _checked: bool = False
    _versions: Optional[Versions] = None
    _ofed: Optional[Search] = None
    #: what a user should know besides: one line each
    notes: List[str] = field(default_factory=list)

    def check_headers(self, log: Log) -> None:
        """Build an empty module, once; raises KernelError."""
        if not self._checked:
            check_headers(log, self.job.kernel, os.path.join(self.folder, "probe"), self.job.variables)
            self._checked = True

    def versions(self, log: Log) -> Versions:
        """The driver's symbol versions for this kernel; raises BuildError or SymversError."""
        if self._versions is None:
            job = self.job
            self._versions = find_versions(
                job.kernel, job.tree, job.ahead, self.folder, lambda: self.unit_folder(), log, self.settings()
            )
        return self._versions

    def take_versions(self, nvidia: str) -> None:
        """From now on the versions are those of ``nvidia``, the nvidia.ko that this run built."""
        self._versions = from_file(self.job.kernel, nvidia, self.folder)

    @property
    def known_versions(self) -> str:
        """Where the versions came from, or nothing while nobody needed them."""
        return self._versions.origin if self._versions is not None else ""

    def ofed(self) -> Search:
        if self._ofed is None:
            self._ofed = search(self.job.kernel)
        return self._ofed

    def unit_folder(self) -> str:
        """A copy of the driver's tree in which its small parts are compiled; their probes' answers are kept there."""
        folder = os.path.join(self.folder, "driver")
        if not os.path.isdir(folder):
            shutil.copytree(self.job.tree.path, folder, ignore=shutil.ignore_patterns(*SKIPPED, *SKIPPED_OF_DRIVER))
        return folder

    def settings(self) -> List[str]:
        """Variables for the driver's Kbuild; its own Makefile would set them, with folders of the running kernel."""
        kernel = self.job.kernel
        headers = kernel.headers()
        sources = os.path.join(kernel.folder, "source")
        sources = os.path.realpath(sources) if os.path.isdir(sources) else headers
        machine = os.uname().machine
        return [
            f"-j{max(self.job.jobs, 1)}",
            "ARCH=" + {"aarch64": "arm64"}.get(machine, machine),
            "NV_SPECTRE_V2=0",
            "NV_KERNEL_SOURCES=" + sources,
            "NV_KERNEL_OUTPUT=" + headers,
            *self.job.variables,
        ]
