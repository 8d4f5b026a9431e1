"""Mounts and the block devices under them, and what lies between a file's bytes and a disk.

A condition is ``on`` (new files have it), ``possible`` (some files may), ``off``, or unknown: servers don't report it.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..io.reading import plain_name
from ..paths import BTRFS, DMSETUP, LFS, LUSTRE_OSC, MOUNTINFO, ZFS_VERSION
from ..subjects.load import loads
from ..subjects.pci import addresses
from .document import Document, collected, there
from .processes import proofs
from .unknown import Facts, Maybe, UndecidedError, Unknown, fact, given, if_known, known, or_else

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
    return {path: known(partial(_audit, document, path)) for path in document.paths("odirect")}


def _audit(document: Document, path: str) -> Audit:
    value = collected(document.record("odirect", path, "could not be tried"), f"{path} is not there")
    records = value.get("trials")
    if not isinstance(records, dict):
        raise UndecidedError(f"the record of direct I/O on {path} is malformed")
    trials = tuple(_trial(str(name), record) for name, record in records.items())
    if not trials:
        raise UndecidedError(f"no direct I/O was tried on {path}")
    instrument = value.get("instrument")
    instrument = instrument if isinstance(instrument, str) else None
    return Audit(path, trials, instrument, _alignment(value.get("alignment")))


def _alignment(value: Any) -> Optional[Tuple[int, int]]:
    memory, offset = (value.get(key) for key in ("memory", "offset")) if isinstance(value, dict) else (None, None)
    return (memory, offset) if isinstance(memory, int) and isinstance(offset, int) else None


def _trial(name: str, value: Any) -> Trial:
    result = value.get("result") if isinstance(value, dict) else None
    if result not in RESULTS:
        raise UndecidedError(f"the result of {name!r} is not understood")
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


class Device(Facts):
    """A block device; partitions are described by their disk."""

    def __init__(self, document: Document, number: str, depth: int = 0) -> None:
        """number: major:minor.  Raises UndecidedError where sysfs doesn't show it, or what is below it."""
        super().__init__(document)
        link = "/sys/dev/block/" + number
        path = document.link(link)
        if path is None or depth > 8:
            raise UndecidedError(f"{number} is not a block device that sysfs shows")
        #: as in /dev, e.g. ``nvme0n1p1``
        self.name, self.number = posixpath.basename(path), number
        if document.text(link + "/partition") is not None:
            # A partition lies in the folder of its disk, whose files are recorded by its number.
            path = posixpath.dirname(path)
            link = "/sys/dev/block/" + _number_of(document, path, path)
        self._path, self._link = path, link
        names = document.names(link + "/slaves") or ()
        numbers = [_number_of(document, f"{link}/slaves/{name}", name) for name in names]
        self.below = tuple(Device(document, one, depth + 1) for one in numbers)
        is_remote = _kind(path) == NVME and if_known(lambda: self.transport, "pcie") != "pcie"
        self.kind = NVMEOF if is_remote else _kind(path)
        #: of the controller, empty for virtual devices
        self.pci_address = (addresses(path) or ("",))[-1]

    @fact
    def transport(self) -> str:
        """Of NVMe: ``pcie``, ``rdma``, ``tcp``, ``fc``, ``loop``; empty for others."""
        if _kind(self._path) != NVME:
            return ""
        controller = posixpath.basename(posixpath.dirname(self._path))
        return self.document.line(f"/sys/class/nvme/{controller}/transport") or ""

    @fact
    def dm_uuid(self) -> str:
        """Of device mapper: e.g. ``LVM-…``, ``CRYPT-LUKS2-…``, ``mpath-…``."""
        return self.document.line(self._link + "/dm/uuid") or ""

    @fact
    def dm_targets(self) -> Tuple[str, ...]:
        """Of device mapper, in the order of its table, e.g. ``linear``, ``cache``, ``thin``; empty for others."""
        if self.kind != DM:
            return ()
        name = collected(self.document.line(self._link + "/dm/name"), "the device-mapper device has no name")
        lines = [line.partition(": ") for line in self.document.ran(DMSETUP).stdout.splitlines()]
        rows = [rest.split() for shown, _, rest in lines if shown == name]
        if not rows:
            raise UndecidedError(f"dmsetup table doesn't show {name}")
        return tuple(dict.fromkeys(row[2] for row in rows if len(row) > 2))

    @fact
    def md_level(self) -> str:
        """Of md: e.g. ``raid0``."""
        return self.document.line(self._link + "/md/level") or ""

    @fact
    def integrity(self) -> bool:
        """Formatted with protection information, which nvidia-fs does not take."""
        return self.document.line(self._link + "/integrity/device_is_integrity_capable") == "1"

    @fact
    def udev_usage(self) -> Optional[str]:
        """What udev recorded as ID_FS_USAGE, e.g. ``filesystem``; None: no record of it."""
        text = self.document.text("/run/udev/data/b" + self.number)
        match = re.search(r"^E:ID_FS_USAGE=(.+)$", text or "", re.MULTILINE)
        return match and match.group(1)

    @fact
    def block_size(self) -> int:
        """Bytes of a logical block."""
        return self._number("logical_block_size")

    @fact
    def ext4_options(self) -> Optional[Tuple[str, ...]]:
        """ext4's options in effect, defaults included; None: not ext4."""
        text = self.document.text(f"/proc/fs/ext4/{self.name}/options")
        return None if text is None else tuple(text.split())

    @fact
    def ext4_features(self) -> Optional[Tuple[str, ...]]:
        """Features of its ext4 that keep files from the direct path: ``encrypt``, ``inline_data``; None: not ext4."""
        sets = self.document.features(self.name)
        return None if sets is None else _ext4_features(sets)

    @fact
    def requests(self) -> int:
        """How many requests its queue holds."""
        return self._number("nr_requests")

    @fact
    def read_ahead(self) -> int:
        """KiB that the kernel reads ahead for buffered reads."""
        return self._number("read_ahead_kb")

    def _number(self, name: str) -> int:
        path = f"{self._link}/queue/{name}"
        size = self.document.line(path)
        if size is None or not re.match(r"\d{1,9}$", size):
            raise UndecidedError(f"{path} says {size!r}")
        return int(size)


