"""Debian: its own archive's packages (contrib and non-free hold the stack), or a driver from NVIDIA's repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from gdsdeploy.model.lock import Part
from gdsdeploy.platform import base
from gdsdeploy.platform.base import ARCHITECTURES, DpkgPlatform, Flavour, Packaging, Preset, StackPackage, register
from gdsdeploy.repo.packages import NVIDIA, Candidate

KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
COMPONENTS: Final = ("main", "contrib", "non-free", "non-free-firmware")

#: Primary keys of debian-archive-keyring 2023.3+deb12u2 that sign these releases.
ARCHIVE_KEYS: Final = (
    "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8",  # automatic signing key, 12/bookworm
    "04B54C3CDCA79751B16BC6B5225629DF75B188BD",  # automatic signing key, 13/trixie
    "4D64FEC119C2029067D6E791F8D2585B8783D481",  # stable release key, 12/bookworm
    "41587F7DB8C774BCCF131416762F67A0B2C39DE4",  # stable release key, 13/trixie
)
SECURITY_KEYS: Final = (
    "05AB90340C0C5E797F44A8C8254CF3B5AEC0A8F0",  # security automatic signing key, 12/bookworm
    "5E04A1E3223A19A20706E20F9904613D4CCE68C6",  # security automatic signing key, 13/trixie
    "AC530D520F2F3269F5E98313A48449044AAD5C5D",  # security automatic signing key, 11/bullseye
)

#: os of a profile → NVIDIA's name of it, and the key of the repository.
_CUDA: Final = {"debian-12": ("debian12", base.CUDA_DEB), "debian-13": ("debian13", base.CUDA_DEBIAN_13)}
_RELEASE_NAME = r"(?:bullseye|bookworm|trixie|forky|sid|oldoldstable|oldstable|stable|testing|unstable)"
_KERNEL_SOURCES: Final = re.compile(r"linux|linux-[0-9].*|linux-signed-.*")
_DRIVER_SOURCES: Final = (re.compile(r"nvidia-graphics-drivers"), re.compile(r"nvidia-open-gpu-kernel-modules"))
_STACK_SOURCES: Final = (
    _KERNEL_SOURCES,
    *_DRIVER_SOURCES,
    re.compile(r"nvidia-cuda-toolkit|nvidia-support|nvidia-modprobe|nvidia-settings|nvidia-persistenced"),
    re.compile(r"glx-alternatives|dkms|firmware-nvidia.*"),
)


@dataclass(frozen=True)
class Debian(DpkgPlatform):
    dkms_package: ClassVar[Mapping[Flavour, str]] = {
        "open": "nvidia-open-kernel-dkms",
        "proprietary": "nvidia-kernel-dkms",
    }
    driver_module: ClassVar[Mapping[Flavour, str]] = {"open": "nvidia-current-open", "proprietary": "nvidia-current"}
    # Not nvidia-*: the container toolkit and CUDA's own packages are the user's to choose.
    kept_out: ClassVar[tuple[str, ...]] = (
        *base.KEPT_OUT, "nvidia-tesla-*", "nvidia-legacy-*", "nvidia-alternative", "nvidia-smi", "libcuda1*",
        "libcudadebugger1*", "firmware-nvidia-gsp*",
    )  # fmt: skip

    def presets(self) -> dict[str, Preset]:
        archive = re.compile(rf"{_RELEASE_NAME}(?:-updates|-backports)?")
        suites = (self.codename, f"{self.codename}-updates")
        security = re.compile(rf"{_RELEASE_NAME}-security")
        return {
            "debian": Preset(suites, COMPONENTS, KEYRING, ARCHIVE_KEYS, archive),
            "debian-security": Preset((f"{self.codename}-security",), COMPONENTS, KEYRING, SECURITY_KEYS, security),
        }

    def cuda_repository(self) -> tuple[str, str]:
        return _CUDA.get(self.os, ("", ""))

    def kernel_flavours(self, arch: str) -> tuple[str, ...]:
        own = ARCHITECTURES[arch]
        return own, f"cloud-{own}", f"rt-{own}", *([f"{own}-16k"] if arch == "aarch64" else [])

    def driver_packages(self, flavour: Flavour, names: Iterable[str]) -> list[str]:
        nvidias = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
        return sorted({self.dkms_package[flavour], nvidias}.intersection(names))

    def packaging(self, driver: Candidate, flavour: Flavour) -> Packaging:
        if driver.origin == NVIDIA:
            # Debian's names for the userland, NVIDIA's own for the open modules.
            userland = ("nvidia-smi", "nvidia-driver-cuda", "nvidia-kernel-support")
            further: tuple[StackPackage, ...] = (
                StackPackage("libcuda1", "driver-userland", "host"),
                *(StackPackage(name, "driver-userland", "host", optional=True) for name in userland),
                StackPackage("dkms", "dkms", "build"),
            )
            other = re.compile("nvidia-kernel-dkms" if flavour == "open" else "nvidia-kernel-open-dkms")
            return Packaging("nvidia", further, (other,), (base.UMBRELLAS,))
        # The support package makes `modprobe nvidia` load the file of the chosen flavour (nvidia-modprobe.conf).
        support = "nvidia-open-kernel-support" if flavour == "open" else "nvidia-kernel-support"
        further = (
            *(StackPackage(name, "driver-userland", "host") for name in ("libcuda1", "nvidia-smi", support)),
            StackPackage("firmware-nvidia-gsp", "companion", "host"),
            StackPackage("dkms", "dkms", "build"),
        )
        return Packaging(self.driver_module[flavour], further, self.excluded(flavour), (base.UMBRELLAS,))

    def excluded(self, flavour: Flavour) -> tuple[re.Pattern[str], ...]:
        """Packages that must not be chosen: the other flavour's, and other driver series'."""
        series = re.compile(r"(?:lib)?nvidia-(?:open-)?(?:tesla|legacy)-(?!check$).*")
        other = r"nvidia-kernel-(?:dkms|source|support)" if flavour == "open" else r"nvidia-open-kernel-.*"
        return series, re.compile(other)

    def part(self, candidate: Candidate) -> Part:
        if _KERNEL_SOURCES.fullmatch(candidate.source):
            return "kernel-headers"
        if candidate.origin == NVIDIA:
            return base.part(candidate) or "support"
        if self.follows_driver(candidate):
            return "companion" if candidate.package.startswith("firmware-") else "driver-userland"
        return "support"


for _number, _codename in (("12", "bookworm"), ("13", "trixie")):
    register(Debian(f"debian-{_number}", "debian", _number, _STACK_SOURCES, _DRIVER_SOURCES, _codename), rank=10)
