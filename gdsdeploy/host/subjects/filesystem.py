"""What filesystems and the layers under them do with the data between a file and a disk, and which allow a direct path.

A feature is ``on`` (new files have it), ``possible`` (some files may), ``off``, or unknown: servers don't report it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from .. import data
from ..facts.document import Document, collected, there
from ..facts.unknown import Maybe, UndecidedError, Unknown, if_known, known, or_else, require
from ..io.mounts import AUTOFS
from ..model.expectation import Expectation
from ..paths import BTRFS, LFS, LUSTRE_OSC, MOUNTINFO, ZFS_VERSION
from . import libcufile, quote, storage
from .condition import (
    DIRECT_PATH,
    NOTES,
    NVIDIA_FS,
    USABLE,
    Cause,
    Condition,
    condition,
    doubted,
    is_since,
    numbers,
    required,
    rule,
)
from .odirect import NOT_MOUNTED, NOT_NEEDED
from .register import Answer, Steps, answer, capitalized, check, failed, not_applicable, passed
from .storage import Device, Mount, StorageFacts
from .types import HostFacts

ON, POSSIBLE, OFF = "on", "possible", "off"
JOURNALLING, INLINE, CHECKSUMS, COMPRESSION, DEDUPLICATION, ENCRYPTION, COW, CACHE = (
    "data journalling", "inline data", "checksums", "compression", "deduplication", "encryption", "copy-on-write",
    "cache of the client",
)  # fmt: skip
RAID, LVM, MULTI, TIERING, REPLICATION, TRANSPORT = (
    "RAID or erasure coding", "LVM", "multipath", "tiering", "synchronous replication", "transport",
)  # fmt: skip
#: Feature of a filesystem's own, in the order of a report → what to do where it is on.
FIXES = {
    JOURNALLING: "mount it with data=ordered, and remove the folder's flag: chattr -j",
    INLINE: "keep small files elsewhere, or make the filesystem again without inline_data, which erases it",
    CHECKSUMS: "use ext4 or XFS, or a Btrfs folder with chattr +C",
    COMPRESSION: "mount it without compression, and remove the folder's flag: chattr -c",
    DEDUPLICATION: "put the filesystem on a device that keeps each block",
    ENCRYPTION: "keep the data in a folder that is not encrypted, on disks that encrypt themselves",
    COW: "use ext4 or XFS on a volume that isn't thin, or a Btrfs folder with chattr +C",
    CACHE: "use ext4 or XFS, or OpenZFS 2.3 or newer",
}
BLOCK = (RAID, LVM, MULTI, TIERING, REPLICATION)


class Layer(NamedTuple):
    """A device over disks: the features that it makes, what it does with the data, and what to do instead."""

    makes: Tuple[str, ...] = ()
    does: str = ""
    instead: str = ""


#: First part of a device-mapper name, or a kind of device → the layer.
LAYERS = {
    "LVM": Layer((LVM,), "a volume of LVM"),
    "CRYPT": Layer(
        (ENCRYPTION,), "encrypted by dm-crypt",
        "use self-encrypting disks, with the filesystem directly on the NVMe disk",
    ),
    "mpath": Layer((MULTI,), "a path of dm-multipath", "use the NVMe disk directly, without dm-multipath"),
    "RAID": Layer((RAID,), "a volume of dm-raid", "use the NVMe disks directly, or md RAID 0"),
    "VDO": Layer((COMPRESSION, DEDUPLICATION), "compressed by dm-vdo"),
    "INTEGRITY": Layer((CHECKSUMS,)),
    storage.BCACHE: Layer(
        (TIERING,), "bcache keeps part of it on a faster disk", "put the filesystem directly on the NVMe disk"
    ),
    storage.DRBD: Layer(
        (REPLICATION,), "DRBD sends each write to another host",
        "put the data on the NVMe disk, and replicate it yourself",
    ),
    storage.LOOP: Layer(instead="put the files on a filesystem of the disk itself, not into an image file"),
    storage.MULTIPATH: Layer((MULTI,)),
}  # fmt: skip
#: Filesystems whose data lies with servers.
SERVED = (
    "nfs", "nfs4", "lustre", "gpfs", "wekafs", "beegfs", "scatefs", "panfs", "virtiofs", "ceph", "cifs", "9p",
)  # fmt: skip
#: Filesystems without a cache beside the page cache.
_PAGE_CACHE_ONLY = ("ext4", "ext3", "ext2", "xfs", "btrfs")
#: A flag of XFS's geometry: XFS_FSOP_GEOM_FLAGS_REFLINK.
_XFS_REFLINK = 1 << 20
#: Target of a device-mapper table → the features that it makes; the name of an LVM volume doesn't show it.  Of others
#: (Documentation/admin-guide/device-mapper) nothing is known.  VDO also has words for its two features, see vdo.rst.
_TARGETS: Dict[str, Tuple[str, ...]] = {
    "linear": (), "error": (), "zero": (), "delay": (), "flakey": (), "era": (), "unstriped": (), "thin-pool": (),
    "cache": (TIERING,), "writecache": (TIERING,), "thin": (COW,), "snapshot": (COW,), "snapshot-origin": (COW,),
    "snapshot-merge": (COW,), "raid": (RAID,), "striped": (RAID,), "mirror": (RAID,), "crypt": (ENCRYPTION,),
    "integrity": (CHECKSUMS,), "verity": (CHECKSUMS,), "multipath": (MULTI,), "switch": (MULTI,),
    "vdo": (COMPRESSION, DEDUPLICATION),
}  # fmt: skip
#: Feature of VDO → its word in a table, before ``on`` or ``off``, and the default.
_OF_VDO = {DEDUPLICATION: ("deduplication", "on"), COMPRESSION: ("compression", "off")}
#: First release of OpenZFS that doesn't serve O_DIRECT from its cache.
_ZFS_DIRECT = (2, 3)


class Feature(NamedTuple):
    """``evidence``: lines of evidence, each with its place, a colon, and the words there."""

    name: str
    state: Maybe[str]
    evidence: Tuple[str, ...] = ()


#: A state and its line of evidence, or UndecidedError.
Read = Callable[[], Tuple[str, str]]


def _feature(name: str, read: Read) -> Feature:
    state = known(read)
    return Feature(name, state) if isinstance(state, Unknown) else Feature(name, state[0], (state[1],))


def _alike(names: Iterable[str], state: Maybe[str], *evidence: str) -> Iterator[Feature]:
    return (Feature(name, state, evidence) for name in names)


def features(facts: StorageFacts, mount: Mount, path: str) -> Tuple[Feature, ...]:
    """Every feature of the mount that ``path`` lies on.  Of two with one name by its filesystem, the later counts."""
    by_name = {feature.name: feature for feature in _of_filesystem(facts, mount, path)}
    for feature in _of_devices(mount):
        previous = by_name.get(feature.name)
        # An encrypted disk under a filesystem that does not encrypt: what is on counts.
        if previous is None or previous.state != ON:
            by_name[feature.name] = feature
    names = (*FIXES, *BLOCK, TRANSPORT)
    return tuple(by_name[name] for name in names if name in by_name)


def _of_filesystem(facts: StorageFacts, mount: Mount, path: str) -> Iterator[Feature]:
    kind = mount.filesystem
    flags = facts.inodes[path] if path in facts.inodes else known(lambda: mount.flags)
    if kind in SERVED:
        yield from _served(mount)
    elif kind == "overlay":
        upper = mount.option("upperdir") or "nothing that can be written to"
        yield from _alike(FIXES, Unknown(f"overlay hands I/O on to {upper}: ask there"))
        yield Feature(COW, ON, (f"{mount.words}: files of lower folders are copied when written to",))
    elif kind in ("ext4", "ext3", "ext2"):
        yield from _ext4(mount, flags)
    elif kind == "xfs":
        yield from _xfs(mount, path)
    elif kind == "btrfs":
        yield from _btrfs(mount, path, flags if isinstance(flags, tuple) else ())
    elif kind in ("tmpfs", "ramfs"):
        yield from _alike(FIXES, OFF, f"{kind} has none")
    else:
        yield from _alike(FIXES, Unknown(f"{kind} was not asked"))
    if kind == "zfs":
        yield _feature(CACHE, lambda: _zfs_cache(mount.document))
    if kind in _PAGE_CACHE_ONLY:
        yield Feature(CACHE, OFF, (f"{kind} has only the page cache",))


def _zfs_cache(document: Document) -> Tuple[str, str]:
    """ZFS has its own cache, the ARC; before OpenZFS 2.3 it ignores O_DIRECT."""
    version = there(document.line(ZFS_VERSION), ZFS_VERSION)
    return POSSIBLE if numbers(version) >= _ZFS_DIRECT else ON, f"{ZFS_VERSION}: {version}: ARC"


def _served(mount: Mount) -> Iterator[Feature]:
    yield from _alike((*FIXES, RAID), Unknown(f"the servers of {mount.filesystem} decide it, and do not say"))
    yield _client_cache(mount)
    yield from _lustre(mount) if mount.filesystem == "lustre" else ()
    options = [
        option for option in mount.options if option.split("=")[0] in ("proto", "vers", "nconnect", "rdma", "port")
    ]
    words = "RDMA" if over_rdma(mount) else " ".join(options) or Unknown(f"{mount.filesystem} does not show it here")
    yield Feature(TRANSPORT, words, (mount.words,))


def over_rdma(mount: Mount) -> bool:
    """Whether NFS goes over RDMA: its transports have a final 6 over IPv6 (net/sunrpc/xprtrdma/transport.c)."""
    return (mount.option("proto") or "").rstrip("6") == "rdma"


def _client_cache(mount: Mount) -> Feature:
    """Caches of network filesystems beside the page cache.  Direct I/O bypasses them, other I/O fills them."""
    if mount.filesystem == "gpfs":
        words = "the page pool serves I/O that is not aligned, or that allocates blocks"
        return Feature(CACHE, POSSIBLE, (f"{mount.words}: {words}",))
    fscache = mount.option("fsc") is not None or mount.option("cache") == "fscache"
    return Feature(CACHE, POSSIBLE if fscache else OFF, (f"{mount.words}: {'' if fscache else 'no '}fscache",))


def _lustre(mount: Mount) -> Iterator[Feature]:
    """The client shows its checksums, and ``lfs`` the layout of new files, whose first part may lie with metadata."""
    paths = [f"{LUSTRE_OSC}/{name}/checksums" for name in mount.document.existing(LUSTRE_OSC)]
    values = {path: if_known(partial(mount.document.line, path), None) for path in paths}
    lines = tuple(f"{path}: {value}" for path, value in values.items() if value is not None)
    if lines and len(lines) == len(values):
        # Clients with GPUDirect leave checksums out for GPU memory (Lustre LU-14798), not in compat mode.
        yield Feature(CHECKSUMS, POSSIBLE if any(value == "1" for value in values.values()) else OFF, lines[:4])

    def layout() -> Tuple[str, str]:
        layout = mount.document.output(LFS + mount.mount_point, "lfs getstripe")
        on_metadata = re.search(r"pattern:\s*(\S*\bmdt\b\S*)", layout)
        words = f"pattern {on_metadata.group(1)}" if on_metadata else "no component on the metadata servers"
        return POSSIBLE if on_metadata else OFF, f"lfs getstripe -d {mount.mount_point}: {words}"

    yield _feature(INLINE, layout)


def _ext4(mount: Mount, flags: Maybe[Optional[Tuple[str, ...]]]) -> Iterator[Feature]:
    own = or_else(flags, ()) or ()
    options = if_known(lambda: _device_of(mount).ext4_options, None) or ()

    def by_flag(flag: str, otherwise: Callable[[], Tuple[bool, str]]) -> Tuple[str, str]:
        """On where the folder has the flag, which its new files inherit; possible where the filesystem allows it."""
        if flag in own:
            return ON, "inode flags: " + ", ".join(own)
        is_possible, evidence = otherwise()
        require(flags)
        return POSSIBLE if is_possible else OFF, evidence

    def journalling() -> Tuple[str, str]:
        mode = journal(mount)
        if mode == "journal":
            return ON, mount.words
        if "delalloc" in options and "journalled" in own:
            # Seen on 6.12: ext4_inode_journal_mode ignores the flag with delayed allocation, which is the default.
            return OFF, "inode flags: journalled, without effect beside delalloc"
        words = f"data={mode}" if mode else "no journal"
        return by_flag("journalled", lambda: (False, "options in effect: " + words))

    def allows(feature: str) -> Tuple[bool, str]:
        shown = _device_of(mount).ext4_features or ()
        return feature in shown, "superblock: " + (", ".join(shown) or "neither inline_data nor encrypt")

    yield _feature(JOURNALLING, journalling)
    yield _feature(INLINE, lambda: by_flag("inline", lambda: allows("inline_data")))
    yield _feature(ENCRYPTION, lambda: by_flag("encrypted", lambda: allows("encrypt")))
    yield _feature(COMPRESSION, lambda: by_flag("compressed", lambda: (False, "ext4 has none")))
    yield from _alike((CHECKSUMS, DEDUPLICATION, COW), OFF, "ext4 has none for data")


def journal(mount: Mount) -> Optional[str]:
    """ext4's journal mode, None without a journal; only /proc/fs/ext4 shows the default.  Raises UndecidedError."""
    mode = mount.option("data")
    if mode is None:
        unseen = f"the evidence doesn't show the journal mode of {mount.mount_point}"
        options = collected(_device_of(mount).ext4_options, unseen)
        mode = next((option[5:] for option in options if option.startswith("data=")), None)
    return mode


