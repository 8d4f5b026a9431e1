"""Trials of direct I/O on the mounts that the fleet names, and what their filesystems report."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Any, Dict

from ..io.reading import inode_flags, plain_name
from ..paths import BTRFS, MOUNTINFO
from .recorder import Recorder
from .request import EvidenceRequest
from .storage import mount_of

#: Seconds for one mount within a pass over a host; a local disk needs less than a tenth of one.
SECONDS = 5.0
#: linux/btrfs.h: _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args), of 1024 bytes.
_BTRFS_FS_INFO = 0x8400941F
#: fs/xfs/libxfs/xfs_fs.h: _IOR('X', 126, struct xfs_fsop_geom), of 256 bytes; place of its flags.
_XFS_GEOMETRY, _XFS_FLAGS = 0x8100587E, 92


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    for path in request.mounts:
        inside(recorder, path, text)
    for path in request.scratch:
        # Where nothing is mounted yet, the trial would test the filesystem below.
        if mount_of(path, text) == path:
            # Its modules cost some milliseconds, and many hosts need none of them.
            from ..odirect.audit import audit

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
