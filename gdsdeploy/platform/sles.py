"""SUSE Linux Enterprise Server 15: known by name, with what its repositories and zypper's locks are called.

Known: NVIDIA's CUDA repository for it (sles15) is signed with the key of rhel8 and rhel9, and names the pieces of CUDA
and GDS as there: libcufile-X-Y, gds-tools-X-Y, nvidia-gds-X-Y.  By SUSE's public notes, the driver is another
packaging altogether: modules come as kernel module packages (nvidia-open-driver-G06-signed-cuda-kmp-default built and
signed from SUSE's own repositories; nvidia-open-driver-G06 and nvidia-driver-G06 build on the host), and the
userland is nvidia-compute-utils-G06 and what it needs.

Not known, for want of a public document: where those packages put their sources, and what nvidia-fs is called there.
So nothing is resolved for it.  What is here serves the roles, which take any set of versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gdsdeploy.platform.base import Platform

#: kernel-default 6.4.0-150600.23.60.5 runs as 6.4.0-150600.23.60-default: the last number counts rebuilds.
_KERNEL: Final = re.compile(r"([0-9][0-9.]*-[0-9]+(?:\.[0-9]+)*)\.[0-9]+")


@dataclass(frozen=True)
class Sles(Platform):
    """One major release."""

    def kernel_packages(self) -> tuple[str, str]:
        """Names of the image and the headers package; zypper keeps several versions of both beside each other."""
        return "kernel-default", "kernel-default-devel"

    def kernel_release(self, version: str) -> str | None:
        """What ``uname -r`` prints under this version of kernel-default; None: not a version as SUSE makes them."""
        match = _KERNEL.fullmatch(version)
        return f"{match[1]}-default" if match is not None else None

    def kept_out(self) -> tuple[str, ...]:
        """Names, and beginnings of names, of packages that could move the stack."""
        return (
            "nvidia-open*", "nvidia-driver*", "nvidia-gfxG0*", "nvidia-compute*", "nvidia-gl-G0*", "nvidia-video-G0*",
            "nvidia-common-G0*", "nv-prefer-signed-open-driver", "kernel-firmware-nvidia*", "cuda-drivers*",
            "nvidia-persistenced*", "nvidia-modprobe*", "nvidia-settings*", "nvidia-fabricmanager*",
            "nvidia-fabric-manager*", "nvidia-imex*", "libnvidia-ml*", "libnvidia-cfg*", "libnvidia-gpucomp*",
            "nvidia-fs*", "nvidia-gds*", "libcufile-*", "gds-tools-*", "kmod-nvidia-*",
        )  # fmt: skip


PLATFORMS: Final = (Sles(os="sles-15", family="sles", release="15"),)