def _device_of(mount: Mount) -> Device:
    return collected(if_known(lambda: mount.device, None), "its device is not known")


def _xfs(mount: Mount, path: str) -> Iterator[Feature]:
    def sharing() -> Tuple[str, str]:
        """Extents are shared when a program asks for it, and copied when one of their files is written to."""
        flags = (mount.document.record("insides", path) or {}).get("geometry")
        if not isinstance(flags, int):
            raise UndecidedError(f"XFS on {mount.mount_point} was not asked")
        reflink = bool(flags & _XFS_REFLINK)
        return POSSIBLE if reflink else OFF, f"XFS geometry: reflink={int(reflink)}"

    yield from _alike((JOURNALLING, INLINE, CHECKSUMS, COMPRESSION, ENCRYPTION), OFF, "XFS has none for data")
    yield from (_feature(name, sharing) for name in (DEDUPLICATION, COW))


def _btrfs(mount: Mount, path: str, flags: Tuple[str, ...]) -> Iterator[Feature]:
    line, options = mount.words, {option.split("=")[0] for option in mount.options}
    nocow = "nodatacow" in options or "nocow" in flags
    fsid = (if_known(lambda: mount.document.record("insides", path), None) or {}).get("fsid")
    folder = f"{BTRFS}/{fsid}"
    checksum = if_known(lambda: mount.document.line(folder + "/checksum"), None) if fsid else None
    evidence = (line, *([f"{folder}/checksum: {checksum}"] if checksum is not None else []))
    yield Feature(JOURNALLING, OFF, ("Btrfs has none",))
    yield Feature(INLINE, OFF if mount.option("max_inline") == "0" else POSSIBLE, (line,))
    yield Feature(CHECKSUMS, OFF if nocow or "nodatasum" in options else ON, evidence)
    compressed = bool(options & {"compress", "compress-force"}) or "compressed" in flags
    yield Feature(COMPRESSION, ON if compressed else OFF, (line,))
    yield Feature(DEDUPLICATION, POSSIBLE, ("Btrfs shares extents when a program asks for it",))
    yield Feature(ENCRYPTION, OFF, ("Btrfs has none",))
    yield Feature(COW, OFF if nocow else ON, (line,))

    def profiles() -> Tuple[str, str]:
        if not fsid:
            raise UndecidedError("Btrfs was not asked")
        names = collected(mount.document.names(folder + "/allocation/data"), "Btrfs does not show its profiles")
        shown = [name for name in names if name in ("single", "dup") or name.startswith("raid")]
        return ON if set(shown) - {"single"} else OFF, "{}/allocation/data: {}".format(folder, ", ".join(shown))

    yield _feature(RAID, profiles)


