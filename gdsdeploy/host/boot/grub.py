"""GRUB: which kernel boots by default and once, by its environment; by a menu in grub.cfg, or by entries as on RHEL.

GRUB clears ``next_entry`` in its environment file before it boots that entry.  If it can't write the file, a broken
kernel boots forever.  GRUB overwrites the file's blocks through the firmware's disk: not through LVM, RAID or
encryption (its lvm and diskfilter readers can't write), nor on btrfs, ZFS or F2FS.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import process
from ..errors import RolloutError
from ..io import atomic
from ..io.mounts import Mounts
from ..paths import GRUB2_FILES, MOUNTINFO
from ..rootdir import inside, list_folder, read_text
from . import bls
from .arguments import grub_lines
from .bls import ENTRIES, ENVIRONMENT, BlsEntry, MenuEntry, environment, menu_choice, menu_entries, of_this_system
from .loader import GRUB, RECORD, UNKNOWN, Arguments, BootError, EntriesLoader, Entry, Loader, earlier, entry_arguments
from .sdboot import SystemdBoot

GRUB_CFG = "/boot/grub/grub.cfg"
GRUB_ENV = "/boot/grub/grubenv"
DEFAULTS = "/etc/default/grub.d/gdsdeploy.cfg"
_DEFAULTS_TEXT = "# Written by gdsdeploy: the kernel to boot is kept in /boot/grub/grubenv.\nGRUB_DEFAULT=saved\n"
#: In grub.cfg, of GRUB_DEFAULT=saved.
_SAVED = "${saved_entry}"
_UPDATE = ("/usr/sbin/update-grub", "/sbin/update-grub")
#: Filesystems whose file content GRUB overwrites in place.
FILESYSTEMS = ("ext2", "ext3", "ext4", "xfs", "vfat", "msdos")
SIZE = 1024
_HEADER = "# GRUB Environment Block\n"


class _Grub(Loader):
    """Its environment, in the file ``environment``; ``config``: the text of grub.cfg, empty where it can't be read."""

    name = "GRUB"
    where = "look for another GRUB_DEFAULT in /etc/default/grub.d"
    environment: str
    config: str

    def variables(self) -> Dict[str, str]:
        """GRUB's environment."""
        return environment(self.files.text(self.environment))

    def stored(self) -> str:
        return self.variables().get("saved_entry", "")

    def change(self, words: List[str]) -> None:
        """``set name=value …`` or ``unset name …`` in the environment; raises BootError."""
        for editor in ("grub2-editenv", "grub-editenv"):
            done = process.run([editor, inside(self.root, self.environment), *words], self.timeout)
            if done.status == 0:
                return
            if done.status != process.NOT_FOUND:
                words_of_error = f"{editor} failed: {(done.stderr or done.stdout).strip()}"
                raise BootError(words_of_error, "what boots next and by default is as before")
        message = "neither grub2-editenv nor grub-editenv is installed"
        raise BootError(message, "install grub-common or grub2-tools-minimal")

    def next_entry(self) -> str:
        return self.variables().get("next_entry", "")

    def once(self, entry: str) -> None:
        """On the disk when this returns."""
        try:
            self.change(["set", f"next_entry={entry}"] if entry else ["unset", "next_entry"])
        except BootError as error:
            raise RolloutError("grub", error.message, error.hint) from None
        path = inside(self.root, self.environment)
        for each in (path, os.path.dirname(path)):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def obstacles(self) -> List[str]:
        if not self.config:
            return ["this host doesn't boot through GRUB, or its grub.cfg can't be read"]
        reasons = []
        if not re.search(r"^\s*save_env\s+(?:-f\s+\S+\s+)?next_entry\b", self.config, re.MULTILINE):
            reasons.append("grub.cfg has no lines that boot an entry once and forget it (save_env next_entry)")
        return reasons + _file(self.root, self.environment) + _place(self.root, self.environment)


