"""The checks of the PCIe tree and of RDMA's mechanisms, on the recorded trees, each seen failing."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.pci import Topology
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from gdsdeploy.host.topology import golden
from tests.unit.host.checks.changes import EXPECTATION, findings
from tests.unit.host.facts.sysfs_root import REDIRECT
from tests.unit.later_evidence import complete

EVIDENCE = Path(__file__).parents[3] / "evidence"
H100 = complete(json.loads((EVIDENCE / "hosts" / "h100-libcufile-1.20.0.json").read_text()))
Document = dict[str, Any]
PCI, GPU = "/sys/bus/pci/devices", "0000:00:06.0"


def judge(document: Document, check: str, expectation: Expectation = EXPECTATION) -> Finding:
    return findings(document, expectation)[check]


def changed(base: Document, **files: str) -> Document:
    document = copy.deepcopy(base)
    for name, text in files.items():
        document["files"][f"{PCI}/{GPU}/{name}"] = text
    return document


def test_a_link_that_lost_lanes_is_named_with_what_it_could_be() -> None:
    assert judge(H100, "topology.link").found == "1 link at what both ends can do"
    finding = judge(changed(H100, current_link_width="8\n"), "topology.link")
    assert (finding.verdict, finding.found) == (FAIL, f"GPU0 ({GPU}) runs at 32 GT/s x8 of 32 GT/s x16")
    assert finding.evidence == [f"/sys/bus/pci/devices/{GPU}: current 32 GT/s x8, max 32 GT/s x16"]


def test_a_gpu_at_rest_is_no_fault_but_proves_no_speed() -> None:
    finding = judge(changed(H100, current_link_speed="2.5 GT/s PCIe\n"), "topology.link")
    assert (finding.verdict, finding.found) == (
        PASS,
        "1 link at what both ends can do; at rest, so their speed is not proven: GPU0",
    )
    slow = judge(changed(H100, current_link_speed="8.0 GT/s PCIe\n"), "topology.link")
    assert (slow.verdict, "8 GT/s x16 of 32 GT/s x16" in slow.found) == (FAIL, True)
    narrow = changed(H100, current_link_speed="2.5 GT/s PCIe\n", current_link_width="4\n")
    assert judge(narrow, "topology.link").verdict == FAIL, "no GPU gives lanes away at rest"


def in_group(document: Document, kind: str, words: str) -> Document:
    changed_one = copy.deepcopy(document)
    changed_one["links"][f"{PCI}/{GPU}/iommu_group"] = "../../../kernel/iommu_groups/7"
    changed_one["files"][f"{PCI}/{GPU}/iommu_group/type"] = kind + "\n"
    changed_one["files"]["/proc/cmdline"] += f" {words}"
    return changed_one


@pytest.mark.parametrize(
    ("kind", "words", "mode", "verdict"),
    [
        ("DMA-FQ", "intel_iommu=on", "nvidia-fs", FAIL),
        ("identity", "iommu=pt", "nvidia-fs", PASS),
        ("identity", "iommu=pt", "p2pdma", FAIL),
        ("DMA", "", "compat", NOT_APPLICABLE),
    ],
)
def test_the_iommu_is_judged_by_the_mode(kind: str, words: str, mode: str, verdict: str) -> None:
    expectation = replace(EXPECTATION, mode=mode)
    document = in_group(H100, kind, words)
    finding = judge(document, "topology.iommu", expectation)
    assert finding.verdict == verdict
    if mode != "compat":
        assert any(words in line for line in finding.evidence)
    document["host"]["uname"]["machine"] = "aarch64"
    assert judge(document, "topology.iommu", expectation).verdict == (NOT_APPLICABLE if mode == "compat" else PASS), (
        "Grace needs it"
    )


def test_a_domain_that_was_not_read_is_not_taken_for_passthrough() -> None:
    document = in_group(H100, "identity", "iommu=pt")
    document["files"][f"{PCI}/{GPU}/iommu_group/type"] = {"error": "EACCES"}
    assert judge(document, "topology.iommu").verdict == UNKNOWN


def test_bar1_has_to_hold_what_the_mode_maps() -> None:
    assert judge(H100, "topology.bar1").found == "GPU0 131072 MiB"
    lines = [f"0x{0:016x} 0x{size - 1:016x} 0x000000000014220c" for size in (16 << 20, 256 << 20)]
    document = changed(H100, resource="\n".join(lines) + "\n")
    assert judge(document, "topology.bar1").verdict == PASS
    finding = judge(document, "topology.bar1", replace(EXPECTATION, mode="p2pdma"))
    assert (finding.verdict, finding.found) == (FAIL, "GPU0 256 MiB")
    document = changed(H100, resource=lines[0] + "\n")
    assert judge(document, "topology.bar1").found == "GPU0 has none"


def test_bar1_does_not_count_on_grace() -> None:
    """Its GPUs' memory is reached through NVLink-C2C, whatever the size of BAR1."""
    without = changed(H100, resource="0x0000000000000000 0x0000000000ffffff 0x000000000014220c\n")
    without["host"]["uname"]["machine"] = "aarch64"
    core = ["CPU implementer\t: 0x41", "CPU part\t: 0xd4f"]
    without["excerpts"]["/proc/cpuinfo"] = {"pattern": "^(CPU implementer|CPU part)", "lines": core}
    for mode in ("nvidia-fs", "p2pdma"):
        assert judge(without, "topology.bar1", replace(EXPECTATION, mode=mode)).verdict == NOT_APPLICABLE
    core[1] = "CPU part\t: 0xd0c"
    assert judge(without, "topology.bar1").verdict == FAIL
    del without["excerpts"]["/proc/cpuinfo"]
    for path in [path for path in without["files"] if path.endswith("/information")]:
        del without["files"][path]
    assert judge(without, "topology.bar1").verdict == UNKNOWN