class MountRow(NamedTuple):
    """A line of mountinfo."""

    mount_point: str
    source: str
    filesystem: str
    #: per-mount and per-superblock options
    options: Tuple[str, ...]
    #: the line itself
    line: str


class Mount(Facts):
    """What one line of mountinfo says, and what is under it."""

    def __init__(self, document: Document, row: MountRow, number: str = "") -> None:
        """number: that of its block device, major:minor; empty for filesystems without one of their own."""
        super().__init__(document)
        self.mount_point, self.source, self.filesystem, self.options, self.line = row
        self._number = number

    @fact
    def device(self) -> Optional[Device]:
        """None for filesystems without a block device of their own."""
        return Device(self.document, self._number) if self._number else None

    @fact
    def flags(self) -> Optional[Tuple[str, ...]]:
        """Those of its topmost folder, which new files inherit: see FLAGS; None: there is no such folder."""
        return _flags(self.document, self.mount_point) if self._number else None

    def option(self, name: str) -> Optional[str]:
        """The value of ``name=value``, empty for a bare ``name``, None where it is not given."""
        pairs = (option.partition("=") for option in self.options)
        return next((value for key, _, value in pairs if key == name), None)

    @property
    def devices(self) -> Tuple[Device, ...]:
        """Every block device under it, the topmost first."""

        def below(device: Device) -> Tuple[Device, ...]:
            return (device, *(lowest for lower in device.below for lowest in below(lower)))

        device = if_known(lambda: self.device, None)
        return below(device) if device is not None else ()


class StorageFacts(Facts):
    """Mounts, and what was tried on them."""

    @fact
    def mounts(self) -> Mapping[str, Mount]:
        """By mount point; where mounts lie over each other, the one on top."""
        lines = there(self.document.text(MOUNTINFO), MOUNTINFO).splitlines()
        mounts = [mount for mount in (_mount(self.document, line) for line in lines) if mount is not None]
        return {mount.mount_point: mount for mount in mounts}

    @fact
    def controllers(self) -> Mapping[str, Maybe[str]]:
        """NVMe controllers: name → transport."""
        names = self.document.existing("/sys/class/nvme")
        return {name: known(partial(_transport, self.document, name)) for name in names}

    @fact
    def inodes(self) -> Mapping[str, Maybe[Optional[Tuple[str, ...]]]]:
        """Requested paths: flags, as for a mount; none where the mounts aren't known."""
        paths = self.document.paths("inodes") if if_known(lambda: self.mounts, None) is not None else ()
        return {path: known(partial(_flags, self.document, path)) for path in paths}

    #: folder → audit of direct I/O
    audits = given(audits)
    #: mount point → proof of cuFile's path for each GPU
    proofs = given(proofs)
    #: mount point → reading under load, where requested
    loads = given(loads)

    def mount_of(self, path: str) -> Optional[Mount]:
        """The mount that ``path`` lies on, by its name."""
        above = [point for point in self.mounts if path == point or path.startswith(point.rstrip("/") + "/")]
        return self.mounts[max(above, key=len)] if above else None


