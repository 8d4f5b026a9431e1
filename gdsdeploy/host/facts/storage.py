"""Mounts and the block devices under them, read rates under load, and what lies between a file's bytes and a disk.

A condition is ``on`` (new files have it), ``possible`` (some files may), ``off``, or unknown: servers don't report it.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ..io.reading import plain_name
from ..paths import BTRFS, DMSETUP, LFS, LUSTRE_OSC, MOUNTINFO, ZFS_VERSION
from .document import Document
from .pci import addresses
from .processes import Proof, proofs
from .unknown import (
    Maybe,
    Unknown,
    all_known,
    decided,
    if_known,
    if_present,
    require,
    when_known,
    why_not,
    with_default,
)


@dataclass(frozen=True)
class Loaded:
    """Reading of one mount with direct I/O, all readers at once."""

    #: bytes a second
    rate: float
    readers: int
    #: bytes of one read
    block: int
    #: seconds of one read
    p50: float
    p99: float
    longest: float

    @property
    def summary(self) -> str:
        """All of it in one sentence."""
        p50, p99, longest = (seconds * 1000 for seconds in (self.p50, self.p99, self.longest))
        rate = f"{size(self.rate)}/s read by {self.readers} readers, {self.block / (1 << 20):g} MiB each time"
        return f"{rate}; latency p50 {p50:.3g} ms, p99 {p99:.3g} ms, max {longest:.3g} ms"


def size(number: float) -> str:
    """Bytes in decimal units: kB, MB and GB."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def loads(document: Document) -> Maybe[Mapping[str, Maybe[Loaded]]]:
    """Mount point → its reading, or the reason why there is none.  Empty where the caller requested no reading."""
    if not document.has("load"):
        return Unknown("the evidence does not say whether reading under load was asked for")
    records = {path: document.record("load", path, "could not be tried under load") for path in document.paths("load")}
    return {
        path: loaded(path, record) if isinstance(record, dict) else why_not(record, f"nothing was read on {path}")
        for path, record in records.items()
    }


def loaded(path: str, value: Mapping[str, Any]) -> Maybe[Loaded]:
    """A measurement of host/odirect/load.py as facts."""
    latency = value.get("latency")
    times: Mapping[str, Any] = latency if isinstance(latency, Mapping) else {}
    numbers: List[Any] = [value.get(key) for key in ("rate", "readers", "block")]
    numbers += [times.get(key) for key in ("p50", "p99", "max")]
    if any(isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0 for number in numbers):
        return Unknown(f"the record of reading on {path} under load is malformed")
    return Loaded(*numbers)


#: Results of one piece of direct I/O: see host/odirect/trials.py.
BYPASSED, BUFFERED, FELL_BACK, REFUSED, WRONG, NOT_PROVEN = (
    "bypassed", "buffered", "fell back", "refused", "wrong data", "not proven",
)  # fmt: skip
RESULTS = (BYPASSED, BUFFERED, FELL_BACK, REFUSED, WRONG, NOT_PROVEN)
#: The trial that stands for all of them where files cannot be opened for direct I/O at all.
OPEN = "open"
#: Trials whose offset, length and memory are aligned, of files that are large enough for a block of their own.
ALIGNED = (
    OPEN, "read", "overwrite", "extending write", "write into a hole", "write into preallocated space",
)  # fmt: skip
TINY = ("read of a tiny file", "write to a tiny file")


@dataclass(frozen=True)
class Trial:
    """One piece of direct I/O; ``pages``: of the page cache that it used; ``error``: an errno's name, or empty."""

    name: str
    result: str
    pages: int
    error: str

    def words(self) -> str:
        if self.result == REFUSED:
            return f"{self.name}: refused ({self.error})"
        if self.result in (BUFFERED, FELL_BACK):
            how = "through the page cache" if self.result == BUFFERED else "through the page cache, and dropped from it"
            return "{}: {} ({} page{})".format(self.name, how, self.pages, "" if self.pages == 1 else "s")
        return "{}: {}{}".format(self.name, self.result, f" ({self.error})" if self.error else "")


