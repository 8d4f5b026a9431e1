"""The path through the kernel's PCI peer-to-peer DMA, which needs no nvidia-fs: what it requires of host and mount.

Of a mount: its keys, the layers under it, and a way between its disks and a GPU.  On Grace the same keys of cufile.json
choose the coherent link between GPU and processor, which libcufile calls c2c.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Iterator, List, Optional

from ..facts.document import collected
from ..facts.unknown import UndecidedError, Unknown, any_of, if_known, known, require
from ..paths import NVIDIA, PCI
from ..subjects.driver import OPEN, registry
from ..subjects.kernel import NVME_MULTIPATH
from . import libcufile, quote, storage
from .condition import (
    NOTES,
    P2PDMA,
    Cause,
    Condition,
    condition,
    doubted,
    is_since,
    listed_cause,
    numbers,
    required,
    rule,
    suspicion,
)
from .cufile_json import p2pdma_keys
from .filesystem import storage_of, transport
from .gpu import ARM, STATIC_BYTES, WHOLE, X86, bar1, grace, of_all, with_bar1
from .pci import Function
from .topology import disks, iommu, redirecting_bridges
from .types import HostFacts, Mount

if TYPE_CHECKING:
    from ..gdscheck.reader import Row
    from .storage import Device

#: First driver whose open modules map BAR1 as PCI P2PDMA memory, first libcufile with the mode, and first kernel whose
#: P2PDMA memory programs can use; older kernels with a backport of that have PAGES.  compat.yml has the same limits.
DRIVER, LIBRARY, KERNEL = (565, 47), (1, 13), (6, 2)
SYMBOL, PAGES = "pci_p2pdma_add_resource", "p2pdma_pgmap_ops"
#: RHEL 9.5's kernel: NVIDIA's guide excludes it on x86.
RHEL_9_5 = r"5\.14\.0-503\..*\bel9"
#: A driver branch that doesn't count references of P2PDMA pages as kernels from COUNTING_KERNEL on do.
UNCOUNTED, COUNTING_KERNEL = 590, (6, 17)
#: Keys of the driver's registry for this mode; the third is for GPUs before Hopper.
STATIC_BAR1, UNCACHED, NO_P2P = "RMForceStaticBar1", "RmForceDisableIomapWC", "ForceP2P"
#: What the kernel prints where a BAR that is mapped write-combined has to be uncached.
MEMORY_TYPES = "conflicting memory types .*write-combining<->uncached"
#: A value of STATIC_BAR1 that leaves the decision to the driver (nvrm_registry.h).
AUTOMATIC = 2
#: The GPUs that the guide names, and the families that followed; and those before Hopper.
GPUS = r"\b(A100|A40|A30|L4|L40S?|H100|H200|H800|H20|GH200|B100|B200|B300|GB200|GB300)\b"
BEFORE_HOPPER = r"\b(A100|A40|A30|L4|L40S?)\b"
REBUILD = "and rebuild the initramfs; then drain the host and reboot it"
#: Drivers that register a static BAR1 again at every first open of a GPU, and keep the memory of each time.
LEAKING = ((570,), (595,))
#: libcufile's rows about storage that this mode serves, and their words for it.
ROWS, TOKENS = ("NVMe", "NVMeOF", "VIRTIOFS"), ("p2pdma", "c2c")
#: The parameter with the memory mode of coherent GPUs, and its values: managed by the driver (CDMM), a NUMA node, or
#: what the driver chose.
COHERENT_MODE = "CoherentGPUMemoryMode"
MODES = ("driver", "numa", "")


@rule(P2PDMA, 10)
def of_host(facts: HostFacts, mount: Optional[Mount] = None) -> Iterator[Condition]:
    """What this path requires of the host, whatever the disk."""
    yield from _kernel(facts)
    yield from _driver(facts)
    on_grace = known(lambda: grace(facts))
    if isinstance(on_grace, Unknown):
        yield Condition(on_grace)
    elif on_grace:
        yield _memory_mode(facts)
        if mount is None:
            rows = [row for row in map(facts.gdscheck.row, ROWS) if row is not None]
            best = next((row for row in rows if any(token in row.paths for token in TOKENS)), None)
            yield confirmed(best)
    elif facts.os.machine not in X86:
        machine, core = facts.os.machine, if_known(lambda: facts.os.core, None)
        words = f"implementer {core[0]:#x}, part {core[1]:#x}" if core else "no implementer and part"
        evidence = (f"uname -m: {machine}", f"/proc/cpuinfo: {words}")
        yield doubted("platform.not-grace", evidence, machine=machine)
    else:
        yield from _registry(facts)
        yield from of_all(bar1(gpu, STATIC_BYTES, WHOLE) for gpu in with_bar1(facts))
    if mount is None:
        yield from multipath_off(facts)
        yield from iommu(facts, None, needs_it_off=True)


def _kernel(facts: HostFacts) -> Iterator[Condition]:
    yield _option(facts, "PCI_P2PDMA", "kernel.no-p2pdma")
    yield _option(facts, "ZONE_DEVICE", "kernel.no-zone-device")
    yield required(lambda: SYMBOL in facts.kernel.symbols, "kernel.no-p2pdma-symbol", quote.symbols(facts, (SYMBOL,)))
    yield _new_enough(facts)
    library = if_known(lambda: libcufile.release(facts), None)
    yield required(
        lambda: is_since(libcufile.release(facts), LIBRARY, "libcufile"),
        "cufile.no-p2pdma",
        (f"libcufile: {library}",),
        release=library or "",
    )


@condition
def _option(facts: HostFacts, name: str, ident: str) -> Condition:
    value = facts.kernel.option(name)
    return required(value == "y", ident, (f"the kernel's configuration: CONFIG_{name}={value}",))


@condition
def _new_enough(facts: HostFacts) -> Condition:
    """Kernels from 4.20 on have P2PDMA memory, but programs can use it from 6.2 on, or with a backport."""
    release = facts.kernel.release
    excluded = re.search(RHEL_9_5, release) is not None and if_known(lambda: facts.os.machine, "") != ARM
    what = f"NVIDIA's guide excludes the kernel of RHEL 9.5 ({release})" if excluded else ""
    evidence = (f"uname -r: {release}", *quote.symbols(facts, (PAGES,)))
    return required(
        not excluded and (numbers(release) >= KERNEL or PAGES in facts.kernel.symbols),
        "kernel.old-p2pdma",
        evidence,
        what,
        release=release,
    )


def _driver(facts: HostFacts) -> Iterator[Condition]:
    version, release = if_known(lambda: facts.driver.version, None), if_known(lambda: facts.kernel.release, "0")
    evidence = quote.file(facts, NVIDIA + "/version")
    yield required(
        lambda: collected(facts.driver.flavour, "no driver is loaded") == OPEN, "driver.proprietary", evidence
    )
    yield required(
        lambda: is_since(facts.driver.version, DRIVER, "loaded driver"),
        "driver.no-p2pdma",
        evidence,
        version=version or "",
    )
    # See the rule p2pdma-driver-590 of compat.yml.
    if version is not None and numbers(version)[:1] == (UNCOUNTED,) and numbers(release) >= COUNTING_KERNEL:
        what = f"driver {version} was seen to offer no P2PDMA on kernels newer than 6.16, such as {release}"
        evidence = (*evidence, f"uname -r: {release}")
        yield doubted("driver.p2pdma-refcount", evidence, what + " (CUDA answers 801)")
    for name, model in facts.driver.models.items():
        if isinstance(model, Unknown):
            yield Condition(model)
        elif not re.search(GPUS, model):
            evidence = quote.file(facts, f"{NVIDIA}/gpus/{name}/information", "^Model:")
            yield doubted("gpu.no-p2pdma", evidence, model=model)


def _registry(facts: HostFacts) -> Iterator[Condition]:
    """The driver's registry as it runs: sysfs shows the parameter as empty, but /proc/driver/nvidia/params doesn't."""
    old = known(lambda: _before_hopper(facts))
    words = f"{STATIC_BAR1}=1;" + (f"{NO_P2P}=0;" if old is True else "") + f"{UNCACHED}=1;"
    fix = f'put options nvidia NVreg_RegistryDwords="{words}" into /etc/modprobe.d, ' + REBUILD
    evidence = quote.file(facts, NVIDIA + "/params", r"^RegistryDwords:")
    yield required(
        lambda: _static_bar1(facts),
        "driver.no-static-bar1",
        evidence,
        "the nvidia module has no static BAR1",
        fix,
        suspect=True,
    )
    what = f"{UNCACHED} isn't 1: BAR1 is mapped write-combined, and then the driver registers no P2PDMA memory"
    refused = quote.messages(facts, MEMORY_TYPES)
    yield required(lambda: _word(facts, UNCACHED) == 1, "driver.iomap-wc", evidence + refused, what, fix)
    yield required(lambda: _word(facts, NO_P2P) == 0 or not require(old), "driver.force-p2p", evidence, fix=fix)


def _static_bar1(facts: HostFacts) -> bool:
    value = _word(facts, STATIC_BAR1)
    if value == AUTOMATIC:
        raise UndecidedError(f"the driver itself decides about static BAR1 ({STATIC_BAR1}={AUTOMATIC})")
    return value == 1


def _word(facts: HostFacts, key: str) -> Optional[int]:
    """A value of the driver's registry; None: not set.  Raises UndecidedError."""
    single = (facts.driver.params or {}).get("RegistryDwordsPerDevice", "")
    if key.lower() in registry(single):
        raise UndecidedError(f"RegistryDwordsPerDevice sets {key} for some GPUs")
    return (facts.driver.registry or {}).get(key.lower())


