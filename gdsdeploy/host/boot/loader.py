"""What starts this host's kernels, behind three methods: which one by default, which one once, with which arguments.

The work is done by the loaders' own programs: grub-set-default, update-grub, grub-editenv and bootctl.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import process
from ..errors import HostError
from ..io import atomic
from ..rootdir import Files, inside, list_folder, read_object, read_text
from . import bls
from .bls import BlsEntry

#: What was the default before it was first set here, and everything that was set: {"before": ENTRY, "set": [ENTRY]}.
RECORD = "/var/lib/gdsdeploy/boot-default.json"
#: What kernel-install gives to the entries of later kernels.
COMMAND_LINE = "/etc/kernel/cmdline"
GRUB, ENTRIES, UNKNOWN = "grub", "entries", ""


class BootError(HostError):
    """The loader is missing, has no entry for the kernel, or refuses a change."""


class Entry(NamedTuple):
    """An entry of a menu.  ``ident``: as people name it; ``stored``: as the loader keeps it."""

    ident: str
    stored: str
    release: str


class Arguments(NamedTuple):
    """How kernels get their arguments: GRUB, ENTRIES, or UNKNOWN with the reason in ``problem``.

    GRUB: update-grub puts GRUB_CMDLINE_LINUX into every entry of grub.cfg.  ENTRIES: ``places`` are the files that have
    them, entries of the Boot Loader Specification, which neither grub2-mkconfig nor an upgrade changes.
    """

    kind: str
    places: Tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""


class Loader(ABC):
    """The boot loader of the host below ``root``.  Methods raise BootError where it can't be asked or changed.

    files: what it reads there; evidence has a record of it.  What changes the host is done to ``root``.
    """

    #: for people; where the default is stored, with ``{}`` for it; and where another setting may win
    name: ClassVar[str]
    place: ClassVar[str]
    where: ClassVar[str]
    #: seconds for one of its programs; update-grub looks at every disk
    timeout: ClassVar[float] = 600.0

    def __init__(self, root: str = "/", files: Optional[Files] = None) -> None:
        self.root, self.files = root, files or Files(root)

    @abstractmethod
    def boots(self) -> Tuple[Optional[Entry], Optional[Entry]]:
        """What boots by default, and what boots next."""

    @abstractmethod
    def entry_of(self, release: str) -> Entry:
        """The entry that boots kernel ``release``."""

    @abstractmethod
    def kept(self, release: str) -> Optional[Entry]:
        """The default where that brings up this system with kernel ``release``: an administrator's choice stays."""

    @abstractmethod
    def stored(self) -> str:
        """The stored default; empty: none."""

    @abstractmethod
    def store(self, entry: str) -> None:
        """Store a default that lasts; empty: none."""

    @abstractmethod
    def due(self, entry: Entry) -> List[str]:
        """What has to change so that ``entry`` is the lasting default, a text each."""

    @abstractmethod
    def obstacles(self) -> List[str]:
        """Why a kernel can't be booted just once here, as sentences; empty if it can."""

    @abstractmethod
    def next_entry(self) -> str:
        """The entry that boots once; empty: none."""

    @abstractmethod
    def once(self, entry: str) -> None:
        """Have an entry boot once; empty: none does.  Raises RolloutError."""

    @abstractmethod
    def words(self, release: str) -> List[List[str]]:
        """The arguments of each entry that starts kernel ``release``; without such, of every one."""

    @abstractmethod
    def arguments(self) -> Arguments:
        """How this host's kernels get their arguments."""

    def kernels(self) -> Dict[str, str]:
        """``{"default", "default_entry", "next", "next_entry"}``; a release is empty where it's unknown or no Linux."""
        (default, release), (following, later) = (
            (entry.ident, entry.release) if entry else ("", "") for entry in self.boots()
        )
        return {"default": release, "default_entry": default, "next": later, "next_entry": following}

    def default(self, release: str, *, check: bool = False) -> Dict[str, Any]:
        """Make the kernel ``release`` the default until changed again; idempotent.

        Returns ``{"changed", "changes": [text], "kernel", "entry"}``.  Raises BootError, and then nothing has changed,
        if there is no entry for it.
        """
        entry = self.kept(release) or self.entry_of(release)
        changes = self.due(entry)
        if changes and not check:
            remember(self.stored(), entry.stored, self.root)
            self.store(entry.stored)
            now = self.kernels()["default"]
            if now != release:
                words = f"{self.name} still boots {now or 'something unknown'} by default after it was set to {release}"
                raise BootError(words, self.where)
        return {"changed": bool(changes), "changes": changes, "kernel": release, "entry": entry.ident}

    def undo_default(self, *, check: bool = False) -> Dict[str, Any]:
        """Undo :meth:`default`; the same shape, with the kernel that boots by default then.

        What was the default before is so again, unless another has been set since.
        """
        before = earlier(self.stored(), self.root)
        if not check:
            if before is not None:
                self.store(before)
            atomic.remove(inside(self.root, RECORD))
        return self.answer([] if before is None else [self.place.format(before)])

    def answer(self, changes: List[str]) -> Dict[str, Any]:
        """What was changed, and what boots now."""
        now = self.kernels()
        return {"changed": bool(changes), "changes": changes, "kernel": now["default"], "entry": now["default_entry"]}

    def only_here(self) -> None:
        """Raise BootError below another root than the running system's."""
        if self.root != "/":
            raise BootError(f"{self.name} can be changed on the running system only, not below {self.root}")

    def run(self, *argv: str) -> None:
        """Run one of the loader's programs; raises BootError with the last line that it printed."""
        self.only_here()
        done = process.run(argv, self.timeout)
        if done.status != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
            raise BootError(
                f"{' '.join(argv[:2])} failed: {lines[-1]}", "the kernel that boots by default is as before"
            )