class EntriesGrub(EntriesLoader, _Grub):
    """GRUB as RHEL has it: ``saved_entry`` names the file of an entry without ``.conf``."""

    # On RHEL, it may be a link into the EFI system partition; it is followed.
    environment = ENVIRONMENT
    place = ENVIRONMENT + " (saved_entry={})"
    owner = ENTRIES
    image = "/lib/modules/{}/vmlinuz"

    def entries(self) -> Sequence[BlsEntry]:
        return bls.entries(self.files)

    def present(self) -> bool:
        """Whether this machine has such entries, and GRUB reads them.

        GRUB's editor makes an environment that isn't there yet.
        """
        is_grub = self.files.exists(ENVIRONMENT) or "blscfg" in self.config
        return is_grub and bool(self.entries())

    @property
    def config(self) -> str:  # type: ignore[override]
        return bls.config(self.files)

    def boots(self) -> Tuple[Optional[Entry], Optional[Entry]]:
        entries, variables, fixed = self.entries(), self.variables(), self._fixed()
        choice = variables.get("saved_entry", "") if fixed is None else fixed
        # With a variable, what it starts is only known while it boots.
        default = bls.resolve(entries, choice) if "$" not in choice else None
        following = bls.resolve(entries, variables["next_entry"]) if variables.get("next_entry") else default
        return self.entry(default), self.entry(following)

    def kept(self, release: str) -> Optional[Entry]:
        return self.entry(bls.kept(self.entries(), self.kernels()["default_entry"], release))

    def store(self, entry: str) -> None:
        self.change(["set", f"saved_entry={entry}"] if entry else ["unset", "saved_entry"])

    def due(self, entry: Entry) -> List[str]:
        """One that boots the kernel by its name or title stays; a number, or none, moves with the next kernel."""
        fixed, before = self._fixed(), self.stored()
        if fixed is not None and self.kernels()["default"] != entry.release:
            hint = "set GRUB_DEFAULT=saved in /etc/default/grub, then run grub2-mkconfig -o /boot/grub2/grub.cfg"
            raise BootError(f"grub.cfg always boots the entry {fixed!r}, whatever saved_entry is", hint)
        titles = [one.title for one in self.entries() if one.ident == entry.ident]
        return [] if before and before in (entry.ident, *titles) else [self.place.format(entry.ident)]

    def _fixed(self) -> Optional[str]:
        """The entry that grub.cfg names itself; None where it takes saved_entry (GRUB_DEFAULT=saved)."""
        choices = re.findall(r'^\s*set default="([^"]*)"', self.config, re.MULTILINE)
        choices = [choice for choice in choices if choice != "${next_entry}"]
        return choices[-1] if choices and _SAVED not in choices else None

    def arguments(self) -> Arguments:
        if any("blscfg" in read_text(self.root, path) for path in GRUB2_FILES):
            return entry_arguments(self.root, ENTRIES)
        problem = f"no grub.cfg reads {ENTRIES} (blscfg), so arguments there would have no effect"
        return Arguments(UNKNOWN, (), problem, "switch GRUB to these entries: grub2-switch-to-blscfg")


