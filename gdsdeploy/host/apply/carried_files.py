"""Files that the locked kernel's initramfs has a copy of, which is made again when a file changes."""

from __future__ import annotations

from typing import Any, ClassVar, List, Sequence, TypeVar

from . import initramfs
from .file_resource import FileResource
from .host import ManagedHost
from .model import NONE, Change, Words

D = TypeVar("D")


class CarriedFiles(FileResource[D]):
    """Files of which the initramfs has ``carried``; ``Desired`` names the locked kernel as ``kernel_release``."""

    kinds: ClassVar[Words] = {"initramfs": "make the initramfs of kernel {} again"}
    reasons: ClassVar[Words] = {"options": "one with other options"}
    carried: ClassVar[str] = ""

    def observe(self, host: ManagedHost, desired: Any) -> Any:
        observed = super().observe(host, desired)
        observed["initramfs"] = bool(initramfs.images(host, desired.kernel_release))
        return observed

    def changes(self, desired: Any, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """The files, and the initramfs; a kernel that is installed later makes its own, with these files in it."""
        changes = super().changes(desired, observed, pending)
        if observed["initramfs"] and any(change.subject == self.carried for change in changes):
            changes.append(Change("initramfs", desired.kernel_release, "", "", "options", NONE))
        return changes

    def apply(self, host: ManagedHost, desired: Any, change: Change) -> None:
        if change.kind == "initramfs":
            initramfs.rebuild(host, desired.kernel_release)
        else:
            super().apply(host, desired, change)

    def settle(self, host: ManagedHost, desired: Any, changes: Sequence[Change]) -> None:
        """Name a kernel whose initramfs couldn't be made again."""
        if changes:
            initramfs.note_unknown(host, desired.kernel_release)
