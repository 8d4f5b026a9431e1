"""The lab's real host with what it lacks put in, so that one thing at a time can be taken away again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.later_evidence import complete

EVIDENCE = Path(__file__).parents[3] / "evidence"
BARE = json.loads((EVIDENCE / "hosts" / "lab-vm-bare.json").read_text())
PROVISIONED = json.loads((EVIDENCE / "hosts" / "lab-vm-provisioned.json").read_text())
H100 = json.loads((EVIDENCE / "hosts" / "h100-libcufile-1.20.0.json").read_text())
#: The running driver of a real machine, as its kernel shows it.
H200 = (EVIDENCE / "h200" / "nvidia-proc-and-smi.txt").read_text()
#: What libcufile did with configurations, on a machine without a GPU.
RUNS = json.loads((EVIDENCE / "cufile-open" / "libcuda-550-no-gpu.json").read_text())
OPENED = RUNS["1.9.1 shipped"]
MOUNT = "/mnt/nvme"
Document = dict[str, Any]
Change = Callable[[Document], None]
GPU = "0000:00:06.0"


def capable() -> Document:
    """A running driver, nvidia-fs, and an nvme with hooks, as OFED has it; no GPU."""
    document = complete(copy.deepcopy(BARE))
    start = H200.index("NVRM version")
    document["files"]["/proc/driver/nvidia/version"] = H200[start : H200.index("ResmanDebugLevel")]
    document["files"]["/proc/driver/nvidia/params"] = H200[H200.index("ResmanDebugLevel") : H200.index("Model:")]
    document["files"]["/sys/module/nvidia_fs/version"] = "2.26.6\n"
    document["listings"]["/dev/nvidia*"] = ["nvidia-fs0", "nvidia-fs1"]
    document["excerpts"]["/proc/kallsyms"]["lines"].append("0000000000000000 T nvme_v1_register_nvfs_dma_ops\t[nvme]")
    document["files"]["/proc/driver/nvidia-fs/modules"] = "nvme: 1\nwekafsio: 1\n"
    document["files"]["/etc/cufile.json"] = "{}"
    return with_libcufile(document)


def with_libcufile(document: Document) -> Document:
    return {**document, "commands": {**document["commands"], **copy.deepcopy(OPENED)}}


def with_gpu(document: Document) -> Document:
    """The GPU of a real machine, with what its driver and libcufile say of it, in the place it has there."""
    for section in ("files", "links"):
        document[section].update(
            {path: value for path, value in H100[section].items() if f"/{GPU}" in path and "proc" not in path}
        )
    document["links"][f"/sys/bus/pci/devices/{GPU}/iommu_group"] = {"error": "ENOENT"}
    document["listings"]["/sys/bus/pci/devices"] = sorted({*document["listings"]["/sys/bus/pci/devices"], GPU})
    information = f"/proc/driver/nvidia/gpus/{GPU}/information"
    document["listings"]["/proc/driver/nvidia/gpus"] = [GPU]
    document["files"][information] = H100["files"][information]
    for name in ("cufile-open", "cufile-open-control"):
        document["commands"][name] = copy.deepcopy(H100["commands"][name])
    return document


def file(path: str, value: object) -> Change:
    return lambda document: document["files"].__setitem__(path, value)


def dmesg(*lines: str) -> Change:
    """Further messages of the kernel."""

    def change(document: Document) -> None:
        document["commands"]["dmesg"]["stdout"] += "".join(f"[   99.000000] {line}\n" for line in lines)

    return change


def loaded(line: str) -> Change:
    """A further line of /proc/modules."""
    return lambda document: document["files"].__setitem__(
        "/proc/modules", document["files"]["/proc/modules"] + line + "\n"
    )
