"""Rebuilds the initramfs of a kernel with update-initramfs or dracut."""

from __future__ import annotations

import re
from typing import List

from ..errors import ApplyError
from ..rootdir import list_folder
from .host import ManagedHost
from .model import NONE, Change

_SECONDS = 1800.0
#: Where the two put it: Debian and Ubuntu, and the RHEL family.
_PLACES = ("/boot/initrd.img-{}", "/boot/initramfs-{}.img")
_RELEASE = re.compile(r"(?:initrd\.img-(\d[\w.+~-]*)|initramfs-(\d[\w.+~-]*)\.img)\Z")


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


def rebuild_all(host: ManagedHost) -> List[Change]:
    """Make those of all kernels again, because a file that they have copies of has gone; only the changes in a check.

    A kernel without modules is left out: nothing could be made for it.  Raises ApplyError.
    """
    matches = filter(None, map(_RELEASE.match, list_folder(host.root, "/boot")))
    releases = [match.group(1) or match.group(2) for match in matches]
    releases = [release for release in releases if host.exists(f"/lib/modules/{release}/modules.dep")]
    if not host.check:
        for release in releases:
            rebuild(host, release)
    return [Change("initramfs", release, "", "", "options", NONE) for release in releases]


def _has(host: ManagedHost, program: str) -> bool:
    return any(host.exists(f"{folder}/{program}") for folder in ("/usr/sbin", "/sbin", "/usr/bin"))