def _of_devices(mount: Mount) -> Iterator[Feature]:
    top = known(lambda: mount.device)
    layered = (*BLOCK, ENCRYPTION, CHECKSUMS, COMPRESSION, DEDUPLICATION, COW)
    if isinstance(top, Unknown):
        yield from _alike(layered, top)
    if top is None or isinstance(top, Unknown):
        return
    evidence: Dict[str, List[str]] = {name: [] for name in layered}
    unknown: Optional[Unknown] = None
    for device in mount.devices:
        for name, line in _made(device):
            if isinstance(line, Unknown):
                unknown = line
            else:
                evidence[name].append(line)
    for name, lines in evidence.items():
        if lines:
            yield Feature(name, ON, tuple(lines))
        elif unknown is not None:
            yield Feature(name, unknown)
        elif name in BLOCK:
            yield Feature(name, OFF, (f"{mount.source}: none",))


def _made(device: Device) -> Iterator[Tuple[str, Maybe[str]]]:
    """(feature, line of evidence) for each that a device makes; or without a name, why there may be others."""
    kind, line = device.kind, f"{device.place}: {device.name}"
    if kind == storage.MD:
        level = known(lambda: device.md_level)
        yield RAID, f"{device.place}/md/level: {level.reason if isinstance(level, Unknown) else level}"
    elif kind == storage.DM:
        uuid = if_known(lambda: device.dm_uuid, "")
        kind, line = uuid.split("-")[0], f"{device.place}/dm/uuid: {uuid}"
        targets = known(lambda: _targets(device))
        for target, name in or_else(targets, []):
            unknown = Unknown(f"what device mapper does for {target} is not known here")
            yield name, f"dmsetup table: {device.name}: {target}" if name else unknown
        # Older evidence has no tables; these names stand for one target.
        if isinstance(targets, Unknown) and (kind not in LAYERS or kind == "LVM"):
            yield "", targets
    elif kind == storage.OTHER:
        yield "", Unknown(f"{device.name} is of a kind that is not known here")
    yield from ((name, line) for name in LAYERS.get(kind, Layer()).makes)


