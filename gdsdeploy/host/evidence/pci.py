"""PCI functions that take part in a direct path: GPUs, NVMe, network adapters, and the bridges between them."""

from __future__ import annotations

from ..places import PCI
from .inspect import acs_control
from .recorder import Recorder
from .wanted import Wanted

#: Beginnings of class codes: mass storage, network, display, bridge, processing accelerator.
CLASSES = ("0x01", "0x02", "0x03", "0x06", "0x12")
FILES = ("numa_node", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "enable")
#: More functions than this are listed, but not described.
LIMIT = 2048


def collect(recorder: Recorder, _wanted: Wanted) -> None:
    for name in recorder.names(PCI)[:LIMIT]:
        folder = PCI + "/" + name
        recorder.link(folder)
        kind = recorder.text(folder + "/class") or ""
        for item in ("vendor", "device"):
            recorder.text(folder + "/" + item)
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
    recorder.names("/sys/class/iommu")
    recorder.names("/sys/kernel/iommu_groups")
