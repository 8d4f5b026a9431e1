"""Folders that stand for / with a /sys in them, so that the real collector reads recorded and made-up PCI trees."""

from __future__ import annotations

import base64
import json
import os
import struct
from pathlib import Path
from typing import Any

from gdsdeploy.host.evidence.recorder import NOTHING, Recorder
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.subjects.driver import collect_gpu
from gdsdeploy.host.subjects.pci import collect_pci
from gdsdeploy.host.subjects.topology import Topology

DEVICES = "sys/bus/pci/devices"
BRIDGE, NVME, DISPLAY, NETWORK = "0x060400", "0x010802", "0x030200", "0x020000"
#: Redirect requests and completions of peers, as the kernel switches it on where an IOMMU isolates devices.
REDIRECT = 0x1D


def evidence(root: Path) -> dict[str, Any]:
    """What the real collectors of the tree find below ``root``, with the kernel's command line."""
    recorder = Recorder(60.0, root=str(root))
    recorder.text("/proc/cmdline")
    for collect in (collect_gpu, collect_pci):
        collect(recorder, NOTHING)
    return recorder.finish()


def topology(document: dict[str, Any]) -> Topology:
    return facts_from(document).topology


def unpacked(recording: Path, root: Path) -> Path:
    """A recording of record_sysfs.py as files below ``root``."""
    for name, value in json.loads(recording.read_text()).items():
        path = root / name.lstrip("/")
        if value is None or value.startswith("error:") or path.name == ".listing":
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if value.startswith("link:"):
            link(root, name, value.removeprefix("link:"))
        elif value.startswith("dir:"):
            path.mkdir(exist_ok=True)
            if name == "/sys/devices/system/node":
                for entry in value.removeprefix("dir:").split():
                    (path / entry).mkdir(exist_ok=True)
        elif value.startswith("base64:"):
            path.write_bytes(base64.b64decode(value.removeprefix("base64:")))
        elif not path.is_dir():
            path.write_text(value)
    return root


def link(root: Path, name: str, target: str) -> None:
    """A link below ``root`` that does not lead out of it."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(root / target.lstrip("/"), path.parent))


def function(
    root: Path, path: str, kind: str, *, numa: int = 0, lanes: str = "16/16", speed: str = "32/32", **more: Any
) -> None:
    """One function at ``path`` below /sys/devices, e.g. ``pci0000:00/0000:00:01.0/0000:01:00.0``.

    lanes, speed: now/at most; empty: it has no link.  more: ``acs`` (control register), ``vendor``, ``device``,
    ``domain`` (of an IOMMU), ``bars`` (sizes).
    """
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    vendor = more.get("vendor", "0x10de" if kind == DISPLAY else "0x1b36")
    values = {"class": kind, "vendor": vendor, "device": more.get("device", "0x2330"), "numa_node": str(numa)}
    values |= {"revision": "0xa1", "subsystem_vendor": vendor, "subsystem_device": "0x16c1"}
    if lanes:
        now, most = speed.split("/")
        values |= {"current_link_speed": f"{now}.0 GT/s PCIe", "max_link_speed": f"{most}.0 GT/s PCIe"}
        values |= dict(zip(("current_link_width", "max_link_width"), lanes.split("/"), strict=True))
    for name, value in values.items():
        (folder / name).write_text(value + "\n")
    begin, lines = 0x1000_0000, []
    for size in more.get("bars", (16 << 20, 128 << 30) if kind == DISPLAY else ()):
        lines += [f"0x{begin:016x} 0x{begin + size - 1:016x} 0x000000000014220c", f"0x{0:016x} 0x{0:016x} 0x{0:016x}"]
    (folder / "resource").write_text("\n".join(lines) + "\n")
    (folder / "config").write_bytes(config(more.get("acs")))
    if "domain" in more:
        group = root / "sys/kernel/iommu_groups" / "7"
        group.mkdir(parents=True, exist_ok=True)
        (group / "type").write_text(more["domain"] + "\n")
        link(root, f"/sys/devices/{path}/iommu_group", "/sys/kernel/iommu_groups/7")
    link(root, f"/{DEVICES}/{path.rpartition('/')[2]}", f"/sys/devices/{path}")


def config(acs: int | None) -> bytes:
    """Configuration space, with Access Control Services behind another extended capability if ``acs`` is given."""
    space = bytearray(4096)
    if acs is not None:
        struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x5F, acs)
    return bytes(space)


def two_sockets(root: Path, *, acs: int = 0) -> Path:
    """Two CPUs; at the first a switch of two levels, at the second a GPU alone.

    GPU0, NIC0 (two ports) and NVME0 below one switch, NVME1 below a second one under that, NVME2 on a root port of its
    own, NVME3 below another host bridge of the same CPU, GPU1 at the other CPU.
    """
    top = "pci0000:00/0000:00:01.0"
    up = f"{top}/0000:01:00.0"
    function(root, top, BRIDGE)
    function(root, up, BRIDGE)
    for number in range(4):
        function(root, f"{up}/0000:02:0{number}.0", BRIDGE, acs=acs)
    function(root, f"{up}/0000:02:00.0/0000:03:00.0", DISPLAY)
    function(root, f"{up}/0000:02:01.0/0000:04:00.0", NETWORK)
    function(root, f"{up}/0000:02:01.0/0000:04:00.1", NETWORK)
    function(root, f"{up}/0000:02:02.0/0000:05:00.0", NVME, lanes="4/4", speed="16/16")
    below = f"{up}/0000:02:03.0/0000:06:00.0"
    function(root, below, BRIDGE)
    function(root, f"{below}/0000:07:00.0", BRIDGE)
    function(root, f"{below}/0000:07:00.0/0000:08:00.0", NVME, lanes="4/4", speed="16/16")
    function(root, "pci0000:00/0000:00:02.0", BRIDGE)
    function(root, "pci0000:00/0000:00:02.0/0000:09:00.0", NVME, lanes="4/4", speed="16/16")
    function(root, "pci0000:40/0000:40:01.0", BRIDGE)
    function(root, "pci0000:40/0000:40:01.0/0000:41:00.0", NVME, lanes="4/4", speed="16/16")
    function(root, "pci0000:80/0000:80:01.0", BRIDGE, numa=1)
    function(root, "pci0000:80/0000:80:01.0/0000:81:00.0", DISPLAY, numa=1)
    for node in ("node0", "node1"):
        (root / "sys/devices/system/node" / node).mkdir(parents=True)
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text("quiet intel_iommu=off\n")
    return root
