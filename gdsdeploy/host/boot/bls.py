"""Which kernel boots where the menu is made of Boot Loader Specification entries, as on RHEL and its like.

An entry is a file in /boot/loader/entries; its name without ``.conf`` is what ``saved_entry`` in GRUB's environment
names.  GRUB shows them newest first and takes the first one where nothing fits (blscfg in GRUB's own source).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

from .. import process
from ..errors import HostError
from ..rootdir import inside, list_folder, read_text
from .grubmenu import environment

ENTRIES = "/boot/loader/entries"
#: On RHEL, /boot/grub2/grubenv may be a link into the EFI system partition; it is followed.
ENVIRONMENT = "/boot/grub2/grubenv"
_EDITORS = ("grub2-editenv", "grub-editenv")
_TIMEOUT = 60.0


class BlsError(HostError):
    """There is no entry for the kernel, or GRUB's environment cannot be changed."""


class BlsEntry(NamedTuple):
    """``ident``: the file's name without ``.conf``; ``release``: of its kernel, as the entry has it."""

    ident: str
    release: str


def present(root: str = "/") -> bool:
    """Whether this machine boots through such entries: it has some, and GRUB's environment is where RHEL keeps it."""
    return bool(entries(root)) and os.path.exists(inside(root, ENVIRONMENT))


def entries(root: str = "/") -> List[BlsEntry]:
    """Every entry that starts a kernel other than the rescue image, newest first as GRUB sorts them."""
    found = []
    for name in list_folder(root, ENTRIES):
        if not name.endswith(".conf") or "-0-rescue" in name:
            continue
        text = read_text(root, ENTRIES + "/" + name)
        fields = dict(re.findall(r"^(version|linux)\s+(\S+)", text, re.MULTILINE))
        image = os.path.basename(fields.get("linux", "")).partition("-")[2]
        release = fields.get("version") or image
        if release:
            found.append(BlsEntry(name[: -len(".conf")], release))
    return sorted(found, key=lambda item: _order(item.release), reverse=True)


def default_kernel(root: str = "/") -> Dict[str, str]:
    """As :func:`gdsdeploy.host.boot.grub.default_kernel`."""
    found = entries(root)
    env = environment(read_text(root, ENVIRONMENT))
    default = _named(found, env.get("saved_entry", "")) or (found[0] if found else None)
    following = _named(found, env.get("next_entry", "")) or default
    return {
        "default": default.release if default else "",
        "default_entry": default.ident if default else "",
        "next": following.release if following else "",
        "next_entry": following.ident if following else "",
    }


def set_default(release: str, check: bool = False, root: str = "/") -> Dict[str, Any]:
    """As :func:`gdsdeploy.host.boot.grub.set_default`; raises BlsError and then nothing has changed."""
    entry = entry_of(release, root)
    changes = []
    if environment(read_text(root, ENVIRONMENT)).get("saved_entry") != entry.ident:
        changes.append(f"{ENVIRONMENT} (saved_entry={entry.ident})")
    if changes and not check:
        _edit(root, ["set", f"saved_entry={entry.ident}"])
    return {"changed": bool(changes), "changes": changes, "kernel": release, "entry": entry.ident}


def entry_of(release: str, root: str = "/") -> BlsEntry:
    """The entry that boots kernel ``release``; raises BlsError when there is none."""
    entry = next((item for item in entries(root) if item.release == release), None)
    if entry is None:
        known = ", ".join(item.release for item in entries(root)) or "none"
        raise BlsError(
            f"{ENTRIES} has no entry for kernel {release}; it has: {known}",
            "install that kernel, or run kernel-install add for it",
        )
    return entry


def clear_default(root: str = "/") -> Dict[str, Any]:
    """Nothing to undo: these systems always keep an entry there, and the next kernel that is installed replaces it."""
    now = default_kernel(root)
    return {"changed": False, "changes": [], "kernel": now["default"], "entry": now["default_entry"]}


def _named(found: List[BlsEntry], wanted: str) -> Optional[BlsEntry]:
    if re.fullmatch(r"\d{1,4}", wanted):
        return found[int(wanted)] if int(wanted) < len(found) else None
    return next((item for item in found if item.ident == wanted), None)


def _order(release: str) -> List[Any]:
    """A key that puts numbers by value and before words, as version comparisons do."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[A-Za-z]+", release)]


def _edit(root: str, words: List[str]) -> None:
    path = inside(root, ENVIRONMENT)
    for editor in _EDITORS:
        done = process.run([editor, path, *words], _TIMEOUT)
        if done.status == 0:
            return
        if done.status != process.NOT_FOUND:
            raise BlsError(f"{editor} failed: {(done.stderr or done.stdout).strip()}", "the default is as before")
    raise BlsError("neither {} is installed".format(" nor ".join(_EDITORS)), "install grub2-tools-minimal")