def _flags(document: Document, path: str) -> Optional[Tuple[str, ...]]:
    value = document.inode_flags(path)
    return None if value is None else tuple(name for name, bit in FLAGS.items() if value & bit)


def _transport(document: Document, controller: str) -> str:
    return document.line(f"/sys/class/nvme/{controller}/transport") or ""


def _mount(document: Document, line: str) -> Optional[Mount]:
    """See proc(5): id, parent, major:minor, root, mount point, options, optional fields, "-", type, source, options."""
    left, separator, right = line.partition(" - ")
    fields, rest = left.split(), right.split()
    if not separator or len(fields) < 6 or len(rest) < 2:
        return None
    options = tuple(fields[5].split(",")) + tuple(rest[2].split(",") if len(rest) > 2 else ())
    row = MountRow(plain_name(fields[4]), plain_name(rest[1]), rest[0], tuple(dict.fromkeys(options)), line)
    return Mount(document, row, "" if fields[2].startswith("0:") else fields[2])


def _number_of(document: Document, folder: str, name: str) -> str:
    return collected(document.line(folder + "/dev"), f"{name} has no number")


def _kind(path: str) -> str:
    """From where a disk lies below /sys/devices; NVME also for one over fabrics."""
    name = posixpath.basename(path)
    if re.match(r"nvme\d+(c\d+)?n\d+$", name):
        return MULTIPATH if "/nvme-subsystem/" in path else NVME
    return next((kind for pattern, kind in _NAMES.items() if re.match(pattern, name)), OTHER)


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
    flags = storage.inodes[path] if path in storage.inodes else known(lambda: mount.flags)
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
        yield from _btrfs(document, mount, path, flags if isinstance(flags, tuple) else ())
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
    version = known(lambda: there(document.line(ZFS_VERSION), ZFS_VERSION))
    if isinstance(version, Unknown):
        return Condition(CACHE, version)
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
    modules = if_known(lambda: document.text("/proc/modules"), None) or ""
    loaded = {line.split()[0] for line in modules.splitlines() if line.strip()}
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
    values = {path: if_known(partial(document.line, path), None) for path in paths}
    lines = tuple(f"{path}: {value}" for path, value in values.items() if value is not None)
    if lines and len(lines) == len(values):
        # Clients with GPUDirect leave checksums out for GPU memory (Lustre LU-14798), not in compat mode.
        yield Condition(CHECKSUMS, POSSIBLE if any(value == "1" for value in values.values()) else OFF, lines[:4])
    layout = known(lambda: document.ran(LFS + mount.mount_point))
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
    effective = known(lambda: _device_of(mount).ext4_options)
    options = or_else(effective, ()) or ()
    mode = mount.option("data") or next((option[5:] for option in options if option.startswith("data=")), None)
    if mode is None and (effective is None or isinstance(effective, Unknown)):
        yield Condition(JOURNALLING, Unknown("ext4 shows no options") if effective is None else effective)
    elif mode == "journal":
        yield Condition(JOURNALLING, ON, (_mount_line(mount),))
    elif "delalloc" in options and "journalled" in (or_else(flags, ()) or ()):
        # Seen on 6.12: ext4_inode_journal_mode ignores the flag with delayed allocation, which is the default.
        yield Condition(JOURNALLING, OFF, ("inode flags: journalled, without effect beside delalloc",))
    else:
        evidence = f"data={mode}" if mode else "no journal"
        yield _flag(JOURNALLING, flags, "journalled", False, "options in effect: " + evidence)
    features = known(lambda: _device_of(mount).ext4_features)
    shown = or_else(features, ()) or ()
    for name, flag, feature in ((INLINE, "inline", "inline_data"), (ENCRYPTION, "encrypted", "encrypt")):
        has_feature = features if isinstance(features, Unknown) else feature in shown
        evidence = "superblock: " + (", ".join(shown) or "neither inline_data nor encrypt")
        yield _flag(name, flags, flag, has_feature, evidence)
    yield from (Condition(name, OFF, ("ext4 has none for data",)) for name in (CHECKSUMS, DEDUPLICATION, COW))
    yield _flag(COMPRESSION, flags, "compressed", False, "ext4 has none")


