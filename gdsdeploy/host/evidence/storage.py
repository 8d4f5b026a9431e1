"""Mounts, the block devices under them down to the controller, and udev's records of them."""

from __future__ import annotations

import re
from typing import List, Tuple

from ..io.reading import ext4_features, inode_flags, plain_name
from ..paths import DMSETUP, LFS, LUSTRE_OSC, MOUNTINFO, ZFS_VERSION
from .recorder import Recorder
from .request import EvidenceRequest

#: Files of a block device; a partition doesn't have most of them, its disk does.
FILES = (
    "partition",
    "dm/name",
    "dm/uuid",
    "md/level",
    "md/metadata_version",
    "queue/logical_block_size",
    "queue/rotational",
    "queue/nr_requests",
    "queue/read_ahead_kb",
    "integrity/device_is_integrity_capable",
    "device/transport",
    "device/model",
)
CONTROLLER_FILES = ("transport", "address", "model", "firmware_rev", "subsysnqn")
#: Mounts described beyond those that are wanted, and block devices in all.
MOUNTS_LIMIT = 64
DEVICES_LIMIT = 512
#: Seconds for a question to a filesystem whose servers may be gone.
SECONDS = 5.0


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    # Mounts on block devices: anonymous devices have the major number 0.
    entries = [(number, point) for number, point, _ in _rows(text) if re.match(r"[1-9][0-9]*:[0-9]+$", number)]
    points = {mount_of(path, text) for path in request.mounts}
    first = [entry for entry in entries if entry[1] in points]
    visited: List[str] = []
    for number, point in (first + entries)[: MOUNTS_LIMIT + len(first)]:
        _device(recorder, number, visited)
        # Only filesystems on this host's disks: others may make a reader wait forever.
        recorder.value("inodes", point, inode_flags)
    local = {point for _, point in entries}
    for path in request.mounts:
        if mount_of(path, text) in local:
            recorder.value("inodes", path, inode_flags)
    _collect_layers(recorder, request, text)
    for name in recorder.names("/sys/class/nvme"):
        recorder.link("/sys/class/nvme/" + name)
        recorder.texts("/sys/class/nvme/" + name, CONTROLLER_FILES)


def _collect_layers(recorder: Recorder, request: EvidenceRequest, text: str) -> None:
    """What device mapper, Lustre and ZFS do with the data."""
    if any(name.startswith("dm-") for name in recorder.names("/sys/block")):
        recorder.command(DMSETUP, ["dmsetup", "table"])
    kinds = {point: kind for _, point, kind in _rows(text)}
    if "lustre" in kinds.values():
        recorder.texts(LUSTRE_OSC, [name + "/checksums" for name in recorder.names(LUSTRE_OSC)])
    if "zfs" in kinds.values():
        recorder.text(ZFS_VERSION)
    for point in sorted({mount_of(path, text) for path in request.mounts}):
        if kinds.get(point) == "lustre":
            recorder.command(LFS + point, ["lfs", "getstripe", "-d", point], timeout=SECONDS)


def _rows(mountinfo: str) -> List[Tuple[str, str, str]]:
    """(device number, mount point, filesystem) of each mount"""
    halves = [line.partition(" - ") for line in mountinfo.splitlines()]
    rows = [(left.split(), right.split()) for left, _, right in halves]
    return [(left[2], plain_name(left[4]), right[0]) for left, right in rows if len(left) > 4 and right]


def mount_of(path: str, mountinfo: str) -> str:
    """The mount point that ``path`` lies on, empty if there is none; by name only, without touching the filesystem."""
    points = [point for _, point, _ in _rows(mountinfo)]
    return max((point for point in points if (path + "/").startswith(point.rstrip("/") + "/")), key=len, default="")


def _device(recorder: Recorder, number: str, visited: List[str]) -> None:
    if number in visited or len(visited) >= DEVICES_LIMIT:
        return
    visited.append(number)
    link = "/sys/dev/block/" + number
    if recorder.link(link) is None:
        return
    recorder.text("/run/udev/data/b" + number)
    folder = recorder.real(link)
    name = folder.rpartition("/")[2]
    recorder.texts(link, FILES)
    if recorder.text("/proc/fs/ext4/" + name + "/options") is not None:
        recorder.value("features", name, ext4_features, "/dev/" + name)
    disk = [folder.rpartition("/")[0]] if recorder.exists(link + "/partition") else []
    for device in [*disk, *(f"{link}/slaves/{slave}" for slave in recorder.names(link + "/slaves"))]:
        below = recorder.text(device + "/dev")
        if below:
            _device(recorder, below.strip(), visited)
