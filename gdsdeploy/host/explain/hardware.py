"""GPUs, their BAR1, what lies between them and a disk, and faults in the kernel's log.

Advice is about nearness of GPUs, queues of disks, links and choice of RDMA adapters, and pinned memory: beyond the room
in BAR1, registering a buffer with nvidia-fs fails.

WSL, and some virtual machines, lack the PCI tree that libcufile expects; older releases abort there.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.document import Ran
from ..facts.kernel import NVIDIA, NVIDIA_FS, Message, messages
from ..facts.pci import DISK, DISTANCES, GPU, NIC, NODE, REDIRECTS, Function, Topology, bar1, find
from ..facts.storage import NVME, Mount
from ..facts.unknown import when_known, why_not
from ..gdscheck import Gpu, Report
from ..paths import CUFILE, CUFILE_OPEN, NVFS, PCI
from . import cause, filesystem, quote, reference
from .cause import DIRECT_PATH, NOTES, USABLE, Cause, Condition, listed_cause, rule
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
    if isinstance(gpus, Unknown):
        yield Condition(gpus)
    elif gpus:
        yield _class(facts)
        # On Grace BAR1 isn't used: see the check topology.bar1.
        if grace(facts) is not True:
            yield from _bar1(facts, gpus)


def report_of(facts: HostFacts) -> Maybe[Report]:
    """What libcufile reports about the platform, from its log, else through gdscheck."""
    for report in (facts.gdscheck.logged, facts.gdscheck.report):
        if isinstance(report, Report) and report.gpus:
            return report
    return why_not(facts.gdscheck.logged, "libcufile named no GPU")


def _class(facts: HostFacts) -> Condition:
    report, models = report_of(facts), facts.driver.models
    consumer = [(name, model) for name, model in models.items() if isinstance(model, str) and CONSUMER.search(model)]
    if consumer and len(consumer) == len(models):
        name, model = consumer[0]
        evidence = quote.file(facts, f"/proc/driver/nvidia/gpus/{name}/information", "^Model:")
        return Condition(False, _unsupported_class(model, evidence))
    unknown = [fact for fact in (facts.driver.gpus, *models.values(), report) if isinstance(fact, Unknown)]
    if isinstance(report, Unknown) or unknown:
        return Condition(Unknown(f"whether libcufile supports these GPUs: {unknown[0].reason}"))
    unsupported = [gpu for gpu in report.gpus if UNSUPPORTED.search(gpu.reason)]
    if not unsupported or len(unsupported) < len(report.gpus):
        return Condition(True)
    shown = f"{unsupported[0].name} ({unsupported[0].reason})"
    return Condition(False, _unsupported_class(shown, _rows(unsupported)))


def _rows(gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    return quote.with_source("libcufile", [f"GPU index {gpu.index} {gpu.name}: {gpu.reason}" for gpu in gpus])


def _unsupported_class(shown: str, evidence: Tuple[str, ...]) -> Cause:
    what = f"GPUDirect Storage doesn't support this class of GPU: {shown}"
    return listed_cause("gpu.class", evidence, what)


def _bar1(facts: HostFacts, gpus: Sequence[Function]) -> Iterator[Condition]:
    cache = facts.cufile.setting("properties", "max_device_cache_size_kb", CACHE_KIB)
    needed = (cache if isinstance(cache, int) else CACHE_KIB) * 1024
    for gpu in gpus:
        sizes = ", ".join(str(gpu.bars[index]) for index in sorted(gpu.bars))
        evidence = quote.with_source(f"{PCI}/{gpu.address}/resource", [f"BARs of {sizes} bytes"])
        size = bar1(gpu)
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


def grace(facts: HostFacts) -> Maybe[bool]:
    """Whether the processor is NVIDIA's Grace: by the GPU's model, else by its core beside an NVIDIA GPU.

    Other machines with this core, AWS Graviton4, have no NVIDIA GPU.
    """
    if facts.os.machine != ARM:
        return when_known(facts.os.machine, lambda _: False)
    if any(isinstance(model, str) and COHERENT.search(model) for model in facts.driver.models.values()):
        return True
    if facts.os.core == GRACE_CORE:
        return when_known(facts.pci.gpus, bool)
    return when_known(facts.os.core, lambda _: False)


def iommu(facts: HostFacts, mount: Optional[Mount], needs_it_off: bool) -> Iterator[Condition]:
    """On x86 a translating IOMMU may block traffic between peers; Grace needs one that translates.

    NVIDIA documents no rule for other Arm machines: there it only may block.
    """
    on_grace = grace(facts)
    for function in _endpoints(facts, mount):
        if on_grace is True:
            yield _iommu_on_grace(facts, function)
        else:
            yield _iommu_of(facts, function, needs_it_off, on_x86=facts.os.machine in X86)


def _iommu_on_grace(facts: HostFacts, function: Function) -> Condition:
    what = f"no IOMMU translates addresses for {function.address}, but NVIDIA's guide needs that on Grace"
    evidence = quote.with_source(f"{PCI}/{function.address}/iommu_group/type", [str(function.iommu_domain)])
    fix = "remove iommu.passthrough=1 from the kernel's command line"
    cause = Cause("platform.iommu", what, fix, evidence + quote.file(facts, "/proc/cmdline"), reference.BEFORE_INSTALL)
    translates = when_known(
        function.iommu, lambda on: on and when_known(function.iommu_domain, lambda domain: domain != "identity")
    )
    return Condition(Unknown(what) if translates is False else translates, cause, suspect=True)


def _iommu_of(facts: HostFacts, function: Function, needs_it_off: bool, on_x86: bool) -> Condition:
    if isinstance(function.iommu, Unknown) or not function.iommu:
        return Condition(function.iommu if isinstance(function.iommu, Unknown) else True)
    domain = function.iommu_domain if isinstance(function.iommu_domain, str) else "of a type that was not recorded"
    if domain == "identity" and not needs_it_off:
        return Condition(True)
    what = f"an IOMMU is between {function.address} and its peers ({domain})"
    evidence = quote.with_source(f"{PCI}/{function.address}/iommu_group/type", [domain])
    fix = "turn the IOMMU off on the kernel's command line: intel_iommu=off or amd_iommu=off; iommu=pt is second best"
    if facts.os.machine == ARM:
        fix = "let the IOMMU pass addresses through: iommu.passthrough=1 on the kernel's command line"
    cause = Cause("platform.iommu", what, fix, evidence + quote.file(facts, "/proc/cmdline"), reference.BEFORE_INSTALL)
    refuses = on_x86 and needs_it_off and domain != "identity"
    return Condition(False if refuses else Unknown(what), cause, suspect=True)


def _endpoints(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    """GPUs and the disks under a mount; none without a GPU, because the disks then have no peer."""
    if isinstance(facts.pci.gpus, Unknown) or isinstance(facts.pci.functions, Unknown) or not facts.pci.gpus:
        return []
    return [*facts.pci.gpus, *disks(facts, mount)]


def disks(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    functions = facts.pci.functions
    if mount is None or isinstance(functions, Unknown):
        return []
    matches = (find(functions, device.pci_address) for device in mount.devices if device.pci_address)
    return [function for function in matches if function is not None]


def redirecting_bridges(facts: HostFacts) -> Tuple[str, ...]:
    """Bridges whose access control sends peers' traffic up to the root, according to the kernel and nvidia-fs."""
    listed = facts.nvidia_fs.bridges if isinstance(facts.nvidia_fs.bridges, tuple) else ()
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
    for function in endpoints:
        if function.iommu is True and function.iommu_domain == "identity":
            what = f"an IOMMU passes the addresses of {function.address} through, which is slow on some platforms"
            evidence = quote.with_source(f"{PCI}/{function.address}/iommu_group/type", ["identity"])
            fix = "if I/O is slow, turn the IOMMU off: intel_iommu=off or amd_iommu=off"
            yield Cause("platform.iommu", what, fix, evidence, reference.BEFORE_INSTALL)
            break
    report = report_of(facts)
    gpus = report.gpus if isinstance(report, Report) else ()
    unsupported = [gpu for gpu in gpus if not gpu.gds and UNSUPPORTED.search(gpu.reason)]
    if unsupported and len(unsupported) < len(gpus):
        what = "some GPUs take compat mode only: {}".format(", ".join(f"{gpu.index} {gpu.name}" for gpu in unsupported))
        yield Cause("gpu.class", what, "run this work on the other GPUs", _rows(unsupported), reference.HARDWARE)


