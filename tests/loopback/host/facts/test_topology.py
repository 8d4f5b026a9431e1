"""The PCIe tree out of sysfs, through the real collector: distances, links, access control, IOMMU; golden ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gdsdeploy.host import topology as tree
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.pci import NIC, PORT, ROOT, Link, Topology, degraded
from tests.unit.host.facts.sysfs_root import (
    BRIDGE,
    DEVICES,
    DISPLAY,
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


def distances(result: Topology, label: str) -> dict[str, str]:
    return {
        (pair.other if pair.one == label else pair.one): str(pair.distance)
        for pair in result.pairs
        if label in (pair.one, pair.other)
    }


def test_distances_are_those_of_the_field(sockets: Path) -> None:
    result = topology(evidence(sockets))
    assert distances(result, "GPU0") == {
        "GPU1": "SYS", "NIC0": "PIX", "NIC1": "PIX", "NVME0": "PIX", "NVME1": "PXB", "NVME2": "PHB", "NVME3": "NODE",
    }  # fmt: skip
    assert distances(result, "NIC0")["NIC1"] == "PIX", "two ports of one card"
    pair = result.pair("NVME1", "GPU0")
    assert pair is not None
    assert (pair.one, pair.bridge, pair.root_port) == ("GPU0", "0000:01:00.0", "0000:00:01.0")
    assert pair.path == ("0000:02:00.0", "0000:01:00.0", "0000:02:03.0", "0000:06:00.0", "0000:07:00.0")


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


@pytest.mark.parametrize(("node", "nodes", "distance"), [(-1, 2, None), (-1, 1, "NODE"), (1, 2, "NODE"), (0, 2, "SYS")])
def test_a_node_that_firmware_does_not_name_is_not_guessed(
    sockets: Path, node: int, nodes: int, distance: str | None
) -> None:
    far = sockets / "sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/numa_node"
    far.write_text(f"{node}\n")
    if nodes == 1:
        (sockets / "sys/devices/system/node/node1").rmdir()
    pair = topology(evidence(sockets)).pair("GPU1", "NVME3")
    assert pair is not None
    if distance is None:
        assert pair.distance == Unknown("the firmware names no NUMA node of 0000:41:00.0")
    else:
        assert pair.distance == distance


def test_access_control_is_read_from_configuration_space(tmp_path: Path) -> None:
    result = topology(evidence(two_sockets(tmp_path / "on", acs=REDIRECT)))
    pair = result.pair("GPU0", "NVME0")
    assert pair is not None
    assert pair.redirecting == ("0000:02:00.0", "0000:02:02.0")
    apart = result.pair("GPU0", "NVME2")
    assert apart is not None
    assert apart.redirecting == (), "they meet at the host bridge anyway"
    assert "ACS sends GPU0-NIC0, GPU0-NIC1 up to the host bridge: 0000:02:00.0, 0000:02:01.0" in tree.text(result)
    blocking = topology(evidence(two_sockets(tmp_path / "source", acs=0x01))).pair("GPU0", "NVME0")
    assert blocking is not None
    assert blocking.redirecting == (), "source validation alone redirects nothing"


def test_what_only_root_may_read_is_not_known(sockets: Path) -> None:
    (sockets / UP / "0000:02:02.0/config").write_bytes(bytes(64))
    result = topology(evidence(sockets))
    pair = result.pair("GPU0", "NVME0")
    assert pair is not None
    assert isinstance(pair.redirecting, Unknown)
    assert "ACS of bridges between devices is unknown" in tree.text(result)


def link(root: Path, path: str, **files: str) -> str:
    for name, value in files.items():
        (root / UP / path / name).write_text(value + "\n")
    result = topology(evidence(root))
    return ", ".join(f"{node.address} {degraded(node)}" for node in result.nodes() if degraded(node))


def test_a_link_is_held_against_what_both_ends_can(sockets: Path) -> None:
    assert link(sockets, ".") == "", "a disk of four lanes in a slot of sixteen is as it should be"
    assert (
        link(sockets, "0000:02:00.0/0000:03:00.0", current_link_width="8") == "0000:03:00.0 32 GT/s x8 of 32 GT/s x16"
    )
    assert link(sockets, "0000:02:00.0", max_link_width="8") == "", "the slot has no more lanes"
    assert link(sockets, ".", current_link_speed="8.0 GT/s PCIe") == "0000:01:00.0 8 GT/s x16 of 32 GT/s x16"


def test_the_port_of_a_virtual_machine_limits_no_link(sockets: Path) -> None:
    slow = {"max_link_width": "1", "max_link_speed": "2.5 GT/s PCIe"}
    assert link(sockets, "0000:02:00.0", **slow) == "", "the link is faster than the port says it could be"


def test_virtual_functions_are_left_to_their_parents(sockets: Path) -> None:
    part = sockets / UP / "0000:02:01.0"
    (part / "0000:04:00.1/physfn").symlink_to("../0000:04:00.0")
    assert [entry.address for entry in topology(evidence(sockets)).of_kind(NIC)] == ["0000:04:00.0"]


@pytest.mark.parametrize(("domain", "mode"), [("identity", "pt"), ("DMA-FQ", "on"), ("DMA", "on"), ("unmanaged", "on")])
def test_the_iommu_is_what_its_domains_are(tmp_path: Path, domain: str, mode: str) -> None:
    function(tmp_path, "pci0000:00/0000:00:06.0", DISPLAY, domain=domain)
    function(tmp_path, "pci0000:00/0000:00:07.0", NVME)
    result = topology(evidence(tmp_path))
    assert result.iommu == mode
    assert (result.devices[0].iommu_group, result.devices[1].iommu_group) == ("7", None)


def test_nothing_on_pci_is_no_error(tmp_path: Path) -> None:
    (tmp_path / DEVICES).mkdir(parents=True)
    result = topology(evidence(tmp_path))
    assert (result.devices, result.pairs, result.iommu) == ((), (), "off")
    assert tree.text(result).startswith("no GPU, NVMe disk or network adapter")


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
    assert set(distances(result, "GPU0").values()) == {"PHB"}
    assert [entry.names for entry in result.of_kind(NIC)] == [("eth0",)]


def test_a_golden_topology_of_the_same_machine_differs_in_nothing(sockets: Path) -> None:
    result = topology(evidence(sockets))
    reference = tree.from_json(tree.to_json(tree.golden(result, "hgx")))
    assert tree.differences(reference, result) == []


def changes_after_move(sockets: Path, tmp: Path, path: str, new: str) -> list[str]:
    """What differs after what hangs at ``path`` was put to ``new``."""
    reference = tree.golden(topology(evidence(sockets)), "hgx")
    shutil.move(sockets / "sys/devices" / path, tmp / "taken")
    (sockets / DEVICES / path.rpartition("/")[2]).unlink()
    if new:
        function(sockets, new, NVME, lanes="4/4", speed="16/16")
    return tree.differences(reference, topology(evidence(sockets)))


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
    reference = tree.golden(topology(evidence(sockets)), "hgx")
    (sockets / UP / "0000:02:00.0/0000:03:00.0" / file).write_text(value + "\n")
    assert tree.differences(reference, topology(evidence(sockets)))[0] == line


def test_a_gpu_at_rest_differs_in_nothing(sockets: Path) -> None:
    reference = tree.golden(topology(evidence(sockets)), "hgx")
    (sockets / UP / "0000:02:00.0/0000:03:00.0/current_link_speed").write_text("2.5 GT/s PCIe\n")
    result = topology(evidence(sockets))
    assert tree.differences(reference, result) == []
    assert tree.differences(tree.golden(result, "hgx"), result) == []


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
    with pytest.raises(tree.GoldenError, match=words):
        tree.from_json(text)


def test_the_document_is_json_with_the_tree_and_the_pairs(sockets: Path) -> None:
    document = json.loads(json.dumps(tree.document(topology(evidence(sockets)))))
    assert document["devices"]["GPU0"]["bar1"] == 128 << 30
    assert document["roots"][0]["children"][0]["address"] == "0000:00:01.0"
    assert {"one", "other", "distance", "bridge", "root_port", "path", "redirecting"} == set(document["pairs"][0])
    assert document["iommu_words"] == ["intel_iommu=off"]
