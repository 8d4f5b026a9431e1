"""Rebuilds the initramfs of a kernel with update-initramfs or dracut."""

from __future__ import annotations

from ..errors import ApplyError
from .host import ManagedHost

_SECONDS = 1800.0
#: Where the two put it: Debian and Ubuntu, and the RHEL family.
_PLACES = ("/boot/initrd.img-{}", "/boot/initramfs-{}.img")


def exists(host: ManagedHost, release: str) -> bool:
    """Whether the kernel ``release`` has an initramfs."""
    return any(host.exists(place.format(release)) for place in _PLACES)


def rebuild(host: ManagedHost, release: str) -> None:
    """Make it again; raises ApplyError."""
    if _has(host, "update-initramfs"):
        host.run(["update-initramfs", "-u", "-k", release], _SECONDS)
    elif _has(host, "dracut"):
        host.run(["dracut", "--force", "--kver", release], _SECONDS)
    else:
        raise ApplyError(f"the initramfs of kernel {release} can't be made: no update-initramfs, no dracut")


def _has(host: ManagedHost, program: str) -> bool:
    return any(host.exists(f"{folder}/{program}") for folder in ("/usr/sbin", "/sbin", "/usr/bin"))
