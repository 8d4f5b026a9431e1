"""The kind of a filesystem, how it is mounted, what it does with the data of a file, and the block devices under it.

The kinds and layers of these devices must allow a direct path.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, Iterator, NamedTuple, Optional, Tuple

from .. import data
from ..facts import HostFacts, Maybe, UndecidedError, Unknown, storage
from ..facts.storage import Device, Mount
from ..facts.unknown import if_known, known
from ..subjects import quote, reference
from ..subjects.condition import (
    DIRECT_PATH,
    NOTES,
    NVIDIA_FS,
    USABLE,
    Cause,
    Condition,
    condition,
    listed_cause,
    numbers,
    rule,
)
from . import config
from .config import registration_failure

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


def storage_of(facts: HostFacts, mount: Mount) -> Optional[str]:
    """What cufile.json calls the storage of a mount: ``nvme``, ``nvmeof``, ``raid``, …, or a filesystem's name.

    None for local storage without such a name.  Raises UndecidedError.
    """
    if mount.filesystem not in LOCAL:
        return NAMES.get(mount.filesystem, mount.filesystem)
    device = mount.device
    if device is None:
        return None
    if device.kind == storage.MD:
        return RAID.get(device.md_level)
    if device.kind == storage.MULTIPATH:
        return _paths(facts, device)
    if device.kind in (storage.NVME, storage.NVMEOF):
        return "nvme" if device.transport == "pcie" else "nvmeof"
    return None


def _paths(facts: HostFacts, device: Device) -> str:
    """The storage of an NVMe multipath device, whose paths aren't recorded: known where all controllers are alike."""
    transports = facts.storage.controllers.values()
    local = {None if isinstance(name, Unknown) else name == "pcie" for name in transports}
    if local in ({True}, {False}):
        return "nvme" if local == {True} else "nvmeof"
    raise UndecidedError(f"{device.name} is NVMe multipath: its paths were not examined")


def any_direct(mount: Mount) -> Iterator[Condition]:
    """What either direct path requires of the devices under a local filesystem."""
    if mount.device is None:
        yield Condition(Unknown(f"{mount.mount_point} has no block device"))
    for device in mount.devices:
        yield from _of_device(device)


def _of_device(device: Device) -> Iterator[Condition]:
    if device.kind == storage.DM:
        yield _layer(device)
    elif device.kind not in (storage.NVME, storage.NVMEOF, storage.MULTIPATH, storage.MD):
        yield _no_nvme(device)
    evidence = (f"{_sysfs(device)}/integrity/device_is_integrity_capable: 1",)
    what = f"{device.name} is formatted with protection information"
    cause = listed_cause("storage.protection-information", evidence, what)
    yield Condition(lambda: not device.integrity, cause)
    size = if_known(lambda: device.block_size, 0)
    if size > PAGE:
        yield _large_blocks(device, size)


@condition
def transport(device: Device) -> Condition:
    """NVMe is local, or goes over RDMA.  A disk whose transport isn't known may be NVMe over something else."""
    name = device.transport
    if device.kind == storage.NVME:
        return Condition(name == "pcie")
    what = f"{device.name} is NVMe over {name}"
    evidence = (f"/sys/class/nvme: {device.name} by {name}",)
    return Condition(name == "rdma", Cause("nvmeof.not-rdma", what, "connect it over RDMA", evidence, reference.NVME))


def _sysfs(device: Device) -> str:
    return "/sys/dev/block/" + device.number


def _layer(device: Device) -> Condition:
    uuid = if_known(lambda: device.dm_uuid, "")
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
    lower = ", ".join(device.name for device in mount.devices[1:])
    return f"{mount.filesystem} on {mount.source}" + (f" over {lower}" if lower else "")


