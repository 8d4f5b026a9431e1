"""Every check seen passing on a real provisioned host, and failing on the same host with one thing changed."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN
from tests.unit.host.checks.changes import (
    BARE,
    EXPECTATION,
    GOOD,
    HOSTS,
    appended,
    crc,
    file,
    findings,
    logged,
    module,
    rebuilt,
    tree,
    units,
    unloaded,
    verdicts,
)
from tests.unit.host.checks.faults import FAULTS
from tests.unit.later_evidence import complete

FINE = (PASS, NOT_APPLICABLE)
#: On a host without a GPU whose fleet asks for no RDMA, and accepts CPU memory on its mount.
NOTHING_TO_EXAMINE = {
    "container.view",
    "cufile.effective",
    "driver.parameters",
    "driver.services",
    "odirect.bypass:/mnt/nvme",
    "odirect.conditions:/mnt/nvme",
    "packages.dkms",
    "peermem.errors",
    "peermem.legacy",
    "peermem.mechanism",
    "peermem.usable",
    "rdma.addresses",
    "rdma.link",
    "rdma.registration",
    "topology.acs",
    "topology.bar1",
    "topology.distance",
    "topology.golden",
    "topology.iommu",
    "topology.link",
}


def test_a_provisioned_host_passes_everything() -> None:
    results = findings(GOOD)
    assert {name: finding.found for name, finding in results.items() if finding.verdict not in FINE} == {}
    assert {name for name, finding in results.items() if finding.verdict == NOT_APPLICABLE} == NOTHING_TO_EXAMINE
    registered = {check.id for check in checks.listed()}
    assert {name.partition(":")[0] for name in results} == registered, "every check ran"


def test_it_says_that_nothing_is_proven_without_a_gpu() -> None:
    text = findings(GOOD)["storage.path:/mnt/nvme"].found
    assert text.startswith("compat: the loaded nvme has no hooks for nvidia-fs")
    assert text.endswith("(not proven: this host has no GPU)")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_name(fault: str) -> None:
    change, failing = FAULTS[fault]
    document = copy.deepcopy(GOOD)
    change(document)
    results = findings(document)
    assert {name for name, finding in results.items() if finding.verdict == FAIL} == failing
    for finding in results.values():
        if finding.verdict not in FINE:
            assert finding.hint, finding.check
            assert finding.expected, finding.check
            assert finding.found, finding.check


def test_effective_values_are_compared_where_libcufile_names_them() -> None:
    text = findings(GOOD)["cufile.effective"].found
    assert (
        text == "none to compare: this host has no GPU, so cuFileDriverOpen returned 5011 before libcufile logged any"
    )
    document = copy.deepcopy(GOOD)
    logged("properties.use_compat_mode : true", "properties.max_direct_io_size_kb : 1024")(document)
    finding = findings(document)["cufile.effective"]
    assert (finding.verdict, finding.found) == (PASS, "2 values as intended, of 2 that libcufile logs")
    FAULTS["a value without effect"][0](document)
    finding = findings(document)["cufile.effective"]
    assert finding.found == "properties.per_buffer_cache_size_kb: 64 (the file has 1024)"


def test_a_gpu_and_no_values_cannot_be_judged() -> None:
    document = copy.deepcopy(GOOD)
    document["listings"]["/proc/driver/nvidia/gpus"] = ["0000:00:06.0"]
    finding = findings(document)["cufile.effective"]
    assert finding.verdict == UNKNOWN
    assert finding.found.startswith("cuFileDriverOpen returned 5011 before libcufile logged its values: cuInit Failed")


@pytest.mark.parametrize(("release", "logged_values"), [("1.15.1", 33), ("1.20.0", 63)])
def test_values_of_hosts_with_a_gpu_are_the_intended_ones(release: str, logged_values: int) -> None:
    document = json.loads((HOSTS / f"h100-libcufile-{release}.json").read_text())
    config = {"properties": {"allow_compat_mode": True, "io_batchsize": 128, "posix_pool_slab_count": [128, 64, 64]}}
    document["files"]["/etc/cufile.json"] = json.dumps(config)
    expectation = replace(EXPECTATION, libcufile_version=release)
    text = findings(document, expectation)["cufile.effective"].found
    assert text == f"3 values as intended, of {logged_values} that libcufile logs"


def test_what_runs_is_not_asked_of_a_host_without_a_kernel_of_its_own() -> None:
    expectation = replace(EXPECTATION, own_kernel=False)
    document = copy.deepcopy(GOOD)
    # As in a container: another kernel, nothing of the stack loaded, no modules of the kernel that runs.
    document["host"]["uname"]["release"] = "6.1.0-1-cloud-amd64"
    document["audits"]["running"] = {"error": "not this host's"}
    for name in ("nvidia", "nvidia_fs"):
        unloaded(name)(document)
    document["files"]["/proc/modules"] += "nouveau 1 0 - Live 0x0\n"
    units("ActiveState=active", "ActiveState=failed")(document)
    document["modules"].clear()
    assert set(verdicts(document).values()) >= {FAIL, UNKNOWN}
    results = findings(document, expectation)
    assert {name: finding.found for name, finding in results.items() if finding.verdict not in FINE} == {}
    elsewhere = {name for name, finding in results.items() if "doesn't choose its kernel" in finding.found}
    assert {results[name].verdict for name in elsewhere} == {NOT_APPLICABLE}
    names = {name for name, finding in results.items() if "doesn't choose its kernel" not in finding.found}
    assert {
        "packages.locked-versions",
        "packages.drift",
        "modules.next-boot",
        "cufile.rendered",
        "boot.autoload",
    } < names
    assert not names & {"kernel.running", "kernel.boot-default", "driver.loaded-version", "nvidia-fs.devices"}

    document["audits"]["next"]["results"] = []
    assert verdicts(document, expectation)["modules.next-boot"] == FAIL, (
        "the modules for the locked kernel are asked for"
    )


@pytest.mark.parametrize(
    ("runs", "locked", "line"),
    [
        ("6.17.0-1026-nvidia-64k", "6.14.0-33-generic-64k", "`kernel: {flavour: nvidia-64k}` in profile gds"),
        ("5.14.0-570.73.1.el9_6.aarch64+64k", "5.14.0-570.73.1.el9_6.aarch64", "`kernel: {flavour: 64k}`"),
        ("6.14.0-33-generic", "6.14.0-35-generic", ""),
        ("6.17.0-1026-nvidia", "6.12.94+deb13-amd64", ""),
    ],
)
def test_a_running_kernel_of_another_flavour_comes_with_the_line_that_keeps_it(
    runs: str, locked: str, line: str
) -> None:
    document = copy.deepcopy(GOOD)
    document["host"]["uname"]["release"] = runs
    finding = findings(document, replace(EXPECTATION, kernel_release=locked, profile="gds"))["kernel.running"]
    assert finding.verdict == FAIL
    assert (line in finding.hint) if line else ("flavour" not in finding.found + finding.hint)


def test_every_check_is_seen_failing() -> None:
    names = {name.partition(":")[0] for _, failing in FAULTS.values() for name in failing}
    names |= {name.partition(":")[0] for name, verdict in verdicts(BARE).items() if verdict == FAIL}
    # By tests of their own: they depend on what the fleet asks for, or need a host with a GPU.
    elsewhere = {"odirect.bypass", "odirect.conditions", "driver.services", "gpu.present"}
    elsewhere |= {check.id for check in checks.listed() if check.id.startswith(("peermem.", "rdma.", "topology."))}
    assert {check.id for check in checks.listed()} - names == elsewhere


def test_a_differing_symbol_is_named_with_both_versions() -> None:
    document = copy.deepcopy(GOOD)
    crc("nvidia_p2p_get_pages")(document)
    finding = findings(document)["nvidia-fs.symbol-versions"]
    total = sum(name.startswith("nvidia_p2p_") for name in document["modules"][module("nvidia_fs")]["imports"])
    assert finding.found == f"1 of {total} differ: nvidia_p2p_get_pages"
    theirs = GOOD["modules"][module("nvidia")]["exports"]["nvidia_p2p_get_pages"][0]
    assert finding.evidence == [
        f"nvidia_p2p_get_pages: nvidia-fs needs 0x{theirs ^ 1:08x}, the driver exports 0x{theirs:08x}"
    ]


def test_a_tree_on_the_host_is_compared_by_its_content() -> None:
    document = copy.deepcopy(GOOD)
    tree(document["modules"][module("nvidia_fs")]["provenance"]["tree"])(document)
    finding = findings(document)["nvidia-fs.driver-tree"]
    assert (finding.verdict, finding.found) == (
        PASS,
        f"built against nvidia 550.163.01 (open) in {EXPECTATION.driver_tree}",
    )
    assert "is not on this host" in findings(GOOD)["nvidia-fs.driver-tree"].found
    document["trees"].clear()
    assert verdicts(document)["nvidia-fs.driver-tree"] == UNKNOWN, "it is there, but was not read"


def test_old_nvidia_fs_imports_nothing_and_that_is_said() -> None:
    document = copy.deepcopy(GOOD)
    document["modules"][module("nvidia_fs")].update(imports={"module_layout": 1}, version="2.13.5")
    assert "looks the driver's symbols up" in findings(document)["nvidia-fs.symbol-versions"].found
    document["modules"][module("nvidia_fs")].update(version="2.19.7")
    assert findings(document)["nvidia-fs.symbol-versions"].verdict == FAIL


def test_a_file_that_is_not_what_is_loaded_proves_nothing_about_it() -> None:
    document = copy.deepcopy(GOOD)
    rebuilt("nvidia_fs")(document)
    results = verdicts(document)
    assert (results["nvidia-fs.driver-tree"], results["nvidia-fs.symbol-versions"]) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    ("mode", "nvidia_fs"), [("compat", ""), ("p2pdma", "")]
)  # fmt: skip
def test_a_mode_without_nvidia_fs_does_not_ask_for_it(mode: str, nvidia_fs: str) -> None:
    document = copy.deepcopy(GOOD)
    unloaded("nvidia_fs")(document)
    file("/etc/modules-load.d/gdsdeploy.conf", "nvidia\n")(document)
    results = findings(document, replace(EXPECTATION, mode=mode, nvidia_fs_version=nvidia_fs))
    # This host's driver and kernel are too old for P2PDMA, as the rules say.
    forbidden = {"stack.compatible"} if mode == "p2pdma" else set()
    assert {name for name, finding in results.items() if finding.verdict not in FINE} == forbidden
    assert {finding.verdict for name, finding in results.items() if name.startswith("nvidia-fs.")} == {NOT_APPLICABLE}
    assert results["nvidia-fs.driver-tree"].found == f"not needed: the mode is {mode}"


def test_peermem_where_the_fleet_asks_for_it() -> None:
    expectation = replace(EXPECTATION, rdma="peermem")
    stub = findings(GOOD, expectation)["peermem.usable"]
    assert stub.verdict == FAIL
    assert "is a stub" in stub.found
    assert "DMA-BUF" in stub.hint
    assert "a stub, built without OFED" in findings(GOOD)["peermem.usable"].found
    document = copy.deepcopy(GOOD)
    document["modules"][module("nvidia_peermem")]["imports"]["ib_register_peer_memory_client"] = 7
    assert "not loaded" in findings(document, expectation)["peermem.usable"].found
    appended("/proc/modules", "nvidia_peermem 1 0 - Live 0x0\n")(document)
    assert "not registered" in findings(document, expectation)["peermem.usable"].found
    document["listings"]["/sys/kernel/mm/memory_peers"] = ["nv_mem"]
    assert findings(document, expectation)["peermem.usable"].verdict == PASS
    assert findings(document, expectation)["boot.autoload"].verdict == UNKNOWN
    shown = document["commands"]["systemctl-units"]
    shown["stdout"] += "\nId=gds-peermem.service\nUnitFileState=disabled\n"
    assert findings(document, expectation)["boot.autoload"].found.startswith("nothing loads nvidia-peermem")
    shown["stdout"] = shown["stdout"].replace("UnitFileState=disabled\n", "UnitFileState=enabled\n")
    assert findings(document, expectation)["boot.autoload"].verdict == PASS


def test_dma_buf_needs_the_open_driver_and_a_kernel_that_has_it() -> None:
    expectation = replace(EXPECTATION, rdma="dmabuf")
    assert findings(GOOD, expectation)["peermem.usable"].verdict == PASS
    document = copy.deepcopy(GOOD)
    document["host"]["uname"]["release"] = "5.10.0-1-amd64"
    assert "older than 5.12" in findings(document, expectation)["peermem.usable"].found
    document = copy.deepcopy(GOOD)
    FAULTS["proprietary driver"][0](document)
    assert "proprietary" in findings(document, expectation)["peermem.usable"].found


@pytest.mark.parametrize("path", ["direct", "nvidia-fs", "p2pdma"])
def test_a_direct_path_that_is_not_there_fails_with_all_steps(path: str) -> None:
    storage = [{"mount": "/mnt/nvme", "path": path}]
    finding = findings(GOOD, replace(EXPECTATION, storage=storage))["storage.path:/mnt/nvme"]
    assert finding.verdict == FAIL
    assert finding.found == "compat: the loaded nvme has no hooks for nvidia-fs"
    assert finding.hint.startswith("Install nvme from MLNX_OFED or DOCA for this kernel")
    assert "set its path to compat" in finding.hint
    document = complete(copy.deepcopy(GOOD))
    hook = "0000000000000000 T nvme_v1_register_nvfs_dma_ops\t[nvme]"
    document["excerpts"]["/proc/kallsyms"]["lines"].append(hook)
    document["files"]["/proc/driver/nvidia-fs/modules"] = "nvme: 1\n"
    good = findings(document, replace(EXPECTATION, storage=storage))["storage.path:/mnt/nvme"]
    assert good.verdict == (FAIL if path == "p2pdma" else PASS)
    assert good.found.startswith("nvidia-fs")


GDSCHECK = HOSTS.parent / "gdscheck"


@pytest.mark.parametrize(
    ("recording", "agrees", "words"),
    [
        ("1.9.1.ngpu0.no-nvidia-fs.noconfig", True, "for a reason found here too"),
        ("1.15.1.json-badtype", False, "which nothing found here explains: json type mismatch"),
        ("1.9.1.no-nvfs.compat-false", False, "nvidia-fs driver is not loaded"),
        ("1.9.1.nvfs-version-2.3", False, "it sees nvidia-fs 2.3; loaded here is"),
        ("1.9.1.ngpu1.nvfs-2.28.proprietary-driver", False, "it sees the proprietary driver; found here: open"),
        ("1.9.1.ngpu1.no-nvidia-fs.noconfig", False, "it does not see nvidia-fs, which is loaded here"),
        ("1.20.0.ngpu1.nvfs-2.28.open-driver", False, "the nvme driver has no hooks for nvidia-fs"),
    ],
)
def test_gdscheck_is_held_against_the_other_findings(recording: str, agrees: bool, words: str) -> None:
    text, _, status = (GDSCHECK / f"gdscheck-p.libcufile-{recording}.txt").read_text().rstrip().rpartition("\nrc=")
    document = copy.deepcopy(GOOD)
    document["commands"]["gdscheck"].update(stdout=text, stderr="", status=int(status))
    finding = findings(document)["gdscheck.agrees"]
    assert (finding.verdict, words in finding.found) == (PASS if agrees else FAIL, True), finding


def test_a_cut_gdscheck_cannot_be_told() -> None:
    text, _, _ = (
        (GDSCHECK / "gdscheck-p.libcufile-1.9.1.ngpu1.nvfs-2.28.open-driver.txt").read_text().partition("GPU INFO")
    )
    document = copy.deepcopy(GOOD)
    document["commands"]["gdscheck"].update(stdout=text, stderr="", status=0)
    assert findings(document)["gdscheck.agrees"].verdict == UNKNOWN


@pytest.mark.parametrize(
    ("system", "verdict"), [("other-9", PASS), ("other-9.4", PASS), ("other-8", FAIL), ("other", FAIL)]
)
def test_a_system_is_named_with_its_minor_release_or_without(system: str, verdict: str) -> None:
    document = copy.deepcopy(GOOD)
    document["files"]["/etc/os-release"] = 'ID="other"\nVERSION_ID="9.4"\n'
    assert findings(document, replace(EXPECTATION, os=system))["os.release"].verdict == verdict