@dataclass(frozen=True)
class Audit:
    """The trials in one folder, in their order."""

    folder: str
    trials: Tuple[Trial, ...]
    #: the call that showed the page cache; None: none worked there
    instrument: Optional[str]
    #: bytes that memory and offset have to be multiples of, as the kernel says; None: it says nothing
    alignment: Optional[Tuple[int, int]]

    def of(self, names: Tuple[str, ...]) -> Tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.name in names)

    @property
    def summary(self) -> str:
        """All of it in one sentence."""
        aligned = self.of(ALIGNED)
        bypassed = sum(trial.result == BYPASSED for trial in aligned)
        words = [f"{bypassed} of {len(aligned)} aligned kinds of I/O bypass the page cache"]
        if self.unaligned:
            words.append("unaligned ones: " + ", ".join(sorted({trial.result for trial in self.unaligned})))
        words += [trial.words() for trial in self.of(TINY) if trial.result != BYPASSED][:1]
        if self.alignment is not None:
            words.append("alignment: memory {}, offset {} bytes".format(*self.alignment))
        return "; ".join(words)

    @property
    def unaligned(self) -> Tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if "unaligned" in trial.name)


def audits(document: Document) -> Mapping[str, Maybe[Audit]]:
    """Folder → its audit, or the reason why there is none."""
    return {path: _audit(document, path) for path in document.paths("odirect")}


@decided
def _audit(document: Document, path: str) -> Maybe[Audit]:
    value = document.record("odirect", path, "could not be tried")
    if not isinstance(value, dict):
        return Unknown(f"{path} is not there") if value is None else value
    records = value.get("trials")
    if not isinstance(records, dict):
        return Unknown(f"the record of direct I/O on {path} is malformed")
    trials = require(all_known(_trial(str(name), record) for name, record in records.items()))
    if not trials:
        return Unknown(f"no direct I/O was tried on {path}")
    instrument = value.get("instrument")
    instrument = instrument if isinstance(instrument, str) else None
    return Audit(path, trials, instrument, _alignment(value.get("alignment")))


def _alignment(value: Any) -> Optional[Tuple[int, int]]:
    memory, offset = (value.get(key) for key in ("memory", "offset")) if isinstance(value, dict) else (None, None)
    return (memory, offset) if isinstance(memory, int) and isinstance(offset, int) else None


def _trial(name: str, value: Any) -> Maybe[Trial]:
    result = value.get("result") if isinstance(value, dict) else None
    if result not in RESULTS:
        return Unknown(f"the result of {name!r} is not understood")
    pages, error = value.get("pages", 0), value.get("error", "")
    return Trial(name, result, pages if isinstance(pages, int) else 0, error if isinstance(error, str) else "")


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

    @property
    def devices(self) -> Tuple[Device, ...]:
        """Every block device under it, the topmost first."""

        def below(device: Device) -> Tuple[Device, ...]:
            return (device, *(lowest for lower in device.below for lowest in below(lower)))

        return below(self.device) if isinstance(self.device, Device) else ()


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
    transports = {name: _text_of(document, f"{folder}/{name}/transport") for name in document.existing(folder)}
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


def _text_of(document: Document, path: str) -> Maybe[str]:
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


@decided
def _device(document: Document, number: str, depth: int) -> Maybe[Device]:
    link = "/sys/dev/block/" + number
    path = require(document.link(link))
    if path is None or depth > 8:
        return Unknown(f"{number} is not a block device that sysfs shows")
    disk = require(_disk(document, link, path))
    names = require(with_default(document.names(disk.link + "/slaves"), ()))
    numbers = require(all_known(_number_of(document, f"{disk.link}/slaves/{name}", name) for name in names))
    below = require(all_known(_device(document, one, depth + 1) for one in numbers))
    return _described(document, number, posixpath.basename(path), disk, below)


def _number_of(document: Document, folder: str, name: str) -> Maybe[str]:
    number = document.line(folder + "/dev")
    return number if isinstance(number, str) else why_not(number, f"{name} has no number")


@dataclass(frozen=True)
class _Disk:
    """``path`` below /sys/devices; ``link`` by its number, which is how its files are recorded."""

    path: str
    link: str


