"""PCI functions: GPUs, and the devices between them and storage."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from ..paths import INTERFACES, PCI
from .alike import once_for_alike
from .document import Document
from .unknown import Maybe, Unknown, all_known, if_present, when_known, why_not

NVIDIA_VENDOR = 0x10DE
DISPLAY, NVME, BRIDGE = 0x03, 0x010802, 0x0604
NETWORK, INFINIBAND = 0x02, 0x0C06
#: Bits of the control register of Access Control Services that send peers' requests up to the root (pci_regs.h).
REDIRECTS = 0x04 | 0x08 | 0x20
#: Not a width: sysfs shows these where the register is empty or all ones (seen for emulated functions).
_NO_WIDTH = (0, 63, 255)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_CODE = re.compile(r"0x[0-9a-f]{4,6}$")
_GENERATION = re.compile(r"\d{1,3}(\.\d)?(?=$| GT/s)")
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}$")


@dataclass(frozen=True)
class Link:
    """A PCI Express link as one of its ends sees it: gigatransfers a second and lanes.

    ``max_*`` is the limit of this end; the other end may have a lower one.
    """

    speed: float
    width: int
    max_speed: float
    max_width: int


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
    #: number of its IOMMU group; None: no IOMMU
    iommu_group: Maybe[Optional[str]] = None
    #: the root that it hangs from, as the kernel names it, e.g. ``pci0000:00``; empty where the path names none
    host_bridge: str = ""
    #: None: it has no PCI Express link of its own, as functions on the root bus
    link: Maybe[Optional[Link]] = None
    #: what tells parts of one kind apart: ``subsystem vendor:subsystem device rev revision``; empty if not recorded
    subsystem: str = ""
    #: a virtual function of a part that is listed itself
    virtual: bool = False
    #: what the kernel calls it: network interfaces, RDMA devices, NVMe controllers
    names: Tuple[str, ...] = ()


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
    acs = {function.address: _acs(document, function.address) for function in functions if function.kind >> 8 == BRIDGE}
    return PciFacts(functions, tuple(function for function in functions if is_gpu(function)), acs, _cpu(document))


def _acs(document: Document, address: str) -> Maybe[int]:
    value = document.acs_control(address)
    return max(0, value) if isinstance(value, int) else why_not(value, f"the bridge {address} is gone")


def _cpu(document: Document) -> Maybe[Optional[Tuple[str, int]]]:
    lines = document.lines("/proc/cpuinfo")
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no /proc/cpuinfo")
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
    # Arm's lines are others, and this fact is about x86 only.
    pairs = [pair for pair in pairs if not pair[0].startswith("CPU ")][:2]
    if [key for key, _ in pairs] == ["vendor_id", "cpu family"] and pairs[1][1].isdigit():
        return pairs[0][1], int(pairs[1][1])
    return None if not pairs else Unknown("/proc/cpuinfo is not understood: {}".format("; ".join(lines[:2])))


def is_gpu(function: Function) -> bool:
    return function.vendor == NVIDIA_VENDOR and function.kind >> 16 == DISPLAY


def _functions(document: Document) -> Maybe[Tuple[Function, ...]]:
    names = document.names(PCI)
    if isinstance(names, Unknown):
        return names
    return all_known(_function(document, name, PCI + "/" + name) for name in names or ())


def _function(document: Document, name: str, folder: str) -> Maybe[Function]:
    codes = all_known(_code(document, f"{folder}/{file}") for file in ("vendor", "device", "class"))
    if isinstance(codes, Unknown):
        return codes
    vendor, device, kind = codes
    target, driver, group, physical = (
        document.link(folder + link) for link in ("", "/driver", "/iommu_group", "/physfn")
    )
    path = target if isinstance(target, str) else ""
    numa = document.line(folder + "/numa_node")
    return Function(
        address=name,
        vendor=vendor,
        device=device,
        kind=kind,
        driver=driver.rpartition("/")[2] if isinstance(driver, str) else "",
        numa_node=int(numa) if isinstance(numa, str) and re.match(r"-?\d{1,4}$", numa) else -1,
        iommu=when_known(group, lambda link: link is not None),
        bars=_bars(document.text(folder + "/resource")),
        bridges=addresses(path)[:-1],
        iommu_domain=if_present(group, lambda _: _domain(document, folder + "/iommu_group/type")),
        iommu_group=if_present(group, lambda link: link.rpartition("/")[2]),
        host_bridge=_host_bridge(path),
        link=_link(document, folder),
        subsystem=_subsystem(document, folder),
        virtual=isinstance(physical, str),
        names=_names(document, name),
    )


def _domain(document: Document, path: str) -> Maybe[str]:
    kind = document.line(path)
    return kind if isinstance(kind, str) else why_not(kind, "there is no " + path)


def _link(document: Document, folder: str) -> Maybe[Optional[Link]]:
    values = [
        document.line(f"{folder}/{which}_link_{unit}") for which in ("current", "max") for unit in ("speed", "width")
    ]
    for value in values:
        if isinstance(value, Unknown):
            return value
    speed, width, max_speed, max_width = (_GENERATION.match(str(value)) for value in values)
    if not (speed and width and max_speed and max_width):
        return None
    link = Link(float(speed.group()), int(width.group()), float(max_speed.group()), int(max_width.group()))
    return None if {link.width, link.max_width} & set(_NO_WIDTH) else link


def _subsystem(document: Document, folder: str) -> str:
    lines = [document.line(f"{folder}/{file}") for file in ("subsystem_vendor", "subsystem_device", "revision")]
    codes = [re.sub("^0x", "", line) for line in lines if isinstance(line, str)]
    return "{}:{} rev {}".format(*codes) if len(codes) == len(lines) else ""


def _names(document: Document, name: str) -> Tuple[str, ...]:
    devices = [device for folder in ("infiniband", "nvme") for device in document.existing(f"{PCI}/{name}/{folder}")]
    for interface in document.existing(INTERFACES):
        path = document.link(INTERFACES + "/" + interface)
        if isinstance(path, str) and addresses(path)[-1:] == (name,):
            devices.append(interface)
    return tuple(devices)


def _host_bridge(path: str) -> str:
    return next((part for part in path.split("/") if _BRIDGE.match(part)), "")


def _code(document: Document, path: str) -> Maybe[int]:
    text = document.line(path)
    if isinstance(text, str) and _CODE.match(text):
        return int(text, 16)
    return why_not(text, f"{path} says {text!r}")


@once_for_alike
def addresses(path: str) -> Tuple[str, ...]:
    """The PCI addresses in a path below /sys/devices, the root's side first."""
    return tuple(part for part in path.split("/") if _ADDRESS.match(part))


@once_for_alike
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
    return next((function for function in functions if function.address == address), None)