VERSION, MAKER = "/proc/version", "(?i)microsoft"
#: What libcufile prints before it aborts, with the place in its source (rapidsai/kvikio issues 11 and 97).
ABORTED = "Assertion failure, file index :cufio-udev"


@rule(USABLE, 5)
def pci_tree_usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """The library ended the program that opened it here; it does so with every other program."""
    ran = facts.document.attempted(CUFILE_OPEN)
    lines = (ran.stdout + ran.stderr).splitlines() if isinstance(ran, Ran) else []
    evidence = quote.with_source("libcufile", [line for line in lines if ABORTED in line])
    if evidence:
        yield Condition(False, listed_cause("platform.no-pci-tree", evidence))


@rule(DIRECT_PATH, 5)
def pci_tree_direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """WSL's kernel names its maker in its version."""
    text = facts.document.text(VERSION)
    if isinstance(text, str) and "microsoft" in text.lower():
        yield Condition(False, listed_cause("platform.wsl", quote.file(facts, VERSION, MAKER)))


STATS = NVFS + "/stats"
#: A GPU's row, whose last number is the most that was ever pinned on it (nvfs-stat.c).
_GPU = re.compile(r"^GPU (?P<address>[0-9a-fA-F:.]+)\s.*max_pinned_MiB=(?P<most>\d{1,9})", re.M)
#: A share of BAR1 that comes close to all of it: the driver needs some itself.
NEARLY = 0.9


