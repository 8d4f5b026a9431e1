"""Ubuntu: its own kernels, and the driver and GDS packages of NVIDIA's CUDA repository or of its own archive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from gdsdeploy.host.kmod.flavour import UBUNTU
from gdsdeploy.model.lock import Part
from gdsdeploy.platform import base
from gdsdeploy.platform.base import BuiltModules, DpkgPlatform, Flavour, Packaging, Preset, StackPackage, register
from gdsdeploy.repo.packages import Candidate, Universe

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
#: Modules of the driver for one kernel: linux-modules-nvidia-580-server-open-6.8.0-60-generic.
_BUILT: Final = re.compile(
    r"linux-modules-nvidia-(?P<driver>[0-9]{3}(?:-server)?)(?P<open>-open)?-(?P<release>[0-9]+\.[0-9]+\.[0-9]+-.+)"
)
#: Ubuntu 26.04 has some of its modules in packages of a family of their own.
_KERNEL_MODULES: Final = re.compile(r"linux-(?:main-)?modules-")
_ARM_FLAVOUR: Final = re.compile(r".+-64k|azure-nvidia")
#: ``nvidia-dkms-580-open``; from branch 590 on without the number, and Ubuntu's data-centre builds with ``-server``.
_DKMS: Final = re.compile(r"nvidia-dkms(?P<suffix>(?:-(?P<branch>[0-9]{3})(?:-server)?)?)(?P<open>-open)?")
#: By which the drivers are told that Ubuntu has built modules of.
_COMMON: Final = re.compile(r"nvidia-kernel-common(?P<suffix>(?:-[0-9]{3}(?:-server)?)?)")
_DRIVER_SOURCES: Final = (
    re.compile(r"nvidia-graphics-drivers-[0-9]+(?:-server)?|fabric-manager-[0-9]+|libnvidia-nscq-.*"),
)
_STACK_SOURCES: Final = (
    _KERNEL_SOURCES,
    *_DRIVER_SOURCES,
    re.compile(r"linux-restricted-modules(?:-.+)?"),
    re.compile(r"nvidia-cuda-toolkit|nvidia-modprobe|nvidia-settings|nvidia-persistenced|nvidia-imex.*|dkms"),
)


@dataclass(frozen=True)
class Ubuntu(DpkgPlatform):
    dkms_package: ClassVar[Mapping[Flavour, str]] = {"open": "nvidia-dkms-open", "proprietary": "nvidia-dkms"}
    # Ubuntu builds modules of its drivers for each kernel: only those in the lock may come.
    kept_out: ClassVar[tuple[str, ...]] = (*base.KEPT_OUT, "linux-modules-nvidia-*", "linux-objects-nvidia-*")

    def presets(self) -> dict[str, Preset]:
        def preset(suites: tuple[str, ...], suffix: str) -> Preset:
            names = re.compile(_RELEASE_NAME + suffix)
            return Preset(suites, COMPONENTS, KEYRING, ARCHIVE_KEYS, names, arm_uri=_PORTS)

        return {
            "ubuntu": preset((self.codename, f"{self.codename}-updates"), "(?:-updates|-backports)?"),
            "ubuntu-security": preset((f"{self.codename}-security",), "-security"),
        }

    def cuda_repository(self) -> tuple[str, str]:
        return f"ubuntu{self.release.replace('.', '')}", base.CUDA_DEB

    def kernel_flavours(self, arch: str) -> tuple[str, ...]:
        return tuple(name for name in UBUNTU if arch == "aarch64" or not _ARM_FLAVOUR.fullmatch(name))

    def kernel_extras(self, release: str) -> tuple[StackPackage, ...]:
        # Only metapackages such as linux-image-generic depend on it; it holds file systems and drivers that hosts use.
        return (StackPackage(f"linux-modules-extra-{release}", "kernel-image", "host", optional=True),)

    def driver_packages(self, flavour: Flavour, names: Iterable[str]) -> list[str]:
        """Those that register the modules of this flavour, as NVIDIA and Ubuntu name them."""
        matches = ((name, _DKMS.fullmatch(name)) for name in names if name.startswith("nvidia-dkms"))
        return sorted(name for name, match in matches if match and bool(match["open"]) == (flavour == "open"))

    def no_packaged_modules(self, flavour: Flavour) -> str:
        if flavour == "open":
            return ""
        # linux-modules-nvidia-580-… has no files: it needs linux-objects-nvidia-580-… and linux-signatures-nvidia-….
        return (
            "Canonical's packages of the proprietary modules have objects that each host links when they are installed,"
            " so no record says what the modules have to be; the open ones come whole: driver: {flavour: open}"
        )

    def built_modules(self, universe: Universe, flavour: Flavour) -> dict[str, list[BuiltModules]]:
        built: dict[str, list[BuiltModules]] = {}
        for match in filter(None, map(_BUILT.fullmatch, sorted(universe.names(), reverse=True))):
            if bool(match["open"]) == (flavour == "open"):
                for candidate in universe.named(match[0]):
                    modules = self._driver_of(universe, candidate, f"nvidia-kernel-common-{match['driver']}")
                    built.setdefault(match["release"], []).extend(modules)
        return built

    def _driver_of(self, universe: Universe, modules: Candidate, name: str) -> Iterable[BuiltModules]:
        """The driver that a package's relations to ``name`` tell; nothing for one that has none, as a stub."""
        bounds = [relation for group in modules.depends for relation in group if relation.package == name]
        if least := next((relation.version for relation in bounds if relation.relation in (">=", "=")), ""):
            version = self.upstream_version(least)
            offered = [c for c in universe.named(name) if c.origin == modules.origin]
            same = [c for c in offered if self.upstream_version(c.version) == version]
            fits = [c for c in same if all(relation.admits(c.version) for relation in bounds)]
            newest = max(fits, key=lambda c: self.order.key(c.version), default=None)
            yield BuiltModules(modules, version, newest, tuple(str(c) for c in offered))

    def built_nvidia_fs(self, release: str) -> str:
        return f"linux-modules-nvidia-fs-{release}"

    def displaced_packages(self, branch: str) -> tuple[str, ...]:
        names = (f"nvidia-dkms{end}" for end in ("", f"-{branch}", f"-{branch}-server"))
        # NVIDIA's repository has the firmware's files under other names than Ubuntu's archive: dpkg refuses both.
        firmware = ("nvidia-firmware", f"nvidia-firmware-{branch}")
        builds = (f"{name}{end}" for name in names for end in ("-open", ""))
        return (*builds, "nvidia-fs-dkms", "nvidia-fs", *firmware)

    def stands_for(self, driver: Candidate) -> str:
        """The branch that a package of another branch's name passes on to: 580 for nvidia-dkms-570-open 580.95.05."""
        match = _DKMS.fullmatch(driver.package)
        branch = self.upstream_version(driver.version).split(".", 1)[0]
        return f"branch {branch}" if match and match["branch"] and match["branch"] != branch else ""

    def packaging(self, driver: Candidate, flavour: Flavour) -> Packaging:
        """Every name carries the branch up to 580."""
        built, match = _COMMON.fullmatch(driver.package), _DKMS.fullmatch(driver.package)
        s = built["suffix"] if built else match["suffix"] if match else ""
        further: tuple[StackPackage, ...] = (
            StackPackage(f"libnvidia-compute{s}", "driver-userland", "host"),
            StackPackage(f"nvidia-utils{s}", "driver-userland", "host"),
            StackPackage(f"nvidia-kernel-common{s}", "driver-userland", "host"),
            StackPackage(f"nvidia-compute-utils{s}", "driver-userland", "host", optional=True),
            StackPackage(f"libnvidia-cfg1{s}", "driver-userland", "host", optional=True),
        )
        if built:
            # The open modules load nothing without firmware, on which nvidia-dkms depends where modules are built.
            firmware = StackPackage(
                f"nvidia-firmware{s}-{self.upstream_version(driver.version)}", "companion", "host", optional=True
            )
            further, other = (*further, firmware), r"nvidia-dkms(?:-.+)?|nvidia-fs-dkms|dkms"
        else:
            further = (*further, StackPackage("dkms", "dkms", "build"))
            other = r"nvidia-(?:dkms|kernel-source)(?:-[0-9]{3}(?:-server)?)?" + ("" if flavour == "open" else "-open")
        return Packaging("nvidia", further, (re.compile(other),), (base.UMBRELLAS,))

    def part(self, candidate: Candidate) -> Part:
        if _KERNEL_SOURCES.fullmatch(candidate.source):
            return "kernel-image" if _KERNEL_MODULES.match(candidate.package) else "kernel-headers"
        return base.part(candidate) or "support"


for _number, _codename in (("22.04", "jammy"), ("24.04", "noble"), ("26.04", "resolute")):
    register(Ubuntu(f"ubuntu-{_number}", "ubuntu", _number, _STACK_SOURCES, _DRIVER_SOURCES, _codename), rank=20)