#: Network filesystem → the stack that may have hooks for nvidia-fs.
NETWORK = {
    "nfs": "rpcrdma",
    "nfs4": "rpcrdma",
    "lustre": "lnet",
    "fuse.fsx_lustre": "lnet",
    "beegfs": "beegfs",
    "gpfs": "mmfslinux",
    "mmfs": "mmfslinux",
    "scatefs": "scatefs",
}
#: Read directly by libcufile's own RDMA (userspace_rdma.py), and through P2PDMA only (p2pdma.py).
USERSPACE, P2PDMA_ONLY = ("wekafs",), ("virtiofs",)
#: No document says what its direct path needs.
PANFS = "panfs"
#: Filesystems that cuFile may read directly; all others are in compat mode, if libcufile takes their files at all.
NATIVE = (*LOCAL, *NETWORK, *USERSPACE, *P2PDMA_ONLY, PANFS)
#: First release of libcufile with a path to these filesystems.
SINCE = {"virtiofs": (1, 16), PANFS: (1, 19), "scatefs": (1, 14)}


class Filesystem(NamedTuple):
    """A filesystem without a direct path: what it does with the data, and what to use instead."""

    name: str
    does: str
    instead: str = "use ext4 with data=ordered, XFS, or a supported network filesystem"
    #: first release of libcufile that takes its files, in compat mode; empty: not known
    since: str = ""


class Flag(NamedTuple):
    """A flag of a folder or file that excludes its data from the direct path."""

    flag: str
    #: the id of the cause
    cause: str
    says: str
    fix: str


@lru_cache(maxsize=1)
def _filesystems() -> Dict[str, Filesystem]:
    return {kind.name: kind for kind in data.rows("filesystems", Filesystem)}


@lru_cache(maxsize=1)
def _flags() -> Tuple[Flag, ...]:
    return data.rows("file_flags", Flag)


@rule(DIRECT_PATH, 40)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What either direct path requires of a filesystem."""
    if mount is None:
        return
    name = mount.filesystem
    if name in ("nfs", "nfs4"):
        protocol = mount.option("proto")
        what = f"{mount.mount_point} is mounted with proto={protocol}"
        yield Condition(protocol == "rdma", listed_cause("nfs.not-rdma", quote.mount(mount), what))
    elif name == PANFS:
        yield _panfs(facts)
    elif name not in NATIVE:
        kind = without_direct_path(name)
        what = f"cuFile has no direct path for {name}" + (f": {kind.does}" if kind.does else "")
        cause = Cause("filesystem.kind", what, kind.instead, quote.mount(mount), reference.FEATURES)
        yield Condition(False, cause)
    if name in SINCE:
        yield _has_path(facts, name)
    if name in LOCAL:
        if name == "ext4":
            yield _journal_mode(mount)
        yield from flag_conditions(mount.mount_point, known(lambda: mount.flags))
        yield from any_direct(mount)


def without_direct_path(name: str) -> Filesystem:
    """A subtype, as in fuse.sshfs, is of the same kind."""
    return _filesystems().get(name.split(".")[0], Filesystem(name, ""))


@condition
def _has_path(facts: HostFacts, name: str) -> Condition:
    release, first = config.library(facts), SINCE[name]
    since = ".".join(map(str, first))
    what = f"libcufile {release} has no direct path for {name}: {since} is the first release with one"
    cause = Cause("filesystem.newer-library", what, f"install libcufile {since} or newer", (f"libcufile: {release}",))
    return Condition(numbers(release or "0") >= first, cause)


def _panfs(facts: HostFacts) -> Condition:
    """Only libcufile's own row tells, and no document says what it needs."""
    row = facts.gdscheck.row("PanFS")
    shown = f"; libcufile reports PanFS: {row.value}" if row is not None else ""
    return Condition(Unknown(f"what panfs needs for its direct path isn't documented{shown}"))


