"""The path through the kernel's PCI peer-to-peer DMA, which needs no nvidia-fs: what it requires of host and mount.

Of a mount: its keys, the layers under it, and a way between its disks and a GPU.  On Grace the same keys of cufile.json
choose the coherent link between GPU and processor, which libcufile calls c2c.
"""

from __future__ import annotations

import re
from typing import Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown, storage
from ..facts.driver import OPEN, registry
from ..facts.kernel import NVME_MULTIPATH
from ..facts.pci import Function, bar1, find
from ..facts.storage import Device, Mount
from ..facts.unknown import decided, require, when_known, why_not
from ..gdscheck import Row
from . import config, hardware, quote, reference
from .cause import NOTES, P2PDMA, Cause, Condition, listed_cause, numbers, rule
from .config import p2pdma_keys
from .filesystem import storage_of, transport

#: First driver whose open modules map BAR1 as PCI P2PDMA memory, first libcufile with the mode, and first kernel whose
#: P2PDMA memory programs can use; older kernels with a backport of that have PAGES.  compat.yml has the same limits.
DRIVER, LIBRARY, KERNEL = (565, 47), (1, 13), (6, 2)
SYMBOL, PAGES = "pci_p2pdma_add_resource", "p2pdma_pgmap_ops"
#: RHEL 9.5's kernel: NVIDIA's guide excludes it on x86.
RHEL_9_5 = re.compile(r"5\.14\.0-503\..*\bel9")
#: A driver branch that doesn't count references of P2PDMA pages as kernels from COUNTING_KERNEL on do.
UNCOUNTED, COUNTING_KERNEL = 590, (6, 17)
#: Keys of the driver's registry for this mode; the third is for GPUs before Hopper.
STATIC_BAR1, UNCACHED, NO_P2P = "RMForceStaticBar1", "RmForceDisableIomapWC", "ForceP2P"
#: What the kernel prints where a BAR that is mapped write-combined has to be uncached.
MEMORY_TYPES = "conflicting memory types .*write-combining<->uncached"
#: A value of STATIC_BAR1 that leaves the decision to the driver (nvrm_registry.h).
AUTOMATIC = 2
#: The GPUs that the guide names, and the families that followed; and those before Hopper.
GPUS = re.compile(r"\b(A100|A40|A30|L4|L40S?|H100|H200|H800|H20|GH200|B100|B200|B300|GB200|GB300)\b")
BEFORE_HOPPER = re.compile(r"\b(A100|A40|A30|L4|L40S?)\b")
#: Static BAR1 maps the whole memory, and none of these GPUs has less than this.
STATIC_BYTES = 16 << 30
REBUILD = "rebuild the initramfs and reboot"
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
    yield from _models(facts)
    grace = hardware.grace(facts)
    if grace is True:
        yield from _memory_mode(facts)
        if mount is None:
            rows = [row for row in map(facts.gdscheck.row, ROWS) if row is not None]
            best = next((row for row in rows if any(token in row.paths for token in TOKENS)), None)
            yield confirmed(best)
    elif isinstance(grace, Unknown):
        yield Condition(grace)
    elif facts.os.machine not in hardware.X86:
        what = f"NVIDIA's guide has this mode for x86 and for Grace, and this machine is another ({facts.os.machine})"
        fix = "try it: libcufile's log shows each file's path at logging.level TRACE; or use nvidia-fs"
        evidence = (f"uname -m: {facts.os.machine}", f"/proc/cpuinfo: {_core(facts)}")
        yield Condition(
            Unknown(what), Cause("platform.not-grace", what, fix, evidence, reference.P2PDMA_DRIVER), suspect=True
        )
    else:
        yield from _registry(facts)
        yield from _small_bar1(facts)
    if mount is None:
        yield from multipath_off(facts)
        yield from hardware.iommu(facts, None, needs_it_off=True)


def _core(facts: HostFacts) -> str:
    core = facts.os.core
    return f"implementer {core[0]:#x}, part {core[1]:#x}" if isinstance(core, tuple) else "no implementer and part"


