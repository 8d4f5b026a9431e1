"""GPUs, their BAR1, and what lies between them and a disk: IOMMU, access control, host bridges."""

from __future__ import annotations

import re
from typing import Iterator, List, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.pci import REDIRECTS, Function, bar1, find
from ..facts.storage import Mount
from ..facts.unknown import when_known, why_not
from ..gdscheck import Gpu, Report
from ..paths import CUFILE, PCI
from . import quote, reference, shared
from .blocks import stack
from .cause import Cause, Condition
from .rules import DIRECT, NOTES, rule

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


@rule(DIRECT, 30)
def direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
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
    return shared.cause("gpu.class", evidence, what)


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
            yield Condition(False, shared.cause("gpu.no-bar1", evidence, what))
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
    matches = (find(functions, device.pci_address) for device in stack(mount) if device.pci_address)
    return [function for function in matches if function is not None]


def redirecting_bridges(facts: HostFacts) -> Tuple[str, ...]:
    """Bridges whose access control sends peers' traffic up to the root, according to the kernel and nvidia-fs."""
    listed = facts.nvidia_fs.bridges if isinstance(facts.nvidia_fs.bridges, tuple) else ()
    own = [name for name, control in facts.pci.acs.items() if isinstance(control, int) and control & REDIRECTS]
    return tuple(sorted({*listed, *own}))


@rule(NOTES, 30)
def notes(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Cause]:
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
