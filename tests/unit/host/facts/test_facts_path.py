"""Which path a mount takes, and why: a real mount on a real (emulated) NVMe disk, changed in one thing at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.path import BROKEN, COMPAT, HOOKS, NVIDIA_FS, P2PDMA, path_of
from gdsdeploy.host.facts.path import Path as Taken

EVIDENCE = Path(__file__).parents[3] / "evidence"
BARE = json.loads((EVIDENCE / "hosts" / "lab-vm-bare.json").read_text())
#: The running driver of a real machine, as its kernel shows it.
H200 = (EVIDENCE / "h200" / "nvidia-proc-and-smi.txt").read_text()
OPENED = json.loads((EVIDENCE / "cufile-open" / "libcuda-550-no-gpu.json").read_text())["1.9.1 shipped"]
MOUNT = "/mnt/nvme"
Change = Callable[[dict[str, Any]], None]


def capable() -> dict[str, Any]:
    """The lab's host with what it lacks put in: a running driver, nvidia-fs, and an nvme with hooks, as OFED has it."""
    document = copy.deepcopy(BARE)
    start = H200.index("NVRM version")
    document["files"]["/proc/driver/nvidia/version"] = H200[start : H200.index("ResmanDebugLevel")]
    document["files"]["/proc/driver/nvidia/params"] = H200[H200.index("ResmanDebugLevel") : H200.index("Model:")]
    document["files"]["/sys/module/nvidia_fs/version"] = "2.26.6\n"
    document["listings"]["/dev/nvidia*"] = ["nvidia-fs0", "nvidia-fs1"]
    document["excerpts"]["/proc/kallsyms"]["lines"].append("0000000000000000 T nvme_v1_register_nvfs_dma_ops\t[nvme]")
    document["files"]["/etc/cufile.json"] = "{}"
    return with_libcufile(document)


def with_libcufile(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "commands": {**document["commands"], **OPENED}}


def taken(document: dict[str, Any]) -> Taken:
    facts = facts_from(document)
    assert not isinstance(facts.storage.mounts, Unknown)
    return path_of(facts, facts.storage.mounts[MOUNT])


def config(**sections: object) -> Change:
    return lambda document: document["files"].__setitem__("/etc/cufile.json", json.dumps(sections))


