"""Hosts for P2PDMA mode, and faults of them: each a change of a real host's evidence."""

from __future__ import annotations

import re

from tests.unit.host.explain.capable_host import (
    GPU,
    H100,
    MOUNT,
    RELEASE,
    Change,
    Document,
    both,
    capable,
    config,
    file,
    hooks_gone,
    over,
    p2pdma,
    with_gpu,
)

INFORMATION = f"/proc/driver/nvidia/gpus/{GPU}/information"
PARAMS = "/proc/driver/nvidia/params"
MULTIPATH = "/sys/module/nvme_core/parameters/multipath"
ADAPTER = "0000:00:07.0"


def on_amd(document: Document) -> None:
    document["excerpts"]["/proc/cpuinfo"]["lines"] = ["vendor_id\t: AuthenticAMD", "cpu family\t: 25"]


def p2p() -> Document:
    """P2PDMA mode is requested, everything for it is there, and nvidia-fs can't take its place."""
    document = with_gpu(capable())
    p2pdma(document)
    hooks_gone(document)
    document["excerpts"]["/proc/kallsyms"]["lines"].append("0000000000000000 T pci_p2pdma_add_resource")
    on_amd(document)
    return document


def kernel(release: str) -> Change:
    def change(document: Document) -> None:
        document["excerpts"][f"/boot/config-{release}"] = document["excerpts"][f"/boot/config-{RELEASE}"]
        document["host"]["uname"]["release"] = release

    return change


def symbol(name: str) -> Change:
    return lambda document: document["excerpts"]["/proc/kallsyms"]["lines"].append(f"0000000000000000 d {name}")


def registry(words: str) -> Change:
    def change(document: Document) -> None:
        text = document["files"][PARAMS]
        document["files"][PARAMS] = re.sub(r"(?m)^RegistryDwords:.*$", f'RegistryDwords: "{words}"', text)

    return change


def model(name: str) -> Change:
    def change(document: Document) -> None:
        text = H100["files"][INFORMATION]
        document["files"][INFORMATION] = re.sub(r"Model:.*", f"Model: \t\t {name}", text)

    return change


def row(label: str, value: str) -> Change:
    """What libcufile logs about a kind of storage."""

    def change(document: Document) -> None:
        run = document["commands"]["cufile-open"]
        assert f" {label} " in run["log"]
        run["log"] = re.sub(rf"( {label} +): .*", rf"\1: {value}", run["log"])

    return change


def no_rows(document: Document) -> None:
    """A libcufile that stops before it logs its rows, on a host without gdscheck."""
    for name in ("cufile-open", "cufile-open-control"):
        document["commands"][name]["log"] = ""


def md(level: str, **keys: object) -> Change:
    block = {name: {"use_pci_p2pdma": value} for name, value in (keys or {"raid": True}).items()}
    return both(over("md0", md_level=level), config(properties={"use_pci_p2pdma": True}, block=block))


def virtiofs(document: Document) -> None:
    lines = document["files"]["/proc/self/mountinfo"].splitlines(keepends=True)
    document["files"]["/proc/self/mountinfo"] = "".join(
        re.sub(r" \d+:\d+ / (\S+) (\S+) (.*)- ext4 \S+ \S+", r" 0:70 / \1 \2 \3- virtiofs data rw", line)
        if f" {MOUNT} " in line
        else line
        for line in lines
    )


def asking_virtiofs(document: Document) -> None:
    virtiofs(document)
    config(properties={"use_pci_p2pdma": True}, fs={"virtiofs": {"use_pci_p2pdma": True}})(document)


def nvmeof(document: Document) -> None:
    """The disk is one over RDMA, by an adapter at the GPU's host bridge."""
    link = document["links"]
    number = next(key for key, value in link.items() if key.startswith("/sys/dev/block/") and "nvme0n1" in str(value))
    link[number] = "../../devices/virtual/nvme-fabrics/ctl/nvme1/nvme1n1"
    document["files"]["/sys/class/nvme/nvme1/transport"] = "rdma\n"
    config(properties={"use_pci_p2pdma": True}, block={"nvmeof": {"use_pci_p2pdma": True}})(document)


def arm(document: Document, implementer: str = "0x41", part: str = "0xd4f") -> None:
    document["host"]["uname"]["machine"] = "aarch64"
    lines = [f"CPU implementer\t: {implementer}", f"CPU part\t: {part}"] * 2
    document["excerpts"]["/proc/cpuinfo"] = {"pattern": "^(vendor_id|CPU implementer|CPU part)", "lines": lines}


def translated(document: Document, kind: str = "DMA-FQ") -> None:
    """Every function that I/O uses is behind an IOMMU."""
    for address in (GPU, "0000:00:02.0"):
        document["links"][f"/sys/bus/pci/devices/{address}/iommu_group"] = "../../../kernel/iommu_groups/1"
        document["files"][f"/sys/bus/pci/devices/{address}/iommu_group/type"] = kind + "\n"


def grace() -> Document:
    """GH200 with none of the options that x86 needs, where libcufile offers the coherent link."""
    document = p2p()
    both(arm, translated, model("NVIDIA GH200 480GB"), registry(""), row("NVMe", "c2c, compat"))(document)
    file(MULTIPATH, "Y\n")(document)
    return document
