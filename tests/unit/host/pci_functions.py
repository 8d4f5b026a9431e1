"""PCI functions for the evidence of composed hosts, in the words of sysfs (drivers/pci/pci-sysfs.c of Linux 6.12)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

PCI, INFINIBAND = "/sys/bus/pci/devices", "/sys/class/infiniband"
ABSENT = {"error": "ENOENT"}
LINK = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
#: Flags of a memory BAR of 64 bits that can be prefetched, and of one without an address (linux/ioport.h).
FLAGS, UNSET = 0x14220C, 0x20000000
UNITS = {"K": 10, "M": 20, "G": 30}
#: Words of a function: tests/cases/README.md describes them.
KEYS = {
    "id", "class", "under", "link", "bars", "iommu", "group", "numa", "driver", "physfn", "acs", "type", "vpd",
    "model", "rdma", "subsystem", "root",
}  # fmt: skip


def with_functions(document: Mapping[str, Any], functions: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` with these functions, by address; without those that are null."""
    changed = copy.deepcopy(dict(document))
    for sections in ("files", "links", "listings", "acs", "ports", "vpd"):
        changed.setdefault(sections, {})
    present = changed["listings"].setdefault(PCI, [])
    for address, words in _each(functions):
        if words is None:
            present.remove(address)
            continue
        if set(words) - KEYS or "id" not in words or "class" not in words:
            raise ValueError(f"{address}: a function has id and class, and of {sorted(KEYS)}: not {sorted(words)}")
        if address not in present:
            present.append(address)
        for section, key, value in _records(address, words):
            changed[section][key] = value
        _of_class(changed, address, words)
    present.sort()
    return changed


def _each(functions: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each function by its address; ``root``, a vendor and a device, stands for a root port of its own above it."""
    for addresses, words in functions.items():
        for address in addresses.split():
            if words and "root" in words:
                bus = f"{int(address[5:7], 16) - 1:02x}"
                port, link = f"0000:{bus}:01.0", words.get("link", "").rpartition(" of ")[2]
                yield port, {"id": words["root"], "class": "060400", "under": f"pci0000:{bus}", "link": link, "type": 4}
                yield address, {"under": f"pci0000:{bus}/{port}", **words}
            else:
                yield address, words


def _records(address: str, words: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    folder = f"{PCI}/{address}"
    vendor, device = words["id"].split(":")
    files = {"class": f"0x{words['class']}", "vendor": f"0x{vendor}", "device": f"0x{device}"}
    files |= {"numa_node": str(words.get("numa", -1)), "enable": "1", "resource": _resource(words.get("bars", []))}
    now, _, most = words.get("link", "").partition(" of ")
    for name, value in zip(LINK, [*now.split(" x"), *(most or now).split(" x")], strict=False):
        files[name] = value + (" GT/s PCIe" if name.endswith("speed") else "")
    for name in LINK:
        yield "files", f"{folder}/{name}", f"{files[name]}\n" if words.get("link") else ABSENT
    for name in sorted(set(files) - set(LINK)):
        yield "files", f"{folder}/{name}", files[name] + ("" if name == "resource" else "\n")
    for name, value in zip(
        ("subsystem_vendor", "subsystem_device"), words.get("subsystem", "").split(":"), strict=False
    ):
        yield "files", f"{folder}/{name}", f"0x{value}\n"
    yield "links", folder, f"../../../devices/{words.get('under', 'pci0000:00')}/{address}"
    driver, physical = words.get("driver"), words.get("physfn")
    yield "links", f"{folder}/driver", f"../../../bus/pci/drivers/{driver}" if driver else ABSENT
    yield "links", f"{folder}/physfn", f"../{physical}" if physical else ABSENT
    group = words.get("group", int(address[5:7], 16)) if words.get("iommu") else None
    yield "links", f"{folder}/iommu_group", ABSENT if group is None else f"../../../kernel/iommu_groups/{group}"
    if group is not None:
        type_ = words["iommu"]
        yield "files", f"{folder}/iommu_group/type", f"{type_}\n" if isinstance(type_, str) else type_
    if words["class"].startswith("0604"):
        yield "acs", address, words.get("acs", -1)
        if "type" in words:
            yield "ports", address, words["type"]
    if "vpd" in words:
        yield "vpd", address, words["vpd"]


def _resource(bars: list[str | None]) -> str:
    """A line for each of seven resources: ``16M``, ``128G unset``, or none."""
    lines, at = [], 0x100000000000
    for text in [*bars, *[None] * (7 - len(bars))]:
        amount, _, unset = (text or "").partition(" ")
        size = int(amount[:-1]) << UNITS[amount[-1]] if amount else 0
        begin = 0 if unset or not size else at
        flags = (FLAGS | (UNSET if unset else 0)) if size else 0
        lines.append(f"0x{begin:016x} 0x{max(0, begin + size - 1):016x} 0x{flags:016x}\n")
        at += size
    return "".join(lines)


def _of_class(document: dict[str, Any], address: str, words: Mapping[str, Any]) -> None:
    """What the driver of a function shows of it elsewhere."""
    files, listings = document["files"], document["listings"]
    if "model" in words:
        folder = "/proc/driver/nvidia/gpus"
        names = listings.get(folder)
        listings[folder] = sorted({*(names if isinstance(names, list) else []), address})
        files[f"{folder}/{address}/information"] = f"Model: \t\t {words['model']}\nBus Location: \t {address}\n"
    # mlx5_0: 400 Gb/sec (4X NDR), a device and the rate of its active port; without a rate the port is down.
    for text in filter(None, [words.get("rdma")]):
        name, _, rate = text.partition(": ")
        listings[f"{PCI}/{address}/infiniband"] = [name]
        listings[f"{INFINIBAND}/{name}/ports"] = ["1"]
        files[f"{INFINIBAND}/{name}/ports/1/state"] = "4: ACTIVE\n" if rate else "1: DOWN\n"
        files[f"{INFINIBAND}/{name}/ports/1/rate"] = f"{rate or '2.5 Gb/sec (1X SDR)'}\n"
    if words["class"].startswith("02") or words["class"].startswith("0c06"):
        listings.setdefault(f"{PCI}/{address}/infiniband", ABSENT)
    if words["class"].startswith("0108"):
        controller = f"nvme{address.replace(':', '').replace('.', '')}"
        listings[f"{PCI}/{address}/nvme"] = [controller] if words.get("driver") == "nvme" else ABSENT
        files[f"/sys/class/nvme/{controller}/model"] = "MZWLO3T8HCLS-00A07\n"
