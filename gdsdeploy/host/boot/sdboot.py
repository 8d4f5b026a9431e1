"""Which kernel systemd-boot boots: its entries, its EFI variables, and ``bootctl``, which changes them.

The variables are those of the Boot Loader Interface (systemd.io/BOOT_LOADER_INTERFACE).  systemd-boot itself forgets
the entry for one boot before it starts it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Dict, List, NamedTuple, Optional

from .. import process
from ..errors import HostError, RolloutError
from ..io import atomic
from ..rootdir import inside, list_folder, read_bytes, read_text
from .bls import RECORD, BlsEntry, best, earlier, kept, kernels_of, parse, remember

#: The boot partition, and the EFI system partition at its usual places.
PARTITIONS = ("/boot", "/efi", "/boot/efi")
_EFIVARS = "/sys/firmware/efi/efivars"
_VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
#: EFI_LOADER_FEATURE_ENTRY_DEFAULT and _ONESHOT.
_HAS_DEFAULT, _HAS_ONE_SHOT = 1 << 2, 1 << 3
#: Names of entries may count attempts: NAME+LEFT-DONE.
_COUNTED = re.compile(r"\+\d+(-\d+)?\Z")
_TIMEOUT = 60.0


class SystemdBootError(HostError):
    """There is no entry for the kernel, or bootctl refuses a change."""


class Menu(NamedTuple):
    """``folder``: of the partition with the entries; ``entries``: newest first."""

    folder: str
    entries: List[BlsEntry]


def present(root: str = "/") -> bool:
    """Whether systemd-boot started this boot."""
    return _text(root, "LoaderInfo").startswith("systemd-boot") and bool(menu(root).entries)


def menu(root: str = "/") -> Menu:
    """The entries that start a kernel."""
    for partition in PARTITIONS:
        folder = f"{partition}/loader/entries"
        entries = parse((name, read_text(root, f"{folder}/{name}")) for name in list_folder(root, folder))
        if entries:
            return Menu(partition, [entry._replace(ident=_COUNTED.sub("", entry.ident)) for entry in entries])
    return Menu("", [])


def default_kernel(root: str = "/") -> Dict[str, str]:
    """As :func:`gdsdeploy.host.boot.grub.default_kernel`."""
    listed = menu(root)
    default = _default(listed, root)
    following = _named(listed.entries, _text(root, "LoaderEntryOneShot")) or default
    return kernels_of(default, following)


def set_default(release: str, check: bool = False, root: str = "/") -> Dict[str, Any]:
    """As :func:`gdsdeploy.host.boot.grub.set_default`; raises SystemdBootError, and then nothing has changed."""
    before = _text(root, "LoaderEntryDefault")
    entry = kept(menu(root).entries, _without_suffix(before), release) or entry_of(release, root)
    changed = _without_suffix(before) != entry.ident
    if changed and not check:
        remember(before, f"{entry.ident}.conf", root)
        _bootctl(["set-default", f"{entry.ident}.conf"], root)
        now = default_kernel(root)["default"]
        if now != release:
            message = f"systemd-boot still boots {now or 'something unknown'} by default after it was set to {release}"
            raise SystemdBootError(message, "look at: bootctl list")
    changes = [f"LoaderEntryDefault ({entry.ident}.conf)"] if changed else []
    return {"changed": changed, "changes": changes, "kernel": release, "entry": entry.ident}


def clear_default(check: bool = False, root: str = "/") -> Dict[str, Any]:
    """Undo :func:`set_default`; the same shape, with the kernel that boots by default then."""
    before = earlier(_text(root, "LoaderEntryDefault"), root)
    if not check:
        if before is not None:
            _bootctl(["set-default", before], root)
        atomic.remove(inside(root, RECORD))
    changes = ["LoaderEntryDefault (as it was)"] if before is not None else []
    now = default_kernel(root)
    return {"changed": bool(changes), "changes": changes, "kernel": now["default"], "entry": now["default_entry"]}


def entry_of(release: str, root: str = "/") -> BlsEntry:
    """The entry that boots kernel ``release``; raises SystemdBootError when there is none."""
    listed = menu(root)
    entry = best(listed.entries, release, root)
    if entry is None:
        others = ", ".join(entry.release for entry in listed.entries) or "none"
        hint = f"install that kernel, or run kernel-install add {release} /boot/vmlinuz-{release}"
        raise SystemdBootError(f"systemd-boot has no entry for kernel {release}; it has: {others}", hint)
    return entry


def obstacles(root: str = "/") -> List[str]:
    """Why a kernel can't be booted just once here, as sentences; empty if it can."""
    features = int.from_bytes(_variable(root, "LoaderFeatures"), "little")
    needed = _HAS_DEFAULT | _HAS_ONE_SHOT
    return [] if features & needed == needed else ["this systemd-boot can't boot an entry once and forget it"]


def next_entry(root: str = "/") -> str:
    """The entry that boots once, as :func:`entry_of` names it; empty: none."""
    return _without_suffix(_text(root, "LoaderEntryOneShot"))


def set_next(entry: str, root: str = "/") -> None:
    """Have an entry boot once; empty: none does.  Raises RolloutError."""
    try:
        _bootctl(["set-oneshot", f"{entry}.conf" if entry else ""], root)
    except SystemdBootError as error:
        raise RolloutError("systemd-boot", error.message, error.hint) from None


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
        raise SystemdBootError(f"systemd-boot can be changed on the running system only, not below {root}")
    done = process.run(["bootctl", *words], _TIMEOUT)
    if done.status != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
        raise SystemdBootError(
            f"bootctl {words[0]} failed: {lines[-1]}", "the kernel that boots by default is as before"
        )