def test_distances_are_judged_where_the_fleet_asks() -> None:
    assert judge(H100, "topology.distance").found == "not asked: the fleet sets no distance"
    near = replace(EXPECTATION, topology={"nic": "PHB"})
    assert judge(H100, "topology.distance", near).found == "GPU0: NIC0 PHB"
    finding = judge(H100, "topology.distance", replace(EXPECTATION, topology={"nic": "PXB", "nvme": "SYS"}))
    assert (finding.verdict, finding.found) == (FAIL, "GPU0: no nvme; GPU0: NIC0 at PHB")


def test_the_golden_topology_names_what_moved() -> None:
    topology = facts_from(H100).topology
    assert isinstance(topology, Topology)
    expectation = replace(EXPECTATION, topology={"golden": golden.golden(topology, "one-h100")})
    assert judge(H100, "topology.golden", expectation).found == "the same tree"
    finding = judge(changed(H100, device="0x2331\n", current_link_width="8\n"), "topology.golden", expectation)
    assert finding.verdict == FAIL
    part = "10de:2330"
    assert f"GPU0 at {GPU}: the part is 10de:2331, was {part}" in finding.found
    assert f"GPU0 at {GPU}: link 32 GT/s x8, was 32 GT/s x16" in finding.found
    assert judge(H100, "topology.golden", replace(EXPECTATION, topology={"golden": {"version": 9}})).verdict == UNKNOWN


RDMA = replace(EXPECTATION, rdma="peermem")


def with_adapter(*symbols: str) -> Document:
    """The host with a GPU, given an adapter and an RDMA core that exports ``symbols``."""
    document = copy.deepcopy(H100)
    document["listings"]["/sys/class/infiniband"] = ["mlx5_0"]
    excerpt = document["excerpts"]["/proc/kallsyms"]
    excerpt["pattern"] += r"|ib_umem_dmabuf_get\b|reg_user_mr_dmabuf\b"
    excerpt["lines"] += [f"0000000000000000 T {name}" for name in symbols]
    return document


PEER_MEMORY = "ib_register_peer_memory_client\t[ib_uverbs]"
CORE, ADAPTER = "ib_umem_dmabuf_get\t[ib_uverbs]", "mlx5_ib_reg_user_mr_dmabuf\t[mlx5_ib]"


def test_dma_buf_needs_core_and_adapter() -> None:
    expectation = replace(EXPECTATION, rdma="dmabuf")
    assert judge(with_adapter(CORE, ADAPTER), "peermem.mechanism", expectation).found == "DMA-BUF is usable"
    finding = judge(with_adapter(CORE), "peermem.mechanism", expectation)
    assert (finding.verdict, finding.found) == (FAIL, "DMA-BUF: no loaded adapter driver accepts DMA-BUF memory")
    assert "no ib_umem_dmabuf_get" in judge(with_adapter(ADAPTER), "peermem.mechanism", expectation).found
    assert judge(H100, "peermem.mechanism", expectation).found == "DMA-BUF: there is no RDMA adapter"
    unread = copy.deepcopy(H100)
    unread["listings"]["/sys/class/infiniband"] = ["mlx5_0"]
    assert judge(unread, "peermem.mechanism", expectation).verdict == UNKNOWN, "an older recording kept no such symbols"


