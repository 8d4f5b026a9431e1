"""The GPUs, network adapters and NVMe disks of a host: physical PCI functions, whether a driver runs them or not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Tuple

from ..paths import INFINIBAND, PCI
from .document import Document
from .gpu import DriverFacts
from .pci import INFINIBAND as INFINIBAND_CLASS
from .pci import NETWORK, NVIDIA_VENDOR, NVME, Function, PciFacts
from .unknown import Maybe, Unknown, all_known, when_known, why_not, with_default

#: VGA and 3D controllers.  A GPU's audio function has 0x0403, an NVSwitch 0x0680 (bridge).
GPU_CLASSES = (0x0300, 0x0302)
_NO_MODEL, _NO_LINK = Unknown("it has no model"), Unknown("it has no link to a network")


@dataclass(frozen=True)
class Part:
    """One device."""

    address: str
    #: empty while no driver runs it
    driver: Maybe[str]
    #: as its driver names it; of GPUs and disks only
    model: Maybe[str] = _NO_MODEL
    #: Gbit/s of its fastest active RDMA port, 0 while none is active; of network adapters only
    link: Maybe[float] = _NO_LINK


@dataclass(frozen=True)
class HardwareFacts:
    """Physical functions only: no virtual functions of SR-IOV."""

    gpus: Maybe[Tuple[Part, ...]]
    #: a function for each port
    nics: Maybe[Tuple[Part, ...]]
    nvme: Maybe[Tuple[Part, ...]]


def hardware_facts(document: Document, pci: PciFacts, driver: DriverFacts) -> HardwareFacts:
    def parts(chosen: Callable[[Function], bool], part: Callable[[Function], Part]) -> Maybe[Tuple[Part, ...]]:
        functions = when_known(pci.functions, lambda every: _physical(document, tuple(filter(chosen, every))))
        return when_known(functions, lambda ones: tuple(map(part, ones)))

    return HardwareFacts(
        gpus=parts(_is_gpu, lambda one: Part(one.address, _driver(document, one), model=_gpu_model(driver, one))),
        nics=parts(_is_adapter, lambda one: Part(one.address, _driver(document, one), link=_rate(document, one))),
        nvme=parts(_is_disk, lambda one: Part(one.address, _driver(document, one), model=_disk_model(document, one))),
    )


def _is_gpu(function: Function) -> bool:
    return function.vendor == NVIDIA_VENDOR and function.kind >> 8 in GPU_CLASSES


def _is_adapter(function: Function) -> bool:
    return function.kind >> 16 == NETWORK or function.kind >> 8 == INFINIBAND_CLASS


def _is_disk(function: Function) -> bool:
    return function.kind == NVME


def _physical(document: Document, functions: Tuple[Function, ...]) -> Maybe[Tuple[Function, ...]]:
    links = all_known(document.link(f"{PCI}/{function.address}/physfn") for function in functions)
    return when_known(links, lambda targets: tuple(one for one, target in zip(functions, targets) if target is None))


def _driver(document: Document, function: Function) -> Maybe[str]:
    link = with_default(document.link(f"{PCI}/{function.address}/driver"), "")
    return when_known(link, lambda path: path.rpartition("/")[2])


def _gpu_model(driver: DriverFacts, function: Function) -> Maybe[str]:
    if isinstance(driver.gpus, Unknown):
        return driver.gpus
    return driver.models.get(function.address, Unknown(f"NVIDIA's driver doesn't run the GPU {function.address}"))


def _disk_model(document: Document, function: Function) -> Maybe[str]:
    folder = f"{PCI}/{function.address}/nvme"
    names = with_default(document.names(folder), ())
    if isinstance(names, Unknown):
        return names
    if not names:
        return Unknown(f"no driver runs the disk {function.address}")
    model = document.line(f"/sys/class/nvme/{names[0]}/model")
    return model if isinstance(model, str) else why_not(model, f"{names[0]} names no model")


def _rate(document: Document, function: Function) -> Maybe[float]:
    devices = with_default(document.names(f"{PCI}/{function.address}/infiniband"), ())
    if isinstance(devices, Unknown):
        return devices
    if not devices:
        return Unknown(f"the adapter {function.address} has no RDMA device that names its rate")
    folders = [f"{INFINIBAND}/{device}/ports" for device in devices]
    rates = all_known(_port_rate(document, f"{ports}/{port}") for ports in folders for port in document.existing(ports))
    return when_known(rates, lambda each: max(each, default=0.0))


def _port_rate(document: Document, folder: str) -> Maybe[float]:
    """Of ``400 Gb/sec (4X NDR)``; a port without a link shows a rate, too."""
    state, rate = document.line(folder + "/state"), document.line(folder + "/rate")
    if not isinstance(state, str):
        return why_not(state, f"there is no {folder}/state")
    if "ACTIVE" not in state:
        return 0.0
    match = re.match(r"(\d{1,6}(?:\.\d)?) Gb/sec", rate) if isinstance(rate, str) else None
    return float(match.group(1)) if match else why_not(rate, f"{folder}/rate says {rate!r}")
