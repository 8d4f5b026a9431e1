"""Mounts and the block devices under them."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from ..io.reading import plain_name
from ..paths import DMSETUP, MOUNTINFO
from .document import Document
from .load import Loaded, loads
from .odirect import Audit, audits
from .pci import addresses
from .proof import Proof, proofs
from .unknown import Maybe, Unknown, all_known, if_present, when_known, why_not, with_default

#: Inode flags of linux/fs.h that matter here.
FLAGS = {
    "compressed": 0x4,
    "encrypted": 0x800,
    "journalled": 0x4000,
    "verity": 0x100000,
    "nocow": 0x800000,
    "dax": 0x2000000,
    "inline": 0x10000000,
}
#: Incompatible features of ext4.
EXT4_FEATURES = {"inline_data": 0x8000, "encrypt": 0x10000}
#: Kinds of block device.
NVME, NVMEOF, MULTIPATH, MD, DM, BCACHE, DRBD, VIRTIO, SCSI, LOOP, OTHER = (
    "nvme", "nvmeof", "nvme-multipath", "md", "dm", "bcache", "drbd", "virtio", "scsi", "loop", "other",
)  # fmt: skip
#: Pattern of a device's name → its kind.
_NAMES = {
    r"dm-\d+$": DM, r"md": MD, r"bcache\d+$": BCACHE, r"drbd\d+$": DRBD, r"vd[a-z]+$": VIRTIO, r"sd[a-z]+$": SCSI,
    r"loop\d+$": LOOP,
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A block device; partitions are described by their disk."""

    #: as in /dev, e.g. ``nvme0n1p1``
    name: str
    #: major:minor
    number: str
    kind: str
    #: of NVMe: ``pcie``, ``rdma``, ``tcp``, ``fc``, ``loop``; empty for others
    transport: Maybe[str]
    #: of the controller, empty for virtual devices
    pci_address: str
    #: of device mapper: e.g. ``LVM-…``, ``CRYPT-LUKS2-…``, ``mpath-…``
    dm_uuid: Maybe[str]
    #: of device mapper, in the order of its table, e.g. ``linear``, ``cache``, ``thin``; empty for others
    dm_targets: Maybe[Tuple[str, ...]]
    #: of md: e.g. ``raid0``
    md_level: Maybe[str]
    #: formatted with protection information, which nvidia-fs does not take
    integrity: Maybe[bool]
    #: what udev recorded as ID_FS_USAGE, e.g. ``filesystem``; None: no record of it
    udev_usage: Maybe[Optional[str]]
    #: bytes of a logical block
    block_size: Maybe[int]
    #: ext4's options in effect, defaults included; None: not ext4
    ext4_options: Maybe[Optional[Tuple[str, ...]]]
    #: features of its ext4 that keep files from the direct path: ``encrypt``, ``inline_data``; None: not ext4
    ext4_features: Maybe[Optional[Tuple[str, ...]]]
    #: how many requests its queue holds
    requests: Maybe[int]
    #: KiB that the kernel reads ahead for buffered reads
    read_ahead: Maybe[int]
    below: Tuple[Device, ...] = ()


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    mount_point: str
    source: str
    filesystem: str
    #: per-mount and per-superblock options
    options: Tuple[str, ...]
    #: None for filesystems without a block device of their own
    device: Maybe[Optional[Device]]
    #: flags of its topmost folder, which new files inherit: see FLAGS; None: there is no such folder
    flags: Maybe[Optional[Tuple[str, ...]]]
    #: the line itself
    line: str

    def option(self, name: str) -> Optional[str]:
        """The value of ``name=value``, empty for a bare ``name``, None where it is not given."""
        pairs = (option.partition("=") for option in self.options)
        return next((value for key, _, value in pairs if key == name), None)


@dataclass(frozen=True)
class StorageFacts:
    """``mounts`` by mount point; where mounts lie over each other, the one on top."""

    mounts: Maybe[Mapping[str, Mount]]
    #: NVMe controllers: name → transport
    controllers: Mapping[str, Maybe[str]] = field(default_factory=dict)
    #: requested paths: flags, as for a mount
    inodes: Mapping[str, Maybe[Optional[Tuple[str, ...]]]] = field(default_factory=dict)
    #: folder → audit of direct I/O
    audits: Mapping[str, Maybe[Audit]] = field(default_factory=dict)
    #: mount point → proof of cuFile's path for each GPU
    proofs: Mapping[str, Tuple[Proof, ...]] = field(default_factory=dict)
    #: mount point → reading under load, where requested
    loads: Maybe[Mapping[str, Maybe[Loaded]]] = field(default_factory=dict)

    def mount_of(self, path: str) -> Maybe[Optional[Mount]]:
        """The mount that ``path`` lies on, by its name."""
        if isinstance(self.mounts, Unknown):
            return self.mounts
        above = [point for point in self.mounts if path == point or path.startswith(point.rstrip("/") + "/")]
        return self.mounts[max(above, key=len)] if above else None


def storage_facts(document: Document) -> StorageFacts:
    folder = "/sys/class/nvme"
    transports = {name: _line(document, f"{folder}/{name}/transport") for name in document.existing(folder)}
    text = document.text(MOUNTINFO)
    trials = (audits(document), proofs(document), loads(document))
    if not isinstance(text, str):
        return StorageFacts(why_not(text, "there is no " + MOUNTINFO), transports, {}, *trials)
    mounts = [mount for mount in (_mount(document, line) for line in text.splitlines()) if mount is not None]
    inodes = {path: _flags(document, path) for path in document.paths("inodes")}
    return StorageFacts({mount.mount_point: mount for mount in mounts}, transports, inodes, *trials)


