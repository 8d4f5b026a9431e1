"""What P2PDMA requires of one mount: its keys, the layers under it, and a way between its disks and a GPU."""

from __future__ import annotations

from typing import Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown, storage
from ..facts.kernel import NVME_MULTIPATH
from ..facts.pci import Function, find
from ..facts.storage import Device, Mount
from ..facts.unknown import when_known, why_not
from . import gpus, p2pdma, p2pdma_keys, quote, reference
from .blocks import stack, storage_of
from .cause import P2PDMA, Cause, Condition, numbers
from .rules import rule

#: Level of md → first kernel that passes P2PDMA memory through it.  On Grace RAID 0 needs none.
RAID_KERNELS = {"raid0": (7, 1), "raid1": (7, 2), "raid10": (7, 2)}
#: Storage by its name in cufile.json → libcufile's label of its row; RAID has the row of its disks.
LABELS = {"nvme": "NVMe", "raid": "NVMe", "raid1": "NVMe", "raid10": "NVMe", "nvmeof": "NVMeOF", "virtiofs": "VIRTIOFS"}
#: First AMD processor family whose host bridges connect peers (Zen).
AMD, ZEN = "AuthenticAMD", 0x17
INTEL, GOOGLE = 0x8086, 0x1AE0
#: Other host bridges through which the kernel lets peers (drivers/pci/p2pdma.c, up to 6.18), and the subset that both
#: peers must share.
BRIDGES = (0x3C00, 0x3C01, 0x2F00, 0x2F01, 0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09A2)
SAME_BRIDGE = (0x3C00, 0x3C01, 0x2F00, 0x2F01)
#: Newer kernels know more bridges.
LAST_KNOWN_KERNEL = (6, 18)