class EntriesLoader(Loader):
    """One with entries of the Boot Loader Specification."""

    #: who has the entries, for people; where kernels' images are; and what follows an entry's name where it is stored
    owner: ClassVar[str]
    image: ClassVar[str]
    suffix: ClassVar[str] = ""

    @abstractmethod
    def entries(self) -> Sequence[BlsEntry]:
        """Those that start a kernel, newest first."""

    def entry(self, found: Optional[BlsEntry]) -> Optional[Entry]:
        """One of them, as the menu has it."""
        return Entry(found.ident, found.ident + self.suffix, found.release) if found is not None else None

    def entry_of(self, release: str) -> Entry:
        listed = self.entries()
        entry = self.entry(bls.best(listed, release, self.root))
        if entry is None:
            others = ", ".join(entry.release for entry in listed) or "none"
            hint = f"install that kernel, or run kernel-install add {release} {self.image.format(release)}"
            raise BootError(f"{self.owner} has no entry for kernel {release}; it has: {others}", hint)
        return entry

    def words(self, release: str) -> List[List[str]]:
        return bls.arguments(self.entries(), release)


def loader(root: str = "/", files: Optional[Files] = None) -> Loader:
    """What starts the kernels of this host; GRUB with a grub.cfg where nothing else is recognised."""
    from .grub import EntriesGrub, MenuGrub, MenuGrub2
    from .sdboot import SystemdBoot

    known = (SystemdBoot(root, files), EntriesGrub(root, files), MenuGrub2(root, files))
    return next((one for one in known if one.present()), MenuGrub(root, files))


def entry_arguments(root: str, folder: str) -> Arguments:
    """Arguments in the entries of a folder that start a Linux kernel other than the rescue image."""
    places = kernels_in(root, folder)
    if read_text(root, COMMAND_LINE).strip():
        places.append(COMMAND_LINE)
    return Arguments(ENTRIES, tuple(places))


def kernels_in(root: str, folder: str) -> List[str]:
    """The paths of those entries."""
    names = [name for name in list_folder(root, folder) if name.endswith(".conf") and "-0-rescue" not in name]
    paths = [f"{folder}/{name}" for name in names]
    return [path for path in paths if re.search(r"^linux[ \t]", read_text(root, path), re.MULTILINE)]


def remember(now: str, entry: str, root: str) -> None:
    """Record the default ``now`` before ``entry`` is set, unless gdsdeploy has set it; empty: none."""
    before, ours = _recorded(root)
    value = {"before": before if now in ours else now, "set": [one for one in ours if one != entry] + [entry]}
    atomic.write(inside(root, RECORD), json.dumps(value) + "\n")


def earlier(now: str, root: str) -> Optional[str]:
    """What was the default, empty for none; None where nothing is recorded, or another has been set since."""
    before, ours = _recorded(root)
    return before if now in ours and now != before else None


def _recorded(root: str) -> Tuple[str, List[str]]:
    value = read_object(root, RECORD)
    ours = value.get("set")
    return str(value.get("before", "")), [str(entry) for entry in ours] if isinstance(ours, list) else []
