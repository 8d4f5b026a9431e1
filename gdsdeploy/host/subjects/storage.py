"""Mounts, and the block devices under them down to the controller."""

from __future__ import annotations

import os
import posixpath
import re
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, cast

from ..facts.document import Document, collected, recorded_lines, there
from ..facts.unknown import Facts, Maybe, UndecidedError, fact, follows, given, if_known, known
from ..io.mounts import AUTOFS, Mounts, Row, mounts_in, plain_name
from ..io.reading import beginning, ext4_features, inode_flags
from ..paths import DMSETUP, FSTAB, LFS, LUSTRE_OSC, MOUNTINFO, ZFS_VERSION
from ..process import apart
from .odirect import audits, loads
from .pci import addresses
from .proof import proofs
from .register import collector
from .types import EvidenceRequest, Recorder

#: Files of a block device; a partition doesn't have most of them, its disk does.
FILES = (
    *("partition", "dm/name", "dm/uuid", "md/level", "queue/logical_block_size", "queue/nr_requests"),
    *("integrity/device_is_integrity_capable", "integrity/format"),
)
BLOCKS = "/sys/class/block"
CONTROLLERS, CONTROLLER_FILES = "/sys/class/nvme", ("transport", "address", "model", "firmware_rev", "subsysnqn")
#: Of a client of one of Lustre's servers; the second has the server's address, as ``10.0.0.2@o2ib``.
OSC_FILES = ("checksums", "ost_conn_uuid")
#: Mounts described beyond those that are wanted, and block devices in all.
MOUNTS_LIMIT, DEVICES_LIMIT = 64, 512
#: Seconds for a question to a filesystem whose servers may be gone.
SECONDS = 5.0
FSTAB_LIMIT = 256 * 1024


@collector("storage")
def collect_storage(recorder: Recorder, request: EvidenceRequest) -> None:
    places = {path: _collect_place(recorder, path) for path in request.mounts}
    mounts = recorder.mounts()
    rows = {path: mounts.at(place) for path, place in places.items()}
    idle = [path for path, row in rows.items() if row is not None and row.filesystem == AUTOFS]
    for path in idle:
        # As any program that opens a file there: the mount point alone says nothing about what it will be.
        apart(partial(_visit, recorder.at(path)), SECONDS)
    mounts = recorder.mounts(again=bool(idle))
    wanted = [row for row in map(mounts.at, places.values()) if row is not None]
    local = [row for row in mounts.visible.values() if row.has_disk]
    first = [row for row in local if row in wanted]
    visited: List[str] = []
    for row in (first + local)[: MOUNTS_LIMIT + len(first)]:
        _collect_device(recorder, row.number, visited)
        _collect_realtime(recorder, row, visited)
        # Only filesystems on this host's disks: others may make a reader wait forever.
        recorder.value("inodes", row.point, inode_flags)
    for path, place in places.items():
        if mounts.at(place) in local:
            recorder.value("inodes", path, inode_flags)
    _collect_layers(recorder, wanted, mounts)
    for controller in recorder.paths(CONTROLLERS):
        recorder.link(controller)
        recorder.texts(CONTROLLER_FILES, controller)


def _collect_place(recorder: Recorder, path: str) -> str:
    """Where the links of ``path`` end; recorded unless something is mounted there, with the nearest parent."""
    if path in recorder.mounts().visible:
        return path
    recorder.value("excerpts", FSTAB, _fstab)
    place = path
    while True:
        # The servers of its filesystem may be gone.
        output = apart(partial(_end, recorder, place), SECONDS)
        why = output.stderr.strip() if output.status else "ENOENT"
        recorder.document["links"][place] = output.stdout or {"error": why}
        if output.stdout or output.status or place in ("", "/"):
            return output.stdout if output.stdout and place == path else path
        place = posixpath.dirname(place)