def _targets(device: Device) -> List[Tuple[str, str]]:
    """(target, feature that it makes) of a device-mapper table; without a name for a target that isn't known."""
    pairs = [(row, name) for row in device.table() for name in _TARGETS.get(row[0], ("",))]
    return [(row[0], name) for row, name in pairs if row[0] != "vdo" or _is_on(row, *_OF_VDO[name])]


def _is_on(row: List[str], word: str, default: str) -> bool:
    return dict(zip(row, row[1:])).get(word, default) == "on"


PAGE = 4096
#: Level of md → the name of such storage in cufile.json.
RAIDS = {"raid0": "raid", "raid1": "raid1", "raid10": "raid10"}
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
        return RAIDS.get(device.md_level)
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
    second = mount.realtime
    if second is not None:
        conditions = [*_of_device(second), *([transport(second)] if second.kind == storage.NVMEOF else [])]
        for cause in (each.cause for each in conditions if each.holds is False and each.cause is not None):
            # Only files with the realtime flag lie there.
            why = f"files with the realtime flag lie on {second.name}: {cause.what}"
            yield Condition(Unknown(why), cause, suspect=True)


def _of_device(device: Device) -> Iterator[Condition]:
    uuid = if_known(lambda: device.dm_uuid, "") if device.kind == storage.DM else ""
    kind = uuid.split("-")[0] if device.kind == storage.DM else device.kind
    layer = LAYERS.get(kind, Layer())
    does = f": {layer.does}" if layer.does else ""
    if device.kind == storage.DM:
        what = f"{device.name} is a device-mapper device" + (f" ({kind})" if kind else "") + does
        evidence = (f"{device.place}/dm/uuid: {uuid}",) if uuid else ()
        yield required(False, "storage.device-mapper", evidence, what, layer.instead)
    elif device.kind not in (storage.NVME, storage.NVMEOF, storage.MULTIPATH, storage.MD):
        what = f"{device.name} isn't an NVMe disk" + (does or f" ({kind})")
        evidence = (f"{device.place}: {device.name}",)
        yield required(False, "storage.no-nvme", evidence, what, layer.instead)
    yield _protection(device)
    size = if_known(lambda: device.block_size, 0)
    # A device over others has the blocks of its disks.
    if size > PAGE and not device.below:
        evidence = (f"{device.place}/queue/logical_block_size: {size}",)
        yield doubted("storage.block-size", evidence, device=device.name, size=str(size))


