"""Mounts by their ids and parents: which one the kernel finds at a path, and which are covered by later ones.

See proc(5) about mountinfo: id, parent, major:minor, root, mount point, options, optional fields, "-", type, source,
options of the filesystem.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import List, NamedTuple, Optional, Tuple

#: The filesystem that stands at a path until a program goes there (autofs(5), systemd.automount(5)).
AUTOFS = "autofs"
#: Filesystems of the kernel and of container runtimes, which hold no data for a GPU.
PSEUDO = re.compile(
    r"(proc|sysfs|devtmpfs|devpts|tmpfs|ramfs|cgroup2?|securityfs|debugfs|tracefs|configfs|pstore|efivarfs|bpf|mqueue"
    r"|hugetlbfs|autofs|binfmt_misc|fusectl|rpc_pipefs|nsfs|selinuxfs|rootfs|squashfs|erofs|iso9660|vfat|fuse\.(lxcfs|gvfsd-fuse|portal|snapfuse))$"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


def plain_name(text: str) -> str:
    """A name as the kernel escapes it in /proc: spaces and the like in octal."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text) if "\\" in text else text


class Row(NamedTuple):
    """A line of mountinfo; ``number``: major:minor, ``options``: of the mount, then of the filesystem."""

    id: str
    parent: str
    number: str
    root: str
    point: str
    filesystem: str
    source: str
    options: Tuple[str, ...]
    line: str

    @property
    def has_disk(self) -> bool:
        """Whether it lies on a block device: anonymous devices have the major number 0."""
        return re.match(r"[1-9][0-9]*:[0-9]+$", self.number) is not None


class Mounts:
    """The mounts that a process sees, by the text of its mountinfo; lines of another form are left out."""

    def __init__(self, text: str) -> None:
        lines = [(line, *line.partition(" - ")[::2]) for line in text.splitlines()]
        split = [(line, left.split(), right.split(" ")) for line, left, right in lines]
        rows = [_row(line, left, right) for line, left, right in split if len(left) > 5 and len(right) > 1]
        self.by_id = {row.id: row for row in rows}
        # A process doesn't see the mount that the root of its view is mounted on.
        listed = {row.id for row in rows if row.parent != row.id and row.parent in self.by_id}
        self._over = {(row.parent if row.id in listed else "", row.point): row for row in self.by_id.values()}
        #: mount point → what programs find there
        self.visible = {row.point: row for row in self.by_id.values() if self.at(row.point) is row}

    def at(self, path: str) -> Optional[Row]:
        """The mount that ``path`` lies on, found as the kernel does, from / down, but without touching it."""
        found, parts = None, [part for part in path.split("/") if part]
        for length in range(len(parts) + 1) if path.startswith("/") else ():
            place = "/" + "/".join(parts[:length])
            over = self._over.get((found.id if found else "", place))
            while over is not None:
                found, over = over, self._over.get((over.id, place))
        return found

    def is_hidden(self, point: str) -> bool:
        """Whether something is mounted at ``point``, and covered by a later mount above it."""
        return point not in self.visible and any(row.point == point for row in self.by_id.values())


def _row(line: str, left: List[str], right: List[str]) -> Row:
    ident, parent, number, root, point, options = left[:6]
    every = tuple(dict.fromkeys(",".join([options, *right[2:3]]).split(",")))
    return Row(ident, parent, number, plain_name(root), plain_name(point), right[0], plain_name(right[1]), every, line)


#: The mounts of a mountinfo, read once for each text.
mounts_in = lru_cache(maxsize=4)(Mounts)


def id_of(descriptor: int) -> str:
    """The id of the mount that an open file lies on; empty where the kernel doesn't show it."""
    with open(f"/proc/self/fdinfo/{descriptor}") as file:
        return next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