def _kernel(facts: HostFacts) -> Iterator[Condition]:
    fix = "boot a kernel that was built with {}, or use nvidia-fs"
    option = facts.kernel.option("PCI_P2PDMA")
    evidence: Tuple[str, ...] = (f"the kernel's configuration: CONFIG_PCI_P2PDMA={option}",)
    what = "this kernel was built without CONFIG_PCI_P2PDMA"
    cause = Cause("kernel.no-p2pdma", what, fix.format("CONFIG_PCI_P2PDMA"), evidence, reference.P2PDMA_KERNEL)
    yield Condition(when_known(option, lambda value: value == "y"), cause)
    option = facts.kernel.option("ZONE_DEVICE")
    evidence = (f"the kernel's configuration: CONFIG_ZONE_DEVICE={option}",)
    what = "this kernel was built without CONFIG_ZONE_DEVICE, which gives device memory its pages"
    cause = Cause("kernel.no-zone-device", what, fix.format("it"), evidence, reference.P2P_SUPPORT)
    yield Condition(when_known(option, lambda value: value == "y"), cause)
    evidence = quote.symbols(facts, (SYMBOL,))
    what = f"this kernel has no {SYMBOL}"
    fix = fix.format("CONFIG_PCI_P2PDMA")
    cause = Cause("kernel.no-p2pdma-symbol", what, fix, evidence, reference.P2PDMA_KERNEL)
    yield Condition(when_known(facts.kernel.symbols, lambda symbols: SYMBOL in symbols), cause)
    yield _new_enough(facts)
    library = config.library(facts)
    what = f"libcufile {library} is older than 1.13, the first release with this mode"
    cause = Cause("cufile.no-p2pdma", what, "install libcufile 1.13 or newer", (f"libcufile: {library}",))
    yield Condition(when_known(library, lambda version: numbers(version or "0") >= LIBRARY), cause)


def _new_enough(facts: HostFacts) -> Condition:
    """Kernels from 4.20 on have P2PDMA memory, but programs can use it from 6.2 on, or with a backport."""
    release, symbols = facts.kernel.release, facts.kernel.symbols
    what = f"kernel {release} is older than 6.2, and has no backport of what this mode needs ({PAGES})"
    fix = "boot kernel 6.2 or newer, or RHEL's from 9.4 on (5.14.0-427), but not 9.5's (5.14.0-503)"
    evidence = (f"uname -r: {release}", *quote.symbols(facts, (PAGES,)))
    excluded = isinstance(release, str) and RHEL_9_5.search(release) is not None and facts.os.machine != hardware.ARM
    if excluded:
        what = f"NVIDIA's guide excludes the kernel of RHEL 9.5 ({release})"
    cause = Cause("kernel.old-p2pdma", what, fix, evidence, reference.P2PDMA_KERNEL)
    if isinstance(release, Unknown) or numbers(release) >= KERNEL or excluded:
        return Condition(release if isinstance(release, Unknown) else not excluded, cause)
    return Condition(when_known(symbols, lambda names: PAGES in names), cause)


def _driver(facts: HostFacts) -> Iterator[Condition]:
    evidence = quote.file(facts, "/proc/driver/nvidia/version")
    what, fix = "the driver isn't the open one", "install the driver's open kernel modules"
    cause = Cause("driver.proprietary", what, fix, evidence, reference.OPEN_DRIVER)
    yield Condition(when_known(facts.driver.flavour, lambda flavour: flavour == OPEN), cause)
    what = f"driver {facts.driver.version} is older than 565.47"
    cause = Cause("driver.no-p2pdma", what, "install driver 565.47 or newer", evidence, reference.P2PDMA_DRIVER)
    yield Condition(when_known(facts.driver.version, lambda version: numbers(version or "0") >= DRIVER), cause)
    yield _counts_pages(facts)


def _counts_pages(facts: HostFacts) -> Condition:
    """Driver 590 on kernels that count references of P2PDMA pages in another way (compat.yml: p2pdma-driver-590)."""
    version, release = facts.driver.version, facts.kernel.release
    affected = isinstance(version, str) and numbers(version)[:1] == (UNCOUNTED,)
    if not affected or not isinstance(release, str) or numbers(release) < COUNTING_KERNEL:
        return Condition(True)
    evidence = (*quote.file(facts, "/proc/driver/nvidia/version"), f"uname -r: {release}")
    what = (
        f"driver {version} was seen to offer no P2PDMA on kernels newer than 6.16, such as {release} (CUDA answers 801)"
    )
    return Condition(Unknown(what), listed_cause("driver.p2pdma-refcount", evidence, what), suspect=True)