@rule(P2PDMA, 20)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What this path requires of a mount, in addition to what both require."""
    if mount is None:
        return
    name = storage_of(facts, mount)
    if name not in LABELS:
        yield Condition(name if isinstance(name, Unknown) else False)
        return
    yield from p2pdma_keys.conditions(facts, name)
    yield from gpus.iommu(facts, mount, needs_it_off=True)
    for device in stack(mount):
        yield from _layer(facts, device)
    if LABELS[name] == "NVMe":
        yield from p2pdma.multipath_off(facts)
    grace = gpus.grace(facts)
    if grace is True or name == "virtiofs":
        # Virtio has no PCI function that moves the data, and Grace's coherent link isn't PCI.
        yield p2pdma.confirmed(facts.gdscheck.row(LABELS[name]))
    elif isinstance(grace, Unknown):
        yield Condition(grace)
    else:
        yield from _between(facts, mount)


def _layer(facts: HostFacts, device: Device) -> Iterator[Condition]:
    """What one block device under a mount requires."""
    if device.kind == storage.MULTIPATH:
        what = f"{device.name} is an NVMe multipath device, through which this mode works on Grace only"
        evidence = quote.file(facts, NVME_MULTIPATH)
        cause = Cause("nvme.multipath", what, p2pdma.multipath_fix(facts), evidence, reference.P2PDMA_DRIVER)
        yield Condition(gpus.grace(facts), cause)
    elif device.kind == storage.NVME:
        # A disk whose transport isn't known may be NVMe over something else.
        yield Condition(when_known(device.transport, lambda name: name == "pcie"))
    elif device.kind == storage.NVMEOF:
        what = f"{device.name} is NVMe over {device.transport}"
        evidence = (f"/sys/class/nvme: {device.name} by {device.transport}",)
        cause = Cause("nvmeof.not-rdma", what, "connect it over RDMA", evidence, reference.NVME)
        yield Condition(when_known(device.transport, lambda name: name == "rdma"), cause)
    elif device.kind == storage.MD and isinstance(device.md_level, str) and device.md_level in RAID_KERNELS:
        yield _raid(facts, device, RAID_KERNELS[device.md_level])


def _raid(facts: HostFacts, device: Device, least: Tuple[int, int]) -> Condition:
    release, grace = facts.kernel.release, gpus.grace(facts)
    what = f"{device.name} is md {device.md_level}, which passes P2PDMA from kernel {least[0]}.{least[1]} on"
    what += ", or on Grace" if device.md_level == "raid0" else ""
    evidence = (f"/sys/dev/block/{device.number}/md/level: {device.md_level}", f"uname -r: {release}")
    fix = f"boot kernel {least[0]}.{least[1]} or newer, use a single disk, or use nvidia-fs"
    cause = Cause("storage.raid-kernel", what, fix, evidence, reference.P2PDMA_DRIVER)
    if device.md_level == "raid0" and grace is True:
        return Condition(True)
    holds = when_known(release, lambda text: numbers(text) >= least)
    return Condition(grace if holds is False and isinstance(grace, Unknown) else holds, cause)


def _between(facts: HostFacts, mount: Mount) -> Iterator[Condition]:
    """Traffic between a disk, or the adapter to it, and some GPU stays below a switch or passes the host bridge."""
    if not isinstance(facts.pci.gpus, Unknown) and not facts.pci.gpus:
        return
    for disk in gpus.disks(facts, mount):
        yield Condition(_reaches(facts, disk), _no_way(facts, disk), suspect=True)
    if any(device.kind == storage.NVMEOF for device in stack(mount)):
        yield from _adapters(facts)


def _adapters(facts: HostFacts) -> Iterator[Condition]:
    """No evidence shows which adapter serves a disk over fabrics: that one is certain only where all are alike."""
    names, functions = facts.peermem.rdma_devices, facts.pci.functions
    if isinstance(names, Unknown) or isinstance(functions, Unknown):
        yield Condition(why_not(names, "the PCI functions are unknown"))
        return
    adapters = [function for function in functions if set(function.names) & set(names)]
    ways = [_reaches(facts, adapter) for adapter in adapters]
    if not adapters:
        yield Condition(Unknown("no RDMA adapter of this host is a PCI function"))
    elif all(way is False for way in ways):
        yield Condition(False, _no_way(facts, adapters[0]))
    elif not all(way is True for way in ways):
        yield Condition(Unknown("whether the adapter that serves the disk reaches a GPU is unknown"))


def _reaches(facts: HostFacts, peer: Function) -> Maybe[bool]:
    """Whether a disk or adapter reaches some GPU."""
    gpus_here = facts.pci.gpus if isinstance(facts.pci.gpus, tuple) else ()
    pairs = [_pair(facts, peer, gpu) for gpu in gpus_here]
    if any(reaches is True for reaches in pairs):
        return True
    return next((reaches for reaches in pairs if isinstance(reaches, Unknown)), False)


def _no_way(facts: HostFacts, peer: Function) -> Cause:
    what = f"the kernel doesn't let {peer.address} reach a GPU through its host bridge"
    fix = "move the disk and a GPU below one PCIe switch without ACS, or use nvidia-fs"
    root, cpu = _root(facts, peer), facts.pci.cpu
    processor = f"{cpu[0]} family {cpu[1]}" if isinstance(cpu, tuple) else "unknown processor"
    evidence = (f"/sys/bus/pci/devices/{root.address}: {root.vendor:04x}:{root.device:04x}, {processor}",)
    return Cause("platform.host-bridge", what, fix, evidence, reference.P2P_SUPPORT)


def _pair(facts: HostFacts, disk: Function, gpu: Function) -> Maybe[bool]:
    shared = [name for name in disk.bridges if name in gpu.bridges]
    apart = {*disk.bridges, *gpu.bridges} - set(shared)
    through_host = _host_bridge(facts, disk, gpu)
    if not shared or apart & set(gpus.redirecting_bridges(facts)) or through_host is True:
        return through_host
    controls = [facts.pci.acs.get(name, Unknown(f"ACS of {name} was not read")) for name in sorted(apart)]
    # Bridges with unknown access control may still send everything through the host bridge.
    return next((control for control in controls if isinstance(control, Unknown)), True)


def _host_bridge(facts: HostFacts, disk: Function, gpu: Function) -> Maybe[bool]:
    cpu = facts.pci.cpu
    if isinstance(cpu, Unknown):
        return cpu
    if cpu is None:
        return Unknown("which host bridges the kernel lets peers through is known for x86 only")
    if cpu[0] == AMD and cpu[1] >= ZEN:
        return True
    roots = [_root(facts, function) for function in (disk, gpu)]
    if all(_listed(root, roots) for root in roots):
        return True
    release = facts.kernel.release
    if isinstance(release, Unknown) or numbers(release) > LAST_KNOWN_KERNEL:
        return Unknown(f"which host bridges kernel {release} lets peers through is unknown")
    return False


def _listed(root: Function, roots: List[Function]) -> bool:
    if root.vendor == GOOGLE:
        return True
    if root.vendor != INTEL or root.device not in BRIDGES:
        return False
    return root.device not in SAME_BRIDGE or roots[0] == roots[1]


def _root(facts: HostFacts, function: Function) -> Function:
    """The kernel's host bridge: the first function on the root bus, else the root port itself."""
    top = (function.bridges or (function.address,))[0]
    functions = facts.pci.functions if isinstance(facts.pci.functions, tuple) else ()
    first = find(functions, top.rpartition(":")[0] + ":00.0")
    return first or find(functions, top) or function
