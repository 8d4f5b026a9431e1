"""Which path a mount takes: a real mount on a real (emulated) NVMe disk, with and without what a direct path needs."""

from __future__ import annotations

import copy

import pytest

from gdsdeploy.host.explain import COMPAT, NVIDIA_FS, P2PDMA, path_of
from gdsdeploy.host.explain import Path as Taken
from gdsdeploy.host.explain.nvidia_fs import HOOKS
from gdsdeploy.host.facts import Unknown, facts_from
from tests.unit.host.explain.capable_host import (
    BARE,
    H100,
    MOUNT,
    PROVISIONED,
    RELEASE,
    Document,
    absent,
    both,
    capable,
    config,
    file,
    hooks_gone,
    mountinfo,
    over,
    p2pdma,
    with_gpu,
    with_libcufile,
)


def path_at(document: Document, mount: str = MOUNT) -> Taken:
    facts = facts_from(document)
    assert not isinstance(facts.storage.mounts, Unknown)
    return path_of(facts, facts.storage.mounts[mount])


def test_with_everything_in_place_it_is_nvidia_fs_but_not_proven() -> None:
    result = path_at(capable())
    assert (result.path, result.causes, result.gpu, result.notes) == (NVIDIA_FS, (), False, ())


def test_with_a_real_gpu_it_stays_so() -> None:
    result = path_at(with_gpu(capable()))
    assert (result.path, result.causes, result.gpu, result.unseen) == (NVIDIA_FS, (), True, ())


def test_the_bare_host_falls_back_for_all_reasons_in_order() -> None:
    result = path_at(with_libcufile(BARE))
    assert result.path == COMPAT
    assert [(cause.id, cause.what) for cause in result.causes] == [
        ("nvidia.not-installed", "the nvidia module is not loaded: it is not installed"),
        ("nvidia-fs.not-installed", "nvidia-fs is not loaded: it is not installed"),
        ("nvme.no-hooks", "the loaded nvme has no hooks for nvidia-fs"),
    ]


def test_the_provisioned_host_lacks_the_hooks_alone() -> None:
    result = path_at(PROVISIONED)
    assert (result.path, [cause.id for cause in result.causes]) == (COMPAT, ["nvme.no-hooks"])
    assert result.causes[0].evidence == (
        "/proc/kallsyms: no nvme_v1_register_nvfs_dma_ops, no nvme_v2_register_nvfs_dma_ops",
    )


def test_a_real_machine_without_udev() -> None:
    result = path_at(H100, "/")
    later = ["ext4.not-ordered", "storage.no-nvme", "nvidia-fs.not-installed"]
    assert (result.path, [cause.id for cause in result.causes]) == ("broken", ["udev.no-database", *later])
    document = copy.deepcopy(H100)
    file("/run/udev/data/b254:0", "E:ID_FS_USAGE=filesystem\n")(document)
    result = path_at(document, "/")
    assert result.path == COMPAT
    assert [cause.id for cause in result.causes] == later
    assert "has no journal" in result.causes[0].what
    assert result.causes[2].evidence == ("/lib/modules: there is no such folder",)


def test_raid0_of_nvme_and_partitions_are_as_good_as_the_disk() -> None:
    document = capable()
    over("md0", md_level="raid0")(document)
    file("/proc/fs/ext4/md0/options", "data=ordered\n")(document)
    assert path_at(document).path == NVIDIA_FS


def test_a_partition_is_judged_by_its_disk() -> None:
    assert [cause.what for cause in path_at(capable(), "/").causes][-1] == "vda1 isn't an NVMe disk (virtio)"


@pytest.mark.parametrize(("filesystem", "stack"), [("lustre", "lnet"), ("beegfs", "beegfs"), ("nfs", "rpcrdma")])
def test_network_filesystems_need_hooks_of_their_own_stack(filesystem: str, stack: str) -> None:
    document = capable()
    both(mountinfo(" ext4 ", f" {filesystem} "), mountinfo("data=ordered", "proto=rdma"))(document)
    assert path_at(document).causes[0].what == f"the loaded {stack} has no hooks for nvidia-fs"
    document["excerpts"]["/proc/kallsyms"]["lines"].append(f"0000000000000000 T {HOOKS[stack][0]}\t[{stack}]")
    document["files"]["/proc/driver/nvidia-fs/modules"] += f"{stack}: 1\n"
    assert path_at(document).path == NVIDIA_FS


def test_p2pdma_comes_before_nvidia_fs_where_it_is_asked_for() -> None:
    document = capable()
    p2pdma(document)
    assert path_at(document).path == P2PDMA
    absent("files", "/sys/module/nvidia_fs/version")(document)
    assert path_at(document).path == P2PDMA


def test_p2pdma_that_may_be_taken_leaves_the_path_open() -> None:
    document = with_gpu(capable())
    p2pdma(document)
    assert path_at(document).path == NVIDIA_FS, "QEMU's host bridge is in no list"
    del document["excerpts"]["/proc/cpuinfo"]
    assert isinstance(path_at(document).path, Unknown)


