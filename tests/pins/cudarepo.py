"""An imitation of NVIDIA's CUDA repository for apt: names, relations, the label and the pin file that comes with it."""

from __future__ import annotations

from tests.repos.archive import Suite
from tests.repos.stack import Stanza, package

DRIVER, FULL = "580.159.04", "580.159.04-1"

#: As the package cuda-keyring leaves it in /etc/apt/preferences.d: the CUDA repository before the distribution.
PIN_600 = """\
Package: nvidia-modprobe nvidia-settings
Pin: release l=NVIDIA CUDA
Pin-Priority: 600

Package: *
Pin: release l=NVIDIA CUDA
Pin-Priority: 600
"""

#: As the packages nvidia-driver-pinning-NNN leave it.
PIN_BRANCH = """\
Package: libcuda1 nvidia-smi nvidia-open-kernel-dkms nvidia-modprobe firmware-nvidia-gsp
Pin: version 580.*
Pin-Priority: 1000
"""

PACKAGES: list[Stanza] = [
    package("cuda", "13.0.2-1", depends="cuda-13-0 (>= 13.0.2)"),
    package("cuda-13-0", "13.0.2-1", depends="cuda-runtime-13-0 (>= 13.0.2), cuda-toolkit-13-0 (>= 13.0.2)"),
    package("cuda-12-4", "12.4.1-1", depends="cuda-runtime-12-4 (>= 12.4.1), cuda-toolkit-12-4 (>= 12.4.1)"),
    package("cuda-runtime-13-0", "13.0.2-1", depends="cuda-drivers (>= 580)"),
    package("cuda-runtime-12-4", "12.4.1-1", depends="cuda-drivers (>= 550)"),
    package("cuda-toolkit-13-0", "13.0.2-1"),
    package("cuda-toolkit-12-4", "12.4.1-1"),
    package("cuda-drivers", FULL, depends=f"nvidia-driver (= {FULL}), nvidia-settings, nvidia-modprobe (>= 580)"),
    package("nvidia-open", FULL, depends=f"nvidia-driver (= {FULL}), nvidia-open-kernel-dkms (= {FULL})"),
    package("nvidia-driver", FULL, depends=f"libcuda1 (= {FULL}), nvidia-smi (= {FULL}), nvidia-open-kernel-dkms"),
    package("nvidia-open-kernel-dkms", FULL, depends="dkms (>= 3.0.11), firmware-nvidia-gsp, nvidia-modprobe (>= 580)"),
    package("nvidia-open-kernel-support", FULL, depends="nvidia-modprobe (>= 580)"),
    package("firmware-nvidia-gsp", FULL, provides=f"firmware-nvidia-gsp (= {DRIVER})"),
    package("libcuda1", FULL, depends="libc6"),
    package("libnvidia-ml1", FULL, depends="libc6"),
    *(package(name, FULL) for name in ("libnvidia-cfg1", "libnvidia-common", "libnvidia-compute-580")),
    package("libnvidia-container1", "1.18.0-1", depends="libc6"),
    package("libnvidia-container-tools", "1.18.0-1", depends="libnvidia-container1 (>= 1.18.0-1)"),
    package("nvidia-container-toolkit", "1.18.0-1", depends="libnvidia-container-tools (>= 1.18.0-1)"),
    package("nvidia-smi", FULL, depends=f"libnvidia-ml1 (= {FULL})"),
    package("nvidia-alternative", FULL),
    package("nvidia-modprobe", FULL, depends="libc6"),
    package("nvidia-settings", FULL, depends="libc6"),
    package("nvidia-persistenced", FULL, depends="libc6"),
    package("dkms", "1:3.3.0-1", architecture="all", depends="kmod"),
    package("nvidia-gds", "13.0.2-1", depends="nvidia-gds-13-0 (>= 13.0.2)"),
    package("nvidia-gds-13-0", "13.0.2-1", depends="gds-tools-13-0, libcufile-13-0, nvidia-fs (>= 2.26)"),
    package("gds-tools-13-0", "1.15.1.6-1", depends="libcufile-13-0"),
    package("libcufile-13-0", "1.15.1.6-1"),
    package("nvidia-fs", "2.26.6-1", depends="nvidia-fs-dkms (= 2.26.6-1)"),
    package("nvidia-fs-dkms", "2.26.6-1", depends="dkms"),
]


def suite() -> Suite:
    """The flat repository, as NVIDIA labels it."""
    return Suite("./", {"": PACKAGES}, origin="NVIDIA CUDA", codename="", by_hash=False)