def _before_hopper(facts: HostFacts) -> bool:
    """Whether some GPU is one before Hopper; raises UndecidedError."""
    models = facts.driver.models.values()
    older = [model if isinstance(model, Unknown) else bool(re.search(BEFORE_HOPPER, model)) for model in models]
    return any_of([known(lambda: facts.driver.gpus is None), *older])


def _memory_mode(facts: HostFacts) -> Condition:
    mode = (if_known(lambda: facts.driver.params, None) or {}).get(COHERENT_MODE, "")
    evidence = quote.file(facts, NVIDIA + "/params", f"^{COHERENT_MODE}:")
    return Condition(True) if mode in MODES else doubted("gpu.memory-mode", evidence, mode=mode)


def confirmed(row: Optional[Row]) -> Condition:
    """Where no fact of the host decides, libcufile's own row about the storage confirms this path, or denies it."""
    lines = [f"its row is {row.value}"] if row is not None else ["no row about this storage"]
    cause = listed_cause("cufile.unconfirmed", quote.with_source("libcufile", lines))
    if row is None or not row.paths:
        return suspicion(cause)
    return Condition(any(token in row.paths for token in TOKENS), cause)


def multipath_fix(facts: HostFacts) -> str:
    """A driver that is built into the kernel reads its parameters from the command line alone; empty: it is none."""
    if if_known(lambda: facts.kernel.option("BLK_DEV_NVME"), "") == "y":
        return "add nvme_core.multipath=N to the kernel's command line; then drain the host and reboot it"
    return ""