@decided
def _disk(document: Document, link: str, path: str) -> Maybe[_Disk]:
    """The whole disk: a partition lies in the folder of its disk."""
    partition = require(document.text(link + "/partition"))
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
        dm_uuid=_text_of(document, disk.link + "/dm/uuid"),
        dm_targets=_targets(document, disk.link) if kind == DM else (),
        md_level=_text_of(document, disk.link + "/md/level"),
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
        transport = _text_of(document, f"/sys/class/nvme/{controller}/transport")
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


ON, POSSIBLE, OFF = "on", "possible", "off"
JOURNALLING, INLINE, CHECKSUMS, COMPRESSION, DEDUPLICATION, ENCRYPTION, COW, CACHE = (
    "data journalling", "inline data", "checksums", "compression", "deduplication", "encryption", "copy-on-write",
    "cache of the client",
)  # fmt: skip
RAID, LVM, MULTI, TIERING, REPLICATION, READ_AHEAD, TRANSPORT = (
    "RAID or erasure coding", "LVM", "multipath", "tiering", "synchronous replication", "read-ahead", "transport",
)  # fmt: skip
#: Conditions of a filesystem's own, in the order of a report.
FILESYSTEM = (JOURNALLING, INLINE, CHECKSUMS, COMPRESSION, DEDUPLICATION, ENCRYPTION, COW, CACHE)
BLOCK = (RAID, LVM, MULTI, TIERING, REPLICATION)
#: Filesystems whose data lies with servers → their kernel modules.
SERVED = {
    "nfs": ("nfs", "rpcrdma"),
    "nfs4": ("nfsv4", "rpcrdma"),
    "lustre": ("lustre", "lnet"),
    "gpfs": ("mmfs26", "mmfslinux"),
    "wekafs": ("wekafsio", "wekafsgw"),
    "beegfs": ("beegfs",),
    "scatefs": ("scatefs",),
    "panfs": ("panfs",),
    "virtiofs": ("virtiofs",),
    "ceph": ("ceph",),
    "cifs": ("cifs",),
    "9p": ("9p",),
}
#: Filesystems without a cache beside the page cache.
_PAGE_CACHE_ONLY = ("ext4", "ext3", "ext2", "xfs", "btrfs")
#: Kind of block device → the condition that it makes.
_DRIVERS = {BCACHE: TIERING, DRBD: REPLICATION}
#: A flag of XFS's geometry: XFS_FSOP_GEOM_FLAGS_REFLINK.
_XFS_REFLINK = 1 << 20
#: First part of a device-mapper name → the condition that it makes.
_LAYERS = {"CRYPT": ENCRYPTION, "LVM": LVM, "mpath": MULTI, "RAID": RAID, "INTEGRITY": CHECKSUMS}
#: Target of a device-mapper table → the condition that it makes; the name of an LVM volume doesn't show it.
_TARGETS = {
    "cache": TIERING, "writecache": TIERING, "thin": COW, "snapshot": COW, "raid": RAID, "crypt": ENCRYPTION,
    "integrity": CHECKSUMS, "multipath": MULTI,
}  # fmt: skip
#: First release of OpenZFS that doesn't serve O_DIRECT from its cache.
_ZFS_DIRECT = (2, 3)


@dataclass(frozen=True)
class Condition:
    """``evidence``: lines of evidence, each with its place, a colon, and the words there."""

    name: str
    state: Maybe[str]
    evidence: Tuple[str, ...] = ()


def conditions(document: Document, storage: StorageFacts, mount: Mount, path: str) -> Tuple[Condition, ...]:
    """Every condition of the mount that ``path`` lies on.  Of two with one name by its filesystem, the later counts."""
    by_name = {condition.name: condition for condition in _of_filesystem(document, storage, mount, path)}
    for condition in _of_devices(mount):
        previous = by_name.get(condition.name)
        # An encrypted disk under a filesystem that does not encrypt: what is on counts.
        if previous is None or previous.state != ON:
            by_name[condition.name] = condition
    names = (*FILESYSTEM, *BLOCK, READ_AHEAD, TRANSPORT)
    return tuple(by_name[name] for name in names if name in by_name)