def loaded(document: Document, name: str) -> Document:
    document["files"]["/proc/modules"] = str(document["files"]["/proc/modules"]) + f"{name} 1 0 - Live 0x0\n"
    return document


def test_loaded_is_not_registered() -> None:
    document = loaded(with_adapter(PEER_MEMORY), "nvidia_peermem")
    document["listings"]["/sys/kernel/mm/memory_peers"] = []
    finding = judge(document, "peermem.mechanism", RDMA)
    assert finding.verdict == FAIL
    assert (
        "loaded, but not registered as a client of the RDMA core: /sys/kernel/mm/memory_peers shows none"
        in finding.found
    )
    document["listings"]["/sys/kernel/mm/memory_peers"] = ["nvidia-fs"]
    assert judge(document, "peermem.usable", RDMA).verdict == FAIL, "another client is none of peermem's"
    for client in ("nv_mem", "nv_mem_nc"):
        document["listings"]["/sys/kernel/mm/memory_peers"] = [client, "nvidia-fs"]
        assert judge(document, "peermem.mechanism", RDMA).verdict == PASS
        assert judge(document, "peermem.usable", RDMA).verdict == PASS


def test_a_kernel_without_the_list_of_clients_leaves_it_open() -> None:
    document = loaded(with_adapter(PEER_MEMORY), "nvidia_peermem")
    document["listings"]["/sys/kernel/mm/memory_peers"] = {"error": "ENOENT"}
    document["listings"]["/sys/module/ib_uverbs/holders"] = ["mlx5_ib", "nvidia_peermem"]
    finding = judge(document, "peermem.usable", RDMA)
    assert (finding.verdict, "the module uses the RDMA core" in finding.found) == (UNKNOWN, True)
    document["listings"]["/sys/module/ib_uverbs/holders"] = ["mlx5_ib"]
    assert judge(document, "peermem.usable", RDMA).verdict == FAIL


def test_a_host_that_offers_another_mechanism_is_told_so() -> None:
    finding = judge(with_adapter(CORE, ADAPTER), "peermem.mechanism", RDMA)
    assert finding.verdict == FAIL
    assert "it's the kernel's own, not OFED's" in finding.found
    assert finding.hint.endswith("or set rdma: dmabuf in the profile, which this host offers")


def test_the_module_before_peermem_may_not_be_loaded() -> None:
    finding = judge(loaded(with_adapter(PEER_MEMORY), "nv_peer_mem"), "peermem.legacy", RDMA)
    assert (finding.verdict, finding.found) == (FAIL, "nv_peer_mem is loaded")
    installed = with_adapter(PEER_MEMORY)
    installed["listings"]["/etc/init.d/nv_peer_mem*"] = ["nv_peer_mem"]
    finding = judge(installed, "peermem.legacy", RDMA)
    assert (finding.verdict, "/etc/init.d/nv_peer_mem" in finding.found) == (PASS, True)


def test_hosts_without_a_gpu_prove_nothing() -> None:
    document = copy.deepcopy(H100)
    document["files"][f"{PCI}/{GPU}/vendor"] = "0x1234\n"
    for name in ("topology.acs", "topology.iommu", "topology.bar1"):
        finding = judge(document, name)
        assert (finding.verdict, finding.found) == (NOT_APPLICABLE, "not proven: this host has no GPU")


def test_a_switch_that_redirects_peers_is_named() -> None:
    """QEMU's switches as a real kernel showed them, with the control bits that a kernel sets for an IOMMU."""
    document = complete(json.loads((EVIDENCE / "topology" / "switches.json").read_text()))
    files = document["files"]
    for path in [path for path in files if path.endswith("/class") and str(files[path]).startswith("0x0380")]:
        files[path.removesuffix("/class") + "/vendor"] = "0x10de\n"
    good = judge(document, "topology.acs")
    assert (good.verdict, "of a GPU and a peer below one switch is redirected" in good.found) == (PASS, True)
    for port in ("0000:02:01.0", "0000:02:02.0", "0000:02:03.0"):
        document["acs"][port] = REDIRECT
    finding = judge(document, "topology.acs")
    assert finding.verdict == FAIL
    assert re.match(r"[1-9]\d* of \d+ pairs of a GPU and a peer below one switch are redirected", finding.found)
    assert any("0000:02:0" in line and line.endswith("redirects") for line in finding.evidence)
    document["acs"].clear()
    assert judge(document, "topology.acs").verdict == UNKNOWN
