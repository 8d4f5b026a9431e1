"""The flavour of a kernel: which of its distribution's builds it is, read from its release.  Pure."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple

#: Ubuntu's builds that this stack knows; the flavour is the end of ``uname -r`` and of the image package's name.
UBUNTU = (
    "generic", "generic-64k", "nvidia", "nvidia-64k", "nvidia-lowlatency", "nvidia-bos", "nvidia-bos-64k", "aws",
    "aws-64k", "azure", "azure-nvidia", "gcp", "gcp-64k", "oracle", "oracle-64k", "lowlatency",
)  # fmt: skip

_DEBIAN = r"[0-9]+\.[0-9]+(?:\.[0-9]+|-rc)[0-9a-z.+~-]*?-(?P<name>(?:cloud-|rt-)?(?:amd64|arm64)(?:-16k)?)"
_UBUNTU = r"[0-9]+\.[0-9]+\.[0-9]+-[0-9]+-(?P<name>[a-z0-9-]+)"
_ARCH = r"\.(?:x86_64|aarch64)"
#: The page size and the real-time build stand behind the architecture; Oracle's UEK has its name in the dist tag.
_RHEL = r"[0-9][0-9A-Za-z.+~_-]*\.el[0-9]+(?P<uek>uek)?[0-9A-Za-z._]*" + _ARCH + r"(?:\+(?P<name>64k|rt))?"
_AMAZON = r"(?P<series>[0-9]+\.[0-9]+)\.[0-9]+-[0-9.]+\.amzn[0-9]+" + _ARCH
#: Amazon Linux 2023's first kernel, whose packages have no series in their names.
_AMAZON_FIRST = "6.1"

#: The kernel's own limit.
_LONGEST = 64

#: Canonical's linux-nvidia kernels export nvidia-fs's symbols from their own nvme (patches in NV-Kernels for 6.8, 6.11,
#: 6.14, 6.17 and 7.0), so that local NVMe needs no nvme of DOCA.
_HOOKED = ("nvidia", "nvidia-64k", "nvidia-lowlatency", "nvidia-bos", "nvidia-bos-64k")
_HOOKED_FROM = (6, 8)


class KernelFlavour(NamedTuple):
    """``vendor``: whose names these are (debian, ubuntu, rhel, amazon); ``name``: as a profile's ``kernel`` has it."""

    vendor: str
    name: str


def flavour_of(release: str) -> Optional[KernelFlavour]:
    """The flavour of the kernel that ``uname -r`` calls ``release``; None for one that no known system ships."""
    if len(release) > _LONGEST:
        return None
    debian, ubuntu = re.fullmatch(_DEBIAN, release), re.fullmatch(_UBUNTU, release)
    rhel, amazon = re.fullmatch(_RHEL, release), re.fullmatch(_AMAZON, release)
    if debian:
        return KernelFlavour("debian", debian.group("name"))
    if ubuntu and ubuntu.group("name") in UBUNTU:
        return KernelFlavour("ubuntu", ubuntu.group("name"))
    if amazon:
        series = amazon.group("series")
        return KernelFlavour("amazon", "kernel" if series == _AMAZON_FIRST else "kernel" + series)
    if rhel and not (rhel.group("uek") and rhel.group("name")):
        return KernelFlavour("rhel", rhel.group("name") or rhel.group("uek") or "kernel")
    return None


def large_pages(release: str) -> str:
    """``64k`` or ``16k`` for an Arm kernel of that page size, by its release; empty for 4 KiB or an unknown kernel."""
    flavour = flavour_of(release)
    match = re.search(r"(?:^|-)((?:64|16)k)$", flavour.name) if flavour else None
    return match.group(1) if match else ""


def has_nvme_hooks(release: str) -> bool:
    """Whether this kernel's own nvme exports the symbols that nvidia-fs looks for, as its maker builds it."""
    flavour = flavour_of(release)
    return flavour is not None and flavour.name in _HOOKED and series(release) >= _HOOKED_FROM


def series(release: str) -> Tuple[int, int]:
    """Major and minor version of a kernel by its release; zeros for one that has none."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", release)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
