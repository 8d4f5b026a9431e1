"""What the releases of the RHEL family offer in the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdslab.kit import cuda


@dataclass(frozen=True)
class Versions:
    """What a release of the family offers.

    tag: its part of packages' releases.  base: the Debian release with its programs.  kernel: the newest.  older: the
    one that VM hosts begin with.  NVIDIA's packages are those of ``cuda.py``, in the same versions.
    """

    major: int
    minor: str
    tag: str
    base: str
    kernel: str
    older: str
    dkms: str
    driver: str = cuda.DRIVER

    @property
    def release(self) -> str:
        """The newest kernel's release."""
        return release(self.kernel)


def release(version: str) -> str:
    """The release of the kernel whose packages have ``version``."""
    return f"{version}.x86_64"


RELEASES = {
    9: Versions(9, "9.6", "el9", "bookworm", "5.14.0-570.73.1.el9_6", "5.14.0-570.12.1.el9_6", "3.2.2-1.el9"),
    10: Versions(10, "10.1", "el10", "trixie", "6.12.0-124.20.1.el10_1", "6.12.0-124.8.1.el10_1", "3.2.2-1.el10"),
}


#: What Debian's files give a host without an rpm of its own: name → version, without the distribution's tag.
BASE: Mapping[int, Mapping[str, str]] = {
    9: {
        "bash": "5.1.8-9", "binutils": "2.35.2-63", "coreutils": "8.32-39", "cpio": "2.13-16", "diffutils": "3.7-12",
        "dnf": "4.14.0-25", "dracut": "057-88.git20250311",
        "elfutils-libelf-devel": "0.192-6", "file": "5.39-16", "findutils": "1:4.8.0-7", "gawk": "5.1.0-6",
        "gcc": "11.5.0-5", "gcc-c++": "11.5.0-5", "glibc": "2.34-168", "grep": "3.6-5", "grub2-tools": "1:2.06-104",
        "gzip": "1.12-1", "kmod": "28-10", "libgcc": "11.5.0-5", "libibverbs": "54.0-1", "librdmacm": "54.0-1",
        "libstdc++": "11.5.0-5", "libtirpc": "1.3.3-9", "linux-firmware": "20250314-151", "make": "1:4.3-8",
        "numactl-libs": "2.0.19-1", "openssl": "1:3.2.2-6", "patch": "2.7.6-16", "python3": "3.9.21-2",
        "rpm": "4.16.1.3-37",
        "sed": "4.8-9", "shadow-utils": "2:4.9-12", "systemd": "252-51", "systemd-udev": "252-51", "tar": "2:1.34-7",
        "util-linux": "2.37.4-21", "which": "2.21-29", "xz": "5.2.5-8",
        "zstd": "1.5.5-1",
    },
    10: {
        "bash": "5.2.26-6", "binutils": "2.41-58", "coreutils": "9.5-6", "cpio": "2.15-3", "diffutils": "3.10-8",
        "dnf": "4.20.0-14", "dracut": "105-4",
        "elfutils-libelf-devel": "0.193-1", "file": "5.45-7", "findutils": "1:4.10.0-5", "gawk": "5.3.0-6",
        "gcc": "14.3.1-2", "gcc-c++": "14.3.1-2", "glibc": "2.39-58", "grep": "3.11-10", "grub2-tools": "1:2.12-15",
        "gzip": "1.13-3", "kmod": "31-11", "libgcc": "14.3.1-2", "libibverbs": "57.0-2", "librdmacm": "57.0-2",
        "libstdc++": "14.3.1-2", "libtirpc": "1.3.5-1", "linux-firmware": "20250812-17", "make": "1:4.4.1-9",
        "numactl-libs": "2.0.19-3", "openssl": "1:3.5.1-3", "patch": "2.7.6-26", "python3": "3.12.11-3",
        "rpm": "4.19.1.1-20",
        "sed": "4.9-3", "shadow-utils": "2:4.15.0-8", "systemd": "257-13", "systemd-udev": "257-13", "tar": "2:1.35-7",
        "util-linux": "2.40.2-13", "which": "2.21-44", "xz": "1:5.6.2-4",
        "zstd": "1.5.5-9",
    },
}  # fmt: skip
#: Of these, the packages of a compiler and its tools, and Debian's that have them.
TOOLS: Mapping[str, Sequence[str]] = {
    "bash": ["bash"], "binutils": ["binutils"], "coreutils": ["coreutils"], "diffutils": ["diffutils"],
    "elfutils-libelf-devel": ["libelf-dev"], "findutils": ["findutils"], "gawk": ["gawk"], "gcc": ["gcc"],
    "gcc-c++": ["g++"], "grep": ["grep"], "kmod": ["kmod"], "make": ["make"], "openssl": ["openssl"],
    "python3": ["python3-minimal", "libpython3-stdlib"], "sed": ["sed"], "xz": ["xz-utils"], "zstd": ["zstd"],
}  # fmt: skip
BASE_FILES = (
    "/bin/sh", "/usr/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/kernel-install", "/usr/bin/python3",
    "/bin/kernel-install", "/usr/sbin/depmod", "/usr/sbin/update-alternatives", "/usr/sbin/useradd", "/sbin/ldconfig",
    "/usr/bin/strip", "/usr/bin/systemctl",
)  # fmt: skip