def behind_a_switch(acs: int | None) -> Document:
    """GPU and disk below two ports of one PCIe switch on an Intel machine; ``acs``: the ports' control register."""
    document = with_gpu(capable())
    both(p2pdma, absent("files", "/sys/module/nvidia_fs/version"))(document)
    above = "pci0000:00/0000:00:01.0/0000:01:00.0"
    for address, port in (("0000:00:06.0", "0000:02:00.0"), ("0000:00:02.0", "0000:02:01.0")):
        document["links"][f"/sys/bus/pci/devices/{address}"] = f"../../../devices/{above}/{port}/{address}"
        folder = f"/sys/bus/pci/devices/{port}"
        document["listings"]["/sys/bus/pci/devices"].append(port)
        document["links"][folder] = f"../../../devices/{above}/{port}"
        document["files"].update({f"{folder}/vendor": "0x10b5\n", f"{folder}/device": "0x8796\n"})
        document["files"][f"{folder}/class"] = "0x060400\n"
        document["acs"][port] = {"error": "EACCES"} if acs is None else acs
    return document


def test_below_a_switch_no_host_bridge_is_in_the_way() -> None:
    assert path_at(behind_a_switch(acs=0)).path == P2PDMA
    assert path_at(behind_a_switch(acs=-1)).path == P2PDMA, "the switch has no access control at all"
    redirected = path_at(behind_a_switch(acs=0x1D))
    assert (redirected.path, redirected.causes[0].id) == (COMPAT, "platform.host-bridge")
    assert isinstance(path_at(behind_a_switch(acs=None)).path, Unknown)


@pytest.mark.parametrize(
    ("vendor", "device", "family", "kernel", "path"),
    [
        ("AuthenticAMD", 0x1480, 25, "6.12.1", P2PDMA),
        ("AuthenticAMD", 0x1480, 21, "6.12.1", COMPAT),
        ("GenuineIntel", 0x09A2, 6, "6.12.1", P2PDMA),
        ("GenuineIntel", 0x29C0, 6, "6.12.1", COMPAT),
        ("GenuineIntel", 0x29C0, 6, "7.1.0", None),
    ],
)
def test_host_bridges_of_the_kernels_list(vendor: str, device: int, family: int, kernel: str, path: str | None) -> None:
    document = with_gpu(capable())
    both(p2pdma, absent("files", "/sys/module/nvidia_fs/version"))(document)
    document["excerpts"]["/proc/cpuinfo"]["lines"] = [f"vendor_id\t: {vendor}", f"cpu family\t: {family}"]
    file("/sys/bus/pci/devices/0000:00:00.0/device", f"0x{device:04x}\n")(document)
    document["excerpts"][f"/boot/config-{kernel}"] = document["excerpts"][f"/boot/config-{RELEASE}"]
    document["host"]["uname"]["release"] = kernel
    outcome = path_at(document).path
    assert isinstance(outcome, Unknown) if path is None else outcome == path


@pytest.mark.parametrize(
    ("kernel", "nvidia_fs", "version", "path"),
    [
        ("6.12.94+deb13-amd64", "2.28.4", 1, NVIDIA_FS),
        ("6.12.94+deb13-amd64", "2.28.4", 2, COMPAT),
        ("6.17.0-5-generic", "2.28.2", 2, NVIDIA_FS),
        ("6.17.0-5-generic", "2.28.2", 1, COMPAT),
        ("6.18.1", "2.26.6", 1, NVIDIA_FS),
        ("6.18.1", "2.26.6", 2, COMPAT),
    ],
)
def test_hooks_of_nvme_come_in_two_versions(kernel: str, nvidia_fs: str, version: int, path: str) -> None:
    document = capable()
    hooks_gone(document)
    hook = f"0000000000000000 T nvme_v{version}_register_nvfs_dma_ops\t[nvme]"
    document["excerpts"]["/proc/kallsyms"]["lines"].append(hook)
    document["host"]["uname"]["release"] = kernel
    file("/sys/module/nvidia_fs/version", nvidia_fs + "\n")(document)
    result = path_at(document)
    assert (result.path, [cause.id for cause in result.causes]) == (
        path,
        [] if path == NVIDIA_FS else ["nvme.other-hooks"],
    )
    document["excerpts"]["/proc/kallsyms"]["lines"].append(hook.replace(f"v{version}", f"v{3 - version}"))
    assert path_at(document).path == NVIDIA_FS, "with both, either nvidia-fs is served"


def test_p2pdma_that_is_asked_for_in_vain_leaves_nvidia_fs() -> None:
    document = capable()
    config(properties={"use_pci_p2pdma": True})(document)
    assert path_at(document).path == NVIDIA_FS
    hooks_gone(document)
    result = path_at(document)
    assert result.path == COMPAT
    assert [cause.id for cause in result.causes] == [
        "kernel.no-p2pdma",
        "kernel.no-p2pdma-symbol",
        "cufile.no-p2pdma",
        "driver.no-static-bar1",
        "driver.iomap-wc",
        "nvme.no-hooks",
    ]


def test_without_libcufile_no_path_is_known() -> None:
    result = path_at(BARE)
    assert isinstance(result.path, Unknown)
    assert "libcufile was not loaded" in result.path.reason


def test_what_is_not_known_is_not_guessed() -> None:
    document = capable()
    del document["excerpts"]["/proc/kallsyms"]
    result = path_at(document)
    assert isinstance(result.path, Unknown)
    assert "/proc/kallsyms" in result.path.reason
    # One known obstacle decides, whatever else is unknown.
    absent("files", "/sys/module/nvidia_fs/version")(document)
    assert path_at(document).path == COMPAT


def test_evidence_of_before_proves_no_direct_path_and_no_other_cause() -> None:
    document = capable()
    for section in ("inodes", "features", "opens", "acs", "environment"):
        del document[section]
    result = path_at(document)
    assert isinstance(result.path, Unknown)
    assert result.causes == ()
    hooks_gone(document)
    result = path_at(document)
    assert (result.path, [cause.id for cause in result.causes]) == (COMPAT, ["nvme.no-hooks"])
