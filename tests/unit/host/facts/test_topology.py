"""PCIe trees as text, and what differs from a golden one; tests/cases/facts/topology.yml has the trees themselves."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.evidence.recorder import EvidenceRequest, Recorder
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.subjects import trees
from gdsdeploy.host.subjects.driver import collect_gpu
from gdsdeploy.host.subjects.pci import NIC, Link, collect_pci
from gdsdeploy.host.subjects.topology import Topology
from tests.unit.host import hosts
from tests.unit.host.patches import patched
from tests.unit.rdma_host import PCI, place

RECORDED = Path(__file__).parents[3] / "evidence" / "topology"
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


def evidence(root: Path, request: EvidenceRequest) -> dict[str, Any]:
    """What the real collectors of the tree find below ``root``, with the kernel's command line."""
    recorder = Recorder(60.0, root=str(root))
    recorder.text("/proc/cmdline")
    for collect in (collect_gpu, collect_pci):
        collect(recorder, request)
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
            # A link below ``root`` doesn't lead out of it.
            path.symlink_to(os.path.relpath(root / value.removeprefix("link:").lstrip("/"), path.parent))
        elif value.startswith("dir:"):
            for entry in ("", *value.removeprefix("dir:").split() * (name == "/sys/devices/system/node")):
                (path / entry).mkdir(exist_ok=True)
        elif value.startswith("base64:"):
            path.write_bytes(base64.b64decode(value.removeprefix("base64:")))
        elif not path.is_dir():
            path.write_text(value)
    return root


def test_a_real_machine_with_four_gpus_agrees_with_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RECORDED / "h200-x4"
    table = (folder / "nvidia-smi-topo-m.txt").read_text()
    links = [line.split(", ") for line in (folder / "nvidia-smi-links.txt").read_text().splitlines()[1:]]
    said = {"topo": table, "--query-gpu=pci.bus_id": "".join(f"{row[1]}\n" for row in links)}
    monkeypatch.setattr(process, "run", lambda argv, *_, **__: process.Output(0, said[argv[1]], ""))
    unpacked(folder / "sysfs.json", tmp_path)
    for row in links:
        (tmp_path / "proc/driver/nvidia/gpus" / row[1][4:]).mkdir(parents=True)
    result = topology(evidence(tmp_path, EvidenceRequest(nvlink=True)))
    rows = [line.split() for line in table.splitlines() if line.startswith("GPU")]
    ours = [line.split() for line in trees.matrix(result) if line.startswith("GPU")]
    assert [[*row[:5], row[6]] for row in ours] == [[*row[:5], row[6]] for row in rows], "NVLinks and NUMA nodes"
    assert not evidence(tmp_path, EvidenceRequest())["commands"], "what opens every GPU runs only where it is asked for"
    for (index, address, gen, most, width, widest), gpu in zip(links, result.of_kind("gpu"), strict=True):
        assert gpu.link == Link({"5": 32.0}[gen], int(width), {"5": 32.0}[most], int(widest))
        assert (gpu.label, gpu.address, gpu.bar1, gpu.driver) == (f"GPU{index}", address[4:], 262144 << 20, "nvidia")
    assert {pair.distance for pair in result.pairs} == {"PHB"}, "over PCIe they meet at the host bridge"
    assert [entry.names for entry in result.of_kind(NIC)] == [("eth0",)]


def test_the_distances_are_those_of_the_command_line() -> None:
    assert "\n".join(trees.matrix(topology(hosts.named("switches")))) + "\n" == MATRIX


def test_the_text_names_what_stands_between() -> None:
    redirecting = {"acs": {f"0000:02:0{number}.0": 29 for number in range(4)}}
    text = trees.text(topology(patched(hosts.named("two sockets"), redirecting)))
    assert "ACS sends GPU0-NIC0, GPU0-NIC1 up to the host bridge: 0000:02:00.0, 0000:02:01.0" in text
    assert "\nNVLink between GPUs is unknown, and isn't shown: nvidia-smi topo -m was not run\n" in text
    assert "IOMMU: on (intel_iommu=on" in trees.text(topology(hosts.named("switches-iommu")))
    document = patched(hosts.named("two sockets"), {"listings": {PCI: []}})
    assert trees.text(topology(document)).startswith("no GPU, NVMe disk or network adapter")


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


Change = Callable[[dict[str, Any]], Any]


def without(address: str, new: str = "") -> Change:
    """The function is taken out, or put to ``new``, at the other CPU."""

    def change(document: dict[str, Any]) -> None:
        if new:
            place(document, new, like=address)
            document["links"][f"{PCI}/{new}"] = f"../../../devices/pci0000:80/0000:80:01.0/{new}"
        document["listings"][PCI].remove(address)

    return change


def with_file(name: str, value: str) -> Change:
    return lambda document: document["files"].update({f"{PCI}/0000:03:00.0/{name}": value + "\n"})


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (lambda _: None, []),
        (without("0000:09:00.0", "0000:81:00.1"), [f"NVME2 moved from 0000:09:00.0 to 0000:81:00.1 ({DISK})"]),
        (without("0000:41:00.0"), [f"NVME3 at 0000:41:00.0 is gone ({DISK})"]),
        (with_file("device", "0x2331"), [f"GPU0 at 0000:03:00.0: the part is 10de:2331 {REST}, was 10de:2330 {REST}"]),
        (with_file("current_link_width", "8"), ["GPU0 at 0000:03:00.0: link 32 GT/s x8, was 32 GT/s x16"]),
        (with_file("numa_node", "1"), ["GPU0 at 0000:03:00.0: NUMA node 1, was 0"]),
        (with_file("current_link_speed", "2.5 GT/s PCIe"), []),
    ],
    ids=["nothing", "moved", "gone", "part", "link", "node", "at rest"],
)
def test_what_changed_is_named(change: Change, lines: list[str]) -> None:
    reference = trees.from_json(trees.to_json(trees.golden(topology(hosts.named("two sockets")), "hgx")))
    document = hosts.fresh("two sockets")
    change(document)
    result = trees.differences(reference, topology(document))
    assert result[: len(lines) or None] == lines
    assert not any("GPU0 to NVME0" in line or " is new" in line for line in result), "what did not move is not named"


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
