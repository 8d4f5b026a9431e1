"""The block devices under a mount: their kinds and layers must allow a direct path."""

from __future__ import annotations

from typing import Iterator, List, Optional

from ..facts import HostFacts, Maybe, storage
from ..facts.storage import Device, Mount
from ..facts.unknown import Unknown, when_known, why_not
from . import reference
from .cause import Cause, Condition, listed_cause

#: First part of a device-mapper name → what it does with the data, and what to do instead.
LAYERS = {
    "LVM": ("a volume of LVM", "put the filesystem directly on the NVMe disk"),
    "CRYPT": ("encrypted by dm-crypt", "use self-encrypting disks, with the filesystem directly on the NVMe disk"),
    "mpath": ("a path of dm-multipath", "use the NVMe disk directly, without dm-multipath"),
    "RAID": ("a volume of dm-raid", "use the NVMe disks directly, or md RAID 0"),
    "VDO": ("compressed by dm-vdo", "put the filesystem directly on the NVMe disk"),
}
#: Kind of device that lies over disks → what it does with the data, and what to do instead.
DRIVERS = {
    storage.BCACHE: ("bcache keeps part of it on a faster disk", "put the filesystem directly on the NVMe disk"),
    storage.DRBD: ("DRBD sends each write to another host", "put the data on the NVMe disk, and replicate it yourself"),
}
PAGE = 4096
#: Level of md → the name of such storage in cufile.json.
RAID = {"raid0": "raid", "raid1": "raid1", "raid10": "raid10"}
#: Filesystem → its name in cufile.json, where that differs.
NAMES = {"nfs4": "nfs"}
LOCAL = ("ext4", "xfs")


def stack(mount: Mount) -> List[Device]:
    """Every block device under a mount, the topmost first."""

    def below(device: Device) -> List[Device]:
        return [device, *(lowest for lower in device.below for lowest in below(lower))]

    return below(mount.device) if isinstance(mount.device, Device) else []


def storage_of(facts: HostFacts, mount: Mount) -> Maybe[Optional[str]]:
    """What cufile.json calls the storage of a mount: ``nvme``, ``nvmeof``, ``raid``, …, or a filesystem's name.

    None for local storage without such a name.
    """
    if mount.filesystem not in LOCAL:
        return NAMES.get(mount.filesystem, mount.filesystem)
    device = mount.device
    if not isinstance(device, Device):
        return device
    if device.kind == storage.MD:
        return when_known(device.md_level, RAID.get)
    if device.kind == storage.MULTIPATH:
        return _paths(facts, device)
    if device.kind in (storage.NVME, storage.NVMEOF):
        return when_known(device.transport, lambda name: "nvme" if name == "pcie" else "nvmeof")
    return None


def _paths(facts: HostFacts, device: Device) -> Maybe[Optional[str]]:
    """The storage of an NVMe multipath device, whose paths aren't recorded: known where all controllers are alike."""
    local = {when_known(transport, lambda name: name == "pcie") for transport in facts.storage.controllers.values()}
    if local == {True}:
        return "nvme"
    return "nvmeof" if local == {False} else Unknown(f"{device.name} is NVMe multipath: its paths were not examined")


def any_direct(mount: Mount) -> Iterator[Condition]:
    """What either direct path requires of the devices under a local filesystem."""
    if isinstance(mount.device, Unknown) or mount.device is None:
        yield Condition(why_not(mount.device, f"{mount.mount_point} has no block device"))
    for device in stack(mount):
        if device.kind == storage.DM:
            yield _layer(device)
        elif device.kind not in (storage.NVME, storage.NVMEOF, storage.MULTIPATH, storage.MD):
            yield _no_nvme(device)
        evidence = (f"{_sysfs(device)}/integrity/device_is_integrity_capable: 1",)
        what = f"{device.name} is formatted with protection information"
        cause = listed_cause("storage.protection-information", evidence, what)
        yield Condition(when_known(device.integrity, lambda capable: not capable), cause)
        if isinstance(device.block_size, int) and device.block_size > PAGE:
            yield _large_blocks(device, device.block_size)


def transport(device: Device) -> Iterator[Condition]:
    """NVMe is local, or goes over RDMA.  A disk whose transport isn't known may be NVMe over something else."""
    if device.kind == storage.NVME:
        yield Condition(when_known(device.transport, lambda name: name == "pcie"))
    else:
        what = f"{device.name} is NVMe over {device.transport}"
        evidence = (f"/sys/class/nvme: {device.name} by {device.transport}",)
        cause = Cause("nvmeof.not-rdma", what, "connect it over RDMA", evidence, reference.NVME)
        yield Condition(when_known(device.transport, lambda name: name == "rdma"), cause)


def _sysfs(device: Device) -> str:
    return "/sys/dev/block/" + device.number


def _layer(device: Device) -> Condition:
    uuid = device.dm_uuid if isinstance(device.dm_uuid, str) else ""
    kind = uuid.split("-")[0]
    does, fix = LAYERS.get(kind, ("", "put the filesystem directly on the NVMe disk"))
    what = f"{device.name} is a device-mapper device" + (f" ({kind})" if kind else "") + (f": {does}" if does else "")
    evidence = (f"{_sysfs(device)}/dm/uuid: {uuid}",) if uuid else ()
    return Condition(False, Cause("storage.device-mapper", what, fix, evidence, reference.NVME))


def _no_nvme(device: Device) -> Condition:
    what = f"{device.name} isn't an NVMe disk ({device.kind})"
    fix = "use a local NVMe disk, or one over RDMA"
    if device.kind in DRIVERS:
        does, fix = DRIVERS[device.kind]
        what = f"{device.name} isn't an NVMe disk: {does}"
    if device.kind == storage.LOOP:
        fix = "put the files on a filesystem of the disk itself, not into an image file"
    evidence = (f"{_sysfs(device)}: {device.name}",)
    return Condition(False, Cause("storage.no-nvme", what, fix, evidence, reference.FEATURES))


def _large_blocks(device: Device, size: int) -> Condition:
    what = f"{device.name} has blocks of {size} bytes, more than the {PAGE}-byte page that cuFile aligns to"
    evidence = (f"{_sysfs(device)}/queue/logical_block_size: {size}",)
    fix = f"format the disk with blocks of {PAGE} bytes (this erases the disk)"
    cause = Cause("storage.block-size", what, fix, evidence, reference.REQUIREMENTS)
    return Condition(Unknown(what), cause, suspect=True)


def names(mount: Mount) -> str:
    """``ext4 on /dev/nvme0n1``, with lower devices, e.g. ``xfs on /dev/md0 over nvme0n1, nvme1n1``."""
    lower = ", ".join(device.name for device in stack(mount)[1:])
    return f"{mount.filesystem} on {mount.source}" + (f" over {lower}" if lower else "")
