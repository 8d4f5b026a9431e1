"""What Debian and Ubuntu share: names of architectures and of GDS packages, and what follows the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gdsdeploy.platform import nvidia
from gdsdeploy.platform.base import Rdma, StackPackage, StackPlatform
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.order import upstream

#: as ``uname -m`` says it → as dpkg says it
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class DpkgPlatform(StackPlatform):
    """A release of an operating system with dpkg."""

    codename: str

    def architecture(self, arch: str) -> str:
        return ARCHITECTURES[arch]

    def kernel_packages(self, release: str) -> tuple[str, str]:
        return f"linux-image-{release}", f"linux-headers-{release}"

    def libcufile_packages(self, names: Iterable[str]) -> list[tuple[str, str]]:
        return [(self.libcufile_package, self.gds_tools_package), *nvidia.libcufile_packages(names)]

    def library_packages(self, library: Candidate, rdma: Rdma) -> tuple[StackPackage, ...]:
        # NVIDIA's package holds both libraries.
        own = library.package == self.libcufile_package and rdma != "none"
        return (StackPackage("libcufile-rdma1", "libcufile", "host"),) if own else ()

    def upstream_version(self, version: str) -> str:
        # GDS packages carry the CUDA release behind "~": 2.19.7~12.4.1-2.
        return upstream(version).split("~", 1)[0]

    def cuda_version(self, candidate: Candidate) -> str | None:
        own = upstream(candidate.source_version) if candidate.source == "nvidia-cuda-toolkit" else None
        return own or nvidia.cuda_version(candidate)

    def in_stack(self, candidate: Candidate) -> bool:
        return candidate.origin == nvidia.ORIGIN or super().in_stack(candidate)

    def follows_driver(self, candidate: Candidate) -> bool:
        return nvidia.of_driver(candidate) if candidate.origin == nvidia.ORIGIN else super().follows_driver(candidate)

    def of_driver(self, candidate: Candidate) -> bool:
        return nvidia.of_driver(candidate)
