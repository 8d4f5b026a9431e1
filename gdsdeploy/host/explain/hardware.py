"""GPUs, their BAR1, what lies between them and a disk, and faults in the kernel's log.

Advice is about nearness of GPUs, queues of disks, links and choice of RDMA adapters, and pinned memory: beyond the room
in BAR1, registering a buffer with nvidia-fs fails.

WSL, and some virtual machines, lack the PCI tree that libcufile expects; older releases abort there.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ..facts import HostFacts, UndecidedError, Unknown, require
from ..facts.kernel import NVIDIA, NVIDIA_FS, Message, messages
from ..facts.storage import NVME, Device, Mount
from ..facts.unknown import if_known, known
from ..gdscheck import Gpu, Report
from ..paths import CUFILE, CUFILE_OPEN, NVFS, PCI
from ..subjects import condition as cause
from ..subjects import quote, reference
from ..subjects.condition import DIRECT_PATH, NOTES, USABLE, Cause, Condition, condition, listed_cause, rule
from ..subjects.pci import DISK, GPU, NIC, REDIRECTS, Function
from ..subjects.topology import DISTANCES, NODE, Topology
from . import filesystem
from .config import requests_p2pdma

MIB = 1 << 20
#: GPUs that cuFile serves in compat mode only.
CONSUMER = re.compile(r"\b(GeForce|TITAN)\b")
#: libcufile's reasons for the same.
UNSUPPORTED = re.compile(r"Model Not Supported|does not have supported")
#: GPUs that a coherent link, NVLink-C2C, connects to a Grace; and the core of Grace: Arm's Neoverse V2.
COHERENT = re.compile(r"\b(GH200|GB200|GB300)\b")
GRACE_CORE = (0x41, 0xD4F)
ARM, X86 = "aarch64", ("x86_64",)
#: KiB of bounce buffers that libcufile maps through BAR1 by default.
CACHE_KIB = 131072


@rule(DIRECT_PATH, 30)
def gpus_direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """What either direct path requires of the GPUs; a host without a GPU passes."""
    gpus = facts.pci.gpus
    if gpus:
        yield _class(facts)
        # On Grace BAR1 isn't used: see the check topology.bar1.
        if not if_known(lambda: grace(facts), False):
            yield from _bar1(facts, gpus)


def report_of(facts: HostFacts) -> Report:
    """What libcufile reports about the platform, from its log, else through gdscheck; raises UndecidedError."""
    logged = known(lambda: facts.gdscheck.logged)
    for report in (logged, if_known(lambda: facts.gdscheck.report, None)):
        if isinstance(report, Report) and report.gpus:
            return report
    require(logged)
    raise UndecidedError("libcufile named no GPU")


@condition
def _class(facts: HostFacts) -> Condition:
    models = facts.driver.models
    consumer = [(name, model) for name, model in models.items() if isinstance(model, str) and CONSUMER.search(model)]
    if consumer and len(consumer) == len(models):
        name, model = consumer[0]
        evidence = quote.file(facts, f"/proc/driver/nvidia/gpus/{name}/information", "^Model:")
        return Condition(False, _unsupported_class(model, evidence))
    try:
        require(facts.driver.gpus)
        tuple(map(require, models.values()))
        gpus = report_of(facts).gpus
    except UndecidedError as error:
        raise UndecidedError(f"whether libcufile supports these GPUs: {error}") from None
    unsupported = [gpu for gpu in gpus if UNSUPPORTED.search(gpu.reason)]
    if not unsupported or len(unsupported) < len(gpus):
        return Condition(True)
    shown = f"{unsupported[0].name} ({unsupported[0].reason})"
    return Condition(False, _unsupported_class(shown, _rows(unsupported)))


def cache_bytes(facts: HostFacts) -> int:
    """The size of libcufile's bounce buffers, by default where cufile.json isn't known."""
    size = if_known(lambda: facts.cufile.setting("properties", "max_device_cache_size_kb", CACHE_KIB), CACHE_KIB)
    return (size if isinstance(size, int) else CACHE_KIB) * 1024


def _rows(gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    return quote.with_source("libcufile", [f"GPU index {gpu.index} {gpu.name}: {gpu.reason}" for gpu in gpus])


def _unsupported_class(shown: str, evidence: Tuple[str, ...]) -> Cause:
    what = f"GPUDirect Storage doesn't support this class of GPU: {shown}"
    return listed_cause("gpu.class", evidence, what)


def _bar1(facts: HostFacts, gpus: Sequence[Function]) -> Iterator[Condition]:
    needed = cache_bytes(facts)
    for gpu in gpus:
        sizes = ", ".join(str(gpu.bars[index]) for index in sorted(gpu.bars))
        evidence = quote.with_source(f"{PCI}/{gpu.address}/resource", [f"BARs of {sizes} bytes"])
        size = gpu.bar1
        if not gpu.bars:
            yield Condition(Unknown(f"the evidence doesn't show the BARs of the GPU {gpu.address}"))
        elif size is None:
            what = f"the GPU {gpu.address} has no BAR1, through which other devices reach its memory"
            yield Condition(False, listed_cause("gpu.no-bar1", evidence, what))
        elif size < needed:
            sizes = f"{size // MIB} MiB, less than the {needed // MIB} MiB of bounce buffers in {CUFILE}"
            what = f"BAR1 of the GPU {gpu.address} has {sizes}"
            fix = f"enable Resizable BAR in the firmware, or lower properties.max_device_cache_size_kb in {CUFILE}"
            cause = Cause("gpu.small-bar1", what, fix, evidence, reference.BAR1)
            yield Condition(Unknown(what), cause, suspect=True)


def grace(facts: HostFacts) -> bool:
    """Whether the processor is NVIDIA's Grace: by the GPU's model, else by its core beside an NVIDIA GPU.

    Other machines with this core, AWS Graviton4, have no NVIDIA GPU.  Raises UndecidedError.
    """
    if facts.os.machine != ARM:
        return False
    if any(isinstance(model, str) and COHERENT.search(model) for model in facts.driver.models.values()):
        return True
    return facts.os.core == GRACE_CORE and bool(facts.pci.gpus)


def iommu(facts: HostFacts, mount: Optional[Mount], needs_it_off: bool) -> Iterator[Condition]:
    """On x86 a translating IOMMU may block traffic between peers; Grace needs one that translates.

    NVIDIA documents no rule for other Arm machines: there it only may block.
    """
    on_grace = if_known(lambda: grace(facts), False)
    for function in _endpoints(facts, mount):
        yield _iommu_on_grace(facts, function) if on_grace else _iommu_of(facts, function, needs_it_off)


@condition
def _iommu_on_grace(facts: HostFacts, function: Function) -> Condition:
    translates = known(lambda: function.iommu and function.iommu_domain != "identity")
    if translates is True:
        return Condition(True)
    what = f"no IOMMU translates addresses for {function.address}, but NVIDIA's guide needs that on Grace"
    domain = str(if_known(lambda: function.iommu_domain, "not known"))
    evidence = quote.with_source(f"{PCI}/{function.address}/iommu_group/type", [domain])
    fix = "remove iommu.passthrough=1 from the kernel's command line"
    cause = Cause("platform.iommu", what, fix, evidence + quote.file(facts, "/proc/cmdline"), reference.BEFORE_INSTALL)
    return Condition(Unknown(what) if translates is False else translates, cause, suspect=True)


@condition
def _iommu_of(facts: HostFacts, function: Function, needs_it_off: bool) -> Condition:
    if not function.iommu:
        return Condition(True)
    domain = if_known(lambda: function.iommu_domain, None) or "of a type that was not recorded"
    if domain == "identity" and not needs_it_off:
        return Condition(True)
    machine = if_known(lambda: facts.os.machine, "")
    what = f"an IOMMU is between {function.address} and its peers ({domain})"
    evidence = quote.with_source(f"{PCI}/{function.address}/iommu_group/type", [domain])
    fix = "turn the IOMMU off on the kernel's command line: intel_iommu=off or amd_iommu=off; iommu=pt is second best"
    if machine == ARM:
        fix = "let the IOMMU pass addresses through: iommu.passthrough=1 on the kernel's command line"
    cause = Cause("platform.iommu", what, fix, evidence + quote.file(facts, "/proc/cmdline"), reference.BEFORE_INSTALL)
    refuses = machine in X86 and needs_it_off and domain != "identity"
    return Condition(False if refuses else Unknown(what), cause, suspect=True)


def _endpoints(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    """GPUs and the disks under a mount; none without a GPU, because the disks then have no peer."""
    gpus = if_known(lambda: facts.pci.gpus, ())
    return [*gpus, *disks(facts, mount)] if gpus else []


def disks(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    devices = mount.devices if mount is not None else ()
    matches = (facts.pci.find(device.pci_address) for device in devices if device.pci_address)
    return [function for function in matches if function is not None]


def redirecting_bridges(facts: HostFacts) -> Tuple[str, ...]:
    """Bridges whose access control sends peers' traffic up to the root, according to the kernel and nvidia-fs."""
    listed = if_known(lambda: facts.nvidia_fs.bridges, None) or ()
    own = [name for name, control in facts.pci.acs.items() if isinstance(control, int) and control & REDIRECTS]
    return tuple(sorted({*listed, *own}))


