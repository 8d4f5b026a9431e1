"""systemd-boot: its entries, its EFI variables, and ``bootctl``, which changes them.

The variables are those of the Boot Loader Interface (systemd.io/BOOT_LOADER_INTERFACE).  systemd-boot itself forgets
the entry for one boot before it starts it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

from ..errors import RolloutError
from ..paths import EFI, PARTITIONS
from ..rootdir import Files, list_folder, read_text
from .bls import BlsEntry, entries, kept
from .loader import UNKNOWN, Arguments, BootError, EntriesLoader, Entry, entry_arguments, kernels_in

#: Names of its variables that decide what boots.
VARIABLES = ("LoaderInfo", "LoaderEntryDefault", "LoaderEntryOneShot")
#: EFI_LOADER_FEATURE_ENTRY_DEFAULT and _ONESHOT.
_HAS_DEFAULT, _HAS_ONE_SHOT = 1 << 2, 1 << 3
#: Names of entries may count attempts: NAME+LEFT-DONE.
_COUNTED = re.compile(r"\+\d+(-\d+)?\Z")


class Menu(NamedTuple):
    """``folder``: of the partition with the entries; ``entries``: newest first."""

    folder: str
    entries: List[BlsEntry]


def menu(files: Files) -> Menu:
    """The entries that start a kernel."""
    for partition in PARTITIONS:
        listed = entries(files, f"{partition}/loader/entries")
        if listed:
            return Menu(partition, [entry._replace(ident=_COUNTED.sub("", entry.ident)) for entry in listed])
    return Menu("", [])


class SystemdBoot(EntriesLoader):
    """Names of entries are without ``.conf``, which its variables have."""

    name = "systemd-boot"
    place = "LoaderEntryDefault (as it was)"
    where = "look at: bootctl list"
    owner = name
    image = "/boot/vmlinuz-{}"
    suffix = ".conf"

    def entries(self) -> Sequence[BlsEntry]:
        return menu(self.files).entries

    def present(self) -> bool:
        """Whether systemd-boot started this boot."""
        return _text(self.files, "LoaderInfo").startswith("systemd-boot") and bool(self.entries())

    def boots(self) -> Tuple[Optional[Entry], Optional[Entry]]:
        listed = menu(self.files)
        default = _default(listed, self.files)
        following = _named(listed.entries, _text(self.files, "LoaderEntryOneShot")) or default
        return self.entry(default), self.entry(following)

    def kept(self, release: str) -> Optional[Entry]:
        return self.entry(kept(self.entries(), _without_suffix(self.stored()), release))

    def stored(self) -> str:
        return _text(self.files, "LoaderEntryDefault")

    def store(self, entry: str) -> None:
        self.run("bootctl", "set-default", entry)

    def due(self, entry: Entry) -> List[str]:
        return [] if _without_suffix(self.stored()) == entry.ident else [f"LoaderEntryDefault ({entry.stored})"]

    def obstacles(self) -> List[str]:
        features = int.from_bytes(_variable(self.files, "LoaderFeatures"), "little")
        needed = _HAS_DEFAULT | _HAS_ONE_SHOT
        return [] if features & needed == needed else ["this systemd-boot can't boot an entry once and forget it"]

    def next_entry(self) -> str:
        return _without_suffix(_text(self.files, "LoaderEntryOneShot"))

    def once(self, entry: str) -> None:
        try:
            self.run("bootctl", "set-oneshot", f"{entry}.conf" if entry else "")
        except BootError as error:
            raise RolloutError("systemd-boot", error.message, error.hint) from None

    def arguments(self) -> Arguments:
        """Also of a system that another loader has started, or none."""
        for partition in PARTITIONS:
            images = [
                name for name in list_folder(self.root, f"{partition}/EFI/Linux") if name.lower().endswith(".efi")
            ]
            if images:
                problem = f"{partition}/EFI/Linux/{images[0]} is a unified kernel image, which has its arguments inside"
                hint = "build it with these arguments, and leave boot out of the profile"
                return Arguments(UNKNOWN, (), problem, hint)
        for partition in PARTITIONS:
            folder = f"{partition}/loader/entries"
            if kernels_in(self.root, folder) and read_text(self.root, f"{partition}/loader/loader.conf"):
                return entry_arguments(self.root, folder)
        problem = "no boot loader is recognised: no /boot/grub/grub.cfg with update-grub, no /boot/grub2/grubenv with"
        problem += " /boot/loader/entries, no loader/loader.conf of systemd-boot with entries"
        return Arguments(UNKNOWN, (), problem, "set the arguments yourself, and leave boot out of the profile")


def _default(listed: Menu, files: Files) -> Optional[BlsEntry]:
    """systemd-boot takes the variable, then loader.conf, then the newest entry; None where the boot before decides."""
    named = _named(listed.entries, _text(files, "LoaderEntryDefault"))
    if named is not None:
        return named
    lines = files.text(f"{listed.folder}/loader/loader.conf").splitlines()
    patterns = [line.split()[1] for line in lines if line.startswith("default") and len(line.split()) == 2]
    for pattern in patterns[-1:]:
        if pattern.startswith("@"):
            # The one that booted last, as it was chosen in the menu.
            return None
        for entry in listed.entries:
            if fnmatch.fnmatchcase(f"{entry.ident}.conf".lower(), pattern.lower()):
                return entry
    return listed.entries[0] if listed.entries else None


def _named(entries: List[BlsEntry], choice: str) -> Optional[BlsEntry]:
    return next((entry for entry in entries if choice and entry.ident == _without_suffix(choice)), None)


def _without_suffix(name: str) -> str:
    return _COUNTED.sub("", name[: -len(".conf")] if name.endswith(".conf") else name)


def _text(files: Files, name: str) -> str:
    """The text in a variable; empty where it isn't set."""
    return _variable(files, name).decode("utf-16-le", "replace").partition("\0")[0]


def variable(name: str) -> str:
    """The path of a variable of the Boot Loader Interface."""
    return f"{EFI}/efivars/{name}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


def _variable(files: Files, name: str) -> bytes:
    """The content of a variable, after four bytes of attributes."""
    return files.content(variable(name))[4:]