def multipath_off(facts: HostFacts) -> Iterator[Condition]:
    """Outside of Grace, NVIDIA's guide has NVMe multipath off.  A disk without further paths may do without that."""
    if if_known(lambda: grace(facts), False):
        return
    cause = listed_cause("nvme.multipath", quote.file(facts, NVME_MULTIPATH), fix=multipath_fix(facts))
    yield Condition(lambda: Unknown(cause.what) if facts.kernel.nvme_multipath else True, cause, suspect=True)


@rule(NOTES, 50)
def notes(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Cause]:
    """What P2PDMA mode costs with some drivers."""
    version = facts.driver.version
    if version is not None and LEAKING[0] <= numbers(version) < LEAKING[1] and _word(facts, STATIC_BAR1) == 1:
        yield listed_cause("driver.static-bar1-leak", quote.file(facts, NVIDIA + "/version"), version=version)


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
        yield Condition(False)
        return
    yield from p2pdma_keys(facts, name)
    yield from iommu(facts, mount, needs_it_off=True)
    for device in mount.devices:
        yield _layer(facts, device)
    if LABELS[name] == "NVMe":
        yield from multipath_off(facts)
    if name == "virtiofs" or grace(facts):
        # Virtio has no PCI function that moves the data, and Grace's coherent link isn't PCI.
        yield confirmed(facts.gdscheck.row(LABELS[name]))
    else:
        yield from _between(facts, mount)


@condition
def _layer(facts: HostFacts, device: Device) -> Condition:
    """What one block device under a mount requires."""
    if device.kind == storage.MULTIPATH:
        what = f"{device.name} is an NVMe multipath device, through which this mode works on Grace only"
        return required(grace(facts), "nvme.multipath", quote.file(facts, NVME_MULTIPATH), what, multipath_fix(facts))
    if device.kind in (storage.NVME, storage.NVMEOF):
        return transport(device)
    level = if_known(lambda: device.md_level, "")
    return _raid(facts, device, level) if device.kind == storage.MD and level in RAID_KERNELS else Condition(True)


