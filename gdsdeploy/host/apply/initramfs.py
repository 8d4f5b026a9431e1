"""Rebuilds the initramfs of a kernel with the program that makes the host's images: update-initramfs or dracut.

CarriedFiles are files that the locked kernel's initramfs has a copy of, which is made again when a file changes.
"""

from __future__ import annotations

from typing import Any, ClassVar, List, Sequence, TypeVar

from ..errors import ApplyError
from ..rootdir import list_folder
from .file_resource import FileResource
from .host import ManagedHost
from .model import NONE, Change, Words

_SECONDS = 1800.0
#: Where images are: Debian and Ubuntu, and the RHEL family.
_PLACES = ("/boot/initrd.img-{}", "/boot/initramfs-{}.img")
#: Where systemd-boot's are: in TOKEN/RELEASE of one of these folders, see kernel-install(8).
_BOOT_FOLDERS = ("/efi", "/boot", "/boot/efi")
#: Each runs for a new kernel, so the tool whose hook is there makes the images.  Both packages leave theirs behind.
_HOOK = "/etc/kernel/postinst.d/{}"
#: Where a kernel is before it has an initramfs.
_KERNELS = ("/boot/vmlinuz-{}", "/lib/modules/{}/vmlinuz")


def images(host: ManagedHost, release: str) -> List[str]:
    """The initramfs files of the kernel ``release``."""
    paths = [place.format(release) for place in _PLACES if host.exists(place.format(release))]
    for folder in _BOOT_FOLDERS:
        for token in list_folder(host.root, folder):
            place = f"{folder}/{token}/{release}"
            paths += [f"{place}/{name}" for name in list_folder(host.root, place) if name.startswith("initrd")]
    return paths


def note_unknown(host: ManagedHost, release: str) -> None:
    """Name the kernel ``release`` in a note if it is there, and its initramfs isn't at a place that is known."""
    if images(host, release) or not any(host.exists(place.format(release)) for place in _KERNELS):
        return
    places = ", ".join(place.format(release) for place in _PLACES)
    words = f"kernel {release} has no initramfs at {places}: if another file holds one (a unified kernel image)"
    host.notes.append(f"{words}, make that again, because it carries the module options")


def rebuild(host: ManagedHost, release: str) -> None:
    """Make it again; raises ApplyError."""
    paths = images(host, release)
    if _is_dracuts(host):
        for path in paths:
            # Without a path, dracut's own choice may be another file than the one that boots.
            host.run(["dracut", "--force", path, release], _SECONDS)
    elif _has(host, "update-initramfs"):
        host.run(["update-initramfs", "-u", "-k", release], _SECONDS)
    else:
        raise ApplyError(
            f"the initramfs of kernel {release} can't be made: no update-initramfs, no dracut",
            f"install the program that made {paths[0]}, and apply this again",
        )


def _is_dracuts(host: ManagedHost) -> bool:
    """Ubuntu 26.04 has dracut; update-initramfs may be there too, and then changes nothing that boots."""
    if not _has(host, "dracut"):
        return False
    hooks = [name for name in ("dracut", "initramfs-tools") if host.exists(_HOOK.format(name))]
    return hooks != ["initramfs-tools"] or not _has(host, "update-initramfs")


def rebuild_all(host: ManagedHost) -> List[Change]:
    """Make those of all kernels again, because a file that they have copies of has gone; only the changes in a check.

    A kernel without modules is left out: nothing could be made for it.  Raises ApplyError.
    """
    releases = [release for release in list_folder(host.root, "/lib/modules") if images(host, release)]
    releases = [release for release in releases if host.exists(f"/lib/modules/{release}/modules.dep")]
    if not host.check:
        for release in releases:
            rebuild(host, release)
    return [Change("initramfs", release, "", "", "options", NONE) for release in releases]


def _has(host: ManagedHost, program: str) -> bool:
    return any(host.exists(f"{folder}/{program}") for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin"))


D = TypeVar("D")


class CarriedFiles(FileResource[D]):
    """Files of which the initramfs has ``carried``; ``Desired`` names the locked kernel as ``kernel_release``."""

    kinds: ClassVar[Words] = {"initramfs": "make the initramfs of kernel {} again"}
    reasons: ClassVar[Words] = {"options": "one with other options"}
    carried: ClassVar[str] = ""

    def observe(self, host: ManagedHost, desired: Any) -> Any:
        observed = super().observe(host, desired)
        observed["initramfs"] = bool(images(host, desired.kernel_release))
        return observed

    def changes(self, desired: Any, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """The files, and the initramfs; a kernel that is installed later makes its own, with these files in it."""
        changes = super().changes(desired, observed, pending)
        if observed["initramfs"] and any(change.subject == self.carried for change in changes):
            changes.append(Change("initramfs", desired.kernel_release, "", "", "options", NONE))
        return changes

    def apply(self, host: ManagedHost, desired: Any, change: Change) -> None:
        if change.kind == "initramfs":
            rebuild(host, desired.kernel_release)
        else:
            super().apply(host, desired, change)

    def settle(self, host: ManagedHost, desired: Any, changes: Sequence[Change]) -> None:
        """Name a kernel whose initramfs couldn't be made again."""
        if changes:
            note_unknown(host, desired.kernel_release)