def _of_filesystem(document: Document, storage: StorageFacts, mount: Mount, path: str) -> Iterator[Condition]:
    kind = mount.filesystem
    flags = storage.inodes.get(path, mount.flags)
    if kind in SERVED:
        yield from _served(document, mount)
    elif kind == "overlay":
        upper = mount.option("upperdir") or "nothing that can be written to"
        reason = Unknown(f"overlay hands I/O on to {upper}: ask there")
        yield from (Condition(name, reason) for name in FILESYSTEM if name != COW)
        yield Condition(COW, ON, (f"{_mount_line(mount)}: files of lower folders are copied when written to",))
    elif kind in ("ext4", "ext3", "ext2"):
        yield from _ext4(mount, flags)
    elif kind == "xfs":
        yield from _xfs(document, mount, path)
    elif kind == "btrfs":
        yield from _btrfs(document, mount, path, flags)
    elif kind in ("tmpfs", "ramfs"):
        yield from (Condition(name, OFF, (f"{kind} has none",)) for name in FILESYSTEM)
    else:
        yield from (Condition(name, Unknown(f"{kind} was not asked")) for name in FILESYSTEM)
    if kind == "zfs":
        yield _zfs_cache(document)
    if kind in _PAGE_CACHE_ONLY:
        yield Condition(CACHE, OFF, (f"{kind} has only the page cache",))


def _zfs_cache(document: Document) -> Condition:
    """ZFS has its own cache, the ARC; before OpenZFS 2.3 it ignores O_DIRECT."""
    version = document.line(ZFS_VERSION)
    if not isinstance(version, str):
        return Condition(CACHE, why_not(version, "there is no " + ZFS_VERSION))
    numbers = tuple(int(part) for part in re.findall(r"\d{1,6}", version)[:2])
    return Condition(CACHE, POSSIBLE if numbers >= _ZFS_DIRECT else ON, (f"{ZFS_VERSION}: {version}: ARC",))


def _mount_line(mount: Mount) -> str:
    return f"{mount.source} on {mount.mount_point} type {mount.filesystem} ({','.join(mount.options)})"


def _served(document: Document, mount: Mount) -> Iterator[Condition]:
    reason = Unknown(f"the servers of {mount.filesystem} decide it, and do not say")
    yield from (Condition(name, reason) for name in (*FILESYSTEM, RAID))
    yield _client_cache(mount)
    yield from _lustre(document, mount)
    options = [
        option for option in mount.options if option.split("=")[0] in ("proto", "vers", "nconnect", "rdma", "port")
    ]
    modules = document.text("/proc/modules")
    loaded = {line.split()[0] for line in modules.splitlines() if line.strip()} if isinstance(modules, str) else set()
    clients = SERVED[mount.filesystem]
    modules_line = ", ".join(name for name in clients if name in loaded) or "none of " + ", ".join(clients)
    rdma = mount.option("proto") == "rdma"
    words = "RDMA" if rdma else " ".join(options) or Unknown(f"{mount.filesystem} does not show it here")
    yield Condition(TRANSPORT, words, (_mount_line(mount), "/proc/modules: " + modules_line))


def _client_cache(mount: Mount) -> Condition:
    """Caches of network filesystems beside the page cache.  Direct I/O bypasses them, other I/O fills them."""
    if mount.filesystem == "gpfs":
        words = "the page pool serves I/O that is not aligned, or that allocates blocks"
        return Condition(CACHE, POSSIBLE, (f"{_mount_line(mount)}: {words}",))
    fscache = mount.option("fsc") is not None or mount.option("cache") == "fscache"
    return Condition(CACHE, POSSIBLE if fscache else OFF, (f"{_mount_line(mount)}: {'' if fscache else 'no '}fscache",))