@rule(NOTES, 30)
def gpu_notes(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Cause]:
    """What slows the direct path of all GPUs down, or excludes some of them from it."""
    endpoints = _endpoints(facts, mount)
    above = {bridge for function in endpoints for bridge in function.bridges}
    bridges = [name for name in redirecting_bridges(facts) if name in above]
    if bridges:
        what = "traffic between peers takes a detour through the root complex, because of ACS on {}"
        fix = f"turn ACS off between GPUs and disks, in the firmware or with pci=disable_acs_redir={bridges[0]}"
        evidence = tuple(f"{name}: ACS redirects requests" for name in bridges[: quote.LINES])
        yield Cause("platform.acs", what.format(", ".join(bridges)), fix, evidence, reference.ACS)
    passed = next(filter(_is_passed_through, endpoints), None)
    if passed is not None:
        what = f"an IOMMU passes the addresses of {passed.address} through, which is slow on some platforms"
        evidence = quote.with_source(f"{PCI}/{passed.address}/iommu_group/type", ["identity"])
        fix = "if I/O is slow, turn the IOMMU off: intel_iommu=off or amd_iommu=off"
        yield Cause("platform.iommu", what, fix, evidence, reference.BEFORE_INSTALL)
    gpus = report_of(facts).gpus
    unsupported = [gpu for gpu in gpus if not gpu.gds and UNSUPPORTED.search(gpu.reason)]
    if unsupported and len(unsupported) < len(gpus):
        what = "some GPUs take compat mode only: {}".format(", ".join(f"{gpu.index} {gpu.name}" for gpu in unsupported))
        yield Cause("gpu.class", what, "run this work on the other GPUs", _rows(unsupported), reference.HARDWARE)


