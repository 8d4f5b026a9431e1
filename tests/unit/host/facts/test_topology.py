"""PCIe trees out of sysfs, through the real collector; tests/cases/facts/topology.yml has more of them.

Some were shown by a real kernel: QEMU's switches, host bridges and IOMMU (record.py), whose display functions stand for
GPUs: their vendor is changed here, everything else is as recorded.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import topology as tree
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.subjects import golden as page
from gdsdeploy.host.subjects.pci import NIC, Link
from gdsdeploy.host.subjects.topology import PORT, ROOT, Topology
from tests.unit.host.facts.sysfs_root import (
    BRIDGE,
    DEVICES,
    NVME,
    REDIRECT,
    evidence,
    function,
    topology,
    two_sockets,
    unpacked,
)

RECORDED = Path(__file__).parents[3] / "evidence" / "topology"
#: What parts of one kind differ by.
REST = "(10de:16c1 rev a1)"
UP = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    return two_sockets(tmp_path)


def test_the_tree_leads_to_the_devices_only(sockets: Path) -> None:
    function(sockets, "pci0000:00/0000:00:1f.0", "0x060100", lanes="")
    function(sockets, "pci0000:00/0000:00:03.0", BRIDGE)
    result = topology(evidence(sockets))
    assert [(root.address, root.kind) for root in result.roots] == [
        ("pci0000:00", ROOT), ("pci0000:40", ROOT), ("pci0000:80", ROOT),
    ]  # fmt: skip
    assert [node.address for node in result.roots[0].children] == ["0000:00:01.0", "0000:00:02.0"]
    assert all(node.children for node in result.nodes() if node.kind in (ROOT, PORT))
    assert [node.label for node in result.nodes() if node.label] == [
        "GPU0", "NIC0", "NIC1", "NVME0", "NVME1", "NVME2", "NVME3", "GPU1",
    ]  # fmt: skip


def test_access_control_is_read_from_configuration_space(tmp_path: Path) -> None:
    result = topology(evidence(two_sockets(tmp_path, acs=REDIRECT)))
    pair = result.pair("GPU0", "NVME0")
    assert pair is not None
    assert pair.redirecting == ("0000:02:00.0", "0000:02:02.0")
    assert "ACS sends GPU0-NIC0, GPU0-NIC1 up to the host bridge: 0000:02:00.0, 0000:02:01.0" in tree.text(result)


def test_nothing_on_pci_is_no_error(tmp_path: Path) -> None:
    (tmp_path / DEVICES).mkdir(parents=True)
    assert tree.text(topology(evidence(tmp_path))).startswith("no GPU, NVMe disk or network adapter")


def test_a_real_machine_with_four_gpus_agrees_with_nvidia_smi(tmp_path: Path) -> None:
    folder = RECORDED / "h200-x4"
    result = topology(evidence(unpacked(folder / "sysfs.json", tmp_path)))
    rows = [line.split("\t") for line in (folder / "nvidia-smi-topo-m.txt").read_text().splitlines()]
    theirs = {row[0].strip(): row[6].strip() for row in rows if row[0].startswith("GPU")}
    ours = {line.split()[0]: line.split()[-1] for line in tree.matrix(result) if line.startswith("GPU")}
    assert ours == theirs, "labels and NUMA nodes"
    links = [line.split(", ") for line in (folder / "nvidia-smi-links.txt").read_text().splitlines()[1:]]
    for (index, address, gen, _, width, _), gpu in zip(links, result.of_kind("gpu"), strict=True):
        assert gpu.label == f"GPU{index}"
        assert address.lower().endswith(gpu.address)
        assert isinstance(gpu.link, Link)
        assert (gpu.link.speed, gpu.link.width) == ({"5": 32.0}[gen], int(width))
        assert (gpu.bar1, gpu.driver) == (262144 << 20, "nvidia")
    # nvidia-smi has NVLink between them, which is no PCIe; over PCIe they meet at the host bridge.
    gpus = [pair.distance for pair in result.pairs if "GPU0" in (pair.one, pair.other)]
    assert set(gpus) == {"PHB"}
    assert [entry.names for entry in result.of_kind(NIC)] == [("eth0",)]


def test_a_golden_topology_of_the_same_machine_differs_in_nothing(sockets: Path) -> None:
    result = topology(evidence(sockets))
    reference = page.from_json(page.to_json(page.golden(result, "hgx")))
    assert page.differences(reference, result) == []


def changes_after_move(sockets: Path, tmp: Path, path: str, new: str) -> list[str]:
    """What differs after what hangs at ``path`` was put to ``new``."""
    reference = page.golden(topology(evidence(sockets)), "hgx")
    shutil.move(sockets / "sys/devices" / path, tmp / "taken")
    (sockets / DEVICES / path.rpartition("/")[2]).unlink()
    if new:
        function(sockets, new, NVME, lanes="4/4", speed="16/16")
    return page.differences(reference, topology(evidence(sockets)))


def test_a_part_that_changed_its_slot_is_named(sockets: Path, tmp_path: Path) -> None:
    path = "pci0000:00/0000:00:02.0/0000:09:00.0"
    part = "1b36:2330 (1b36:16c1 rev a1)"
    result = changes_after_move(sockets, tmp_path, path, "pci0000:80/0000:80:01.0/0000:81:00.1")
    assert result[0] == f"NVME2 moved from 0000:09:00.0 to 0000:81:00.1 ({part})"
    assert not any("GPU0 to NVME0" in line for line in result), "what did not move is not named"


def test_a_part_that_is_gone_is_named(sockets: Path, tmp_path: Path) -> None:
    result = changes_after_move(sockets, tmp_path, "pci0000:40/0000:40:01.0/0000:41:00.0", "")
    assert result == ["NVME3 at 0000:41:00.0 is gone (1b36:2330 (1b36:16c1 rev a1))"]


@pytest.mark.parametrize(
    ("file", "value", "line"),
    [
        ("device", "0x2331", f"GPU0 at 0000:03:00.0: the part is 10de:2331 {REST}, was 10de:2330 {REST}"),
        ("current_link_width", "8", "GPU0 at 0000:03:00.0: link 32 GT/s x8, was 32 GT/s x16"),
        ("numa_node", "1", "GPU0 at 0000:03:00.0: NUMA node 1, was 0"),
    ],
)  # fmt: skip
def test_what_changed_of_a_part_is_named(sockets: Path, file: str, value: str, line: str) -> None:
    reference = page.golden(topology(evidence(sockets)), "hgx")
    (sockets / UP / "0000:02:00.0/0000:03:00.0" / file).write_text(value + "\n")
    assert page.differences(reference, topology(evidence(sockets)))[0] == line


def test_a_gpu_at_rest_differs_in_nothing(sockets: Path) -> None:
    reference = page.golden(topology(evidence(sockets)), "hgx")
    (sockets / UP / "0000:02:00.0/0000:03:00.0/current_link_speed").write_text("2.5 GT/s PCIe\n")
    result = topology(evidence(sockets))
    assert page.differences(reference, result) == []
    assert page.differences(page.golden(result, "hgx"), result) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a golden topology of version 1"),
        ('{"version": 2}', "of version 1"),
        ('{"version": 1, "devices": {}}', "has devices and pairs"),
        ('{"version": 1, "devices": {"a": {}}, "pairs": {}}', "devices.a: not the description"),
        ('{"version": 1, "devices": {}, "pairs": {"a b": "NEAR"}}', "pairs.a b: 'NEAR' isn't one of PIX"),
    ],
)
def test_what_is_no_golden_topology_is_refused(text: str, words: str) -> None:
    with pytest.raises(page.GoldenError, match=words):
        page.from_json(text)


def test_the_document_is_json_with_the_tree_and_the_pairs(sockets: Path) -> None:
    document = json.loads(json.dumps(tree.document(topology(evidence(sockets)))))
    assert document["devices"]["GPU0"]["bar1"] == 128 << 30
    assert document["roots"][0]["children"][0]["address"] == "0000:00:01.0"
    assert {"one", "other", "distance", "bridge", "root_port", "path", "redirecting"} == set(document["pairs"][0])
    assert document["iommu_words"] == ["intel_iommu=off"]


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
    reference = page.golden(recorded("switches"), "lab")
    assert page.differences(reference, recorded("switches")) == []
    disk = "1b36:0010 (1af4:1100 rev 02)"
    assert page.differences(reference, recorded("switches-swapped")) == [
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
