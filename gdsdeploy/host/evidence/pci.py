"""PCI functions that take part in a direct path: GPUs, NVMe, network adapters, and the bridges between them."""

from __future__ import annotations

from ..io.reading import acs_control
from ..paths import INTERFACES, NODES, PCI
from .recorder import Recorder
from .request import EvidenceRequest

#: Beginnings of class codes: mass storage, network, display, bridge, InfiniBand, processing accelerator.
CLASSES = ("0x01", "0x02", "0x03", "0x06", "0x0c06", "0x12")
FILES = ("numa_node", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "enable")
#: Files that tell one part from another of the same kind.
PART = ("revision", "subsystem_vendor", "subsystem_device")
#: Class → folder in which the kernel names the function's devices.
NAMED = {"0x0108": "nvme", "0x02": "infiniband", "0x0c06": "infiniband"}
#: More functions than this are listed, but not described.
LIMIT = 2048


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    for name in recorder.names(PCI)[:LIMIT]:
        folder = PCI + "/" + name
        recorder.link(folder)
        kind = recorder.text(folder + "/class") or ""
        recorder.texts(folder, ("vendor", "device"))
        if not kind.startswith(CLASSES):
            continue
        recorder.texts(folder, FILES)
        recorder.link(folder + "/driver")
        if recorder.link(folder + "/iommu_group") is not None:
            recorder.text(folder + "/iommu_group/type")
        if kind.startswith("0x0604"):
            recorder.value("acs", name, acs_control, folder + "/config")
        if kind.startswith(("0x03", "0x01", "0x12")):
            recorder.text(folder + "/resource")
        if not kind.startswith("0x06"):
            recorder.texts(folder, PART)
            recorder.link(folder + "/physfn")
        for beginning, device_folder in NAMED.items():
            if kind.startswith(beginning):
                recorder.names(folder + "/" + device_folder)
    recorder.names(NODES, "node*")
    # An interface may lie deeper than its function: with virtio, below a device of that bus.
    for name in recorder.names(INTERFACES)[:LIMIT]:
        recorder.link(INTERFACES + "/" + name)
    recorder.names("/sys/class/iommu")
    recorder.names("/sys/kernel/iommu_groups")
