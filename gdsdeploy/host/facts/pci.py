"""PCI functions: GPUs, and what stands between them and storage."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import List, Mapping, Optional, Tuple

from ..places import PCI
from .document import Document
from .unknown import Maybe, Unknown, why_not

NVIDIA_VENDOR = 0x10DE
DISPLAY, NVME, BRIDGE = 0x03, 0x010802, 0x0604


@dataclass(frozen=True)
class Function:
    """One PCI function; ``kind`` is its 24-bit class code."""

    address: str
    vendor: int
    device: int
    kind: int
    driver: str
    #: -1 where the platform names none
    numa_node: int
    #: behind an IOMMU
    iommu: Maybe[bool]
    #: index of the BAR → bytes
    bars: Mapping[int, int]
    #: addresses of the bridges above it, the root's side first
    bridges: Tuple[str, ...]
    #: what the IOMMU does: ``identity`` passes addresses through, ``DMA`` and ``DMA-FQ`` translate them; None: no IOMMU
    iommu_domain: Maybe[Optional[str]] = None


@dataclass(frozen=True)
class PciFacts:
    """``gpus`` are NVIDIA's display functions; known only if every function could be read."""

    functions: Maybe[Tuple[Function, ...]]
    gpus: Maybe[Tuple[Function, ...]]
    #: bridges with access control that sends peers' traffic up to the root → its control register, 0 without any
    acs: Mapping[str, Maybe[int]] = field(default_factory=dict)
    #: vendor and family of the processor; None: the kernel names none, as on machines that are not x86
    cpu: Maybe[Optional[Tuple[str, int]]] = None


def pci_facts(document: Document) -> PciFacts:
    functions = _functions(document)
    if isinstance(functions, Unknown):
        return PciFacts(functions, functions, {}, _cpu(document))
    acs = {item.address: _acs(document, item.address) for item in functions if item.kind >> 8 == BRIDGE}
    return PciFacts(functions, tuple(item for item in functions if is_gpu(item)), acs, _cpu(document))


def _acs(document: Document, address: str) -> Maybe[int]:
    value = document.acs_control(address)
    return max(0, value) if isinstance(value, int) else why_not(value, "the bridge {} is gone".format(address))


def _cpu(document: Document) -> Maybe[Optional[Tuple[str, int]]]:
    lines = document.lines("/proc/cpuinfo")
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no /proc/cpuinfo")
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines[:2])]
    if [key for key, _ in pairs] == ["vendor_id", "cpu family"] and pairs[1][1].isdigit():
        return pairs[0][1], int(pairs[1][1])
    return None if not lines else Unknown("/proc/cpuinfo is not understood: {}".format("; ".join(lines[:2])))


def is_gpu(function: Function) -> bool:
    return function.vendor == NVIDIA_VENDOR and function.kind >> 16 == DISPLAY


def _functions(document: Document) -> Maybe[Tuple[Function, ...]]:
    names = document.names(PCI)
    if isinstance(names, Unknown):
        return names
    found: List[Function] = []
    for name in names or ():
        codes = [_code(document, name, item) for item in ("vendor", "device", "class")]
        for code in codes:
            if isinstance(code, Unknown):
                return code
        vendor, device, kind = (code for code in codes if isinstance(code, int))
        path = document.link(PCI + "/" + name)
        driver = document.link(PCI + "/" + name + "/driver")
        group = document.link(PCI + "/" + name + "/iommu_group")
        numa = document.line(PCI + "/" + name + "/numa_node")
        found.append(
            Function(
                address=name,
                vendor=vendor,
                device=device,
                kind=kind,
                driver=driver.rpartition("/")[2] if isinstance(driver, str) else "",
                numa_node=int(numa) if isinstance(numa, str) and re.match(r"-?\d{1,4}$", numa) else -1,
                iommu=group if isinstance(group, Unknown) else group is not None,
                bars=_bars(document.text(PCI + "/" + name + "/resource")),
                bridges=addresses(path if isinstance(path, str) else "")[:-1],
                iommu_domain=_domain(document, name, group),
            )
        )
    return tuple(found)


def _domain(document: Document, name: str, group: Maybe[Optional[str]]) -> Maybe[Optional[str]]:
    if not isinstance(group, str):
        return group
    path = PCI + "/" + name + "/iommu_group/type"
    kind = document.line(path)
    return kind if isinstance(kind, str) else why_not(kind, "there is no " + path)


def _code(document: Document, name: str, item: str) -> Maybe[int]:
    path = PCI + "/" + name + "/" + item
    text = document.line(path)
    if isinstance(text, str) and re.match(r"0x[0-9a-f]{4,6}$", text):
        return int(text, 16)
    return text if isinstance(text, Unknown) else Unknown("{} says {!r}".format(path, text))


def addresses(path: str) -> Tuple[str, ...]:
    """The PCI addresses in a path below /sys/devices, the root's side first."""
    return tuple(part for part in path.split("/") if re.match(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", part))


def _bars(text: object) -> Mapping[int, int]:
    """Sizes from sysfs' ``resource``: one line ``begin end flags`` per BAR, zeros where there is none."""
    sizes = {}
    for index, line in enumerate(text.splitlines()[:6] if isinstance(text, str) else ()):
        words = line.split()
        if len(words) == 3 and all(re.match(r"0x[0-9a-f]{1,16}$", word) for word in words):
            begin, end = int(words[0], 16), int(words[1], 16)
            if end > begin:
                sizes[index] = end - begin + 1
    return sizes


def find(functions: Tuple[Function, ...], address: str) -> Optional[Function]:
    return next((item for item in functions if item.address == address), None)
