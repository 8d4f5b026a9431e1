"""Mounts, the block devices under them down to the controller, udev's records of them, and trials of direct I/O."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from typing import Any, Dict, List

from ..io.reading import ext4_features, inode_flags, mount_of, mount_rows, plain_name
from ..paths import BTRFS, DMSETUP, LFS, LUSTRE_OSC, MOUNTINFO, ZFS_VERSION
from ..subjects.register import collector
from .recorder import EvidenceRequest, Recorder

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


@collector("storage")
def collect_storage(recorder: Recorder, request: EvidenceRequest) -> None:
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    # Mounts on block devices: anonymous devices have the major number 0.
    entries = [(number, point) for number, point, _ in mount_rows(text) if re.match(r"[1-9][0-9]*:[0-9]+$", number)]
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
    kinds = {point: kind for _, point, kind in mount_rows(text)}
    if "lustre" in kinds.values():
        recorder.texts(LUSTRE_OSC, [name + "/checksums" for name in recorder.names(LUSTRE_OSC)])
    if "zfs" in kinds.values():
        recorder.text(ZFS_VERSION)
    for point in sorted({mount_of(path, text) for path in request.mounts}):
        if kinds.get(point) == "lustre":
            recorder.command(LFS + point, ["lfs", "getstripe", "-d", point], timeout=SECONDS)


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


#: linux/btrfs.h: _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args), of 1024 bytes.
_BTRFS_FS_INFO = 0x8400941F
#: fs/xfs/libxfs/xfs_fs.h: _IOR('X', 126, struct xfs_fsop_geom), of 256 bytes; place of its flags.
_XFS_GEOMETRY, _XFS_FLAGS = 0x8100587E, 92


@collector("odirect")
def collect_odirect(recorder: Recorder, request: EvidenceRequest) -> None:
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    for path in request.mounts:
        inside(recorder, path, text)
    for path in request.scratch:
        # Where nothing is mounted yet, the trial would test the filesystem below.
        if mount_of(path, text) == path:
            # Its modules cost some milliseconds, and many hosts need none of them.
            from ..odirect.trials import audit

            recorder.document["odirect"][path] = audit(path, SECONDS)


def inside(recorder: Recorder, path: str, mountinfo: str) -> None:
    """Ask the filesystem that ``path`` lies on, if it is of a kind that answers at once."""
    kind = _kind(mount_of(path, mountinfo), mountinfo)
    if kind not in _READERS:
        return
    record = recorder.value("insides", path, _READERS[kind])
    recorder.value("inodes", path, inode_flags)
    if "fsid" in record:
        folder = "{}/{}".format(BTRFS, record["fsid"])
        recorder.text(folder + "/checksum")
        recorder.names(folder + "/allocation/data")
        recorder.names(folder + "/devices")


def _kind(point: str, mountinfo: str) -> str:
    """The filesystem that is mounted there, the one on top."""
    lines = [line.partition(" - ") for line in mountinfo.splitlines()]
    kinds = [right.split()[0] for left, _, right in lines if right and plain_name(left.split()[4]) == point]
    return kinds[-1] if kinds else ""


def btrfs_inside(path: str) -> Dict[str, Any]:
    """{"fsid": as sysfs names it, "devices": how many}"""
    import uuid

    answer = _ask(path, _BTRFS_FS_INFO, 1024)
    _, devices = struct.unpack_from("=QQ", answer)
    return {"fsid": str(uuid.UUID(bytes=answer[16:32])), "devices": devices}


def xfs_inside(path: str) -> Dict[str, Any]:
    """{"geometry": the flags of the filesystem's geometry}"""
    return {"geometry": struct.unpack_from("=I", _ask(path, _XFS_GEOMETRY, 256), _XFS_FLAGS)[0]}


def _ask(path: str, request: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(descriptor, request, bytes(size))
    finally:
        os.close(descriptor)


_READERS = {"btrfs": btrfs_inside, "xfs": xfs_inside}