def _flags(document: Document, path: str) -> Maybe[Optional[Tuple[str, ...]]]:
    return if_present(
        document.inode_flags(path), lambda value: tuple(name for name, bit in FLAGS.items() if value & bit)
    )


def _line(document: Document, path: str) -> Maybe[str]:
    return with_default(document.line(path), "")


def _mount(document: Document, line: str) -> Optional[Mount]:
    """See proc(5): id, parent, major:minor, root, mount point, options, optional fields, "-", type, source, options."""
    left, separator, right = line.partition(" - ")
    fields, rest = left.split(), right.split()
    if not separator or len(fields) < 6 or len(rest) < 2:
        return None
    options = tuple(fields[5].split(",")) + tuple(rest[2].split(",") if len(rest) > 2 else ())
    device = None if fields[2].startswith("0:") else _device(document, fields[2], 0)
    point = plain_name(fields[4])
    flags = _flags(document, point) if device is not None else None
    return Mount(point, plain_name(rest[1]), rest[0], tuple(dict.fromkeys(options)), device, flags, line)


def _device(document: Document, number: str, depth: int) -> Maybe[Device]:
    link = "/sys/dev/block/" + number
    path = document.link(link)
    if isinstance(path, Unknown):
        return path
    if path is None or depth > 8:
        return Unknown(f"{number} is not a block device that sysfs shows")
    disk = _disk(document, link, path)
    if isinstance(disk, Unknown):
        return disk
    slaves = with_default(document.names(disk.link + "/slaves"), ())
    numbers = when_known(
        slaves, lambda names: all_known(_number_of(document, f"{disk.link}/slaves/{n}", n) for n in names)
    )
    below = when_known(numbers, lambda lower: all_known(_device(document, one, depth + 1) for one in lower))
    return when_known(below, lambda devices: _described(document, number, posixpath.basename(path), disk, devices))


def _number_of(document: Document, folder: str, name: str) -> Maybe[str]:
    number = document.line(folder + "/dev")
    return number if isinstance(number, str) else why_not(number, f"{name} has no number")


@dataclass(frozen=True)
class _Disk:
    """``path`` below /sys/devices; ``link`` by its number, which is how its files are recorded."""

    path: str
    link: str


def _disk(document: Document, link: str, path: str) -> Maybe[_Disk]:
    """The whole disk: a partition lies in the folder of its disk."""
    partition = document.text(link + "/partition")
    if isinstance(partition, Unknown):
        return partition
    if partition is None:
        return _Disk(path, link)
    disk = posixpath.dirname(path)
    return when_known(_number_of(document, disk, disk), lambda number: _Disk(disk, "/sys/dev/block/" + number))


def _described(document: Document, number: str, name: str, disk: _Disk, below: Tuple[Device, ...]) -> Device:
    kind, transport = _kind(document, disk.path)
    integrity = document.line(disk.link + "/integrity/device_is_integrity_capable")
    return Device(
        name=name,
        number=number,
        kind=kind,
        transport=transport,
        pci_address=(addresses(disk.path) or ("",))[-1],
        dm_uuid=_line(document, disk.link + "/dm/uuid"),
        dm_targets=_targets(document, disk.link) if kind == DM else (),
        md_level=_line(document, disk.link + "/md/level"),
        integrity=when_known(integrity, lambda text: text == "1"),
        udev_usage=if_present(document.text("/run/udev/data/b" + number), _udev_usage),
        block_size=_number(document, disk.link + "/queue/logical_block_size"),
        ext4_options=if_present(document.text(f"/proc/fs/ext4/{name}/options"), lambda text: tuple(text.split())),
        ext4_features=if_present(document.features(name), _ext4_features),
        below=below,
        requests=_number(document, disk.link + "/queue/nr_requests"),
        read_ahead=_number(document, disk.link + "/queue/read_ahead_kb"),
    )


def _kind(document: Document, disk: str) -> Tuple[str, Maybe[str]]:
    """(kind, transport) from where a disk lies below /sys/devices."""
    name = posixpath.basename(disk)
    if re.match(r"nvme\d+(c\d+)?n\d+$", name):
        if "/nvme-subsystem/" in disk:
            return MULTIPATH, ""
        controller = posixpath.basename(posixpath.dirname(disk))
        transport = _line(document, f"/sys/class/nvme/{controller}/transport")
        return (NVME if transport == "pcie" else NVMEOF if isinstance(transport, str) else NVME), transport
    return next((kind for pattern, kind in _NAMES.items() if re.match(pattern, name)), OTHER), ""


def _targets(document: Document, link: str) -> Maybe[Tuple[str, ...]]:
    """Types of the targets that ``dmsetup table`` shows for a device."""
    name, run = document.line(link + "/dm/name"), document.ran(DMSETUP)
    if not isinstance(name, str):
        return why_not(name, "the device-mapper device has no name")
    if isinstance(run, Unknown):
        return run
    lines = [line.partition(": ") for line in run.stdout.splitlines()]
    rows = [rest.split() for shown, _, rest in lines if shown == name]
    if not rows:
        return Unknown(f"dmsetup table doesn't show {name}")
    return tuple(dict.fromkeys(row[2] for row in rows if len(row) > 2))


def _udev_usage(text: str) -> Optional[str]:
    match = re.search(r"^E:ID_FS_USAGE=(.+)$", text, re.MULTILINE)
    return match.group(1) if match else None


def _number(document: Document, path: str) -> Maybe[int]:
    size = document.line(path)
    if isinstance(size, str) and re.match(r"\d{1,9}$", size):
        return int(size)
    return why_not(size, f"{path} says {size!r}")


def _ext4_features(sets: Mapping[str, int]) -> Tuple[str, ...]:
    return tuple(feature for feature, bit in EXT4_FEATURES.items() if sets.get("incompat", 0) & bit)