@rule(USABLE, 40)
def registers(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """Releases that don't know a filesystem refuse to register its files, also in compat mode."""
    if mount is None or mount.filesystem in NATIVE:
        return
    name, kind = mount.filesystem, without_direct_path(mount.filesystem)
    since = kind.since
    release = config.library(facts) if since else None
    if release is not None:
        what = (
            f"libcufile {release} takes no files on {name}, so {registration_failure(facts)}: {since} is the first to"
        )
        fix = f"{kind.instead}; or install libcufile {since} or newer, which takes such files in compat mode"
        cause = Cause("filesystem.not-taken", what, fix, quote.mount(mount), reference.HANDLE_REGISTER)
        yield Condition(numbers(release) >= numbers(since), cause)


@rule(NVIDIA_FS, 30)
def of_nvidia_fs(_facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """nvidia-fs has no part in virtiofs."""
    if mount is not None and mount.filesystem in P2PDMA_ONLY:
        what = "cuFile reads virtiofs directly through P2PDMA only, and P2PDMA isn't in use here"
        fix = "set properties.use_pci_p2pdma and fs.virtiofs.use_pci_p2pdma to true; the server must support it too"
        yield Condition(False, Cause("filesystem.p2pdma-only", what, fix, quote.mount(mount), reference.PARAMETERS))


@condition
def _journal_mode(mount: Mount) -> Condition:
    mode = journal(mount)
    what = f"ext4 on {mount.mount_point} is mounted with data={mode}"
    fix = "mount it with data=ordered"
    evidence = quote.mount(mount)
    device = if_known(lambda: mount.device, None)
    if mount.option("data") is None and device is not None:
        evidence = (f"/proc/fs/ext4/{device.name}/options: data={mode}",)
        if mode is None:
            what = f"ext4 on {mount.mount_point} has no journal, so it is not in the mode data=ordered"
            fix = f"unmount it and add a journal: tune2fs -O has_journal {mount.source}"
            evidence = (f"/proc/fs/ext4/{device.name}/options: no data=",)
    return Condition(mode == "ordered", Cause("ext4.not-ordered", what, fix, evidence, reference.EXT4))


def journal(mount: Mount) -> Optional[str]:
    """ext4's journal mode; only /proc/fs/ext4 shows the filesystem's default.  Raises UndecidedError."""
    mode, device = mount.option("data"), if_known(lambda: mount.device, None)
    if mode is not None or device is None:
        return mode
    options = device.ext4_options
    if options is None:
        raise UndecidedError(f"the evidence doesn't show the journal mode of {mount.mount_point}")
    return next((option[5:] for option in options if option.startswith("data=")), None)


def flag_conditions(path: str, flags: Maybe[Optional[Tuple[str, ...]]]) -> Iterator[Condition]:
    """Flags of a file, or of a folder, whose new files inherit them."""
    if flags is None or isinstance(flags, Unknown):
        yield Condition(Unknown(f"the evidence doesn't show the flags of {path}") if flags is None else flags)
        return
    evidence = ("inode flags of {}: {}".format(path, ", ".join(flags)),)
    for row in _flags():
        section = reference.INLINE if row.flag == "inline" else reference.TRANSFORMING
        cause = Cause(row.cause, f"{path} {row.says}", row.fix.format(path), evidence, section)
        yield Condition(row.flag not in flags, cause)


@rule(NOTES, 20)
def notes(_facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Features of ext4 that exclude some files from a direct path."""
    device = mount.device if mount.filesystem == "ext4" else None
    features = device.ext4_features if device is not None else None
    if device is None or features is None:
        return
    evidence = ("ext4 superblock of /dev/{}: {}".format(device.name, ", ".join(features)),)
    if "inline_data" in features:
        what = "files that fit into their inode take compat mode"
        fix = "create the filesystem without inline_data, or keep small files elsewhere"
        yield Cause("filesystem.inline-data", what, fix, evidence, reference.INLINE)
    if "encrypt" in features:
        what = "files in encrypted folders take compat mode"
        fix = "keep data for the GPU out of encrypted folders"
        yield Cause("filesystem.encrypted", what, fix, evidence, reference.TRANSFORMING)
