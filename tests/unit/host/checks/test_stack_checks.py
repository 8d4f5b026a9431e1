"""The driver's other halves and the host's health, beyond what the table of faults shows."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from tests.unit.host.checks.changes import EXPECTATION, GOOD, HOSTS, Change, Document, findings
from tests.unit.host.checks.faults import FAULTS
from tests.unit.host.checks.faults_stack import INSTALLED, NODES, XIDS, contained, dkms, kernel_log, options
from tests.unit.later_evidence import complete

GPU = complete(json.loads((HOSTS / "h100-libcufile-1.20.0.json").read_text()))


def finding(ident: str, *changes: Change) -> Finding:
    document = copy.deepcopy(GOOD)
    for change in changes:
        change(document)
    return findings(document)[ident]


@pytest.mark.parametrize(
    ("fault", "ident", "words"),
    [
        ("libcuda of another driver", "driver.userland", "libcuda.so.1 560.35.03 under driver 550.163.01"),
        ("no libcuda", "driver.userland", "the loader finds no libcuda.so.1 and no libnvidia-ml.so.1"),
        ("firmware of another driver", "driver.firmware", "none for driver 550.163.01; there is firmware for: 535.261"),
        (
            "an option that is not in effect",
            "driver.parameters",
            "EnableStreamMemOPs is 0, not 1 as in /etc/modprobe.d/s",
        ),
        ("a misspelt option", "driver.parameters", "(/etc/modprobe.d/site.conf): the loaded driver has no such option"),
        ("the kernel had an oops", "kernel.taints", "the kernel had an oops"),
        ("a GPU fell off the bus", "driver.errors", "Xid 79 on 0000:3b:00"),
        ("a GPU has memory errors", "driver.errors", "Xid 48 on 0000:3b:00"),
        (
            "DKMS did not build nvidia-fs",
            "packages.dkms",
            f"nvidia-fs is not installed for {EXPECTATION.kernel_release}",
        ),
    ],
)
def test_what_a_finding_says(fault: str, ident: str, words: str) -> None:
    assert words in finding(ident, FAULTS[fault][0]).found


def test_errors_of_programs_are_no_fault_of_the_driver() -> None:
    result = finding("driver.errors", kernel_log(XIDS[31]))
    assert (result.verdict, result.found) == (
        PASS,
        "no fault of this host: Xid 31 on 0000:3b:00: a program accessed GPU memory that is not mapped",
    )


def test_without_permission_nobody_can_tell() -> None:
    def denied(document: Document) -> None:
        document["commands"]["dmesg"].update(status=1, stdout="", stderr="dmesg: read kernel buffer failed\n")
        document["commands"]["journal"].update(status=1, stdout="", stderr="No journal files were opened\n")

    assert finding("driver.errors", denied).verdict == UNKNOWN


@pytest.mark.parametrize(
    "line",
    [
        "options nvidia NVreg_EnableStreamMemOPs=0x0",
        "options nvidia-current-open NVreg_EnableStreamMemOPs=0",
        "options nvidia NVreg_MemoryPoolSize=1\noptions nvidia NVreg_MemoryPoolSize=0",
        "options nvidia NVreg_UsePageAttributeTable=-1",
    ],
)
def test_options_in_effect(line: str) -> None:
    assert "UsePageAttributeTable: 4294967295" in GOOD["files"]["/proc/driver/nvidia/params"]
    assert finding("driver.parameters", options(line + "\n")).verdict == PASS
    assert finding("driver.parameters", options("options nvidia-drm modeset=1\n")).verdict == NOT_APPLICABLE


def test_dkms_has_everything() -> None:
    newer = INSTALLED.replace(EXPECTATION.kernel_release, "6.12.117+deb13-amd64")
    result = finding("packages.dkms", dkms(INSTALLED, newer, "zfs/2.3.1: added"))
    assert result.verdict == PASS
    assert result.found == f"nvidia-current-open for {EXPECTATION.kernel_release}, and for 1 other kernel"


@pytest.mark.parametrize(
    ("text", "verdict"), [('BUILD_EXCLUSIVE_KERNEL="^$"\n', NOT_APPLICABLE), ('AUTOINSTALL="yes"\n', FAIL)]
)
def test_dkms_may_know_what_it_is_told_not_to_build(text: str, verdict: str) -> None:
    """NVIDIA's rpms bring DKMS and the driver's source to hosts that receive their modules."""

    def recipe(document: Document) -> None:
        document["listings"]["/etc/dkms/nvidia*.conf"] = ["nvidia-open.conf"]
        document["files"]["/etc/dkms/nvidia-open.conf"] = text

    added = dkms("nvidia-open/550.163.01: added")
    assert finding("packages.dkms", added, recipe).verdict == verdict
    assert finding("packages.dkms", added).verdict == FAIL, "older evidence doesn't have the recipe"
    other = dkms("nvidia-open/550.163.01: added", "nvidia-fs/2.19.7: added")
    assert finding("packages.dkms", other, recipe).found.startswith("nvidia-fs is not installed")


def test_what_dkms_is_told_not_to_build_is_not_named_as_installed() -> None:
    def recipe(document: Document) -> None:
        document["listings"]["/etc/dkms/nvidia*.conf"] = ["nvidia-fs.conf"]
        document["files"]["/etc/dkms/nvidia-fs.conf"] = 'BUILD_EXCLUSIVE_KERNEL="^$"\n'

    rows = dkms(f"nvidia-open/550.163.01, {EXPECTATION.kernel_release}, x86_64: installed", "nvidia-fs/2.19.7: added")
    result = finding("packages.dkms", rows, recipe)
    assert (result.verdict, result.found) == (PASS, f"nvidia-open for {EXPECTATION.kernel_release}")


def test_an_older_kernel_beside_the_locked_one_has_not_moved_it() -> None:
    """rpm keeps several versions of kernels, in any order."""
    kernel = next(name for name in EXPECTATION.packages if name.startswith("linux-image"))

    def older_beside(document: Document) -> None:
        run = document["commands"]["dpkg-query"]
        run["stdout"] = f"{kernel}\t1.0-1\tamd64\tii \n{run['stdout']}"

    def lost(document: Document) -> None:
        run = document["commands"]["dpkg-query"]
        run["stdout"] = run["stdout"].replace(f"{kernel}\t{EXPECTATION.packages[kernel]}", f"{kernel}\t1.1-1")

    assert finding("packages.drift", older_beside).verdict == PASS
    moved = finding("packages.drift", lost, older_beside)
    assert moved.found.startswith(f"{kernel} moved from {EXPECTATION.packages[kernel]} to 1.0-1")


def switched(**states: str) -> Document:
    """The machine with a GPU, behind an NVSwitch, and with services in these states."""
    document = copy.deepcopy(GPU)
    place = "/sys/bus/pci/devices"
    document["listings"][place] = [*document["listings"][place], "0000:c1:00.0"]
    for name, value in (("vendor", "0x10de"), ("device", "0x22a3"), ("class", "0x068000"), ("numa_node", "0")):
        document["files"][f"{place}/0000:c1:00.0/{name}"] = value + "\n"
    document["files"][f"{place}/0000:c1:00.0/resource"] = ""
    for name in ("", "/driver", "/iommu_group"):
        document["links"][f"{place}/0000:c1:00.0{name}"] = {"error": "ENOENT"}
    shown = "\n\n".join(f"Id=nvidia-{name}.service\nActiveState={state}" for name, state in states.items())
    document["commands"]["systemctl-units"] = {"argv": [], "status": 0, "stdout": shown, "stderr": "", "seconds": 0.1}
    return document


def locked(*names: str) -> Expectation:
    return replace(EXPECTATION, packages={**EXPECTATION.packages, **dict.fromkeys(names, "1")})


@pytest.mark.parametrize(
    ("document", "expectation", "verdict", "words"),
    [
        (GOOD, locked("nvidia-persistenced"), NOT_APPLICABLE, "not needed: this host has no GPU"),
        (GPU, EXPECTATION, NOT_APPLICABLE, "the lock holds none, and there is no NVSwitch"),
        (switched(), EXPECTATION, FAIL, "this host has 1 NVSwitches, and the lock holds no fabric manager"),
        (switched(fabricmanager="failed"), locked("nvidia-fabricmanager-580"), FAIL, "fabricmanager.service: failed"),
        (switched(), locked("nvidia-fabric-manager"), FAIL, "fabricmanager.service: not known to systemd"),
        (
            switched(fabricmanager="active", persistenced="inactive"),
            locked("nvidia-fabricmanager", "nvidia-persistenced"),
            FAIL,
            "persistenced.service: inactive",
        ),
        (
            switched(fabricmanager="active", persistenced="active"),
            locked("nvidia-fabricmanager", "nvidia-persistenced"),
            PASS,
            "nvidia-persistenced.service, nvidia-fabricmanager.service active",
        ),
    ],
)
def test_services(document: Document, expectation: Expectation, verdict: str, words: str) -> None:
    result = findings(document, expectation)["driver.services"]
    assert result.verdict == verdict
    assert words in result.found


def test_imex_has_the_addresses_of_the_domain() -> None:
    document = switched(fabricmanager="active", imex="active")
    expectation = replace(locked("nvidia-fabricmanager", "nvidia-imex"), imex_nodes=["10.0.0.1", "10.0.0.2"])
    for nodes, verdict in (("10.0.0.2\n10.0.0.1\n", PASS), ("10.0.0.1\n", FAIL), ({"error": "ENOENT"}, FAIL)):
        document["files"]["/etc/nvidia-imex/nodes_config.cfg"] = nodes
        assert findings(document, expectation)["driver.services"].verdict == verdict, nodes
    words = "nodes_config.cfg has no addresses, not 10.0.0.1, 10.0.0.2"
    assert words in findings(document, expectation)["driver.services"].found
    assert findings(document, locked("nvidia-fabricmanager", "nvidia-imex"))["driver.services"].verdict == PASS


def test_a_container_is_told_everything_it_lacks() -> None:
    def bare(document: Document) -> None:
        contained(devices=[], udev=False)(document)
        document["environment"] = {"ENROOT_ROOTFS": "/x"}

    document = copy.deepcopy(GOOD)
    bare(document)
    result = findings(document, replace(EXPECTATION, rdma="dmabuf"))["container.view"]
    assert result.verdict == FAIL
    assert result.found == (
        "Enroot: no /dev/nvidia0 or /dev/nvidiactl, no /dev/nvidia-uvm, no /dev/nvidia-fs*, no /run/udev/data, "
        "no /dev/infiniband/rdma_cm, no /dev/infiniband/uverbs*"
    )
    assert finding("container.view", contained(devices=[*NODES, "nvidia-fs0"])).verdict == PASS
    assert finding("container.view").found == "not in a container"
