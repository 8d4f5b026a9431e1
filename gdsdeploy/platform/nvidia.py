"""The packages of NVIDIA's CUDA repository for apt, and how they differ from those of the distributions.

Names as NVIDIA's driver installation guide and release notes have them; that of Ubuntu's own archive are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gdsdeploy.model.lock import Part
from gdsdeploy.platform.base import NVLSM, Flavour, Packaging, StackPackage
from gdsdeploy.repo.packages import NVIDIA, Candidate

#: The maker of the repository's packages.
ORIGIN: Final = NVIDIA

#: Pieces of a driver by name: kernel modules, userland, firmware, and what has to be of the same version.
_DRIVER: Final = re.compile(
    r"(?!nvidia-(?:fs|gds|container|docker|ctk|dcgm|nsight|driver-pinning|cuda-|peer-memory|doca)|libnvidia-container)"
    r"(?:nvidia-.*|libnvidia-.*|libcuda1|libcudadebugger1|libnvsdm.*|nvlink5.*|libnvcuvid1|libnvoptix1|firmware-nvidia-gsp.*"
    r"|xserver-xorg-video-nvidia.*|cuda-drivers.*|lib(?:egl|gl|gles|glx).*-nvidia.*)"
)
#: Debian's and Ubuntu's own helpers, which NVIDIA's packages for them use.
_SHARED_SOURCES: Final = {"nvidia-support", "glx-alternatives"}

#: ``nvidia-dkms-580-open``; from branch 590 on without the number, and Ubuntu's data-centre builds with ``-server``.
_DKMS: Final = re.compile(r"nvidia-dkms(?P<suffix>(?:-(?P<branch>[0-9]{3})(?:-server)?)?)(?P<open>-open)?")
#: By which the drivers are told that Ubuntu has built modules of.
_COMMON: Final = re.compile(r"nvidia-kernel-common(?P<suffix>(?:-[0-9]{3}(?:-server)?)?)")
#: What pulls a driver of whichever version: never a part of the stack, and ours is complete without.
UMBRELLAS: Final = re.compile(
    r"(?:cuda-drivers|nvidia-open)(?:-[0-9]{3}(?:\.[0-9.]+)?)?"
    r"|nvidia-driver(?:-[0-9]{3}(?:-server)?)?(?:-open)?|nvidia-headless-.*|nvidia-driver-pinning.*"
)
#: Metapackages of GDS.
GDS_UMBRELLAS: Final = re.compile(r"nvidia-fs|nvidia-gds(?:-[0-9]+-[0-9]+)?")
_LIBCUFILE: Final = re.compile(r"libcufile-([0-9]+)-([0-9]+)")

#: Globs of what could move a driver or a piece of GDS, whatever repository it comes from.
KEPT_OUT: Final = (
    "cuda-drivers*", "nvidia-open*", "nvidia-driver*", "nvidia-dkms*", "nvidia-kernel-*", "nvidia-headless-*",
    "nvidia-firmware*", "nvidia-utils*", "nvidia-compute-utils*", "nvidia-modprobe*", "nvidia-persistenced*",
    "nvidia-fabricmanager*", "nvidia-fabric-manager*", "nvidia-imex*", "xserver-xorg-video-nvidia*",
    "nvlink5*", "nvlsm",
    # Every libnvidia-* but libnvidia-container*, the container toolkit's, which is the user's to choose.
    "libnvidia-[!c]*", "libnvidia-c[!o]*", "libnvidia-co[!n]*",
    "nvidia-fs*", "nvidia-gds*", "libcufile*", "gds-tools*",
)  # fmt: skip


def of_driver(candidate: Candidate) -> bool:
    """Whether a package is a piece of some driver."""
    return bool(_DRIVER.fullmatch(candidate.package)) and candidate.source not in _SHARED_SOURCES


def may_be_adopted(name: str) -> bool:
    """Whether a package is by its name a piece of a driver, or a metapackage of GDS."""
    return bool(_DRIVER.fullmatch(name) or GDS_UMBRELLAS.fullmatch(name))


def dkms_packages(flavour: Flavour, names: Iterable[str]) -> list[str]:
    """Of ``names``, the packages that register the modules of this flavour, as NVIDIA and Ubuntu name them."""
    matches = ((name, _DKMS.fullmatch(name)) for name in names if name.startswith("nvidia-dkms"))
    return sorted(name for name, match in matches if match and bool(match["open"]) == (flavour == "open"))


def stands_for(driver: Candidate) -> str:
    """The branch that a package of another branch's name passes on to: 580 for nvidia-dkms-570-open 580.95.05."""
    match = _DKMS.fullmatch(driver.package)
    branch = _upstream(driver).split(".", 1)[0]
    return f"branch {branch}" if match and match["branch"] and match["branch"] != branch else ""


