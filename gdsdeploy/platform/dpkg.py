"""What Debian and Ubuntu share: names of architectures and of GDS packages, and what follows the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gdsdeploy.host.kmod.kernel import flavour_of
from gdsdeploy.platform import nvidia, presets
from gdsdeploy.platform.base import NVLSM, KernelImage, Preset, Rdma, StackPackage, StackPlatform
from gdsdeploy.repo.packages import Candidate, Universe, upstream

#: as ``uname -m`` says it → as dpkg says it
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class DpkgPlatform(StackPlatform):
    """A release of an operating system with dpkg."""

    codename: str

    def vendor_presets(self) -> dict[str, Preset]:
        return presets.of_vendors(self.os)

    def architecture(self, arch: str) -> str:
        return ARCHITECTURES[arch]

    def kernel_release(self, package: str, arch: str) -> str | None:
        """What ``uname -r`` prints under an image package of a known flavour; None for any other package."""
        release = package.removeprefix("linux-image-")
        own = flavour_of(release) if release != package else None
        return release if own and own.name in self.kernel_flavours(arch) else None

    def kernel_images(self, universe: Universe, arch: str) -> Iterable[KernelImage]:
        for name in universe.names():
            release = self.kernel_release(name, arch)
            own = flavour_of(release) if release else None
            if release and own:
                yield from (KernelImage(candidate, release, own.name) for candidate in universe.named(name))

    def kernel_names(self, kernel: KernelImage) -> tuple[str, ...]:
        version, release = kernel.image.version, kernel.release
        return upstream(version), release, release.removesuffix(f"-{kernel.flavour}"), version

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

    def may_be_adopted(self, name: str) -> bool:
        return nvidia.may_be_adopted(name)

    def of_driver(self, candidate: Candidate) -> bool:
        return candidate.package == NVLSM or nvidia.of_driver(candidate)
