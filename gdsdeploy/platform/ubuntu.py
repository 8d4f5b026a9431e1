"""Ubuntu: its own kernels, and the driver and GDS packages of NVIDIA's CUDA repository or of its own archive."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdsdeploy.host.kmod.flavour import UBUNTU
from gdsdeploy.model.lock import Part
from gdsdeploy.platform import nvidia
from gdsdeploy.platform.base import Flavour, Packaging, Preset, StackPackage, register
from gdsdeploy.platform.dpkg import DpkgPlatform
from gdsdeploy.repo.candidate import Candidate

KEYRING: Final = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
COMPONENTS: Final = ("main", "restricted", "universe", "multiverse")

#: Primary keys of ubuntu-keyring that sign these releases.
ARCHIVE_KEYS: Final = (
    "F6ECB3762474EDA9D21B7022871920D1991BC93C",  # Ubuntu Archive Automatic Signing Key (2018)
    "790BC7277767219C42C86F933B4FE6ACC0B21F32",  # Ubuntu Archive Automatic Signing Key (2012)
)

#: Where Ubuntu has every architecture but x86.
_PORTS: Final = "http://ports.ubuntu.com/ubuntu-ports"
_RELEASE_NAME = r"(?:jammy|noble|resolute)"
#: Each flavour has its source, and each series of the hardware-enablement stack one more: linux-nvidia-6.17.
_KERNEL_SOURCES: Final = re.compile(
    r"linux(?:-signed)?(?:-(?:hwe|edge|nvidia|bos|aws|azure|gcp|oracle|lowlatency))*(?:-[0-9]+\.[0-9]+)?"
)
#: Ubuntu 26.04 has some of its modules in packages of a family of their own.
_KERNEL_MODULES: Final = re.compile(r"linux-(?:main-)?modules-")
_ARM_FLAVOUR: Final = re.compile(r".+-64k|azure-nvidia")
_DRIVER_SOURCES: Final = (
    re.compile(r"nvidia-graphics-drivers-[0-9]+(?:-server)?|fabric-manager-[0-9]+|libnvidia-nscq-.*"),
)
_STACK_SOURCES: Final = (
    _KERNEL_SOURCES,
    *_DRIVER_SOURCES,
    re.compile(r"nvidia-cuda-toolkit|nvidia-modprobe|nvidia-settings|nvidia-persistenced|nvidia-imex.*|dkms"),
)


@dataclass(frozen=True)
class Ubuntu(DpkgPlatform):
    """One release of Ubuntu."""

    def presets(self) -> dict[str, Preset]:
        def preset(suites: tuple[str, ...], suffix: str) -> Preset:
            names = re.compile(_RELEASE_NAME + suffix)
            return Preset(suites, COMPONENTS, KEYRING, ARCHIVE_KEYS, names, arm_uri=_PORTS)

        return {
            "ubuntu": preset((self.codename, f"{self.codename}-updates"), "(?:-updates|-backports)?"),
            "ubuntu-security": preset((f"{self.codename}-security",), "-security"),
        }

    def kernel_flavours(self, arch: str) -> tuple[str, ...]:
        return tuple(name for name in UBUNTU if arch == "aarch64" or not _ARM_FLAVOUR.fullmatch(name))

    def kernel_extras(self, release: str) -> tuple[StackPackage, ...]:
        # Only metapackages such as linux-image-generic depend on it; it holds file systems and drivers that hosts use.
        return (StackPackage(f"linux-modules-extra-{release}", "kernel-image", "host", optional=True),)

    def driver_package(self, flavour: Flavour) -> str:
        return "nvidia-dkms-open" if flavour == "open" else "nvidia-dkms"

    def driver_packages(self, flavour: Flavour, names: Iterable[str]) -> list[str]:
        return nvidia.dkms_packages(flavour, names)

    def stands_for(self, driver: Candidate) -> str:
        return nvidia.stands_for(driver)

    def packaging(self, driver: Candidate, flavour: Flavour) -> Packaging:
        return nvidia.ubuntu_packaging(driver, flavour)

    def kept_out(self) -> tuple[str, ...]:
        # Ubuntu builds modules of its drivers for each kernel, which would take the place of the audited ones.
        return (*nvidia.KEPT_OUT, "linux-modules-nvidia-*", "linux-objects-nvidia-*")

    def part(self, candidate: Candidate) -> Part:
        if _KERNEL_SOURCES.fullmatch(candidate.source):
            return "kernel-image" if _KERNEL_MODULES.match(candidate.package) else "kernel-headers"
        return nvidia.part(candidate) or "support"


for _number, _codename in (("22.04", "jammy"), ("24.04", "noble"), ("26.04", "resolute")):
    register(Ubuntu(f"ubuntu-{_number}", "ubuntu", _number, _STACK_SOURCES, _DRIVER_SOURCES, _codename), rank=20)