def _lustre(document: Document, mount: Mount) -> Iterator[Condition]:
    """The client shows its checksums, and ``lfs`` the layout of new files, whose first part may lie with metadata."""
    if mount.filesystem != "lustre":
        return
    paths = [f"{LUSTRE_OSC}/{name}/checksums" for name in document.existing(LUSTRE_OSC)]
    values = {path: document.line(path) for path in paths}
    lines = tuple(f"{path}: {value}" for path, value in values.items() if isinstance(value, str))
    if lines and len(lines) == len(values):
        # Clients with GPUDirect leave checksums out for GPU memory (Lustre LU-14798), not in compat mode.
        yield Condition(CHECKSUMS, POSSIBLE if any(value == "1" for value in values.values()) else OFF, lines[:4])
    layout = document.ran(LFS + mount.mount_point)
    if isinstance(layout, Unknown):
        yield Condition(INLINE, layout)
    elif layout.status != 0:
        yield Condition(INLINE, Unknown("lfs getstripe: " + layout.stderr.strip()[:120]))
    else:
        on_metadata = re.search(r"pattern:\s*(\S*\bmdt\b\S*)", layout.stdout)
        words = f"pattern {on_metadata.group(1)}" if on_metadata else "no component on the metadata servers"
        evidence = f"lfs getstripe -d {mount.mount_point}: {words}"
        yield Condition(INLINE, POSSIBLE if on_metadata else OFF, (evidence,))


def _flag(
    name: str, flags: Maybe[Optional[Tuple[str, ...]]], flag: str, feature: Maybe[bool], evidence: str
) -> Condition:
    """On where the folder's flag is set, which its new files inherit; possible where the filesystem has the feature."""
    if isinstance(flags, tuple) and flag in flags:
        return Condition(name, ON, ("inode flags: " + ", ".join(flags),))
    if isinstance(feature, Unknown):
        return Condition(name, feature)
    if isinstance(flags, Unknown):
        return Condition(name, flags)
    return Condition(name, POSSIBLE if feature else OFF, (evidence,))


def _ext4(mount: Mount, flags: Maybe[Optional[Tuple[str, ...]]]) -> Iterator[Condition]:
    device = mount.device if isinstance(mount.device, Device) else None
    effective = device.ext4_options if device else Unknown("its device is not known")
    options = effective if isinstance(effective, tuple) else ()
    mode = mount.option("data") or next((option[5:] for option in options if option.startswith("data=")), None)
    if mode is None and not isinstance(effective, tuple):
        yield Condition(JOURNALLING, why_not(effective, "ext4 shows no options"))
    elif mode == "journal":
        yield Condition(JOURNALLING, ON, (_mount_line(mount),))
    elif "delalloc" in options and isinstance(flags, tuple) and "journalled" in flags:
        # Seen on 6.12: ext4_inode_journal_mode ignores the flag with delayed allocation, which is the default.
        yield Condition(JOURNALLING, OFF, ("inode flags: journalled, without effect beside delalloc",))
    else:
        evidence = f"data={mode}" if mode else "no journal"
        yield _flag(JOURNALLING, flags, "journalled", False, "options in effect: " + evidence)
    features = device.ext4_features if device else Unknown("its device is not known")
    shown = features if isinstance(features, tuple) else ()
    for name, flag, feature in ((INLINE, "inline", "inline_data"), (ENCRYPTION, "encrypted", "encrypt")):
        has_feature = features if isinstance(features, Unknown) else feature in shown
        evidence = "superblock: " + (", ".join(shown) or "neither inline_data nor encrypt")
        yield _flag(name, flags, flag, has_feature, evidence)
    yield from (Condition(name, OFF, ("ext4 has none for data",)) for name in (CHECKSUMS, DEDUPLICATION, COW))
    yield _flag(COMPRESSION, flags, "compressed", False, "ext4 has none")


def _xfs(document: Document, mount: Mount, path: str) -> Iterator[Condition]:
    yield from (
        Condition(name, OFF, ("XFS has none for data",))
        for name in (JOURNALLING, INLINE, CHECKSUMS, COMPRESSION, ENCRYPTION)
    )
    record = document.record("insides", path)
    flags = record.get("geometry") if isinstance(record, dict) else None
    if not isinstance(flags, int):
        reason = why_not(record, f"XFS on {mount.mount_point} was not asked")
        yield from (Condition(name, reason) for name in (DEDUPLICATION, COW))
        return
    reflink = bool(flags & _XFS_REFLINK)
    evidence = f"XFS geometry: reflink={int(reflink)}"
    # Extents are shared when a program asks for it, and copied when one of their files is written to.
    yield from (Condition(name, POSSIBLE if reflink else OFF, (evidence,)) for name in (DEDUPLICATION, COW))


