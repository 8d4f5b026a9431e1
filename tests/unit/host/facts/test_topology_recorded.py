"""Trees that a real kernel showed to the real collector: QEMU's switches, host bridges and IOMMU (record.py).

Its display functions stand for GPUs: their vendor is changed here, everything else is as recorded.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import topology as tree
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.pci import Topology
from tests.unit.host.facts.sysfs_root import topology

RECORDED = Path(__file__).parents[3] / "evidence" / "topology"
CLASS = "/class"


@cache
def recorded(name: str) -> Topology:
    document: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    files = document["files"]
    shows = [path for path in files if path.endswith(CLASS) and str(files[path]).startswith("0x0380")]
    assert len(shows) == 2
    for path in shows:
        files[path.removesuffix(CLASS) + "/vendor"] = "0x10de\n"
    assert document["gaps"] == []
    return topology(document)


MATRIX = """
       GPU0 NIC0 NVME0 NVME1 NVME2 NVME3
GPU0   X    PIX  PHB   PIX   PXB   PHB
NIC0   PIX  X    PHB   PIX   PXB   PHB
NVME0  PHB  PHB  X     PHB   PHB   PHB
NVME1  PIX  PIX  PHB   X     PXB   PHB
NVME2  PXB  PXB  PHB   PXB   X     PHB
NVME3  PHB  PHB  PHB   PHB   PHB   X
"""


def test_the_distances_are_those_of_the_command_line() -> None:
    topology = recorded("switches")
    labels, *rows = (line.split() for line in MATRIX.strip().splitlines())
    for row in rows:
        for other, distance in zip(labels, row[1:], strict=True):
            pair = topology.pair(row[0], other)
            assert (pair.distance if pair else "X") == distance, (row[0], other)
    below = topology.pair("GPU1", "NVME4")
    assert below is not None
    assert below.distance == "PHB", "two ports of the second host bridge"


def test_the_first_host_bridge_names_no_numa_node_and_that_is_said() -> None:
    topology = recorded("switches")
    assert topology.numa_nodes == 2
    pair = topology.pair("GPU0", "NVME4")
    assert pair is not None
    assert pair.distance == Unknown("the firmware names no NUMA node of 0000:03:00.0")
    assert [(device.label, device.numa_node) for device in topology.devices if device.numa_node >= 0] == [
        ("GPU1", 1),
        ("NVME4", 1),
    ]


def test_interfaces_and_controllers_have_the_kernels_names() -> None:
    topology = recorded("switches")
    assert {device.label: device.names for device in topology.devices if device.names} == {
        "NIC0": ("eth0",), "NVME0": ("nvme0",), "NVME1": ("nvme1",), "NVME2": ("nvme3",), "NVME3": ("nvme2",),
        "NVME4": ("nvme4",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mode"), [("switches", "off"), ("switches-iommu", "on"), ("switches-passthrough", "pt")]
)
def test_the_iommu_is_what_the_kernel_made_of_its_command_line(name: str, mode: str) -> None:
    assert recorded(name).iommu == mode


def test_a_swap_of_parts_is_named() -> None:
    reference = tree.golden(recorded("switches"), "lab")
    assert tree.differences(reference, recorded("switches")) == []
    disk = "1b36:0010 (1af4:1100 rev 02)"
    assert tree.differences(reference, recorded("switches-swapped")) == [
        f"NVME2 at 0000:08:00.0 is gone ({disk})",
        f"NIC0 at 0000:05:00.0: the part is {disk}, was 8086:10d3 (8086:0000 rev 00)",
    ]


def test_the_text_names_what_stands_between() -> None:
    text = tree.text(recorded("switches-iommu"))
    assert "IOMMU: on (intel_iommu=on" in text


def test_root_ports_redirect_where_the_kernel_isolates_and_switches_without_acs_do_not() -> None:
    """The kernel switches Access Control Services on with the IOMMU (0x1d in the control register)."""
    assert [node.address for node in recorded("switches").nodes() if node.redirects is True] == []
    topology = recorded("switches-iommu")
    redirecting = [node.address for node in topology.nodes() if node.redirects is True]
    assert redirecting == ["0000:00:02.0", "0000:00:03.0", "0000:80:00.0", "0000:80:01.0"]
    inside = topology.pair("GPU0", "NVME1")
    assert inside is not None
    assert inside.redirecting == (), "they do not come to the root port"