class MenuGrub(_Grub):
    """GRUB as Debian and Ubuntu have it: update-grub writes the menu in grub.cfg."""

    environment = GRUB_ENV
    place = GRUB_ENV + " (saved_entry={})"

    @property
    def config(self) -> str:  # type: ignore[override]
        return self.files.text(GRUB_CFG)

    def menu(self) -> Sequence[MenuEntry]:
        """Its entries; raises BootError without a grub.cfg."""
        text = self.config
        if not text:
            hint = "this host doesn't boot through GRUB, or it needs update-grub, or root"
            raise BootError(f"{os.path.join(self.root, GRUB_CFG.lstrip('/'))} is missing or can't be read", hint)
        return menu_entries(text)

    def boots(self) -> Tuple[Optional[Entry], Optional[Entry]]:
        menu, variables = self.menu(), self.variables()
        choices = re.findall(r'^\s*set default="([^"]*)"', self.config, re.MULTILINE)
        fixed = next((choice for choice in reversed(choices) if choice != "${next_entry}"), "0")
        choice = variables.get("saved_entry", "0") if fixed == _SAVED else fixed
        # GRUB takes the first entry if the choice matches none; with a variable, it's only known while it boots.
        default = menu_choice(menu, choice) or (menu[0] if menu and "$" not in choice else None)
        once = menu_choice(menu, variables["next_entry"]) if variables.get("next_entry") else None
        return _in_menu(default), _in_menu(once or default)

    def entry_of(self, release: str) -> Entry:
        menu = self.menu()
        matching = _entries(menu, release)
        if not matching:
            listed = ", ".join(sorted({entry.release for entry in menu if entry.release})) or "none"
            hint = f"install linux-image-{release}, then run update-grub"
            raise BootError(f"GRUB has no entry for kernel {release}; it has: {listed}", hint)
        # The id of the topmost entry, which starts the newest kernel, has no release.
        best = min(matching, key=lambda entry: (not entry.is_made, release not in entry.path.split(">")[-1]))
        return Entry(best.path, best.path, best.release)

    def chosen(self, release: str) -> Optional[MenuEntry]:
        """The entry that is saved as the default and brings up this system with kernel ``release``.

        None also for one that moves with the next kernel: a number, or the topmost entry that update-grub makes.
        """
        menu = self.menu()
        entry = menu_choice(menu, self.stored()) if self._takes_saved() else None
        if entry is None or entry not in _entries(menu, release) or re.fullmatch(r"[\d>]+", self.stored()):
            return None
        return None if entry.is_made and release not in entry.path else entry

    def kept(self, release: str) -> Optional[Entry]:
        return _in_menu(self.chosen(release))

    def default(self, release: str, *, check: bool = False) -> Dict[str, Any]:
        listed = any(entry.release == release for entry in self.menu())
        if not listed and os.path.lexists(inside(self.root, f"/boot/vmlinuz-{release}")):
            # Packages of kernels make no entry in what they take for a container: any namespace of processes, also one
            # in which an image is provisioned.
            if check:
                return {"changed": True, "changes": [f"{GRUB_CFG} (update-grub)"], "kernel": release, "entry": ""}
            self.only_here()
            self.run("update-grub")
        answer = super().default(release, check=True)
        if check or not answer["changed"]:
            return answer
        self.only_here()
        return super().default(release)

    def due(self, entry: Entry) -> List[str]:
        changes = []
        if read_text(self.root, DEFAULTS) != _DEFAULTS_TEXT:
            changes.append(f"{DEFAULTS} (GRUB_DEFAULT=saved)")
        if not self._takes_saved():
            changes.append(f"{GRUB_CFG} (update-grub)")
        listed = [one for one in self.menu() if one.path == entry.ident]
        if menu_choice(listed, self.stored()) is None:
            changes.append(self.place.format(entry.ident))
        return changes

    def store(self, entry: str) -> None:
        # The entry first: with it stored, a failure below leaves a machine that boots as before.
        self.run("grub-set-default", entry)
        atomic.sweep(inside(self.root, DEFAULTS))
        atomic.write(inside(self.root, DEFAULTS), _DEFAULTS_TEXT)
        self.run("update-grub")

    def undo_default(self, *, check: bool = False) -> Dict[str, Any]:
        changes, before = [], earlier(self.stored(), self.root)
        if before is not None:
            changes.append(self.place.format(before))
        if os.path.lexists(inside(self.root, DEFAULTS)):
            changes.append(f"{DEFAULTS} (removed)")
        # The record goes last: while it is there, grub.cfg may still be ours.
        elif os.path.lexists(inside(self.root, RECORD)):
            changes.append(f"{GRUB_CFG} (update-grub)")
        if not changes and not os.path.lexists(inside(self.root, GRUB_CFG)):
            # A builder or a container has no menu.
            return {"changed": False, "changes": [], "kernel": "", "entry": ""}
        if changes and not check:
            self.only_here()
            if before is not None:
                # Without an entry, grub-set-default would store one that is empty.
                words = ["set", f"saved_entry={before}"] if before else ["unset", "saved_entry"]
                self.run("grub-editenv", GRUB_ENV, *words)
            atomic.sweep(inside(self.root, DEFAULTS))
            atomic.remove(inside(self.root, DEFAULTS))
            self.run("update-grub")
            atomic.remove(inside(self.root, RECORD))
        return self.answer(changes)

    def words(self, release: str) -> List[List[str]]:
        return grub_lines(self.config, release) if self.config else SystemdBoot(self.root, self.files).words(release)

    def arguments(self) -> Arguments:
        if not self.config:
            return SystemdBoot(self.root).arguments()
        if any(os.path.exists(inside(self.root, program)) for program in _UPDATE):
            return Arguments(GRUB)
        return Arguments(UNKNOWN, (), f"{GRUB_CFG} is there, but no update-grub", "install grub2-common")

    def _takes_saved(self) -> bool:
        return f'set default="{_SAVED}"' in self.config


