"""The block devices under a mount: which kinds and layers a direct path goes through."""

from __future__ import annotations

from typing import Iterator, List, Optional

from ..facts import HostFacts, storage
from ..facts.storage import Device, Mount
from ..facts.unknown import Unknown, test, why_not
from . import reference
from .cause import Cause, Condition
from .rules import USABLE, rule

#: First part of a device-mapper name → what it does with the data, and what to do instead.
LAYERS = {
    "LVM": ("a volume of LVM", "put the filesystem on the NVMe disk itself"),
    "CRYPT": ("encrypted by dm-crypt", "use disks that encrypt themselves, and the filesystem on the NVMe disk itself"),
    "mpath": ("a path of dm-multipath", "use the NVMe disk itself, without dm-multipath"),
    "RAID": ("a volume of dm-raid", "use the NVMe disks themselves, or md RAID 0"),
    "VDO": ("compressed by dm-vdo", "put the filesystem on the NVMe disk itself"),
}
PAGE = 4096


def stack(mount: Mount) -> List[Device]:
    """Every block device under a mount, the topmost first."""

    def below(device: Device) -> List[Device]:
        return [device, *(item for lower in device.below for item in below(lower))]

    return below(mount.device) if isinstance(mount.device, Device) else []


def any_direct(mount: Mount) -> Iterator[Condition]:
    """What the devices under a local filesystem must be for either direct path."""
    if isinstance(mount.device, Unknown) or mount.device is None:
        yield Condition(why_not(mount.device, f"{mount.mount_point} has no block device"))
    for item in stack(mount):
        if item.kind == storage.DM:
            yield _layer(item)
        elif item.kind not in (storage.NVME, storage.NVMEOF, storage.MULTIPATH, storage.MD):
            yield _no_nvme(item)
        evidence = (f"{_sysfs(item)}/integrity/device_is_integrity_capable: 1",)
        what = f"{item.name} is formatted with protection information"
        fix = "format it without: nvme format --pi=0"
        cause = Cause("storage.protection-information", what, fix, evidence, reference.LIMITATIONS)
        yield Condition(test(item.integrity, lambda capable: not capable), cause)
        if isinstance(item.block_size, int) and item.block_size > PAGE:
            yield _large_blocks(item, item.block_size)


def _sysfs(item: Device) -> str:
    return "/sys/dev/block/" + item.number


def _layer(item: Device) -> Condition:
    uuid = item.dm_uuid if isinstance(item.dm_uuid, str) else ""
    kind = uuid.split("-")[0]
    does, fix = LAYERS.get(kind, ("", "put the filesystem on the NVMe disk itself"))
    shown = f" ({kind})" if kind else ""
    what = "{} is a device-mapper device{}{}".format(item.name, shown, ": " + does if does else "")
    evidence = (f"{_sysfs(item)}/dm/uuid: {uuid}",) if uuid else ()
    return Condition(False, Cause("storage.device-mapper", what, fix, evidence, reference.NVME))


def _no_nvme(item: Device) -> Condition:
    what = f"{item.name} is no NVMe disk ({item.kind})"
    fix = "use a local NVMe disk, or one over RDMA"
    if item.kind == storage.LOOP:
        fix = "put the files on a filesystem of the disk itself instead of into an image file"
    evidence = (f"{_sysfs(item)}: {item.name}",)
    return Condition(False, Cause("storage.no-nvme", what, fix, evidence, reference.FEATURES))


def _large_blocks(item: Device, size: int) -> Condition:
    what = f"{item.name} has blocks of {size} bytes, more than the page of {PAGE} that cuFile aligns to"
    evidence = (f"{_sysfs(item)}/queue/logical_block_size: {size}",)
    cause = Cause("storage.block-size", what, "format it with blocks of 4096 bytes", evidence, reference.REQUIREMENTS)
    return Condition(Unknown(what), cause, suspect=True)


@rule(USABLE, 30)
def udev(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What libcufile asks udev's database for when a file is registered."""
    if mount is None or not isinstance(mount.device, Device):
        return
    item, container = mount.device, facts.environment.container
    place = "/run/udev/data/b" + item.number
    evidence = (f"{place}: no ID_FS_USAGE",)
    what = f"udev has no ID_FS_USAGE for {item.name}, so cuFileHandleRegister fails with 5027"
    fix = "run 'udevadm trigger --subsystem-match=block'; in a container, mount /run/udev into it"
    if isinstance(container, str):
        what += f" (this is {container})"
        fix = "give the container the host's database, read-only: --volume /run/udev:/run/udev:ro"
    cause = Cause("udev.no-database", what, fix, evidence, reference.HANDLE_REGISTER)
    yield Condition(test(item.udev_usage, lambda usage: usage is not None), cause)


def names(mount: Mount) -> str:
    """``ext4 on /dev/nvme0n1`` and what lies below, e.g. ``xfs on /dev/md0 over nvme0n1, nvme1n1``."""
    lower = [item.name for item in stack(mount)[1:]]
    return "{} on {}{}".format(mount.filesystem, mount.source, " over " + ", ".join(lower) if lower else "")
