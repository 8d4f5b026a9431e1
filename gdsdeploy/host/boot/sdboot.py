"""systemd-boot: its entries, its EFI variables, and ``bootctl``, which changes them.

The variables are those of the Boot Loader Interface (systemd.io/BOOT_LOADER_INTERFACE).  systemd-boot itself forgets
the entry for one boot before it starts it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import List, NamedTuple, Optional, Tuple

from .. import process
from ..errors import RolloutError
from ..rootdir import list_folder, read_bytes, read_text
from .bls import BlsEntry, best, kept, parse
from .loader import UNKNOWN, Arguments, BootError, Entry, Loader, entry_arguments, kernels_in

#: The boot partition, and the EFI system partition at its usual places.
PARTITIONS = ("/boot", "/efi", "/boot/efi")
_EFIVARS = "/sys/firmware/efi/efivars"
_VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
#: EFI_LOADER_FEATURE_ENTRY_DEFAULT and _ONESHOT.
_HAS_DEFAULT, _HAS_ONE_SHOT = 1 << 2, 1 << 3
#: Names of entries may count attempts: NAME+LEFT-DONE.
_COUNTED = re.compile(r"\+\d+(-\d+)?\Z")
_TIMEOUT = 60.0


class Menu(NamedTuple):
    """``folder``: of the partition with the entries; ``entries``: newest first."""

    folder: str
    entries: List[BlsEntry]


def menu(root: str = "/") -> Menu:
    """The entries that start a kernel."""
    for partition in PARTITIONS:
        folder = f"{partition}/loader/entries"
        entries = parse((name, read_text(root, f"{folder}/{name}")) for name in list_folder(root, folder))
        if entries:
            return Menu(partition, [entry._replace(ident=_COUNTED.sub("", entry.ident)) for entry in entries])
    return Menu("", [])


class SystemdBoot(Loader):
    """Names of entries are without ``.conf``, which its variables have."""

    name = "systemd-boot"
    place = "LoaderEntryDefault (as it was)"
    where = "look at: bootctl list"

    @classmethod
    def present(cls, root: str = "/") -> bool:
        """Whether systemd-boot started this boot."""
        return _text(root, "LoaderInfo").startswith("systemd-boot") and bool(menu(root).entries)

    def boots(self) -> Tuple[Optional[Entry], Optional[Entry]]:
        listed = menu(self.root)
        default = _default(listed, self.root)
        following = _named(listed.entries, _text(self.root, "LoaderEntryOneShot")) or default
        return _entry(default), _entry(following)

    def entry_of(self, release: str) -> Entry:
        listed = menu(self.root)
        entry = _entry(best(listed.entries, release, self.root))
        if entry is None:
            others = ", ".join(entry.release for entry in listed.entries) or "none"
            hint = f"install that kernel, or run kernel-install add {release} /boot/vmlinuz-{release}"
            raise BootError(f"systemd-boot has no entry for kernel {release}; it has: {others}", hint)
        return entry

    def kept(self, release: str) -> Optional[Entry]:
        return _entry(kept(menu(self.root).entries, _without_suffix(self.stored()), release))

    def stored(self) -> str:
        return _text(self.root, "LoaderEntryDefault")

    def store(self, entry: str) -> None:
        _bootctl(["set-default", entry], self.root)

    def due(self, entry: Entry) -> List[str]:
        return [] if _without_suffix(self.stored()) == entry.ident else [f"LoaderEntryDefault ({entry.stored})"]

    def obstacles(self) -> List[str]:
        features = int.from_bytes(_variable(self.root, "LoaderFeatures"), "little")
        needed = _HAS_DEFAULT | _HAS_ONE_SHOT
        return [] if features & needed == needed else ["this systemd-boot can't boot an entry once and forget it"]

    def next_entry(self) -> str:
        return _without_suffix(_text(self.root, "LoaderEntryOneShot"))

    def once(self, entry: str) -> None:
        try:
            _bootctl(["set-oneshot", f"{entry}.conf" if entry else ""], self.root)
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


def _entry(entry: Optional[BlsEntry]) -> Optional[Entry]:
    return Entry(entry.ident, f"{entry.ident}.conf", entry.release) if entry is not None else None


def _default(listed: Menu, root: str) -> Optional[BlsEntry]:
    """systemd-boot takes the variable, then loader.conf, then the newest entry."""
    named = _named(listed.entries, _text(root, "LoaderEntryDefault"))
    if named is not None:
        return named
    lines = read_text(root, f"{listed.folder}/loader/loader.conf").splitlines()
    patterns = [line.split()[1] for line in lines if line.startswith("default") and len(line.split()) == 2]
    for pattern in patterns[-1:]:
        for entry in listed.entries:
            if fnmatch.fnmatchcase(f"{entry.ident}.conf".lower(), pattern.lower()):
                return entry
    return listed.entries[0] if listed.entries else None


def _named(entries: List[BlsEntry], choice: str) -> Optional[BlsEntry]:
    return next((entry for entry in entries if choice and entry.ident == _without_suffix(choice)), None)


def _without_suffix(name: str) -> str:
    return _COUNTED.sub("", name[: -len(".conf")] if name.endswith(".conf") else name)


def _text(root: str, name: str) -> str:
    """The text in a variable; empty where it isn't set."""
    return _variable(root, name).decode("utf-16-le", "replace").partition("\0")[0]


def _variable(root: str, name: str) -> bytes:
    """The content of a variable, after four bytes of attributes."""
    return read_bytes(root, f"{_EFIVARS}/{name}-{_VENDOR}")[4:]


def _bootctl(words: List[str], root: str) -> None:
    if root != "/":
        raise BootError(f"systemd-boot can be changed on the running system only, not below {root}")
    done = process.run(["bootctl", *words], _TIMEOUT)
    if done.status != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
        raise BootError(f"bootctl {words[0]} failed: {lines[-1]}", "the kernel that boots by default is as before")
