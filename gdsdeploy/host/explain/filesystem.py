"""The kind of a filesystem, how it is mounted, and what it does with the data of a file."""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, Iterator, NamedTuple, Optional, Tuple

from .. import data
from ..facts import HostFacts, Maybe
from ..facts.storage import Device, Mount
from ..facts.unknown import Unknown, test, why_not
from . import blocks, quote, reference
from .cause import Cause, Condition
from .rules import DIRECT, NOTES, rule

#: Network filesystem → the stack that has to let nvidia-fs in.
NETWORK = {
    "nfs": "rpcrdma",
    "nfs4": "rpcrdma",
    "lustre": "lnet",
    "beegfs": "beegfs",
    "gpfs": "mmfslinux",
    "scatefs": "scatefs",
}
LOCAL = ("ext4", "xfs")
#: Filesystems with a path of their own that nothing on the host decides.
UNJUDGED = ("wekafs", "panfs", "virtiofs")


class Filesystem(NamedTuple):
    """One without a direct path: what it does with the data, and what to use in its place."""

    name: str
    does: str
    instead: str = "use ext4 with data=ordered, XFS, or a supported network filesystem"


class Flag(NamedTuple):
    """A flag of a folder or file that keeps its data off the direct path."""

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


@rule(DIRECT, 40)
def direct(_facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What a filesystem must be for either direct path."""
    if mount is None:
        return
    name = mount.filesystem
    if name in ("nfs", "nfs4"):
        protocol = mount.option("proto")
        what = f"{mount.mount_point} is mounted with proto={protocol}"
        fix = "mount it with proto=rdma"
        cause = Cause("nfs.not-rdma", what, fix, quote.mount(mount), reference.NFS)
        yield Condition(protocol == "rdma", cause)
    elif name in UNJUDGED:
        yield Condition(Unknown(f"{name} has a path of its own, which was not judged"))
    elif name not in NETWORK and name not in LOCAL:
        yield Condition(False, _other_kind(mount))
    elif name in LOCAL:
        if name == "ext4":
            yield _journal_mode(mount)
        yield from flagged(mount.mount_point, mount.flags)
        yield from blocks.any_direct(mount)


def _other_kind(mount: Mount) -> Cause:
    name = mount.filesystem
    # A subtype, as in fuse.sshfs, is of the same kind.
    kind = _filesystems().get(name.split(".")[0], Filesystem(name, ""))
    what = "cuFile has no direct path for {}{}".format(name, ": " + kind.does if kind.does else "")
    return Cause("filesystem.kind", what, kind.instead, quote.mount(mount), reference.FEATURES)


def _journal_mode(mount: Mount) -> Condition:
    mode = journal(mount)
    what = f"ext4 on {mount.mount_point} is mounted with data={mode}"
    evidence = quote.mount(mount)
    if mount.option("data") is None and isinstance(mount.device, Device):
        evidence = (f"/proc/fs/ext4/{mount.device.name}/options: data={mode}",)
        if mode is None:
            what = f"ext4 on {mount.mount_point} has no journal, so it is not in the mode data=ordered"
            evidence = (f"/proc/fs/ext4/{mount.device.name}/options: no data=",)
    fix = "mount it with data=ordered" if mode is not None else "give it a journal: tune2fs -O has_journal"
    cause = Cause("ext4.not-ordered", what, fix, evidence, reference.EXT4)
    return Condition(test(mode, lambda found: found == "ordered"), cause)


def journal(mount: Mount) -> Maybe[Optional[str]]:
    """ext4's journal mode; one that is the filesystem's default stands in /proc/fs/ext4 only."""
    mode = mount.option("data")
    if mode is not None or not isinstance(mount.device, Device):
        return mode
    shown = mount.device.ext4_options
    if not isinstance(shown, tuple):
        return why_not(shown, f"the journal mode of {mount.mount_point} is not shown")
    return next((item[5:] for item in shown if item.startswith("data=")), None)


def flagged(path: str, flags: Maybe[Optional[Tuple[str, ...]]]) -> Iterator[Condition]:
    """What the flags of a folder, which its new files inherit, or of a file say of its data."""
    if not isinstance(flags, tuple):
        yield Condition(why_not(flags, f"the flags of {path} are not shown"))
        return
    evidence = ("inode flags of {}: {}".format(path, ", ".join(flags)),)
    for row in _flags():
        section = reference.INLINE if row.flag == "inline" else reference.TRANSFORMING
        cause = Cause(row.cause, f"{path} {row.says}", row.fix, evidence, section)
        yield Condition(row.flag not in flags, cause)


@rule(NOTES, 20)
def notes(_facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """What keeps some files of a direct path from it."""
    device = mount.device
    features = device.ext4_features if isinstance(device, Device) else None
    if mount.filesystem != "ext4" or not isinstance(features, tuple) or not isinstance(device, Device):
        return
    evidence = ("ext4 superblock of /dev/{}: {}".format(device.name, ", ".join(features)),)
    if "inline_data" in features:
        what = "files small enough to lie inside their inode take compat mode"
        fix = "make the filesystem without inline_data, or keep small files elsewhere"
        yield Cause("filesystem.inline-data", what, fix, evidence, reference.INLINE)
    if "encrypt" in features:
        what = "files in encrypted folders take compat mode"
        fix = "keep data for the GPU out of encrypted folders"
        yield Cause("filesystem.encrypted", what, fix, evidence, reference.TRANSFORMING)