def ubuntu_packaging(driver: Candidate, flavour: Flavour) -> Packaging:
    """As for Ubuntu: every name carries the branch up to 580."""
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
        firmware = StackPackage(f"nvidia-firmware{s}-{_upstream(driver)}", "companion", "host", optional=True)
        further, other = (*further, firmware), r"nvidia-dkms(?:-.+)?|nvidia-fs-dkms|dkms"
    else:
        further = (*further, StackPackage("dkms", "dkms", "build"))
        other = r"nvidia-(?:dkms|kernel-source)(?:-[0-9]{3}(?:-server)?)?" + ("" if flavour == "open" else "-open")
    return Packaging("nvidia", further, (re.compile(other),), (UMBRELLAS,))


def debian_packaging(flavour: Flavour) -> Packaging:
    """As for Debian: Debian's names for the userland, NVIDIA's own for the open modules."""
    return Packaging(
        module="nvidia",
        further=(
            StackPackage("libcuda1", "driver-userland", "host"),
            StackPackage("nvidia-smi", "driver-userland", "host", optional=True),
            StackPackage("nvidia-driver-cuda", "driver-userland", "host", optional=True),
            StackPackage("nvidia-kernel-support", "driver-userland", "host", optional=True),
            StackPackage("dkms", "dkms", "build"),
        ),
        excluded=(re.compile("nvidia-kernel-dkms" if flavour == "open" else "nvidia-kernel-open-dkms"),),
        umbrellas=(UMBRELLAS,),
    )


def libcufile_packages(names: Iterable[str]) -> list[tuple[str, str]]:
    """Of ``names``, each libcufile of one CUDA release, with its gds-tools."""
    matches = filter(None, (_LIBCUFILE.fullmatch(name) for name in names if name.startswith("libcufile-")))
    return sorted((match[0], f"gds-tools-{match[1]}-{match[2]}") for match in matches)


def cuda_version(candidate: Candidate) -> str | None:
    """The CUDA release in a libcufile's name: 12.4 for libcufile-12-4."""
    match = _LIBCUFILE.fullmatch(candidate.package)
    return f"{match[1]}.{match[2]}" if match else None


def part(candidate: Candidate) -> Part | None:
    """What a package of NVIDIA's or Ubuntu's driver is that came in as a dependency; None for another one."""
    name = candidate.package
    if name == NVLSM:
        return "companion"
    if not of_driver(candidate):
        return "cuda" if candidate.origin == ORIGIN and name.startswith("cuda-") else None
    if name.startswith(("nvidia-kernel-source", "nvidia-dkms")):
        return "driver-source"
    gsp = name.startswith(("nvidia-firmware", "firmware-"))
    beside = re.match(r"nvidia-(?:persistenced|fabric-?manager|imex)|nvlink5", name)
    return "companion" if gsp or beside else "driver-userland"


def _upstream(driver: Candidate) -> str:
    return driver.version.split(":", 1)[-1].rsplit("-", 1)[0].split("~", 1)[0]
