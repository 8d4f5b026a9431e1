"""Faults of the number and kind of devices."""

from __future__ import annotations

from tests.unit.host.checks.changes import Change, Document, file

PCI = "/sys/bus/pci/devices"
DISK, ADAPTER, GPU = "0000:00:02.0", "0000:00:03.0", "0000:00:06.0"


def lost_function(address: str) -> Change:
    """A function that the kernel doesn't list."""
    return lambda document: document["listings"][PCI].remove(address)


def one_more(kind: str, vendor: str = "0x10de", address: str = GPU, physical: str = "") -> Change:
    """Another function of a class, with no driver.  physical: of which it is a virtual one."""

    def change(document: Document) -> None:
        folder = f"{PCI}/{address}"
        document["listings"][PCI].append(address)
        for name, text in (("class", kind), ("vendor", vendor), ("device", "0x2330")):
            document["files"][f"{folder}/{name}"] = text + "\n"
        document["links"][folder] = f"../../../devices/pci0000:00/{address}"
        document["links"][folder + "/physfn"] = f"../{physical}" if physical else {"error": "ENOENT"}
        for name in ("driver", "iommu_group"):
            document["links"][f"{folder}/{name}"] = {"error": "ENOENT"}
        for name in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"):
            document["files"][f"{folder}/{name}"] = {"error": "ENOENT"}

    return change


def no_driver(address: str) -> Change:
    return lambda document: document["links"].__setitem__(f"{PCI}/{address}/driver", {"error": "ENOENT"})


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "a network adapter disappeared": (lost_function(ADAPTER), {"nic.present"}),
    "a network adapter lost its driver": (no_driver(ADAPTER), {"nic.present"}),
    "a network adapter more": (
        lambda document: (
            one_more("0x020000", "0x1af4")(document),
            document["links"].__setitem__(f"{PCI}/{GPU}/driver", "../../../bus/pci/drivers/virtio-pci"),
        )[0],
        {"nic.present"},
    ),
    "an NVMe disk disappeared": (lost_function(DISK), {"nvme.present"}),
    "an NVMe disk of another model": (file("/sys/class/nvme/nvme0/model", "SAMSUNG MZ7\n"), {"nvme.present"}),
}