def _end(recorder: Recorder, path: str) -> str:
    """Where its links end; empty: there is no such file."""
    try:
        os.stat(recorder.at(path))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return recorder.real(path)


def _fstab(path: str) -> Dict[str, Any]:
    """Source, mount point and filesystem of each line; its options may hold passwords."""
    lines = beginning(path, FSTAB_LIMIT).decode("utf-8", "replace").splitlines()
    rows = [line.split()[:3] for line in lines if line.strip()[:1] not in ("", "#")]
    return {"pattern": "^[^#]", "lines": [" ".join(row) for row in rows]}


def _collect_realtime(recorder: Recorder, row: Row, visited: List[str]) -> None:
    """The second device of an XFS, on which files with the realtime flag lie (xfs(5): rtdev)."""
    for path in (option[6:] for option in row.options if option.startswith("rtdev=/dev/")):
        recorder.link(path)
        number = recorder.text(f"{BLOCKS}/{posixpath.basename(recorder.real(path))}/dev")
        if number:
            _collect_device(recorder, number.strip(), visited)


def _visit(path: str) -> str:
    os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    return ""


def _collect_layers(recorder: Recorder, wanted: Sequence[Row], mounts: Mounts) -> None:
    """What device mapper, Lustre and ZFS do with the data.  wanted: the mounts that the caller asks for."""
    if any(name.startswith("dm-") for name in recorder.names("/sys/block")):
        recorder.command(DMSETUP, ["dmsetup", "table"])
    kinds = {row.filesystem for row in mounts.visible.values()}
    if "lustre" in kinds:
        for client in recorder.paths(LUSTRE_OSC):
            recorder.texts(OSC_FILES, client)
    if "zfs" in kinds:
        recorder.text(ZFS_VERSION)
    for point in sorted({row.point for row in wanted if row.filesystem == "lustre"}):
        recorder.command(LFS + point, ["lfs", "getstripe", "-d", point], timeout=SECONDS)


def _collect_device(recorder: Recorder, number: str, visited: List[str]) -> None:
    if number in visited or len(visited) >= DEVICES_LIMIT:
        return
    visited.append(number)
    link = "/sys/dev/block/" + number
    if recorder.link(link) is None:
        return
    recorder.text("/run/udev/data/b" + number)
    folder = recorder.real(link)
    name = folder.rpartition("/")[2]
    recorder.texts(FILES, link)
    if recorder.text("/proc/fs/ext4/" + name + "/options") is not None:
        recorder.value("features", name, ext4_features, "/dev/" + name)
    disk = [folder.rpartition("/")[0]] if recorder.exists(link + "/partition") else []
    for device in [*disk, *recorder.paths(link + "/slaves")]:
        below = recorder.text(device + "/dev")
        if below:
            _collect_device(recorder, below.strip(), visited)


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


def _line(file: str) -> str:
    """The fact that a file of a device has; empty where there is none."""
    return cast("str", fact(lambda device: device.document.line(f"{device._link}/{file}") or ""))


