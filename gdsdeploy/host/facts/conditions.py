"""Conditions between a file's bytes and the disk or server, as the filesystem or the device reports them.

A condition is ``on`` (new files have it), ``possible`` (some files may), ``off``, or unknown: servers don't report it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple

from ..paths import BTRFS, LFS, LUSTRE_OSC, ZFS_VERSION
from .document import Document
from .storage import BCACHE, DM, DRBD, MD, MULTIPATH, Device, Mount, StorageFacts
from .unknown import Maybe, Unknown, if_known, why_not

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
        yield Condition(COW, ON, (f"{_line(mount)}: files of lower folders are copied when written to",))
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


def _line(mount: Mount) -> str:
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
    yield Condition(TRANSPORT, words, (_line(mount), "/proc/modules: " + modules_line))


def _client_cache(mount: Mount) -> Condition:
    """Caches of network filesystems beside the page cache.  Direct I/O bypasses them, other I/O fills them."""
    if mount.filesystem == "gpfs":
        words = "the page pool serves I/O that is not aligned, or that allocates blocks"
        return Condition(CACHE, POSSIBLE, (f"{_line(mount)}: {words}",))
    fscache = mount.option("fsc") is not None or mount.option("cache") == "fscache"
    return Condition(CACHE, POSSIBLE if fscache else OFF, (f"{_line(mount)}: {'' if fscache else 'no '}fscache",))


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
        yield Condition(JOURNALLING, ON, (_line(mount),))
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
    line, options = _line(mount), {option.split("=")[0] for option in mount.options}
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
    for device in _stack(mount.device):
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
    for target in if_known(device.dm_targets, ()):
        if target in _TARGETS:
            evidence[_TARGETS[target]].append(f"dmsetup table: {device.name}: {target}")


def _stack(device: Device) -> List[Device]:
    return [device, *(device for lower in device.below for device in _stack(lower))]


def _shown(value: Maybe[str]) -> str:
    return value.reason if isinstance(value, Unknown) else value
