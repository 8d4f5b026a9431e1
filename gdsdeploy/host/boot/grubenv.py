"""Whether GRUB can forget an entry that was to be booted once, and changes to its environment.

GRUB boots ``next_entry`` and, before it does, empties it in its environment file.  Where it cannot write that file, the
same entry is booted again and again: a kernel that does not come up would then never give way to the default.  GRUB
writes through the firmware's disk, into the blocks that the file has already: neither through LVM, RAID or encryption
(no write support in its lvm and diskfilter readers), nor where content is copied, checksummed or compressed on writing
(btrfs, ZFS, F2FS).  So what is known to work is allowed, and all else is refused.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional

from .. import process
from ..errors import RolloutError
from ..rootdir import inside, list_folder, read_text
from . import bls, grub
from .grubmenu import environment

#: Filesystems whose file content GRUB overwrites in place.
FILESYSTEMS = ("ext2", "ext3", "ext4", "xfs", "vfat", "msdos")
SIZE = 1024
_HEADER = "# GRUB Environment Block\n"
_BLS_CFG = ("/boot/grub2/grub.cfg", "/etc/grub2.cfg", "/etc/grub2-efi.cfg")
_EDITORS = ("grub-editenv", "grub2-editenv")
_TIMEOUT = 60.0


class _Mount(NamedTuple):
    point: str
    device: str
    kind: str
    options: List[str]


def obstacles(root: str = "/") -> List[str]:
    """Why a kernel cannot be booted just once here, as sentences; empty when it can."""
    if bls.present(root):
        path, texts = bls.ENVIRONMENT, [read_text(root, name) for name in _BLS_CFG]
    else:
        path, texts = grub.GRUB_ENV, [read_text(root, grub.GRUB_CFG)]
    config = next((text for text in texts if text), "")
    if not config:
        return ["this host does not boot through GRUB, or its grub.cfg cannot be read"]
    found = []
    if not re.search(r"^\s*save_env\s+(?:-f\s+\S+\s+)?next_entry\b", config, re.MULTILINE):
        found.append("grub.cfg has no lines that boot an entry once and forget it (save_env next_entry)")
    return found + _file(root, path) + _place(root, path)


def _file(root: str, path: str) -> List[str]:
    place = inside(root, path)
    try:
        size = os.stat(place)
        with open(place, "rb") as file:
            header = file.read(len(_HEADER)).decode("ascii", "replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path} cannot be read: {error.strerror}"]
    if size.st_size != SIZE or header != _HEADER:
        return [f"{path} is not an environment block of GRUB's, which is {SIZE} bytes"]
    if size.st_blocks * 512 < SIZE:
        return [f"{path} has no blocks of its own that GRUB could write to"]
    return []


def _place(root: str, path: str) -> List[str]:
    mount = _mount(root, path)
    if mount is None:
        return [f"it is not known which filesystem {path} is on"]
    if mount.kind not in FILESYSTEMS:
        return [f"{path} is on {mount.kind}, where GRUB cannot write its environment"]
    found = []
    if "ro" in mount.options:
        found.append(f"{mount.point}, which has {path}, is mounted read-only")
    if "data=journal" in mount.options:
        words = "{} is on ext4 with data=journal: what GRUB writes is undone when the journal is replayed"
        found.append(words.format(path))
    return found + _disk(root, mount, path)


def _disk(root: str, mount: _Mount, path: str) -> List[str]:
    folder = "/sys/dev/block/" + mount.device
    if not os.path.isdir(inside(root, folder)):
        return [f"{path} is on no disk that the kernel shows ({mount.device})"]
    uuid = read_text(root, folder + "/dm/uuid").strip()
    words = "{} is on {}, through which GRUB cannot write"
    if uuid:
        # Multipath is one disk to the firmware.
        kind = re.sub(r"^part\d+-", "", uuid).partition("-")[0]
        return [] if kind == "mpath" else [words.format(path, {"CRYPT": "an encrypted disk"}.get(kind, kind))]
    for name, said in (("dm", "the device mapper"), ("md", "software RAID"), ("bcache", "bcache"), ("loop", "a loop")):
        if os.path.isdir(inside(root, f"{folder}/{name}")):
            return [words.format(path, said)]
    # A partition of a RAID, as of one with metadata of its firmware: the RAID is its parent.
    if os.path.exists(inside(root, folder + "/partition")) and "md" in list_folder(root, folder + "/.."):
        return [words.format(path, "software RAID")]
    return []


def _mount(root: str, path: str) -> Optional[_Mount]:
    """The mount that has ``path``; of several on one folder the last one counts."""
    place = "/" + os.path.relpath(inside(root, path), root)
    best: Optional[_Mount] = None
    for line in read_text(root, "/proc/self/mountinfo").splitlines():
        first, _, last = line.partition(" - ")
        fields, rest = first.split(), last.split()
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found.group(1), 8)), fields[4])
        if place.startswith(point.rstrip("/") + "/") and (best is None or len(point) >= len(best.point)):
            best = _Mount(point, fields[2], rest[0], (fields[5] + "," + rest[2]).split(","))
    return best


def variables(root: str = "/") -> Dict[str, str]:
    """GRUB's environment."""
    return environment(read_text(root, _path(root)))


def change(words: List[str], root: str = "/") -> None:
    """``set name=value …`` or ``unset name …``, on the disk when this returns; raises RolloutError."""
    path = inside(root, _path(root))
    for editor in _EDITORS:
        done = process.run([editor, path, *words], _TIMEOUT)
        if done.status == 0:
            break
        if done.status != process.NOT_FOUND:
            said = (done.stderr or done.stdout).strip()
            raise RolloutError("grub", f"{editor} failed: {said}", "what boots next is as before")
    else:
        raise RolloutError("grub", "neither {} is installed".format(" nor ".join(_EDITORS)), "install grub-common")
    for each in (path, os.path.dirname(path)):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _path(root: str) -> str:
    return bls.ENVIRONMENT if bls.present(root) else grub.GRUB_ENV