def mountinfo(before: str, after: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        lines = document["files"]["/proc/self/mountinfo"].splitlines(keepends=True)
        number = next(place for place, line in enumerate(lines) if f" {MOUNT} " in line)
        assert before in lines[number]
        lines[number] = lines[number].replace(before, after)
        document["files"]["/proc/self/mountinfo"] = "".join(lines)

    return change


def number(document: dict[str, Any]) -> str:
    line = next(line for line in document["files"]["/proc/self/mountinfo"].splitlines() if f" {MOUNT} " in line)
    return str(line.split()[2])


def absent(section: str, key: str) -> Change:
    return lambda document: document[section].__setitem__(key, {"error": "ENOENT"})


def hooks_gone(document: dict[str, Any]) -> None:
    document["excerpts"]["/proc/kallsyms"]["lines"] = BARE["excerpts"]["/proc/kallsyms"]["lines"]


def in_folder(path: str) -> Change:
    """Put the disk elsewhere below /sys/devices."""
    return lambda document: document["links"].__setitem__(f"/sys/dev/block/{number(document)}", f"../../devices/{path}")


def over(name: str, **files: str) -> Change:
    """Put a virtual block device between the mount and the disk."""

    def change(document: dict[str, Any]) -> None:
        below, link = number(document), "/sys/dev/block/253:9"
        usage = document["files"][f"/run/udev/data/b{below}"]
        mountinfo(f" {below} ", " 253:9 ")(document)
        document["links"][link] = f"../../devices/virtual/block/{name}"
        document["listings"][f"{link}/slaves"] = ["nvme0n1"]
        document["files"][f"{link}/slaves/nvme0n1/dev"] = f"{below}\n"
        document["files"]["/run/udev/data/b253:9"] = usage
        for path in ("partition", "dm/uuid", "md/level", "integrity/device_is_integrity_capable"):
            value = files.get(path.replace("/", "_"))
            document["files"][f"{link}/{path}"] = {"error": "ENOENT"} if value is None else value + "\n"
        document["files"][f"/proc/fs/ext4/{name}/options"] = {"error": "ENOENT"}

    return change


def both(*changes: Change) -> Change:
    def change(document: dict[str, Any]) -> None:
        for item in changes:
            item(document)

    return change


def test_with_everything_in_place_it_is_nvidia_fs_but_not_proven() -> None:
    found = taken(capable())
    assert (found.path, found.causes, found.gpu) == (NVIDIA_FS, (), False)


def test_the_bare_host_falls_back_for_all_reasons_in_order() -> None:
    found = taken(with_libcufile(BARE))
    assert found.path == COMPAT
    assert [cause.what for cause in found.causes] == [
        "the nvidia module is not loaded",
        "nvidia-fs is not loaded",
        "the loaded nvme has no hooks for nvidia-fs",
    ]
    assert all(cause.fix for cause in found.causes)


CASES: dict[str, tuple[Change, str, str]] = {
    "stock nvme": (hooks_gone, COMPAT, "the loaded nvme has no hooks for nvidia-fs"),
    "nvidia-fs not loaded": (absent("files", "/sys/module/nvidia_fs/version"), COMPAT, "nvidia-fs is not loaded"),
    "no devices": (
        lambda document: document["listings"].__setitem__("/dev/nvidia*", []),
        COMPAT,
        "there are no /dev/nvidia-fs* devices",
    ),
    "no driver": (absent("files", "/proc/driver/nvidia/version"), COMPAT, "the nvidia module is not loaded"),
    "data=journal": (
        mountinfo("data=ordered", "data=journal"),
        COMPAT,
        "ext4 on /mnt/nvme is mounted with data=journal",
    ),
    "btrfs": (mountinfo(" ext4 ", " btrfs "), COMPAT, "cuFile has no direct path for btrfs"),
    "overlay": (mountinfo(" ext4 ", " overlay "), COMPAT, "cuFile has no direct path for overlay"),
    "nfs over tcp": (
        both(mountinfo(" ext4 ", " nfs4 "), mountinfo("data=ordered", "proto=tcp")),
        COMPAT,
        "/mnt/nvme is mounted with proto=tcp",
    ),
    "dm-crypt": (over("dm-0", dm_uuid="CRYPT-LUKS2-0"), COMPAT, "dm-0 is a device-mapper device (CRYPT)"),
    "lvm": (over("dm-1", dm_uuid="LVM-x"), COMPAT, "dm-1 is a device-mapper device (LVM)"),
    "raid1": (over("md0", md_level="raid1"), COMPAT, "md0 is raid1, and nvidia-fs takes raid0 only"),
    "virtio": (in_folder("pci0000:00/0000:00:02.0/virtio1/block/vdb"), COMPAT, "vdb is no NVMe disk (virtio)"),
    "protection information": (
        lambda document: document["files"].__setitem__(
            f"/sys/dev/block/{number(document)}/integrity/device_is_integrity_capable", "1\n"
        ),
        COMPAT,
        "nvme0n1 is formatted with protection information",
    ),
    "nvme over tcp": (
        both(
            in_folder("virtual/nvme-fabrics/ctl/nvme1/nvme1n1"),
            lambda document: document["files"].__setitem__("/sys/class/nvme/nvme1/transport", "tcp\n"),
        ),
        COMPAT,
        "nvme1n1 is NVMe over tcp",
    ),
    "forced": (config(properties={"force_compat_mode": True}), COMPAT, "cufile.json forces compat mode"),
    "denied driver": (config(denylist={"drivers": ["nvme"]}), COMPAT, "denylist.drivers of cufile.json names nvme"),
    "denied mount": (config(denylist={"mounts": [MOUNT]}), COMPAT, "denylist.mounts of cufile.json names /mnt/nvme"),
    "denied filesystem": (
        config(denylist={"filesystems": ["ext4"]}),
        COMPAT,
        "denylist.filesystems of cufile.json names ext4",
    ),
    "no compat allowed": (
        both(hooks_gone, config(properties={"allow_compat_mode": False})),
        BROKEN,
        "the loaded nvme has no hooks for nvidia-fs",
    ),
    "no udev database": (
        lambda document: document["files"].__setitem__(f"/run/udev/data/b{number(document)}", {"error": "ENOENT"}),
        BROKEN,
        "udev has no ID_FS_USAGE for nvme0n1, so cuFileHandleRegister fails with 5027",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_thing_wrong_is_the_first_cause(case: str) -> None:
    change, path, cause = CASES[case]
    document = capable()
    change(document)
    found = taken(document)
    assert (found.path, found.causes[0].what) == (path, cause)
    assert found.causes[0].fix


def test_raid0_of_nvme_and_partitions_are_as_good_as_the_disk() -> None:
    document = capable()
    over("md0", md_level="raid0")(document)
    mountinfo("data=ordered", "data=ordered")(document)
    assert taken(document).path == NVIDIA_FS


def test_a_partition_is_judged_by_its_disk() -> None:
    facts = facts_from(capable())
    assert not isinstance(facts.storage.mounts, Unknown)
    root = facts.storage.mounts["/"]
    assert [cause.what for cause in path_of(facts, root).causes] == ["vda1 is no NVMe disk (virtio)"]


@pytest.mark.parametrize(("filesystem", "stack"), [("lustre", "lnet"), ("beegfs", "beegfs"), ("nfs", "rpcrdma")])
def test_network_filesystems_need_hooks_of_their_own_stack(filesystem: str, stack: str) -> None:
    document = capable()
    both(mountinfo(" ext4 ", f" {filesystem} "), mountinfo("data=ordered", "proto=rdma"))(document)
    assert taken(document).causes[0].what == f"the loaded {stack} has no hooks for nvidia-fs"
    document["excerpts"]["/proc/kallsyms"]["lines"].append(f"0000000000000000 T {HOOKS[stack][0]}\t[{stack}]")
    assert taken(document).path == NVIDIA_FS


def p2pdma(document: dict[str, Any]) -> None:
    config(properties={"use_pci_p2pdma": True})(document)
    document["excerpts"][f"/boot/config-{BARE['host']['uname']['release']}"]["lines"].append("CONFIG_PCI_P2PDMA=y")
    document["excerpts"]["/proc/kallsyms"]["lines"].append("0000000000000000 T pci_p2pdma_add_resource")
    params = document["files"]["/proc/driver/nvidia/params"]
    document["files"]["/proc/driver/nvidia/params"] = params.replace(
        'RegistryDwords: ""', 'RegistryDwords: "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"'
    )


def test_p2pdma_comes_before_nvidia_fs_where_it_is_asked_for() -> None:
    document = capable()
    p2pdma(document)
    assert taken(document).path == P2PDMA
    absent("files", "/sys/module/nvidia_fs/version")(document)
    assert taken(document).path == P2PDMA


def test_p2pdma_that_is_asked_for_in_vain_leaves_nvidia_fs() -> None:
    document = capable()
    config(properties={"use_pci_p2pdma": True})(document)
    assert taken(document).path == NVIDIA_FS
    hooks_gone(document)
    found = taken(document)
    assert found.path == COMPAT
    assert [cause.what for cause in found.causes] == [
        "this kernel was built without CONFIG_PCI_P2PDMA",
        "this kernel shows no pci_p2pdma_add_resource",
        "the nvidia module has no static BAR1",
        "the loaded nvme has no hooks for nvidia-fs",
    ]


def driver(text: str) -> Change:
    return lambda document: document["files"].__setitem__(
        "/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {text}\n"
    )


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (driver("x86_64 Kernel Module  580.159.04  Release Build"), "the driver is not of the open flavour"),
        (driver("Open Kernel Module for x86_64  550.163.01  x"), "driver 550.163.01 is older than 565.47"),
        (
            in_folder("virtual/nvme-subsystem/nvme-subsys0/nvme0n1"),
            "nvme0n1 is not a local NVMe disk of its own (nvme-multipath)",
        ),
    ],
)
def test_what_p2pdma_needs(change: Change, cause: str) -> None:
    document = capable()
    both(p2pdma, hooks_gone, absent("files", "/sys/module/nvidia_fs/version"), change)(document)
    assert cause in [item.what for item in taken(document).causes]
    assert taken(document).path != P2PDMA


def test_without_libcufile_no_path_is_known() -> None:
    found = taken(BARE)
    assert isinstance(found.path, Unknown)
    assert "libcufile was not loaded" in found.path.reason


def test_what_is_not_known_is_not_guessed() -> None:
    document = capable()
    del document["excerpts"]["/proc/kallsyms"]
    found = taken(document)
    assert isinstance(found.path, Unknown)
    assert "/proc/kallsyms" in found.path.reason
    # One known obstacle decides, whatever else is unknown.
    absent("files", "/sys/module/nvidia_fs/version")(document)
    assert taken(document).path == COMPAT