def _device_of(mount: Mount) -> Device:
    return collected(if_known(lambda: mount.device, None), "its device is not known")


def _xfs(document: Document, mount: Mount, path: str) -> Iterator[Condition]:
    yield from (
        Condition(name, OFF, ("XFS has none for data",))
        for name in (JOURNALLING, INLINE, CHECKSUMS, COMPRESSION, ENCRYPTION)
    )
    record = known(lambda: document.record("insides", path))
    flags = record.get("geometry") if isinstance(record, dict) else None
    if not isinstance(flags, int):
        reason = record if isinstance(record, Unknown) else Unknown(f"XFS on {mount.mount_point} was not asked")
        yield from (Condition(name, reason) for name in (DEDUPLICATION, COW))
        return
    reflink = bool(flags & _XFS_REFLINK)
    evidence = f"XFS geometry: reflink={int(reflink)}"
    # Extents are shared when a program asks for it, and copied when one of their files is written to.
    yield from (Condition(name, POSSIBLE if reflink else OFF, (evidence,)) for name in (DEDUPLICATION, COW))


def _btrfs(document: Document, mount: Mount, path: str, flags: Tuple[str, ...]) -> Iterator[Condition]:
    line, options = _mount_line(mount), {option.split("=")[0] for option in mount.options}
    nocow = "nodatacow" in options or "nocow" in flags
    fsid = (if_known(lambda: document.record("insides", path), None) or {}).get("fsid")
    folder = f"{BTRFS}/{fsid}"
    checksum = if_known(lambda: document.line(folder + "/checksum"), None) if fsid else None
    evidence = (line, *([f"{folder}/checksum: {checksum}"] if checksum is not None else []))
    yield Condition(JOURNALLING, OFF, ("Btrfs has none",))
    yield Condition(INLINE, OFF if mount.option("max_inline") == "0" else POSSIBLE, (line,))
    yield Condition(CHECKSUMS, OFF if nocow or "nodatasum" in options else ON, evidence)
    compressed = bool(options & {"compress", "compress-force"}) or "compressed" in flags
    yield Condition(COMPRESSION, ON if compressed else OFF, (line,))
    yield Condition(DEDUPLICATION, POSSIBLE, ("Btrfs shares extents when a program asks for it",))
    yield Condition(ENCRYPTION, OFF, ("Btrfs has none",))
    yield Condition(COW, OFF if nocow else ON, (line,))
    names = known(lambda: document.names(folder + "/allocation/data")) if fsid else Unknown("Btrfs was not asked")
    if names is None or isinstance(names, Unknown):
        yield Condition(RAID, Unknown("Btrfs does not show its profiles") if names is None else names)
    else:
        profiles = [option for option in names if option == "single" or option == "dup" or option.startswith("raid")]
        state = ON if set(profiles) - {"single"} else OFF
        yield Condition(RAID, state, ("{}/allocation/data: {}".format(folder, ", ".join(profiles)),))


def _of_devices(mount: Mount) -> Iterator[Condition]:
    top = if_known(lambda: mount.device, None)
    if top is None:
        return
    layered = (*BLOCK, ENCRYPTION, CHECKSUMS, COMPRESSION, DEDUPLICATION, COW)
    evidence: Dict[str, List[str]] = {name: [] for name in layered}
    unknown: Optional[Unknown] = None
    for device in mount.devices:
        place = "/sys/dev/block/" + device.number
        if device.kind == MD:
            evidence[RAID].append(f"{place}/md/level: {_shown(known(partial(getattr, device, 'md_level')))}")
        elif device.kind == MULTIPATH:
            evidence[MULTI].append(f"{place}: {device.name}")
        elif device.kind in _DRIVERS:
            evidence[_DRIVERS[device.kind]].append(f"{place}: {device.name}")
        elif device.kind == DM:
            uuid: Maybe[str] = known(partial(getattr, device, "dm_uuid"))
            _add_targets(device, evidence)
            unknown = uuid if isinstance(uuid, Unknown) else unknown
            line = f"{place}/dm/uuid: {_shown(uuid)}"
            first = or_else(uuid, "").split("-")[0]
            for name in (COMPRESSION, DEDUPLICATION) if first == "VDO" else (_LAYERS.get(first),):
                if name is not None:
                    evidence[name].append(line)
    size = if_known(lambda: top.read_ahead, None)
    if size is not None:
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