def _registry(facts: HostFacts) -> Iterator[Condition]:
    """The driver's registry as it runs: sysfs shows the parameter as empty, but /proc/driver/nvidia/params doesn't."""
    old = _before_hopper(facts)
    words = f"{STATIC_BAR1}=1;" + (f"{NO_P2P}=0;" if old is True else "") + f"{UNCACHED}=1;"
    fix = f'put options nvidia NVreg_RegistryDwords="{words}" into /etc/modprobe.d, ' + REBUILD
    evidence = quote.file(facts, "/proc/driver/nvidia/params", r"^RegistryDwords:")
    refused = quote.messages(facts, MEMORY_TYPES)
    value = _word(facts, STATIC_BAR1)
    cause = Cause(
        "driver.no-static-bar1", "the nvidia module has no static BAR1", fix, evidence, reference.P2PDMA_DRIVER
    )
    undecided = Unknown(f"the driver itself decides about static BAR1 ({STATIC_BAR1}={AUTOMATIC})")
    yield Condition(
        undecided if value == AUTOMATIC else when_known(value, lambda number: number == 1), cause, suspect=True
    )
    what = f"{UNCACHED} isn't 1: BAR1 is mapped write-combined, and then the driver registers no P2PDMA memory"
    cause = Cause("driver.iomap-wc", what, fix, evidence + refused, reference.P2PDMA_DRIVER)
    yield Condition(when_known(_word(facts, UNCACHED), lambda number: number == 1), cause)
    holds = when_known(_word(facts, NO_P2P), lambda number: number == 0)
    if holds is False and old is not True:
        holds = old if isinstance(old, Unknown) else True
    what = f"{NO_P2P} isn't 0, which GPUs before Hopper need in this mode"
    yield Condition(holds, Cause("driver.force-p2p", what, fix, evidence, reference.P2PDMA_DRIVER))


def _word(facts: HostFacts, key: str) -> Maybe[Optional[int]]:
    """A value of the driver's registry; None: not set."""
    single = when_known(facts.driver.params, lambda params: (params or {}).get("RegistryDwordsPerDevice", ""))
    if isinstance(single, str) and key.lower() in registry(single):
        return Unknown(f"RegistryDwordsPerDevice sets {key} for some GPUs")
    return when_known(facts.driver.registry, lambda values: (values or {}).get(key.lower()))


def _before_hopper(facts: HostFacts) -> Maybe[bool]:
    """Whether some GPU is one before Hopper."""
    older = [when_known(model, lambda text: bool(BEFORE_HOPPER.search(text))) for model in facts.driver.models.values()]
    unknown = [one for one in (facts.driver.gpus, *older) if isinstance(one, Unknown)]
    return True if True in older else unknown[0] if unknown else False


def _memory_mode(facts: HostFacts) -> Iterator[Condition]:
    mode = when_known(facts.driver.params, lambda params: (params or {}).get(COHERENT_MODE, ""))
    if isinstance(mode, str) and mode not in MODES:
        what = f"the driver's {COHERENT_MODE} is {mode}, which is neither driver nor numa"
        fix = f"set the nvidia module's option NVreg_{COHERENT_MODE} to driver or numa, and reboot"
        evidence = quote.file(facts, "/proc/driver/nvidia/params", f"^{COHERENT_MODE}:")
        cause = Cause("gpu.memory-mode", what, fix, evidence, reference.P2PDMA_DRIVER)
        yield Condition(Unknown(what), cause, suspect=True)


def confirmed(row: Optional[Row]) -> Condition:
    """Where no fact of the host decides, libcufile's own row about the storage confirms this path, or denies it."""
    what = "libcufile's own row about this storage doesn't confirm the path"
    lines = [f"its row is {row.value}"] if row is not None else ["no row about this storage"]
    fix = "with both keys of cufile.json set, look for p2pdma or c2c in the storage's row: gdscheck -p"
    cause = Cause("cufile.unconfirmed", what, fix, quote.with_source("libcufile", lines), reference.P2PDMA_KERNEL)
    if row is None or not row.paths:
        return Condition(Unknown(what), cause, suspect=True)
    return Condition(any(token in row.paths for token in TOKENS), cause)


def multipath_fix(facts: HostFacts) -> str:
    """A driver that is built into the kernel reads its parameters from the command line alone."""
    if facts.kernel.option("BLK_DEV_NVME") == "y":
        return "add nvme_core.multipath=N to the kernel's command line and reboot"
    return "put options nvme_core multipath=N into /etc/modprobe.d, " + REBUILD


def multipath_off(facts: HostFacts) -> Iterator[Condition]:
    """Outside of Grace, NVIDIA's guide has NVMe multipath off.  A disk without further paths may do without that."""
    if hardware.grace(facts) is True:
        return
    what = "NVMe multipath is on, but NVIDIA's guide has it off in this mode"
    evidence = quote.file(facts, NVME_MULTIPATH)
    cause = Cause("nvme.multipath", what, multipath_fix(facts), evidence, reference.P2PDMA_DRIVER)
    holds = when_known(facts.kernel.nvme_multipath, lambda on: Unknown(what) if on else True)
    yield Condition(holds, cause, suspect=True)