def _protection(device: Device) -> Condition:
    """A fix that erases a disk is only for one whose own format says so."""
    form = if_known(lambda: device.integrity_format, "")
    has_format = form not in ("", "none", "nop")
    evidence = (f"{device.place}/integrity/device_is_integrity_capable: 1", f"{device.place}/integrity/format: {form}")
    what = f"{device.name} is formatted with protection information ({form})"
    if not has_format:
        what = f"{device.name} says that it takes protection information, and libcufile refuses such a disk"
    fix = "" if has_format else f"look whether it has any: nvme id-ns /dev/{device.name} | grep dps"
    return required(
        lambda: not device.integrity, "storage.protection-information", evidence[: 2 if form else 1], what, fix
    )


@condition
def transport(device: Device) -> Condition:
    """NVMe is local, or goes over RDMA.  A disk whose transport isn't known may be NVMe over something else."""
    name = device.transport
    if device.kind == storage.NVME:
        return Condition(name == "pcie")
    evidence = (f"/sys/class/nvme: {device.name} by {name}",)
    return required(name == "rdma", "nvmeof.not-rdma", evidence, device=device.name, transport=name)


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
#: Flavours of RPC security with integrity or privacy: they exclude the placement of data by RDMA
#: (RPCAUTH_AUTH_DATATOUCH in net/sunrpc/xprtrdma/rpc_rdma.c).
TOUCHING = ("krb5i", "krb5p", "lkeyi", "lkeyp", "spkm3i", "spkm3p")
#: LNet's drivers for networks with RDMA: InfiniBand and RoCE, Slingshot, EFA.
RDMA_NETWORKS = ("ko2iblnd", "kkfilnd", "kefalnd")
#: Read directly by libcufile's own RDMA (mechanisms.py), and through P2PDMA only (p2pdma.py).
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
    reference: str


