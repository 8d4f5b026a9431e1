"""The path through the kernel's PCI peer-to-peer DMA, which needs no nvidia-fs."""

from __future__ import annotations

import re
from typing import Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown, storage
from ..facts.gpu import OPEN
from ..facts.pci import Function, find
from ..facts.storage import Device, Mount
from ..facts.topology import bar1
from ..facts.unknown import when_known
from . import config, gpus, quote, reference
from .blocks import stack
from .cause import P2PDMA, Cause, Condition, numbers
from .rules import rule

#: First driver whose open modules map BAR1 as PCI P2PDMA memory, and first libcufile with the mode.
DRIVER, LIBRARY = (565, 47), (1, 13)
STATIC_BAR1 = "RMForceStaticBar1=1"
#: The GPUs that the guide names, and the families that followed.
GPUS = re.compile(r"\b(A100|A40|A30|L4|L40S?|H100|H200|H800|H20|GH200|B100|B200|B300|GB200|GB300)\b")
#: Static BAR1 maps the whole memory, and none of these GPUs has less than this.
STATIC_BYTES = 16 << 30
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
    yield from gpus.iommu(facts, mount, needs_it_off=True)
    for device in stack(mount):
        yield _disk(facts, device)
    for disk in gpus.disks(facts, mount):
        yield from _reaches(facts, disk)


@rule(P2PDMA, 10)
def of_host(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """What this path requires of the host, whatever the disk."""
    yield from _kernel(facts)
    yield from _driver(facts)
    yield from _gpus(facts)


def _kernel(facts: HostFacts) -> Iterator[Condition]:
    fix = "boot a kernel that was built with CONFIG_PCI_P2PDMA, or use nvidia-fs"
    option = facts.kernel.option("PCI_P2PDMA")
    evidence: Tuple[str, ...] = (f"the kernel's configuration: CONFIG_PCI_P2PDMA={option}",)
    what = "this kernel was built without CONFIG_PCI_P2PDMA"
    cause = Cause("kernel.no-p2pdma", what, fix, evidence, reference.P2PDMA_KERNEL)
    yield Condition(when_known(option, lambda value: value == "y"), cause)
    evidence = quote.symbols(facts, ("pci_p2pdma_add_resource",))
    what = "this kernel has no pci_p2pdma_add_resource"
    cause = Cause("kernel.no-p2pdma-symbol", what, fix, evidence, reference.P2PDMA_KERNEL)
    yield Condition(when_known(facts.kernel.symbols, lambda symbols: "pci_p2pdma_add_resource" in symbols), cause)
    library = config.library(facts)
    what = f"libcufile {library} is older than 1.13, the first release with this mode"
    cause = Cause("cufile.no-p2pdma", what, "install libcufile 1.13 or newer", (f"libcufile: {library}",))
    yield Condition(when_known(library, lambda version: numbers(version or "0") >= LIBRARY), cause)


def _driver(facts: HostFacts) -> Iterator[Condition]:
    evidence = quote.file(facts, "/proc/driver/nvidia/version")
    what, fix = "the driver isn't the open one", "install the driver's open kernel modules"
    cause = Cause("driver.proprietary", what, fix, evidence, reference.OPEN_DRIVER)
    yield Condition(when_known(facts.driver.flavour, lambda flavour: flavour == OPEN), cause)
    what = f"driver {facts.driver.version} is older than 565.47"
    cause = Cause("driver.no-p2pdma", what, "install driver 565.47 or newer", evidence, reference.P2PDMA_DRIVER)
    yield Condition(when_known(facts.driver.version, lambda version: numbers(version or "0") >= DRIVER), cause)
    evidence = quote.file(facts, "/proc/driver/nvidia/params", r"^RegistryDwords:")
    option = 'NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;"'
    fix = f"set the nvidia module's option {option} in /etc/modprobe.d, rebuild the initramfs and reboot"
    what = "the nvidia module has no static BAR1"
    cause = Cause("driver.no-static-bar1", what, fix, evidence, reference.P2PDMA_DRIVER)
    static = when_known(facts.driver.params, lambda params: STATIC_BAR1 in (params or {}).get("RegistryDwords", ""))
    yield Condition(static, cause)


def _gpus(facts: HostFacts) -> Iterator[Condition]:
    for name, model in facts.driver.models.items():
        what = f"NVIDIA's guide doesn't list {model} among the GPUs for this mode"
        evidence = quote.file(facts, f"/proc/driver/nvidia/gpus/{name}/information", "^Model:")
        fix = "try it: libcufile's log shows each file's path at logging.level TRACE; or use nvidia-fs"
        cause = Cause("gpu.no-p2pdma", what, fix, evidence, reference.P2PDMA_GPUS)
        listed = when_known(model, lambda text: GPUS.search(text) is not None)
        yield Condition(Unknown(what) if listed is False else listed, cause, suspect=True)
    for gpu in facts.pci.gpus if isinstance(facts.pci.gpus, tuple) else ():
        size = bar1(gpu) or 0
        if 0 < size < STATIC_BYTES:
            what = f"BAR1 of the GPU {gpu.address} has {size >> 20} MiB, too small for all of its memory"
            evidence = (f"{gpu.address}: BAR1 of {size} bytes",)
            fix = "enable Resizable BAR and Above 4G Decoding in the firmware"
            yield Condition(False, Cause("gpu.small-bar1", what, fix, evidence, reference.BAR1))


def _disk(facts: HostFacts, device: Device) -> Condition:
    what = f"{device.name} isn't a single local NVMe disk ({device.kind})"
    evidence: Tuple[str, ...] = (f"/sys/dev/block/{device.number}: {device.name}",)
    if device.kind == storage.MULTIPATH:
        evidence = quote.file(facts, "/sys/module/nvme_core/parameters/multipath")
    fix = "use single local disks, with nvme_core.multipath=N"
    cause = Cause("storage.not-local", what, fix, evidence, reference.P2PDMA_DRIVER)
    return Condition(when_known(device.transport, lambda transport: transport == "pcie"), cause)


def _reaches(facts: HostFacts, disk: Function) -> Iterator[Condition]:
    """Traffic between a disk and some GPU must stay below a switch, or be allowed through the host bridge."""
    gpus_here = facts.pci.gpus if isinstance(facts.pci.gpus, tuple) else ()
    pairs = [_pair(facts, disk, gpu) for gpu in gpus_here]
    if not pairs or any(reaches is True for reaches in pairs):
        return
    unknown = next((reaches for reaches in pairs if isinstance(reaches, Unknown)), None)
    what = f"the kernel doesn't let {disk.address} reach a GPU through its host bridge"
    fix = "move the disk and a GPU below one PCIe switch without ACS, or use nvidia-fs"
    root, cpu = _root(facts, disk), facts.pci.cpu
    processor = f"{cpu[0]} family {cpu[1]}" if isinstance(cpu, tuple) else "unknown processor"
    evidence = (f"/sys/bus/pci/devices/{root.address}: {root.vendor:04x}:{root.device:04x}, {processor}",)
    cause = Cause("platform.host-bridge", what, fix, evidence, reference.P2P_SUPPORT)
    yield Condition(unknown if unknown is not None else False, cause, suspect=unknown is not None)


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