@rule(NOTES, 50)
def notes(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Cause]:
    """What P2PDMA mode costs with some drivers."""
    version = facts.driver.version
    if isinstance(version, str) and LEAKING[0] <= numbers(version) < LEAKING[1] and _word(facts, STATIC_BAR1) == 1:
        what = f"with static BAR1, driver {version} keeps 4 MiB of kernel memory per GPU for each process that uses it"
        evidence = quote.file(facts, "/proc/driver/nvidia/version")
        fix = "install driver 595 or newer; until then, let few processes start CUDA, and run nvidia-persistenced"
        yield Cause("driver.static-bar1-leak", what, fix, evidence, reference.P2PDMA_DRIVER)


def _models(facts: HostFacts) -> Iterator[Condition]:
    for name, model in facts.driver.models.items():
        what = f"NVIDIA's guide doesn't list {model} among the GPUs for this mode"
        evidence = quote.file(facts, f"/proc/driver/nvidia/gpus/{name}/information", "^Model:")
        fix = "try it: libcufile's log shows each file's path at logging.level TRACE; or use nvidia-fs"
        cause = Cause("gpu.no-p2pdma", what, fix, evidence, reference.P2PDMA_GPUS)
        listed = when_known(model, lambda text: GPUS.search(text) is not None)
        yield Condition(Unknown(what) if listed is False else listed, cause, suspect=True)


def _small_bar1(facts: HostFacts) -> Iterator[Condition]:
    for gpu in facts.pci.gpus if isinstance(facts.pci.gpus, tuple) else ():
        size = bar1(gpu) or 0
        if 0 < size < STATIC_BYTES:
            what = f"BAR1 of the GPU {gpu.address} has {size >> 20} MiB, too small for all of its memory"
            evidence = (f"{gpu.address}: BAR1 of {size} bytes",)
            fix = "enable Resizable BAR and Above 4G Decoding in the firmware"
            yield Condition(False, Cause("gpu.small-bar1", what, fix, evidence, reference.BAR1))


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
    yield from p2pdma_keys(facts, name)
    yield from hardware.iommu(facts, mount, needs_it_off=True)
    for device in mount.devices:
        yield from _layer(facts, device)
    if LABELS[name] == "NVMe":
        yield from multipath_off(facts)
    grace = hardware.grace(facts)
    if grace is True or name == "virtiofs":
        # Virtio has no PCI function that moves the data, and Grace's coherent link isn't PCI.
        yield confirmed(facts.gdscheck.row(LABELS[name]))
    elif isinstance(grace, Unknown):
        yield Condition(grace)
    else:
        yield from _between(facts, mount)


def _layer(facts: HostFacts, device: Device) -> Iterator[Condition]:
    """What one block device under a mount requires."""
    if device.kind == storage.MULTIPATH:
        what = f"{device.name} is an NVMe multipath device, through which this mode works on Grace only"
        evidence = quote.file(facts, NVME_MULTIPATH)
        cause = Cause("nvme.multipath", what, multipath_fix(facts), evidence, reference.P2PDMA_DRIVER)
        yield Condition(hardware.grace(facts), cause)
    elif device.kind in (storage.NVME, storage.NVMEOF):
        yield from transport(device)
    elif device.kind == storage.MD and isinstance(device.md_level, str) and device.md_level in RAID_KERNELS:
        yield _raid(facts, device, RAID_KERNELS[device.md_level])


def _raid(facts: HostFacts, device: Device, least: Tuple[int, int]) -> Condition:
    release, grace = facts.kernel.release, hardware.grace(facts)
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
    for disk in hardware.disks(facts, mount):
        yield Condition(_reaches(facts, disk), _no_way(facts, disk), suspect=True)
    if any(device.kind == storage.NVMEOF for device in mount.devices):
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
    if not shared or apart & set(hardware.redirecting_bridges(facts)) or through_host is True:
        return through_host
    controls = [facts.pci.acs.get(name, Unknown(f"ACS of {name} was not read")) for name in sorted(apart)]
    # Bridges with unknown access control may still send everything through the host bridge.
    return next((control for control in controls if isinstance(control, Unknown)), True)


@decided
def _host_bridge(facts: HostFacts, disk: Function, gpu: Function) -> Maybe[bool]:
    cpu = require(facts.pci.cpu)
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
