"""GPUs, their BAR1, and what stands between them and a disk: IOMMU, access control, host bridges."""

from __future__ import annotations

import re
from typing import Iterator, List, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.pci import REDIRECTS, Function, find
from ..facts.storage import Mount
from ..facts.topology import bar1
from ..facts.unknown import why_not
from ..gdscheck import Gpu, Report
from ..paths import CUFILE, PCI
from . import quote, reference
from .blocks import stack
from .cause import Cause, Condition

MIB = 1 << 20
#: GPUs that cuFile takes in compat mode only.
CONSUMER = re.compile(r"\b(GeForce|TITAN)\b")
#: KiB of bounce buffers that libcufile maps through BAR1 where cufile.json says nothing.
CACHE_KIB = 131072


def direct(facts: HostFacts) -> Iterator[Condition]:
    """What the GPUs must be for either direct path; a host without any is not judged by them."""
    gpus = facts.pci.gpus
    if isinstance(gpus, Unknown):
        yield Condition(gpus)
    elif gpus:
        yield _class(facts)
        yield from _bar1(facts, gpus)


def report_of(facts: HostFacts) -> Maybe[Report]:
    """What libcufile says of the platform, from its log, else through gdscheck."""
    for found in (facts.gdscheck.logged, facts.gdscheck.report):
        if isinstance(found, Report) and found.gpus:
            return found
    return why_not(facts.gdscheck.logged, "libcufile named no GPU")


def _class(facts: HostFacts) -> Condition:
    report = report_of(facts)
    consumer = [(name, model) for name, model in facts.driver.models.items() if _is_consumer(model)]
    if consumer and len(consumer) == len(facts.driver.models):
        path = f"/proc/driver/nvidia/gpus/{consumer[0][0]}/information"
        return Condition(False, _unsupported(str(consumer[0][1]), "", quote.file(facts, path, "^Model:")))
    unknown = [item for item in (facts.driver.gpus, *facts.driver.models.values(), report) if isinstance(item, Unknown)]
    if isinstance(report, Unknown) or unknown:
        return Condition(Unknown(f"whether libcufile takes these GPUs: {unknown[0].reason}"))
    bad = [gpu for gpu in report.gpus if _refused(gpu)]
    if not bad or len(bad) < len(report.gpus):
        return Condition(True)
    return Condition(False, _unsupported(bad[0].name, bad[0].reason, _rows(bad)))


def _is_consumer(model: Maybe[str]) -> bool:
    return isinstance(model, str) and CONSUMER.search(model) is not None


def _refused(gpu: Gpu) -> bool:
    return re.search(r"Model Not Supported|does not have supported", gpu.reason) is not None