def _is_passed_through(function: Function) -> bool:
    return if_known(lambda: function.iommu_domain, None) == "identity"


VERSION, MAKER = "/proc/version", "(?i)microsoft"
#: What libcufile prints before it aborts, with the place in its source (rapidsai/kvikio issues 11 and 97).
ABORTED = "Assertion failure, file index :cufio-udev"


@rule(USABLE, 5)
def pci_tree_usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """The library ended the program that opened it here; it does so with every other program."""
    ran = if_known(lambda: facts.document.attempted(CUFILE_OPEN), None)
    lines = (ran.stdout + ran.stderr).splitlines() if ran else []
    evidence = quote.with_source("libcufile", [line for line in lines if ABORTED in line])
    if evidence:
        yield Condition(False, listed_cause("platform.no-pci-tree", evidence))


@rule(DIRECT_PATH, 5)
def pci_tree_direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """WSL's kernel names its maker in its version."""
    text = if_known(lambda: facts.document.text(VERSION), None) or ""
    if "microsoft" in text.lower():
        yield Condition(False, listed_cause("platform.wsl", quote.file(facts, VERSION, MAKER)))


STATS = NVFS + "/stats"
#: A GPU's row, whose last number is the most that was ever pinned on it (nvfs-stat.c).
_GPU = re.compile(r"^GPU (?P<address>[0-9a-fA-F:.]+)\s.*max_pinned_MiB=(?P<most>\d{1,9})", re.M)
#: A share of BAR1 that comes close to all of it: the driver needs some itself.
NEARLY = 0.9