@rule(DIRECT_PATH, 40)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What either direct path requires of a filesystem."""
    if mount is None:
        return
    name = mount.filesystem
    if name in ("nfs", "nfs4"):
        yield from _nfs(mount)
    elif name == "lustre":
        yield _lnet(facts, mount)
    elif name == AUTOFS:
        yield Condition(Unknown(storage.idle(mount)))
    elif name == PANFS:
        yield _panfs(facts)
    elif name not in NATIVE:
        kind = without_direct_path(name)
        what = f"cuFile has no direct path for {name}" + (f": {kind.does}" if kind.does else "")
        yield required(False, "filesystem.kind", quote.mount(mount), what, kind.instead)
    if name in SINCE:
        yield _has_path(facts, name)
    if name in LOCAL:
        if name == "ext4":
            yield _journal_mode(mount)
        yield from flag_conditions(mount.mount_point, known(lambda: mount.flags))
        yield from any_direct(mount)


def _nfs(mount: Mount) -> Iterator[Condition]:
    what = f"{mount.mount_point} is mounted with proto={mount.option('proto') or 'nothing'}"
    yield required(over_rdma(mount), "nfs.not-rdma", quote.mount(mount), what)
    point, flavour = mount.mount_point, mount.option("sec") or ""
    yield required(flavour not in TOUCHING, "nfs.touched-by-cpu", quote.mount(mount), mount=point, flavour=flavour)


@condition
def _lnet(facts: HostFacts, mount: Mount) -> Condition:
    """Lustre's servers are reached by RDMA.

    The address in the mount's source only bootstraps: on FSx for Lustre it is @tcp, also where the data goes by EFA.
    """
    name = mount.source.rpartition(":/")[2].partition("/")[0]
    clients = [each for each in mount.document.existing(LUSTRE_OSC) if each.startswith(name + "-OST")]
    paths = [f"{LUSTRE_OSC}/{each}/ost_conn_uuid" for each in clients]
    servers = {path: if_known(partial(mount.document.line, path), None) or "" for path in paths}
    lines = [f"{path}: {nid}" for path, nid in servers.items() if nid] or [f"{MOUNTINFO}: {mount.line}"]
    networks = {network for line in lines for network in re.findall(r"@([a-z0-9]*[a-z])\d*\b", line)}
    if networks and "tcp" not in networks:
        return Condition(True)
    loaded = facts.kernel.modules
    if "ksocklnd" in loaded and not any(module in loaded for module in RDMA_NETWORKS):
        evidence = (*quote.mount(mount), "/proc/modules: ksocklnd")
        return required(False, "lustre.not-rdma", evidence)
    what = f"{mount.mount_point} names its servers by TCP, and LNet may reach them by another network"
    return doubted("lustre.not-rdma", tuple(lines[:4]), what, "compare with: lnetctl peer show")


def without_direct_path(name: str) -> Filesystem:
    """A subtype, as in fuse.sshfs, is of the same kind."""
    kinds: Dict[str, Filesystem] = {kind.name: kind for kind in data.rows("filesystems", Filesystem)}
    return kinds.get(name.split(".")[0], Filesystem(name, ""))


@condition
def _has_path(facts: HostFacts, name: str) -> Condition:
    release, first = libcufile.release(facts), SINCE[name]
    holds, since = is_since(release, first, "libcufile"), ".".join(map(str, first))
    evidence, shown = (f"libcufile: {release}",), release or ""
    return required(holds, "filesystem.newer-library", evidence, release=shown, filesystem=name, since=since)


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
    kind = without_direct_path(mount.filesystem)
    release = libcufile.release(facts) if kind.since else None
    if release is not None:
        fails = f"libcufile {release} takes no files on {kind.name}, so {libcufile.registration_failure(facts)}"
        what = f"{fails}: {kind.since} is the first to"
        fix = f"{kind.instead}; or install libcufile {kind.since} or newer, which takes such files in compat mode"
        yield required(numbers(release) >= numbers(kind.since), "filesystem.not-taken", quote.mount(mount), what, fix)


@rule(NVIDIA_FS, 30)
def of_nvidia_fs(_facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """nvidia-fs has no part in virtiofs."""
    if mount is not None and mount.filesystem in P2PDMA_ONLY:
        yield required(False, "filesystem.p2pdma-only", quote.mount(mount))


@condition
def _journal_mode(mount: Mount) -> Condition:
    mode = journal(mount)
    what, evidence = f"ext4 on {mount.mount_point} is mounted with data={mode}", quote.mount(mount)
    # ext4 can't change the mode of a mount, and / is never unmounted.
    other = "use another mount, or" if mount.mount_point == "/" else ""
    fix = other and f"{other} set data=ordered for / in /etc/fstab and boot with rootflags=data=ordered"
    if mount.option("data") is None:
        evidence = (f"/proc/fs/ext4/{_device_of(mount).name}/options: {f'data={mode}' if mode else 'no data='}",)
    if mode is None:
        what = f"ext4 on {mount.mount_point} has no journal, so it is not in the mode data=ordered"
        first = f"{other} start a rescue system" if other else "end the programs that use it, then unmount it"
        fix = f"{first} and add a journal: tune2fs -O has_journal {mount.source}"
    return required(mode == "ordered", "ext4.not-ordered", evidence, what, fix)


def flag_conditions(path: str, flags: Maybe[Optional[Tuple[str, ...]]]) -> Iterator[Condition]:
    """Flags of a file, or of a folder, whose new files inherit them."""
    if flags is None or isinstance(flags, Unknown):
        yield Condition(Unknown(f"the evidence doesn't show the flags of {path}") if flags is None else flags)
        return
    evidence = ("inode flags of {}: {}".format(path, ", ".join(flags)),)
    for row in data.rows("file_flags", Flag):
        cause = Cause(row.cause, f"{path} {row.says}", row.fix.format(path), evidence, row.reference)
        yield Condition(row.flag not in flags, cause)


#: Feature of ext4 → the flag of such files, which files these are, and what to do.
OF_SOME_FILES = {
    "inline_data": ("inline", "that fit into their inode", FIXES[INLINE]),
    "encrypt": ("encrypted", "in encrypted folders", "keep data for the GPU out of encrypted folders"),
}


@rule(NOTES, 20)
def notes(_facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Features of ext4 that exclude some files from a direct path."""
    device = mount.device if mount.filesystem == "ext4" else None
    features = device.ext4_features if device is not None else None
    if device is None or features is None:
        return
    evidence = ("ext4 superblock of /dev/{}: {}".format(device.name, ", ".join(features)),)
    flags = {row.flag: row for row in data.rows("file_flags", Flag)}
    for feature, (flag, files, fix) in OF_SOME_FILES.items():
        if feature in features:
            row = flags[flag]
            yield Cause(row.cause, f"files {files} take compat mode", fix, evidence, row.reference)


