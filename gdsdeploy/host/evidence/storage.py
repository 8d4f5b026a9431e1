"""Mounts, the block devices under them down to the controller, and what udev knows of them."""

from __future__ import annotations

import re
from typing import List, Tuple

from ..io.inspect import ext4_features, inode_flags
from ..paths import MOUNTINFO
from .recorder import Recorder
from .wanted import Wanted

#: Files of a block device; a partition lacks most, its disk has them.
FILES = (
    "partition",
    "dm/name",
    "dm/uuid",
    "md/level",
    "md/metadata_version",
    "queue/logical_block_size",
    "queue/rotational",
    "queue/nr_requests",
    "integrity/device_is_integrity_capable",
    "device/transport",
    "device/model",
)
CONTROLLER_FILES = ("transport", "address", "model", "firmware_rev", "subsysnqn")
#: Mounts described beyond those that are wanted, and block devices in all.
MOUNTS_LIMIT = 64
DEVICES_LIMIT = 512


def collect(recorder: Recorder, wanted: Wanted) -> None:
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    entries = _devices(text)
    points = {mount_of(path, text) for path in wanted.mounts}
    first = [entry for entry in entries if entry[1] in points]
    seen: List[str] = []
    for number, point in (first + entries)[: MOUNTS_LIMIT + len(first)]:
        _device(recorder, number, seen)
        # Only of filesystems on this host's own disks: others may make a reader wait for ever.
        recorder.value("inodes", point, inode_flags)
    local = {point for _, point in entries}
    for path in wanted.mounts:
        if mount_of(path, text) in local:
            recorder.value("inodes", path, inode_flags)
    for name in recorder.names("/sys/class/nvme"):
        recorder.link("/sys/class/nvme/" + name)
        recorder.texts("/sys/class/nvme/" + name, CONTROLLER_FILES)


def _devices(mountinfo: str) -> List[Tuple[str, str]]:
    """(device number, mount point) of mounts on block devices; anonymous ones have major number 0."""
    found: List[Tuple[str, str]] = []
    for line in mountinfo.splitlines():
        words = line.split()
        if len(words) > 4 and re.match(r"[1-9][0-9]*:[0-9]+$", words[2]):
            found.append((words[2], plain(words[4])))
    return found


def mount_of(path: str, mountinfo: str) -> str:
    """The mount point that ``path`` lies on, empty if there is none; by name only, the file system is not touched."""
    points = [plain(words[4]) for words in (line.split() for line in mountinfo.splitlines()) if len(words) > 4]
    over = [point for point in points if path == point or path.startswith(point.rstrip("/") + "/")]
    return max(over, key=len, default="")


def plain(text: str) -> str:
    """A name as the kernel escapes it in /proc: spaces and the like in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def _device(recorder: Recorder, number: str, seen: List[str]) -> None:
    if number in seen or len(seen) >= DEVICES_LIMIT:
        return
    seen.append(number)
    link = "/sys/dev/block/" + number
    if recorder.link(link) is None:
        return
    recorder.text("/run/udev/data/b" + number)
    folder = recorder.real(link)
    name = folder.rpartition("/")[2]
    for item in FILES:
        recorder.text(link + "/" + item)
    if recorder.text("/proc/fs/ext4/" + name + "/options") is not None:
        recorder.value("features", name, ext4_features, "/dev/" + name)
    if recorder.exists(link + "/partition"):
        disk = recorder.text(folder.rpartition("/")[0] + "/dev")
        if disk:
            _device(recorder, disk.strip(), seen)
    for slave in recorder.names(link + "/slaves"):
        below = recorder.text(link + "/slaves/" + slave + "/dev")
        if below:
            _device(recorder, below.strip(), seen)