@rule(NOTES, 45)
def pinned_notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    """GPUs on which nearly all of BAR1 was pinned at some time since nvidia-fs was loaded."""
    for row in _GPU.finditer(facts.document.text(STATS) or ""):
        gpu = facts.pci.find(row["address"].lower())
        size = gpu.bar1 if gpu is not None else None
        if size and int(row["most"]) << 20 >= NEARLY * size:
            what = f"up to {row['most']} MiB of the GPU {row['address']} were pinned, and BAR1 has {size >> 20} MiB"
            what += ": larger or more buffers can't be registered"
            yield listed_cause("gpu.pinned-budget", (f"{STATS}: {row[0]}"[:200],), what)


#: Rows after which no transfer of nvidia-fs works → the cause.  After a bug it can't be unloaded either.
BROKEN = {"nvidia-fs-bug": "nvidia-fs.stopped", "nvidia-fs-access": "nvidia-fs.access-ok"}


@rule(cause.NVIDIA_FS, 40)
def stopped(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """An error in nvidia-fs that the kernel stopped, or one that every transfer meets, leaves it loaded without use."""
    stops = [m for m in messages(facts.kernel.log.lines, NVIDIA_FS) if m.meaning.id in BROKEN]
    if stops:
        yield Condition(False, _obstacle(facts, stops[-1]))
    else:
        yield Condition(lambda: isinstance(facts.kernel.messages, tuple))


@rule(NOTES, 80)
def fault_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Faults that don't rule the path out, though they may end a transfer on it."""
    modules = {NVIDIA: "driver.reported-fault"}
    if not if_known(lambda: requests_p2pdma(facts, lambda: filesystem.storage_of(facts, mount)), False):
        modules[NVIDIA_FS] = "nvidia-fs.reported-fault"
    for module, ident in modules.items():
        for message in messages(facts.kernel.log.lines, module):
            if message.meaning.fault:
                yield _cause(ident, facts, message)


def _obstacle(facts: HostFacts, message: Message) -> Cause:
    evidence = quote.with_source(facts.kernel.log.source, [message.line])
    return listed_cause(BROKEN[message.meaning.id], evidence, message.what)


def _cause(ident: str, facts: HostFacts, message: Message) -> Cause:
    evidence = quote.with_source(facts.kernel.log.source, [message.line])
    section = "NVIDIA Xid Errors" if message.xid else reference.INSTALL
    return Cause(ident, message.what, message.meaning.fix, evidence, section)


#: Requests that NVIDIA's gds-diag expects a queue to hold for throughput.
REQUESTS = 1024
#: Filesystems for which libcufile itself does RDMA, and so chooses the adapter.
OWN_RDMA = ("gpfs", "mmfs", "wekafs")
POLICY = "rdma_load_balancing_policy"
#: Policies that use several adapters of a host well.
SPREADING = ("RoundRobinMaxMin", "MaxMinFit")


@rule(NOTES, 40)
def nearness_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Advice on one mount; none where the evidence doesn't show it."""
    topology = if_known(lambda: facts.topology, None)
    if topology:
        yield from _nearness(topology, mount)
    yield from _queues(mount)
    if mount.filesystem in OWN_RDMA:
        if topology:
            yield from _policy(facts, topology)
        yield from links(facts)


def _nearness(topology: Topology, mount: Mount) -> Iterator[Cause]:
    if not topology.of_kind(GPU):
        return
    addresses = {device.pci_address for device in mount.devices if device.pci_address}
    disks = [disk.label for disk in topology.of_kind(DISK) if disk.address in addresses]
    nearest = {label: _nearest(topology, label, GPU) for label in disks}
    far = [label for label, (distance, _) in nearest.items() if DISTANCES.index(distance) >= DISTANCES.index(NODE)]
    evidence = quote.with_source(
        "topology",
        ["{}: {} from {}".format(label, distance, ", ".join(gpus)) for label, (distance, gpus) in nearest.items()],
    )
    if far:
        what = "the nearest GPU to {} is at distance {}".format(", ".join(far), nearest[far[0]][0])
        fix = "move the data to disks under the same host bridge as the GPUs, or run the work on the nearest GPU"
        yield Cause("platform.far-gpu", what, fix, evidence, reference.ACS)
    if len(set(nearest.values())) > 1:
        what = "the disks under this mount are near different GPUs, so part of every large read crosses the host"
        fix = "stripe over disks that are near the same GPUs"
        yield Cause("storage.spread", what, fix, evidence, reference.ACS)


def _nearest(topology: Topology, label: str, kind: str) -> Tuple[str, Tuple[str, ...]]:
    """The smallest distance of a device to those of a kind, and the devices at this distance."""
    by_distance: Dict[str, List[str]] = {}
    for device in topology.of_kind(kind):
        pair = topology.pair(label, device.label)
        distance = pair.distance if pair is not None and isinstance(pair.distance, str) else DISTANCES[-1]
        by_distance.setdefault(distance, []).append(device.label)
    best = min(by_distance, key=DISTANCES.index)
    return best, tuple(by_distance[best])


def _queues(mount: Mount) -> Iterator[Cause]:
    sizes = {device.name: _requests(device) for device in mount.devices if device.kind == NVME}
    shallow = [(name, size) for name, size in sizes.items() if size < REQUESTS]
    if shallow:
        name, size = shallow[0]
        what = f"the queue of {name} holds {size} requests"
        path = f"/sys/block/{name}/queue/nr_requests"
        fix = f"for more throughput, raise {path} towards {REQUESTS}, as far as the disk allows"
        evidence = quote.with_source(path, [f"{name}: {size}" for name, size in shallow])
        yield Cause("storage.queue-depth", what, fix, evidence, reference.ACS)


def _requests(device: Device) -> int:
    return if_known(lambda: device.requests, REQUESTS)


def _policy(facts: HostFacts, topology: Topology) -> Iterator[Cause]:
    """Which adapter libcufile uses for a GPU; its default is round robin."""
    gpus, adapters = topology.of_kind(GPU), topology.of_kind(NIC)
    if len(gpus) < 2 or len(adapters) < 2:
        return
    policy = if_known(lambda: facts.cufile.setting("properties", POLICY, "RoundRobin"), SPREADING[0])
    if policy not in SPREADING:
        host = f"a host with {len(gpus)} GPUs and {len(adapters)} network adapters"
        what = f"properties.{POLICY} is {policy} on {host}"
        fix = f"set properties.{POLICY} to RoundRobinMaxMin, which spreads GPUs over their nearest adapters"
        yield Cause("rdma.policy", what, fix, quote.setting(facts, "properties", POLICY), reference.PARAMETERS)
    distances = {_nearest(topology, gpu.label, NIC)[0] for gpu in gpus}
    routing = if_known(lambda: facts.cufile.setting("properties", "rdma_dynamic_routing", False), False)
    if len(distances) > 1 and routing is not True:
        what = "some GPUs are farther from every adapter than others, and dynamic routing is off"
        fix = "set properties.rdma_dynamic_routing to true: far GPUs then reach an adapter through the nearest GPU"
        evidence = quote.setting(facts, "properties", "rdma_dynamic_routing")
        yield Cause("rdma.no-routing", what, fix, evidence, reference.PARAMETERS)


def links(facts: HostFacts) -> Iterator[Cause]:
    """RDMA adapters without an active port."""
    down = [port.device for port in if_known(lambda: facts.network.rdma, ()) if not port.active]
    if down:
        what = "no port of {} is active".format(", ".join(dict.fromkeys(down)))
        fix = "connect the adapter's cable, or remove its addresses from rdma_dev_addr_list in cufile.json"
        evidence = tuple(f"/sys/class/infiniband/{device}/ports: no port is ACTIVE" for device in down)
        yield Cause("rdma.link-down", what, fix, evidence, reference.NFS)
