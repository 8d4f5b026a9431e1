"""Mounts, the block devices under them down to the controller, and what udev knows of them."""

from __future__ import annotations

import re
from typing import List, Tuple

from ..places import MOUNTINFO
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
    first = [entry for entry in entries if entry[1] in wanted.mounts]
    seen: List[str] = []
    for number, _ in (first + entries)[: MOUNTS_LIMIT + len(first)]:
        _device(recorder, number, seen)
    for name in recorder.names("/sys/class/nvme"):
        recorder.link("/sys/class/nvme/" + name)
        recorder.texts("/sys/class/nvme/" + name, CONTROLLER_FILES)


def _devices(mountinfo: str) -> List[Tuple[str, str]]:
    """(device number, mount point) of mounts on block devices; anonymous ones have major number 0."""
    found: List[Tuple[str, str]] = []
    for line in mountinfo.splitlines():
        words = line.split()
        if len(words) > 4 and re.match(r"[1-9][0-9]*:[0-9]+$", words[2]):
            found.append((words[2], words[4]))
    return found


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
    recorder.text("/proc/fs/ext4/" + name + "/options")
    if recorder.exists(link + "/partition"):
        disk = recorder.text(folder.rpartition("/")[0] + "/dev")
        if disk:
            _device(recorder, disk.strip(), seen)
    for slave in recorder.names(link + "/slaves"):
        below = recorder.text(link + "/slaves/" + slave + "/dev")
        if below:
            _device(recorder, below.strip(), seen)