@rule(NOTES, 45)
def pinned_notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    """GPUs on which nearly all of BAR1 was pinned at some time since nvidia-fs was loaded."""
    text, functions = facts.document.text(STATS), facts.pci.functions
    if not isinstance(text, str) or not isinstance(functions, tuple):
        return
    for row in _GPU.finditer(text):
        gpu = find(functions, row["address"].lower())
        size = bar1(gpu) if gpu is not None else None
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
    obstacle = _obstacle(facts, stops[-1]) if stops else None
    yield Condition(False if stops else when_known(facts.kernel.messages, lambda _: True), obstacle)


@rule(NOTES, 80)
def fault_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Faults that don't rule the path out, though they may end a transfer on it."""
    modules = {NVIDIA: "driver.reported-fault"}
    if requests_p2pdma(facts, filesystem.storage_of(facts, mount)) is not True:
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
    yield from _nearness(facts, mount)
    yield from _queues(mount)
    if mount.filesystem in OWN_RDMA:
        yield from _policy(facts)
        yield from links(facts)


def _nearness(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    topology = facts.topology
    if isinstance(topology, Unknown) or not topology.of_kind(GPU):
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
    queues = [(device.name, device.requests) for device in mount.devices if device.kind == NVME]
    shallow = [(name, size) for name, size in queues if isinstance(size, int) and size < REQUESTS]
    if shallow:
        name, size = shallow[0]
        what = f"the queue of {name} holds {size} requests"
        path = f"/sys/block/{name}/queue/nr_requests"
        fix = f"for more throughput, raise {path} towards {REQUESTS}, as far as the disk allows"
        evidence = quote.with_source(path, [f"{name}: {size}" for name, size in shallow])
        yield Cause("storage.queue-depth", what, fix, evidence, reference.ACS)


def _policy(facts: HostFacts) -> Iterator[Cause]:
    """Which adapter libcufile uses for a GPU; its default is round robin."""
    topology = facts.topology
    if isinstance(topology, Unknown):
        return
    gpus, adapters = topology.of_kind(GPU), topology.of_kind(NIC)
    if len(gpus) < 2 or len(adapters) < 2:
        return
    policy = facts.cufile.setting("properties", POLICY, "RoundRobin")
    if policy not in SPREADING:
        host = f"a host with {len(gpus)} GPUs and {len(adapters)} network adapters"
        what = f"properties.{POLICY} is {policy} on {host}"
        fix = f"set properties.{POLICY} to RoundRobinMaxMin, which spreads GPUs over their nearest adapters"
        yield Cause("rdma.policy", what, fix, quote.setting(facts, "properties", POLICY), reference.PARAMETERS)
    distances = {_nearest(topology, gpu.label, NIC)[0] for gpu in gpus}
    if len(distances) > 1 and facts.cufile.setting("properties", "rdma_dynamic_routing", False) is not True:
        what = "some GPUs are farther from every adapter than others, and dynamic routing is off"
        fix = "set properties.rdma_dynamic_routing to true: far GPUs then reach an adapter through the nearest GPU"
        evidence = quote.setting(facts, "properties", "rdma_dynamic_routing")
        yield Cause("rdma.no-routing", what, fix, evidence, reference.PARAMETERS)


def links(facts: HostFacts) -> Iterator[Cause]:
    """RDMA adapters without an active port."""
    rdma = facts.network.rdma
    down = [] if isinstance(rdma, Unknown) else [port.device for port in rdma if not port.active]
    if down:
        what = "no port of {} is active".format(", ".join(dict.fromkeys(down)))
        fix = "connect the adapter's cable, or remove its addresses from rdma_dev_addr_list in cufile.json"
        evidence = tuple(f"/sys/class/infiniband/{device}/ports: no port is ACTIVE" for device in down)
        yield Cause("rdma.link-down", what, fix, evidence, reference.NFS)
