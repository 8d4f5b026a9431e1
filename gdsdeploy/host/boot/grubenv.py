"""Whether GRUB can forget an entry that is to boot once, and changes to its environment.

GRUB clears ``next_entry`` in its environment file before it boots that entry.  If it can't write the file, a broken
kernel boots forever.  GRUB overwrites the file's blocks through the firmware's disk: not through LVM, RAID or
encryption (its lvm and diskfilter readers can't write), nor on btrfs, ZFS or F2FS.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional

from ..errors import RolloutError
from ..rootdir import inside, list_folder, read_text
from . import bls, grub
from .bls import environment

#: Filesystems whose file content GRUB overwrites in place.
FILESYSTEMS = ("ext2", "ext3", "ext4", "xfs", "vfat", "msdos")
SIZE = 1024
_HEADER = "# GRUB Environment Block\n"


class _Mount(NamedTuple):
    point: str
    device: str
    kind: str
    options: List[str]


def obstacles(root: str = "/") -> List[str]:
    """Why a kernel can't be booted just once here, as sentences; empty if it can."""
    if bls.present(root):
        path, config = bls.ENVIRONMENT, bls.config(root)
    else:
        path, config = grub.GRUB_ENV, read_text(root, grub.GRUB_CFG)
    if not config:
        return ["this host doesn't boot through GRUB, or its grub.cfg can't be read"]
    reasons = []
    if not re.search(r"^\s*save_env\s+(?:-f\s+\S+\s+)?next_entry\b", config, re.MULTILINE):
        reasons.append("grub.cfg has no lines that boot an entry once and forget it (save_env next_entry)")
    return reasons + _file(root, path) + _place(root, path)


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
    mount = _mount(root, path)
    if mount is None:
        return [f"the filesystem of {path} is unknown"]
    if mount.kind not in FILESYSTEMS:
        return [f"{path} is on {mount.kind}, where GRUB can't write its environment"]
    reasons = []
    if "ro" in mount.options:
        reasons.append(f"{mount.point}, which has {path}, is mounted read-only")
    if "data=journal" in mount.options:
        reasons.append(f"{path} is on ext4 with data=journal: replaying the journal undoes what GRUB writes")
    return reasons + _disk(root, mount, path)


def _disk(root: str, mount: _Mount, path: str) -> List[str]:
    folder = "/sys/dev/block/" + mount.device
    if not os.path.isdir(inside(root, folder)):
        return [f"{path} is on no disk that the kernel shows ({mount.device})"]
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


def _mount(root: str, path: str) -> Optional[_Mount]:
    """The mount that has ``path``; the last one of several on one folder."""
    place = "/" + os.path.relpath(inside(root, path), root)
    best: Optional[_Mount] = None
    for line in read_text(root, "/proc/self/mountinfo").splitlines():
        first, _, last = line.partition(" - ")
        fields, rest = first.split(), last.split()
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), fields[4])
        if place.startswith(point.rstrip("/") + "/") and (best is None or len(point) >= len(best.point)):
            best = _Mount(point, fields[2], rest[0], (fields[5] + "," + rest[2]).split(","))
    return best


def variables(root: str = "/") -> Dict[str, str]:
    """GRUB's environment."""
    return environment(read_text(root, _path(root)))


def next_entry(root: str = "/") -> str:
    """The entry that boots once; empty: none."""
    return variables(root).get("next_entry", "")


def set_next(entry: str, root: str = "/") -> None:
    """Have an entry boot once; empty: none does.  Raises RolloutError."""
    change(["set", f"next_entry={entry}"] if entry else ["unset", "next_entry"], root)


def change(words: List[str], root: str = "/") -> None:
    """``set name=value …`` or ``unset name …``, on the disk when this returns; raises RolloutError."""
    path = inside(root, _path(root))
    problem = bls.edit(path, words)
    if problem is not None:
        raise RolloutError("grub", problem[0], problem[1] or "what boots next is as before")
    for each in (path, os.path.dirname(path)):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _path(root: str) -> str:
    return bls.ENVIRONMENT if bls.present(root) else grub.GRUB_ENV
