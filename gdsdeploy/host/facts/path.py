"""Which path I/O on a mount takes, and in order why not a better one, from everything that is known of the host.

Nothing here is proof: proof is an I/O that was seen to take the path, and needs a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence, Tuple

from . import storage
from .cufile import REJECTED
from .gpu import OPEN
from .unknown import Maybe, Unknown, test, why_not

if TYPE_CHECKING:
    from . import HostFacts

NVIDIA_FS, P2PDMA, COMPAT, BROKEN = "nvidia-fs", "p2pdma", "compat", "broken"
DIRECT = (NVIDIA_FS, P2PDMA)

#: Symbols by which a storage stack lets nvidia-fs in; one of them is enough (nvfs-dma.c probes the same names).
HOOKS = {
    "nvme": ("nvme_v1_register_nvfs_dma_ops", "nvme_v2_register_nvfs_dma_ops"),
    "nvme_rdma": ("nvme_rdma_v1_register_nvfs_dma_ops",),
    "rpcrdma": ("rpcrdma_register_nvfs_dma_ops",),
    "lnet": ("lustre_v1_register_nvfs_dma_ops",),
    "beegfs": ("beegfs_v1_register_nvfs_dma_ops",),
    "mmfslinux": ("ibm_scale_v1_register_nvfs_dma_ops",),
    "scatefs": ("scatefs_register_nvfs_dma_ops",),
}
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
#: First driver whose open modules map BAR1 as PCI P2PDMA memory.
P2PDMA_DRIVER = (565, 47)
STATIC_BAR1 = "RMForceStaticBar1=1"


@dataclass(frozen=True)
class Cause:
    """Why a path is not there, and what to do about it."""

    what: str
    fix: str


@dataclass(frozen=True)
class Path:
    """``path``: ``nvidia-fs``, ``p2pdma``, ``compat`` or ``broken``; ``causes``: in order, why no direct one."""

    path: Maybe[str]
    causes: Tuple[Cause, ...]
    #: whether the host has a GPU at all; without one nothing can be proven
    gpu: Maybe[bool]


@dataclass(frozen=True)
class Condition:
    """What a path needs, and the cause if it does not hold."""

    holds: Maybe[bool]
    what: str
    fix: str = ""


def path_of(facts: HostFacts, mount: storage.Mount) -> Path:
    """Judge one mount."""
    gpu = test(facts.pci.gpus, bool)
    usable, causes = _all(list(_usable(facts, mount)))
    if usable is False:
        return Path(BROKEN, causes, gpu)
    path, causes = _direct(facts, mount)
    if path is None:
        path, causes = _fallback(facts, causes)
    if isinstance(usable, Unknown) and path != BROKEN:
        path = usable
    return Path(path, causes, gpu)


def _direct(facts: HostFacts, mount: storage.Mount) -> Tuple[Maybe[Optional[str]], Tuple[Cause, ...]]:
    """The direct path that is taken, None if there is none, with the causes.  P2PDMA, where asked for, comes first."""
    shared = list(_shared(facts, mount))
    attempts = [(NVIDIA_FS, list(_nvidia_fs(facts, mount)))]
    asked = facts.cufile.setting("properties", "use_pci_p2pdma", False)
    if asked is True or isinstance(asked, Unknown):
        attempts.insert(0, (P2PDMA, [Condition(asked, ""), *_p2pdma(facts, mount)]))
    causes: List[Cause] = []
    undecided: Optional[Unknown] = None
    for name, conditions in attempts:
        holds, why = _all([*shared, *conditions])
        if holds is True:
            return (name if undecided is None else undecided), ()
        if isinstance(holds, Unknown):
            undecided = undecided or holds
        causes += [cause for cause in why if cause not in causes]
    return undecided, tuple(causes)


def _fallback(facts: HostFacts, causes: Tuple[Cause, ...]) -> Tuple[Maybe[str], Tuple[Cause, ...]]:
    allowed = facts.cufile.setting("properties", "allow_compat_mode", True)
    forced = facts.cufile.setting("properties", "force_compat_mode", False)
    for value in (allowed, forced):
        if isinstance(value, Unknown):
            return value, causes
    if allowed is True or forced is True:
        return COMPAT, causes
    fix = "remove the causes before, or set properties.allow_compat_mode to true"
    return BROKEN, (*causes, Cause("cufile.json allows no compat mode", fix))


def _all(conditions: Sequence[Condition]) -> Tuple[Maybe[bool], Tuple[Cause, ...]]:
    """False if any does not hold, else Unknown if any is unknown; with the causes of those that do not hold."""
    causes = tuple(Cause(item.what, item.fix) for item in conditions if item.holds is False)
    unknown = next((item.holds for item in conditions if isinstance(item.holds, Unknown)), None)
    return False if causes else unknown if unknown is not None else True, causes


def _usable(facts: HostFacts, mount: storage.Mount) -> Iterator[Condition]:
    """Without these libcufile takes no file of this mount at all."""
    yield Condition(
        test(facts.cufile.acceptance, lambda acceptance: acceptance != REJECTED),
        "libcufile refuses its configuration",
        "see the check cufile.accepted",
    )
    if isinstance(mount.device, storage.Device):
        yield Condition(
            test(mount.device.udev_usage, lambda usage: usage is not None),
            "udev has no ID_FS_USAGE for {}, so cuFileHandleRegister fails with 5027".format(mount.device.name),
            "run 'udevadm trigger --subsystem-match=block'; in a container, mount /run/udev into it",
        )


def _shared(facts: HostFacts, mount: storage.Mount) -> Iterator[Condition]:
    """What either direct path needs."""
    yield Condition(
        test(facts.driver.version, lambda version: version is not None),
        "the nvidia module is not loaded",
        "load it: modprobe nvidia; see the check driver.loaded-version",
    )
    yield Condition(
        test(facts.cufile.setting("properties", "force_compat_mode", False), lambda forced: forced is not True),
        "cufile.json forces compat mode",
        "set properties.force_compat_mode to false",
    )
    kinds = tuple(sorted({item.kind for item in _stack(mount)}))
    for key, values in (("filesystems", (mount.filesystem,)), ("mounts", (mount.mount_point,)), ("drivers", kinds)):
        listed = facts.cufile.setting("denylist", key, [])
        yield Condition(
            test(listed, lambda found, values=values: not any(item in _list(found) for item in values)),  # type: ignore[misc]
            "denylist.{} of cufile.json names {}".format(key, " or ".join(values)),
            "take it out of the denylist",
        )
    yield from _filesystem(mount)


def _list(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []


def _filesystem(mount: storage.Mount) -> Iterator[Condition]:
    name = mount.filesystem
    if name in ("nfs", "nfs4"):
        what = "{} is mounted with proto={}".format(mount.mount_point, mount.option("proto"))
        yield Condition(mount.option("proto") == "rdma", what, "mount it with proto=rdma")
    elif name not in NETWORK and name not in LOCAL:
        what = "cuFile has no direct path for {}".format(name)
        yield Condition(False, what, "use ext4 with data=ordered, XFS, or a supported network filesystem")
    elif name in LOCAL:
        if name == "ext4":
            mode = _journal(mount)
            what = "ext4 on {} is mounted with data={}".format(mount.mount_point, mode)
            yield Condition(test(mode, lambda found: found == "ordered"), what, "mount it with data=ordered")
        yield from _blocks(mount)


def _journal(mount: storage.Mount) -> Maybe[Optional[str]]:
    """ext4's journal mode; one that is the filesystem's default stands in /proc/fs/ext4 only."""
    mode = mount.option("data")
    if mode is not None or not isinstance(mount.device, storage.Device):
        return mode
    shown = mount.device.ext4_options
    if not isinstance(shown, tuple):
        return why_not(shown, "the journal mode of {} is not shown".format(mount.mount_point))
    return next((item[5:] for item in shown if item.startswith("data=")), None)


def _blocks(mount: storage.Mount) -> Iterator[Condition]:
    if isinstance(mount.device, Unknown) or mount.device is None:
        yield Condition(why_not(mount.device, "{} has no block device".format(mount.mount_point)), "")
    for item in _stack(mount):
        if item.kind == storage.DM:
            kind = item.dm_uuid.split("-")[0] if isinstance(item.dm_uuid, str) else ""
            what = "{} is a device-mapper device{}".format(item.name, " ({})".format(kind) if kind else "")
            yield Condition(False, what, "put the filesystem on the NVMe disk itself")
        elif item.kind not in (storage.NVME, storage.NVMEOF, storage.MULTIPATH, storage.MD):
            what = "{} is no NVMe disk ({})".format(item.name, item.kind)
            yield Condition(False, what, "use a local NVMe disk, or one over RDMA")
        yield Condition(
            test(item.integrity, lambda capable: not capable),
            "{} is formatted with protection information".format(item.name),
            "format it without: nvme format --pi=0",
        )


def _stack(mount: storage.Mount) -> List[storage.Device]:
    """Every block device under a mount, the topmost first."""

    def below(device: storage.Device) -> List[storage.Device]:
        return [device, *(item for lower in device.below for item in below(lower))]

    return below(mount.device) if isinstance(mount.device, storage.Device) else []


def _nvidia_fs(facts: HostFacts, mount: storage.Mount) -> Iterator[Condition]:
    yield Condition(
        facts.nvidia_fs.module.loaded,
        "nvidia-fs is not loaded",
        "load it: modprobe nvidia-fs; see the check nvidia-fs.loaded-version",
    )
    if facts.nvidia_fs.module.loaded is not False:
        there = test(facts.nvidia_fs.devices, bool)
        yield Condition(there, "there are no /dev/nvidia-fs* devices", "see the check nvidia-fs.devices")
    if mount.filesystem in NETWORK:
        yield _hook(facts, NETWORK[mount.filesystem])
    for item in _stack(mount):
        if item.kind == storage.MD:
            what = "{} is {}, and nvidia-fs takes raid0 only".format(item.name, item.md_level)
            yield Condition(test(item.md_level, lambda level: level == "raid0"), what, "use RAID 0 or single disks")
        elif item.kind == storage.NVME:
            yield _hook(facts, "nvme")
        elif item.kind == storage.NVMEOF:
            what = "{} is NVMe over {}".format(item.name, item.transport)
            yield Condition(test(item.transport, lambda name: name == "rdma"), what, "connect it over RDMA")
            yield _hook(facts, "nvme_rdma")
        elif item.kind == storage.MULTIPATH:
            yield Condition(Unknown("{} is NVMe multipath: its paths were not judged".format(item.name)), "")


def _hook(facts: HostFacts, stack: str) -> Condition:
    return Condition(
        test(facts.kernel.symbols, lambda symbols: any(name in symbols for name in HOOKS[stack])),
        "the loaded {} has no hooks for nvidia-fs".format(stack),
        "install the {} of MLNX_OFED or DOCA for this kernel, or use P2PDMA mode on a kernel that has it".format(stack),
    )


def _p2pdma(facts: HostFacts, mount: storage.Mount) -> Iterator[Condition]:
    built_in = "run a kernel built with CONFIG_PCI_P2PDMA, or use nvidia-fs"
    yield Condition(
        test(facts.kernel.option("PCI_P2PDMA"), lambda value: value == "y"),
        "this kernel was built without CONFIG_PCI_P2PDMA",
        built_in,
    )
    yield Condition(
        test(facts.kernel.symbols, lambda symbols: "pci_p2pdma_add_resource" in symbols),
        "this kernel shows no pci_p2pdma_add_resource",
        built_in,
    )
    yield Condition(
        test(facts.driver.flavour, lambda flavour: flavour == OPEN),
        "the driver is not of the open flavour",
        "install the open kernel modules",
    )
    yield Condition(
        test(facts.driver.version, lambda version: _numbers(version or "0") >= P2PDMA_DRIVER),
        "driver {} is older than 565.47".format(facts.driver.version),
        "install a newer driver",
    )
    yield Condition(
        test(facts.driver.params, lambda params: STATIC_BAR1 in (params or {}).get("RegistryDwords", "")),
        "the nvidia module has no static BAR1",
        'set NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;" for it and rebuild the initramfs',
    )
    for item in _stack(mount):
        yield Condition(
            test(item.transport, lambda transport: transport == "pcie"),
            "{} is not a local NVMe disk of its own ({})".format(item.name, item.kind),
            "use single local disks, with nvme_core.multipath=N",
        )


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(item) for item in re.findall(r"\d+", version)[:2])
