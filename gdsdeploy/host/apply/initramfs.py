"""Rebuilds the initramfs of a kernel with the program that makes the host's images: update-initramfs or dracut.

CarriedFiles are files that the locked kernel's initramfs has a copy of, which is made again when a file changes.
"""

from __future__ import annotations

from typing import Any, ClassVar, List, Sequence, TypeVar

from .. import derived
from ..derived import Thing
from ..errors import ApplyError
from ..rootdir import list_folder
from .file_resource import FileResource, restoration_changes, restore
from .host import ManagedHost
from .model import NONE, Change, Words, writing

_SECONDS = 1800.0
#: What an initramfs carries of gdsdeploy's.
CARRIED = ("/etc/modprobe.d/gdsdeploy.conf", "/etc/modprobe.d/gdsdeploy-boot.conf")
_NAME = "initramfs "
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
    elif host.has_program("update-initramfs"):
        host.run(["update-initramfs", "-u", "-k", release], _SECONDS)
    else:
        raise ApplyError(
            f"the initramfs of kernel {release} can't be made: no update-initramfs, no dracut",
            f"install the program that made {paths[0]}, and apply this again",
        )


def _is_dracuts(host: ManagedHost) -> bool:
    """Ubuntu 26.04 has dracut; update-initramfs may be there too, and then changes nothing that boots."""
    if not host.has_program("dracut"):
        return False
    hooks = [name for name in ("dracut", "initramfs-tools") if host.exists(_HOOK.format(name))]
    return hooks != ["initramfs-tools"] or not host.has_program("update-initramfs")


def of_kernel(release: str) -> Thing:
    """The initramfs of the kernel ``release`` as a derived thing."""
    return Thing(f"{_NAME}{release}", CARRIED)


def rebuilt_changes(host: ManagedHost, *, gone: bool) -> List[Change]:
    """Those that have to be made again: of all kernels where a file that they carry goes (``gone``), or what is due.

    A kernel without modules is left out: nothing could be made for it.
    """
    releases = [release for release in list_folder(host.root, "/lib/modules") if images(host, release)]
    releases = [release for release in releases if host.exists(f"/lib/modules/{release}/modules.dep")]
    due = [release for release in releases if gone or derived.is_due(of_kernel(release), host.root)]
    return [Change("initramfs", release, "", "", "options", NONE) for release in due]


def revert(host: ManagedHost, patterns: Sequence[str], *, carried: bool) -> List[Change]:
    """Restore files, and make every initramfs again that may have a copy of them; only the changes in a check.

    carried: whether one of the files that go is in it.  What was interrupted is made up for.  Raises ApplyError.
    """
    gone = carried and bool(restoration_changes(host, patterns))
    images_due = rebuilt_changes(host, gone=gone)
    if host.check:
        return restore(host, patterns) + images_due
    with writing(derived.PATH):
        things = [of_kernel(change.subject) for change in images_due]
        # Without an option that matters there, an image that is right may keep its copy.
        others = [of_kernel(name[len(_NAME) :]) for name in derived.names(_NAME, host.root)]
        spared = [] if gone else [thing for thing in others if thing not in things]
        derived.outdate(things, host.root)
        changes = restore(host, patterns)
        derived.settle(spared, host.root, keep=any(map(host.exists, CARRIED)))
        for thing, change in zip(things, images_due):
            rebuild(host, change.subject)
            # Another resource may still have a file in it.
            derived.settle([thing], host.root, keep=any(map(host.exists, CARRIED)))
    return changes + images_due


D = TypeVar("D")


class CarriedFiles(FileResource[D]):
    """Files of which the initramfs has ``carried``; ``Desired`` names the locked kernel as ``kernel_release``."""

    kinds: ClassVar[Words] = {"initramfs": "make the initramfs of kernel {} again"}
    reasons: ClassVar[Words] = {"options": "one with other options"}
    carried: ClassVar[str] = ""

    def observe(self, host: ManagedHost, desired: Any) -> Any:
        observed = super().observe(host, desired)
        observed["initramfs"] = bool(images(host, desired.kernel_release))
        observed["due"] = derived.is_due(of_kernel(desired.kernel_release), host.root)
        return observed

    def changes(self, desired: Any, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """The files, and the initramfs; a kernel that is installed later makes its own, with these files in it."""
        changes = super().changes(desired, observed, pending)
        is_due = observed["due"] or any(change.subject == self.carried for change in changes)
        if observed["initramfs"] and is_due:
            changes.append(Change("initramfs", desired.kernel_release, "", "", "options", NONE))
        return changes

    def derives(self, host: ManagedHost, desired: Any) -> Sequence[Thing]:
        release = desired.kernel_release
        return [of_kernel(release)] if images(host, release) else []

    def apply(self, host: ManagedHost, desired: Any, change: Change) -> None:
        if change.kind == "initramfs":
            rebuild(host, desired.kernel_release)
        else:
            super().apply(host, desired, change)

    def settle(self, host: ManagedHost, desired: Any, changes: Sequence[Change]) -> None:
        """Name a kernel whose initramfs couldn't be made again."""
        if changes:
            note_unknown(host, desired.kernel_release)