def _number(file: str) -> int:
    """Likewise a number."""

    def read(device: Device) -> int:
        path = f"{device._link}/{file}"
        return there(device.document.decimal(path), path)

    return cast("int", fact(read))


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

    @property
    def place(self) -> str:
        """Its folder in sysfs."""
        return "/sys/dev/block/" + self.number

    @fact
    def transport(self) -> str:
        """Of NVMe: ``pcie``, ``rdma``, ``tcp``, ``fc``, ``loop``; empty for others."""
        if _kind(self._path) != NVME:
            return ""
        return _transport(self.document, posixpath.basename(posixpath.dirname(self._path)))

    #: of device mapper: e.g. ``LVM-…``, ``CRYPT-LUKS2-…``, ``mpath-…``
    dm_uuid = _line("dm/uuid")
    #: of md: e.g. ``raid0``
    md_level = _line("md/level")
    #: how many requests its queue holds
    requests = _number("queue/nr_requests")
    #: bytes of a logical block
    block_size = _number("queue/logical_block_size")

    #: of device mapper, in the order of its table, e.g. ``linear``, ``cache``, ``thin``; empty for others
    dm_targets: Tuple[str, ...] = follows(lambda self: tuple(dict.fromkeys(row[0] for row in self.table())))

    def table(self) -> List[List[str]]:
        """Targets of device mapper and their arguments; empty for others.  Raises UndecidedError."""
        if self.kind != DM:
            return []
        name = collected(self.document.line(self._link + "/dm/name"), "the device-mapper device has no name")
        lines = [line.partition(": ") for line in self.document.ran(DMSETUP).stdout.splitlines()]
        rows = [rest.split()[2:] for shown, _, rest in lines if shown == name]
        if not rows:
            raise UndecidedError(f"dmsetup table doesn't show {name}")
        return [row for row in rows if row]

    @fact
    def integrity(self) -> bool:
        """Whether a disk takes protection information, for which libcufile refuses it.

        libcufile asks a disk, and each disk of an md array (seen in 1.20.0).  Of devices over others Linux 6.11 to 6.14
        set the flag over any disk (block/blk-settings.c, commits c6e56cf6b2e7 and 677e332e4885).
        """
        flag = self._link + "/integrity/device_is_integrity_capable"
        return not self.below and self.document.line(flag) == "1"

    #: of the protection information that a disk has, e.g. ``T10-DIF-TYPE1-CRC``; ``none`` and ``nop``: it has none
    integrity_format = _line("integrity/format")

    @fact
    def udev_usage(self) -> Optional[str]:
        """What udev recorded as ID_FS_USAGE, e.g. ``filesystem``; None: no record of it."""
        text = self.document.text("/run/udev/data/b" + self.number)
        match = re.search(r"^E:ID_FS_USAGE=(.+)$", text or "", re.MULTILINE)
        return match and match.group(1)

    @fact
    def ext4_options(self) -> Optional[Tuple[str, ...]]:
        """ext4's options in effect, defaults included; None: not ext4."""
        text = self.document.text(f"/proc/fs/ext4/{self.name}/options")
        return None if text is None else tuple(text.split())

    @fact
    def ext4_features(self) -> Optional[Tuple[str, ...]]:
        """Features of its ext4 that keep files from the direct path: ``encrypt``, ``inline_data``; None: not ext4."""
        sets = self.document.features(self.name)
        incompat = None if sets is None else sets.get("incompat", 0)
        return None if incompat is None else tuple(name for name, bit in EXT4_FEATURES.items() if incompat & bit)


class Mount(Facts):
    """What one line of mountinfo says, and what is under it."""

    def __init__(self, document: Document, row: Row) -> None:
        super().__init__(document)
        self.filesystem, self.mount_point, self.source, self.line = row.filesystem, row.point, row.source, row.line
        #: per-mount and per-superblock options
        self.options = row.options
        #: of its block device; empty for filesystems without one of their own
        self._number = "" if row.number.startswith("0:") else row.number

    @fact
    def device(self) -> Optional[Device]:
        """None for filesystems without a block device of their own."""
        return Device(self.document, self._number) if self._number else None

    @fact
    def realtime(self) -> Optional[Device]:
        """Where an XFS has files with the realtime flag; None: on no device of their own."""
        path = self.option("rtdev")
        if path is None:
            return None
        name = posixpath.basename(if_known(lambda: self.document.link(path), None) or path)
        return Device(self.document, _number_of(self.document, f"{BLOCKS}/{name}", name))

    @fact
    def flags(self) -> Optional[Tuple[str, ...]]:
        """Those of its topmost folder, which new files inherit: see FLAGS; None: there is no such folder."""
        return _flags(self.document, self.mount_point) if self._number else None

    @property
    def words(self) -> str:
        """As mount(8) prints it."""
        return f"{self.source} on {self.mount_point} type {self.filesystem} ({','.join(self.options)})"

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


