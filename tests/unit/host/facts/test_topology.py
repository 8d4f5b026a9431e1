"""PCIe trees as text, and what differs from a golden one; tests/cases/facts/topology.yml has the trees themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.host.subjects import trees
from gdsdeploy.host.subjects.pci import NIC, Link
from tests.unit.host import hosts
from tests.unit.host.facts.sysfs_root import (
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
GPU0 = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"
#: What parts of one kind differ by.
REST = "(10de:16c1 rev a1)"
DISK = "1b36:2330 (1b36:16c1 rev a1)"
#: What QEMU was told to put together (record.py); its first host bridge names no NUMA node.
MATRIX = """\
       GPU0  GPU1  NIC0  NVME0  NVME1  NVME2  NVME3  NVME4  NUMA
GPU0   X     ?     PIX   PHB    PIX    PXB    PHB    ?      N/A
GPU1   ?     X     ?     ?      ?      ?      ?      PHB    1
NIC0   PIX   ?     X     PHB    PIX    PXB    PHB    ?      N/A
NVME0  PHB   ?     PHB   X      PHB    PHB    PHB    ?      N/A
NVME1  PIX   ?     PIX   PHB    X      PXB    PHB    ?      N/A
NVME2  PXB   ?     PXB   PHB    PXB    X      PHB    ?      N/A
NVME3  PHB   ?     PHB   PHB    PHB    PHB    X      ?      N/A
NVME4  ?     PHB   ?     ?      ?      ?      ?      X      1
"""


def test_a_real_machine_with_four_gpus_agrees_with_nvidia_smi(tmp_path: Path) -> None:
    folder = RECORDED / "h200-x4"
    result = topology(evidence(unpacked(folder / "sysfs.json", tmp_path)))
    rows = [line.split("\t") for line in (folder / "nvidia-smi-topo-m.txt").read_text().splitlines()]
    theirs = {row[0].strip(): row[6].strip() for row in rows if row[0].startswith("GPU")}
    ours = {line.split()[0]: line.split()[-1] for line in trees.matrix(result) if line.startswith("GPU")}
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


def test_the_distances_are_those_of_the_command_line() -> None:
    assert "\n".join(trees.matrix(topology(hosts.named("switches")))) + "\n" == MATRIX


def test_the_text_names_what_stands_between(tmp_path: Path) -> None:
    text = trees.text(topology(evidence(two_sockets(tmp_path, acs=REDIRECT))))
    assert "ACS sends GPU0-NIC0, GPU0-NIC1 up to the host bridge: 0000:02:00.0, 0000:02:01.0" in text
    assert "IOMMU: on (intel_iommu=on" in trees.text(topology(hosts.named("switches-iommu")))
    (tmp_path / "empty" / DEVICES).mkdir(parents=True)
    assert trees.text(topology(evidence(tmp_path / "empty"))).startswith("no GPU, NVMe disk or network adapter")


@pytest.mark.parametrize(
    ("host", "redirecting"),
    [("switches", []), ("switches-iommu", ["0000:00:02.0", "0000:00:03.0", "0000:80:00.0", "0000:80:01.0"])],
)
def test_root_ports_redirect_where_the_kernel_isolates(host: str, redirecting: list[str]) -> None:
    """The kernel switches Access Control Services on with the IOMMU (0x1d in the control register)."""
    document = trees.document(topology(hosts.named(host)))
    assert json.loads(json.dumps(document)) == document
    nodes = list(document["roots"])
    for node in nodes:
        nodes += node["children"]
    assert sorted(node["address"] for node in nodes if node["redirects"] is True) == redirecting


Change = Callable[[Path, Path], None]


def without(path: str, new: str = "") -> Change:
    """What hangs at ``path`` is put to ``new``, or taken out."""

    def change(root: Path, taken: Path) -> None:
        shutil.move(root / "sys/devices" / path, taken)
        (root / DEVICES / path.rpartition("/")[2]).unlink()
        if new:
            function(root, new, NVME, lanes="4/4", speed="16/16")

    return change


def with_file(name: str, value: str) -> Change:
    return lambda root, _: (root / GPU0 / name).write_text(value + "\n") and None


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (lambda *_: None, []),
        (
            without("pci0000:00/0000:00:02.0/0000:09:00.0", "pci0000:80/0000:80:01.0/0000:81:00.1"),
            [f"NVME2 moved from 0000:09:00.0 to 0000:81:00.1 ({DISK})"],
        ),
        (without("pci0000:40/0000:40:01.0/0000:41:00.0"), [f"NVME3 at 0000:41:00.0 is gone ({DISK})"]),
        (with_file("device", "0x2331"), [f"GPU0 at 0000:03:00.0: the part is 10de:2331 {REST}, was 10de:2330 {REST}"]),
        (with_file("current_link_width", "8"), ["GPU0 at 0000:03:00.0: link 32 GT/s x8, was 32 GT/s x16"]),
        (with_file("numa_node", "1"), ["GPU0 at 0000:03:00.0: NUMA node 1, was 0"]),
        (with_file("current_link_speed", "2.5 GT/s PCIe"), []),
    ],
    ids=["nothing", "moved", "gone", "part", "link", "node", "at rest"],
)
def test_what_changed_is_named(tmp_path: Path, change: Change, lines: list[str]) -> None:
    root = two_sockets(tmp_path / "root")
    reference = trees.from_json(trees.to_json(trees.golden(topology(evidence(root)), "hgx")))
    change(root, tmp_path / "taken")
    result = trees.differences(reference, topology(evidence(root)))
    assert result[: len(lines) or None] == lines
    assert not any("GPU0 to NVME0" in line for line in result), "what did not move is not named"


def test_a_swap_of_parts_is_named() -> None:
    reference = trees.golden(topology(hosts.named("switches")), "lab")
    disk = "1b36:0010 (1af4:1100 rev 02)"
    assert trees.differences(reference, topology(hosts.named("switches-swapped"))) == [
        f"NVME2 at 0000:08:00.0 is gone ({disk})",
        f"NIC0 at 0000:05:00.0: the part is {disk}, was 8086:10d3 (8086:0000 rev 00)",
    ]


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
    with pytest.raises(trees.GoldenError, match=words):
        trees.from_json(text)
