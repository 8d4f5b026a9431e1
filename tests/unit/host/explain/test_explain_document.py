"""What is said of a whole host: the kinds of storage, and the explanation as data and as text."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

from gdsdeploy.host import checks
from gdsdeploy.host.explain import as_document, explain
from gdsdeploy.host.explain.kinds import Kind
from gdsdeploy.host.explain.text import render
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.stack import stack
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.model.finding import Finding
from tests.unit.host.explain.capable_host import (
    BARE,
    EVIDENCE,
    H100,
    PROVISIONED,
    Document,
    capable,
    p2pdma,
    with_gpu,
    with_libcufile,
)
from tests.unit.host.explain.p2pdma_hosts import on_amd
from tests.unit.host.explain.test_explain_causes import NVME


def kinds(document: Document) -> dict[str, Kind]:
    return {kind.label: kind for kind in explain(facts_from(document), ()).kinds}


def ids(kind: Kind) -> list[str]:
    return [cause.id for cause in kind.path.causes]


def test_the_kinds_of_a_provisioned_host() -> None:
    by_label = kinds(PROVISIONED)
    assert {label for label, kind in by_label.items() if kind.present is True} == {"NVMe", "Userspace RDMA"}
    assert (by_label["NVMe"].path.path, ids(by_label["NVMe"])) == ("compat", ["nvme.no-hooks"])
    assert ids(by_label["NVMeOF"]) == ["nvme_rdma.no-hooks"]
    # The lab's nvidia-peermem is the archive's, which was built without OFED.
    rdma = ["rdma.no-addresses", "rdma.no-peer-memory", "nvidia-peermem.stub"]
    assert ids(by_label["Userspace RDMA"]) == ids(by_label["WekaFS"]) == rdma
    assert ids(by_label["IBM Spectrum Scale"]) == [*rdma, "mmfslinux.no-hooks"]


def test_the_kinds_of_a_real_gpu_stand_beside_what_libcufile_says() -> None:
    by_label = kinds(H100)
    assert {kind.row for kind in by_label.values()} == {"compat", "Unsupported"}
    assert {kind.path.path for label, kind in by_label.items() if label != "PanFS"} == {"compat"}
    assert by_label["NVMe"].present is False
    assert ids(by_label["NVMe"])[0] == "nvidia-fs.not-installed"
    assert ids(by_label["Userspace RDMA"])[0] == "rdma.no-adapter"


def test_the_kinds_of_a_host_with_everything() -> None:
    document = with_gpu(capable())
    by_label = kinds(document)
    assert (by_label["NVMe"].present, by_label["NVMe"].path.path) == (True, "nvidia-fs")
    assert by_label["NVMeOF"].path.path == "compat"
    p2pdma(document)
    on_amd(document)
    assert kinds(document)["NVMe"].path.path == "p2pdma"


def test_as_data() -> None:
    facts = facts_from(PROVISIONED)
    report = as_document(explain(facts, stack(facts)))
    assert json.loads(json.dumps(report)) == report
    keys = {"version", "host", "collected_at", "stack", "mounts", "kinds", "processes", "foreign", "unseen"}
    assert set(report) == keys
    assert [name for name, _ in report["stack"]] == ["os", "kernel", "driver", "nvidia-fs", "libcufile"]
    mount = next(entry for entry in report["mounts"] if entry["mount"] == "/mnt/nvme")
    assert (mount["path"], mount["gpu"], mount["devices"]) == ("compat", False, ["nvme0n1"])
    assert set(mount["causes"][0]) == {"id", "what", "fix", "evidence", "reference"}
    assert "not proven" not in {entry["path"] for entry in report["mounts"]}


def test_as_text() -> None:
    facts = facts_from(PROVISIONED)
    text = render(explain(facts, stack(facts)))
    assert text.index("/mnt/nvme  COMPAT: through CPU memory") < text.index("[nvme.no-hooks]")
    assert "\n     seen /proc/kallsyms: no nvme_v1_register_nvfs_dma_ops" in text
    assert "\n     do   install nvme from MLNX_OFED" in text
    assert "\n     read NVIDIA GPUDirect Storage" in text
    assert "this host has no GPU: nothing can be proven" in text
    assert "  NVMeOF                none here" in text


def test_what_was_said_in_full_is_not_said_again() -> None:
    text = " ".join(render(explain(facts_from(with_libcufile(BARE)), ())).split())
    assert text.count("[nvidia.not-installed] seen modprobe nvidia-current-open: ") == 1
    assert text.count("[nvidia.not-installed], see above") == 1
    assert text.count("do install it: gdsdeploy provision") == 2, "once for the driver and once for nvidia-fs"


def test_without_root_it_says_so() -> None:
    document = copy.deepcopy(PROVISIONED)
    document["host"]["uid"] = 1000
    text = render(explain(facts_from(document), ()))
    assert "What could not be seen\n  - the evidence was collected without root" in text


def test_what_was_not_proven_says_why() -> None:
    document = with_gpu(capable())
    document["links"][f"/sys/bus/pci/devices/{NVME}/iommu_group"] = "../../../kernel/iommu_groups/1"
    document["files"][f"/sys/bus/pci/devices/{NVME}/iommu_group/type"] = "DMA\n"
    explanation = explain(facts_from(document), (), "/mnt/nvme")
    assert isinstance(explanation.mounts[0].path.path, Unknown)
    text = render(explanation)
    assert f"/mnt/nvme  NOT PROVEN: an IOMMU is between {NVME}" in text
    assert "Not proven because of this:\n  1. an IOMMU" in text
    assert "Kinds of storage" not in text


def test_validate_has_its_words_from_here() -> None:
    expectation = from_json((EVIDENCE / "hosts" / "lab-vm.expectation.json").read_text())
    expectation = replace(expectation, storage=[{"mount": "/mnt/nvme", "path": "direct"}])

    def finding(document: Document) -> Finding:
        return next(
            entry for entry in checks.run(facts_from(document), expectation) if entry.check.startswith("storage.path")
        )

    result = finding(with_libcufile(BARE))
    assert result.found == "compat: the nvidia module is not loaded: it is not installed (and 2 more, see the evidence)"
    assert any(line.startswith("modprobe nvidia-current-open: ") for line in result.evidence)
    document = with_gpu(capable())
    assert (finding(document).verdict, finding(document).found) == ("pass", "nvidia-fs (not proven: no I/O was tried)")
    document["links"][f"/sys/bus/pci/devices/{NVME}/iommu_group"] = "../../../kernel/iommu_groups/1"
    document["files"][f"/sys/bus/pci/devices/{NVME}/iommu_group/type"] = "DMA\n"
    result = finding(document)
    assert result.verdict == "unknown"
    assert result.hint.startswith("Turn the IOMMU off on the kernel's command line: intel_iommu=off")