def _btrfs(document: Document, mount: Mount, path: str, flags: Maybe[Optional[Tuple[str, ...]]]) -> Iterator[Condition]:
    line, options = _mount_line(mount), {option.split("=")[0] for option in mount.options}
    nocow = "nodatacow" in options or (isinstance(flags, tuple) and "nocow" in flags)
    record = document.record("insides", path)
    fsid = record.get("fsid") if isinstance(record, dict) else None
    folder = f"{BTRFS}/{fsid}"
    checksum = document.line(folder + "/checksum") if fsid else None
    evidence = (line, *([f"{folder}/checksum: {checksum}"] if isinstance(checksum, str) else []))
    yield Condition(JOURNALLING, OFF, ("Btrfs has none",))
    yield Condition(INLINE, OFF if mount.option("max_inline") == "0" else POSSIBLE, (line,))
    yield Condition(CHECKSUMS, OFF if nocow or "nodatasum" in options else ON, evidence)
    compressed = bool(options & {"compress", "compress-force"}) or (isinstance(flags, tuple) and "compressed" in flags)
    yield Condition(COMPRESSION, ON if compressed else OFF, (line,))
    yield Condition(DEDUPLICATION, POSSIBLE, ("Btrfs shares extents when a program asks for it",))
    yield Condition(ENCRYPTION, OFF, ("Btrfs has none",))
    yield Condition(COW, OFF if nocow else ON, (line,))
    names = document.names(folder + "/allocation/data") if fsid else Unknown("Btrfs was not asked")
    if isinstance(names, tuple):
        profiles = [option for option in names if option == "single" or option == "dup" or option.startswith("raid")]
        state = ON if set(profiles) - {"single"} else OFF
        yield Condition(RAID, state, ("{}/allocation/data: {}".format(folder, ", ".join(profiles)),))
    else:
        yield Condition(RAID, why_not(names, "Btrfs does not show its profiles"))


def _of_devices(mount: Mount) -> Iterator[Condition]:
    if not isinstance(mount.device, Device):
        return
    layered = (*BLOCK, ENCRYPTION, CHECKSUMS, COMPRESSION, DEDUPLICATION, COW)
    evidence: Dict[str, List[str]] = {name: [] for name in layered}
    unknown: Optional[Unknown] = None
    for device in mount.devices:
        place = "/sys/dev/block/" + device.number
        if device.kind == MD:
            evidence[RAID].append(f"{place}/md/level: {_shown(device.md_level)}")
        elif device.kind == MULTIPATH:
            evidence[MULTI].append(f"{place}: {device.name}")
        elif device.kind in _DRIVERS:
            evidence[_DRIVERS[device.kind]].append(f"{place}: {device.name}")
        elif device.kind == DM:
            uuid = device.dm_uuid
            _add_targets(device, evidence)
            unknown = uuid if isinstance(uuid, Unknown) else unknown
            line = f"{place}/dm/uuid: {_shown(uuid)}"
            first = uuid.split("-")[0] if isinstance(uuid, str) else ""
            for name in (COMPRESSION, DEDUPLICATION) if first == "VDO" else (_LAYERS.get(first),):
                if name is not None:
                    evidence[name].append(line)
    if isinstance(mount.device.read_ahead, int):
        size = mount.device.read_ahead
        yield Condition(READ_AHEAD, f"{size} KiB, for buffered reads only", (f"{mount.source}: {size}",))
    for name, lines in evidence.items():
        if lines:
            yield Condition(name, ON, tuple(lines))
        elif unknown is not None:
            yield Condition(name, unknown)
        elif name in BLOCK:
            yield Condition(name, OFF, (f"{mount.source}: none",))


def _add_targets(device: Device, evidence: Dict[str, List[str]]) -> None:
    """Add what the table of a device-mapper device shows; older evidence has no tables."""
    for target in if_known(lambda: device.dm_targets, ()):
        if target in _TARGETS:
            evidence[_TARGETS[target]].append(f"dmsetup table: {device.name}: {target}")


def _shown(value: Maybe[str]) -> str:
    return value.reason if isinstance(value, Unknown) else value