#: Of MenuGrub2.
_OTHERS = f"the menu in {GRUB2_FILES[0]} is of grub2-mkconfig, which gdsdeploy doesn't run"


class MenuGrub2(MenuGrub):
    """GRUB as SUSE has it, and RHEL without entries: grub2-mkconfig writes the menu.  It is read, and never changed."""

    environment = ENVIRONMENT

    @property
    def config(self) -> str:  # type: ignore[override]
        return bls.config(self.files)

    def present(self) -> bool:
        """Whether its menu starts kernels."""
        return not self.files.exists(GRUB_CFG) and any(entry.release for entry in menu_entries(self.config))

    def default(self, release: str, *, check: bool = False) -> Dict[str, Any]:  # noqa: ARG002 - it changes nothing
        answer = self.answer([])
        if answer["kernel"] != release:
            raise BootError(
                _OTHERS, "set the default yourself: grub2-set-default; or switch to entries: grub2-switch-to-blscfg"
            )
        return answer

    def arguments(self) -> Arguments:
        return Arguments(UNKNOWN, (), _OTHERS, "set the arguments yourself, and leave boot out of the profile")


def _in_menu(entry: Optional[MenuEntry]) -> Optional[Entry]:
    return Entry(entry.path, entry.path, entry.release) if entry is not None else None


def _entries(menu: Sequence[MenuEntry], release: str) -> List[MenuEntry]:
    """Those that bring up this system with kernel ``release``."""
    own = [entry.words for entry in menu if entry.is_made]
    listed = [entry for entry in menu if entry.release == release and not entry.recovery]
    return [entry for entry in listed if of_this_system(entry.words, own)]


def _file(root: str, path: str) -> List[str]:
    place = inside(root, path)
    try:
        status = os.stat(place)
        with open(place, "rb") as file:
            header = file.read(len(_HEADER)).decode("ascii", "replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path} can't be read: {error.strerror}"]
    if status.st_size != SIZE or header != _HEADER:
        return [f"{path} isn't one of GRUB's environment blocks, which have {SIZE} bytes"]
    return [f"{path} has no disk blocks that GRUB could write to"] if status.st_blocks * 512 < SIZE else []


def _place(root: str, path: str) -> List[str]:
    mount = Mounts(read_text(root, MOUNTINFO)).at("/" + os.path.relpath(inside(root, path), root))
    if mount is None:
        return [f"the filesystem of {path} is unknown"]
    if mount.filesystem not in FILESYSTEMS:
        return [f"{path} is on {mount.filesystem}, where GRUB can't write its environment"]
    reasons = []
    if "ro" in mount.options:
        reasons.append(f"{mount.point}, which has {path}, is mounted read-only")
    if "data=journal" in mount.options:
        reasons.append(f"{path} is on ext4 with data=journal: replaying the journal undoes what GRUB writes")
    return reasons + _disk(root, mount.number, path)


def _disk(root: str, number: str, path: str) -> List[str]:
    folder = "/sys/dev/block/" + number
    if not os.path.isdir(inside(root, folder)):
        return [f"{path} is on no disk that the kernel shows ({number})"]
    uuid = read_text(root, folder + "/dm/uuid").strip()
    kinds = {"dm": "the device mapper", "md": "software RAID", "bcache": "bcache", "loop": "a loop"}
    disk = next((kind for name, kind in kinds.items() if os.path.isdir(inside(root, f"{folder}/{name}"))), "")
    if uuid:
        # Multipath is one disk to the firmware.
        kind = re.sub(r"^part\d+-", "", uuid).partition("-")[0]
        disk = {"CRYPT": "an encrypted disk", "mpath": ""}.get(kind, kind or kinds["dm"])
    # A partition of a RAID, as with firmware metadata: the RAID is its parent.
    elif os.path.exists(inside(root, folder + "/partition")) and "md" in list_folder(root, folder + "/.."):
        disk = disk or kinds["md"]
    return [f"{path} is on {disk}, through which GRUB can't write"] if disk else []