def idle(mount: Mount) -> str:
    """Why nothing is known of what an automount will be."""
    return f"{mount.mount_point} is an automount, and nothing answered there: see what ls {mount.mount_point} says"


class StorageFacts(Facts):
    """Mounts, and what was tried on them."""

    @fact
    def mounts(self) -> Mapping[str, Mount]:
        """By mount point, those that programs reach: no later mount covers them."""
        return {point: Mount(self.document, row) for point, row in self._table().visible.items()}

    @fact
    def controllers(self) -> Mapping[str, Maybe[str]]:
        """NVMe controllers: name → transport."""
        names = self.document.existing(CONTROLLERS)
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

    def _table(self) -> Mounts:
        return mounts_in(there(self.document.text(MOUNTINFO), MOUNTINFO))

    def mount_of(self, path: str) -> Optional[Mount]:
        """The mount that ``path`` lies on, by its name."""
        row = self._table().at(path)
        return self.mounts[row.point] if row is not None else None

    def place_of(self, path: str) -> Tuple[str, bool]:
        """Where the links of ``path`` end, as far as the evidence shows it, and whether there is such a file.

        Of one that doesn't exist: its nearest parent that does.
        """
        is_there, place = True, path
        while if_known(partial(self.document.link, place), "") is None and place not in ("", "/"):
            is_there, place = False, posixpath.dirname(place)
        return if_known(partial(self.document.link, place), None) or place, is_there

    def unmounted(self, path: str) -> Optional[str]:
        """The line of fstab by which something should be mounted at or above ``path``, where nothing is; None: none."""
        rows = [line.split() for line in recorded_lines(self.document, FSTAB)]
        above = [row for row in rows if len(row) == 3 and f"{path}/".startswith(plain_name(row[1]).rstrip("/") + "/")]
        row = max(above, key=lambda row: len(row[1]), default=None)
        mount = self.mount_of(plain_name(row[1])) if row else None
        return " ".join(row) if row and mount and mount.mount_point != plain_name(row[1]) else None

    def of_filesystem(self, number: str, point: str) -> Optional[Mount]:
        """The mount of a filesystem by its major:minor: that at ``point``, else another; None: programs reach none."""
        rows = [row for row in self._table().visible.values() if row.number == number]
        here = self._table().at(point)
        row = min(rows, key=lambda row: (row is not here, row.root != "/"), default=None)
        return None if row is None else self.mounts[row.point]

    def exactly(self, point: str) -> Optional[Mount]:
        """What is mounted at ``point``; None: nothing.  Raises UndecidedError where an automount will say so."""
        mount = self.mount_of(point)
        if mount is not None and mount.filesystem == AUTOFS:
            raise UndecidedError(idle(mount))
        return mount if mount is not None and mount.mount_point == point else None

    def cover(self, point: str) -> Optional[Mount]:
        """The later mount that covers the one at ``point``; None: nothing does, or nothing is mounted there."""
        return self.mount_of(point) if self._table().is_hidden(point) else None


def _flags(document: Document, path: str) -> Optional[Tuple[str, ...]]:
    value = document.number("inodes", path)
    return None if value is None else tuple(name for name, bit in FLAGS.items() if value & bit)


def _transport(document: Document, controller: str) -> str:
    return document.line(f"{CONTROLLERS}/{controller}/transport") or ""


def _number_of(document: Document, folder: str, name: str) -> str:
    return collected(document.line(folder + "/dev"), f"{name} has no number")


def _kind(path: str) -> str:
    """From where a disk lies below /sys/devices; NVME also for one over fabrics."""
    name = posixpath.basename(path)
    if re.match(r"nvme\d+(c\d+)?n\d+$", name):
        return MULTIPATH if "/nvme-subsystem/" in path else NVME
    return next((kind for pattern, kind in _NAMES.items() if re.match(pattern, name)), OTHER)