def _raid(facts: HostFacts, device: Device, level: str) -> Condition:
    least, is_striped = RAID_KERNELS[level], level == "raid0"
    if is_striped and if_known(lambda: grace(facts), False):
        return Condition(True)
    release, since = facts.kernel.release, "{}.{}".format(*least)
    also = ", or on Grace" if is_striped else ""
    evidence = (f"/sys/dev/block/{device.number}/md/level: {level}", f"uname -r: {release}")
    return required(
        numbers(release) >= least or (grace(facts) and is_striped),
        "storage.raid-kernel",
        evidence,
        device=device.name,
        level=level,
        kernel=since,
        also=also,
    )


def _between(facts: HostFacts, mount: Mount) -> Iterator[Condition]:
    """Traffic between a disk, or the adapter to it, and some GPU stays below a switch or passes the host bridge."""
    if if_known(lambda: not facts.pci.gpus, False):
        return
    for disk in disks(facts, mount):
        yield Condition(partial(_reaches, facts, disk), partial(_no_way, facts, disk), suspect=True)
    if any(device.kind == storage.NVMEOF for device in mount.devices):
        yield _adapters(facts)


@condition
def _adapters(facts: HostFacts) -> Condition:
    """No evidence shows which adapter serves a disk over fabrics: that one is certain only where all are alike."""
    names, functions = facts.peermem.rdma_devices, if_known(lambda: facts.pci.functions, None)
    if functions is None:
        raise UndecidedError("the PCI functions are unknown")
    adapters = [function for function in functions if set(function.names) & set(names)]
    if not adapters:
        raise UndecidedError("no RDMA adapter of this host is a PCI function")
    ways = {if_known(partial(_reaches, facts, adapter), None) for adapter in adapters}
    if ways in ({True}, {False}):
        return Condition(ways == {True}, lambda: _no_way(facts, adapters[0]))
    raise UndecidedError("whether the adapter that serves the disk reaches a GPU is unknown")


def _reaches(facts: HostFacts, peer: Function) -> bool:
    """Whether a disk or adapter reaches some GPU; raises UndecidedError."""
    return any_of(known(partial(_pair, facts, peer, gpu)) for gpu in if_known(lambda: facts.pci.gpus, ()))


def _no_way(facts: HostFacts, peer: Function) -> Cause:
    root, cpu = _root(facts, peer), if_known(lambda: facts.pci.cpu, None)
    processor = f"{cpu[0]} family {cpu[1]}" if cpu else "unknown processor"
    evidence = (f"{PCI}/{root.address}: {root.vendor:04x}:{root.device:04x}, {processor}",)
    return listed_cause("platform.host-bridge", evidence, peer=peer.address)


def _pair(facts: HostFacts, disk: Function, gpu: Function) -> bool:
    shared = [name for name in disk.bridges if name in gpu.bridges]
    apart = {*disk.bridges, *gpu.bridges} - set(shared)
    through_host = known(lambda: _host_bridge(facts, disk, gpu))
    if not shared or apart & set(redirecting_bridges(facts)) or through_host is True:
        return require(through_host)
    for name in sorted(apart):
        # Bridges with unknown access control may still send everything through the host bridge.
        require(facts.pci.acs.get(name, Unknown(f"ACS of {name} was not read")))
    return True


def _host_bridge(facts: HostFacts, disk: Function, gpu: Function) -> bool:
    cpu = facts.pci.cpu
    if cpu is None:
        raise UndecidedError("which host bridges the kernel lets peers through is known for x86 only")
    roots = [_root(facts, function) for function in (disk, gpu)]
    if (cpu[0] == AMD and cpu[1] >= ZEN) or all(_listed(root, roots) for root in roots):
        return True
    release = if_known(lambda: facts.kernel.release, "")
    if not release or numbers(release) > LAST_KNOWN_KERNEL:
        raise UndecidedError(f"which host bridges kernel {release or '(not known)'} lets peers through is unknown")
    return False


def _listed(root: Function, roots: List[Function]) -> bool:
    is_shared = root.device not in SAME_BRIDGE or roots[0] == roots[1]
    return root.vendor == GOOGLE or (root.vendor == INTEL and root.device in BRIDGES and is_shared)


def _root(facts: HostFacts, function: Function) -> Function:
    """The kernel's host bridge: the first function on the root bus, else the root port itself."""
    top = (function.bridges or (function.address,))[0]
    return facts.pci.find(top.rpartition(":")[0] + ":00.0") or facts.pci.find(top) or function