def _rows(gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    rows = [f"GPU index {gpu.index} {gpu.name}: {gpu.reason}" for gpu in gpus]
    return quote.placed("libcufile", rows)


def _unsupported(name: str, reason: str, evidence: Tuple[str, ...]) -> Cause:
    what = "GPUDirect Storage does not take this class of GPU: {}{}".format(name, f" ({reason})" * bool(reason))
    return Cause("gpu.class", what, "use a data-centre or professional GPU", evidence, reference.HARDWARE)


def _bar1(facts: HostFacts, gpus: Sequence[Function]) -> Iterator[Condition]:
    cache = facts.cufile.setting("properties", "max_device_cache_size_kb", CACHE_KIB)
    needed = (cache if isinstance(cache, int) else CACHE_KIB) * 1024
    for gpu in gpus:
        evidence = quote.placed(PCI + "/" + gpu.address + "/resource", [f"BARs of {_sizes(gpu)} bytes"])
        if not gpu.bars:
            yield Condition(Unknown(f"the BARs of the GPU {gpu.address} are not shown"))
        elif bar1(gpu) is None:
            what = f"the GPU {gpu.address} has no BAR1, through which its memory is reached"
            fix = "enable Above 4G Decoding in the firmware; of a virtual machine, map the whole GPU"
            yield Condition(False, Cause("gpu.no-bar1", what, fix, evidence, reference.BAR1))
        elif (bar1(gpu) or 0) < needed:
            what = "BAR1 of the GPU {} has {} MiB, less than the {} MiB of bounce buffers in {}"
            what = what.format(gpu.address, (bar1(gpu) or 0) // MIB, needed // MIB, CUFILE)
            fix = "enable Resizable BAR in the firmware, or lower properties.max_device_cache_size_kb"
            cause = Cause("gpu.small-bar1", what, fix, evidence, reference.BAR1)
            yield Condition(Unknown(what), cause, suspect=True)


def _sizes(gpu: Function) -> str:
    return ", ".join(str(gpu.bars[index]) for index in sorted(gpu.bars))


def iommu(facts: HostFacts, mount: Optional[Mount], needs_it_off: bool) -> Iterator[Condition]:
    """On x86 a translating IOMMU is not guaranteed to let peers through; Grace needs it."""
    if not isinstance(facts.os.machine, str) or not facts.os.machine.startswith("aarch64"):
        for item in _endpoints(facts, mount):
            yield _iommu_of(facts, item, needs_it_off)


def _iommu_of(facts: HostFacts, item: Function, needs_it_off: bool) -> Condition:
    if isinstance(item.iommu, Unknown) or not item.iommu:
        return Condition(item.iommu if isinstance(item.iommu, Unknown) else True)
    domain = item.iommu_domain if isinstance(item.iommu_domain, str) else "of a type that was not recorded"
    if domain == "identity" and not needs_it_off:
        return Condition(True)
    what = f"an IOMMU stands between {item.address} and its peers ({domain})"
    evidence = quote.placed(PCI + "/" + item.address + "/iommu_group/type", [domain])
    line = quote.file(facts, "/proc/cmdline")
    fix = "switch it off: intel_iommu=off or amd_iommu=off on the kernel's command line; iommu=pt is second best"
    cause = Cause("platform.iommu", what, fix, evidence + line, reference.BEFORE_INSTALL)
    if needs_it_off and domain != "identity":
        return Condition(False, cause)
    return Condition(Unknown(what), cause, suspect=True)


def _endpoints(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    """GPUs and the disks under a mount, where both are there; the disks of a host without a GPU have no peer."""
    if isinstance(facts.pci.gpus, Unknown) or isinstance(facts.pci.functions, Unknown) or not facts.pci.gpus:
        return []
    return [*facts.pci.gpus, *disks(facts, mount)]


def disks(facts: HostFacts, mount: Optional[Mount]) -> List[Function]:
    functions = facts.pci.functions
    if mount is None or isinstance(functions, Unknown):
        return []
    found = [find(functions, item.pci_address) for item in stack(mount) if item.pci_address]
    return [item for item in found if item is not None]


def redirecting(facts: HostFacts) -> Tuple[str, ...]:
    """Bridges with access control that sends peers' traffic up to the root, as the kernel and nvidia-fs see them."""
    named = facts.nvidia_fs.bridges if isinstance(facts.nvidia_fs.bridges, tuple) else ()
    own = [name for name, control in facts.pci.acs.items() if isinstance(control, int) and control & REDIRECTS]
    return tuple(sorted({*named, *own}))


def notes(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Cause]:
    """What slows the direct path of all GPUs down, or keeps some of them from it."""
    endpoints = _endpoints(facts, mount)
    above = {bridge for item in endpoints for bridge in item.bridges}
    bridges = [name for name in redirecting(facts) if name in above]
    if bridges:
        what = "{} sends what peers say to each other up through the root complex (ACS)".format(", ".join(bridges))
        fix = "switch ACS off for the bridges between GPUs and disks: in the firmware, or pci=disable_acs_redir="
        evidence = tuple(f"{name}: ACS redirects requests" for name in bridges[: quote.LINES])
        yield Cause("platform.acs", what, fix + bridges[0], evidence, reference.ACS)
    for item in endpoints:
        if item.iommu is True and item.iommu_domain == "identity":
            what = f"an IOMMU passes the addresses of {item.address} through, which only some platforms do well"
            evidence = quote.placed(PCI + "/" + item.address + "/iommu_group/type", ["identity"])
            yield Cause("platform.iommu", what, "switch it off if I/O is slow", evidence, reference.BEFORE_INSTALL)
            break
    report = report_of(facts)
    bad = [gpu for gpu in report.gpus if not gpu.gds and _refused(gpu)] if isinstance(report, Report) else []
    if isinstance(report, Report) and bad and len(bad) < len(report.gpus):
        what = "some GPUs take compat mode only: {}".format(", ".join(f"{g.index} {g.name}" for g in bad))
        yield Cause("gpu.class", what, "keep this work on the other GPUs", _rows(bad), reference.HARDWARE)