@check(
    "odirect.conditions",
    "no filesystem feature on this mount examines or transforms the data",
    expects="no journalled, inline, checksummed, compressed, deduplicated, encrypted, copied or separately cached data",
    prevents="a mount option or a folder's flag that takes its files off the direct path one by one",
)
def untransformed(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    for mount in expectation.storage:
        point = mount.get("mount", "")
        yield answer(_transforms(facts, point, mount.get("path") == "compat"), subject=point)


def _transforms(facts: HostFacts, point: str, is_compat: bool) -> Steps:
    mount = facts.storage.exactly(point)
    if mount is None:
        yield not_applicable(NOT_MOUNTED)
        return
    rows = [row for row in features(facts.storage, mount, point) if row.name in FIXES]
    on, possible = ([row.name for row in rows if row.state == state] for state in (ON, POSSIBLE))
    evidence = [
        f"{row.name} {row.state}: {line}" for row in rows if row.state in (ON, POSSIBLE) for line in row.evidence
    ]
    if is_compat:
        yield not_applicable(NOT_NEEDED + ("on: " + ", ".join(on) if on else "none is known to be on"))
        return
    if on:
        yield failed(", ".join(on), capitalized("; ".join(dict.fromkeys(FIXES[name] for name in on))), evidence)
        return
    unread = [(row.name, row.state.reason) for row in rows if isinstance(row.state, Unknown)]
    if unread and if_known(lambda: mount.device, True) is not None:
        raise UndecidedError("{}: {}".format(*unread[0]))
    words = "none is on here" + ("; some files may have: " + ", ".join(possible) if possible else "")
    yield passed(words + (f"; behind the mount: {unread[0][1]}" if unread else ""), evidence)
