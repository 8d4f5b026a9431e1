"""The checks that count GPUs, adapters and disks: on recorded hosts, and on one with eight GPUs made from one."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from tests.unit.host.checks.changes import EXPECTATION, HOSTS, Document, findings
from tests.unit.host.checks.faults_hardware import PCI, lost_function, one_more
from tests.unit.later_evidence import complete

ONE = complete(json.loads((HOSTS / "h100-libcufile-1.20.0.json").read_text()))
FIRST = "0000:00:06.0"
ADDRESSES = [FIRST, *(f"0000:{bus:02x}:00.0" for bus in range(0x10, 0x17))]
NVIDIA = "/proc/driver/nvidia/gpus"


def expecting(**hardware: Any) -> Expectation:
    return replace(EXPECTATION, hardware=hardware)


def eight() -> Document:
    """The recorded host with seven more GPUs like its own, and what else NVIDIA's boards have."""
    document = copy.deepcopy(ONE)
    for address in ADDRESSES[1:]:
        one_more("0x030200", address=address)(document)
        document["listings"][NVIDIA].append(address)
        document["files"][f"{NVIDIA}/{address}/information"] = document["files"][f"{NVIDIA}/{FIRST}/information"]
    one_more("0x068000", address="0000:20:00.0")(document)
    one_more("0x040300", address="0000:10:00.1")(document)
    one_more("0x030200", address="0000:10:00.4", physical="0000:10:00.0")(document)
    return document


def judge(document: Document, check: str, **hardware: Any) -> Finding:
    return findings(document, expecting(**hardware))[check]


def test_only_physical_gpus_count() -> None:
    finding = judge(eight(), "gpu.present", gpus={"count": 8, "model": "h100"})
    assert (finding.verdict, finding.expected) == (PASS, "8 GPUs, model h100")
    assert finding.found == f"8 GPUs: {', '.join(ADDRESSES)}"


def test_a_missing_gpu_is_counted_and_the_others_are_named() -> None:
    document = eight()
    lost_function(ADDRESSES[3])(document)
    line = f"[ 812.1] NVRM: GPU {ADDRESSES[3]}: GPU has fallen off the bus."
    document["commands"]["dmesg"].update(status=0, stdout=f"{line}\n")
    finding = judge(document, "gpu.present", gpus={"count": 8})
    rest = [address for address in ADDRESSES if address != ADDRESSES[3]]
    assert finding.verdict == FAIL
    assert finding.found.startswith(f"expected 8, found 7: 1 missing; present: {', '.join(rest)}")
    assert line in finding.evidence
    assert "fallen off the bus" in finding.found
    assert finding.hint


def test_one_more_means_that_the_fleet_file_is_outdated() -> None:
    finding = judge(eight(), "gpu.present", gpus={"count": 7})
    assert (finding.verdict, finding.found.startswith("expected 7, found 8: ")) == (FAIL, True)
    assert f"profiles.{EXPECTATION.profile}.gpus in the fleet file" in finding.hint


def test_a_gpu_of_another_model_does_not_count_and_is_named() -> None:
    document = eight()
    document["files"][f"{NVIDIA}/{ADDRESSES[1]}/information"] = "Model: \t NVIDIA A100-SXM4-80GB\n"
    finding = judge(document, "gpu.present", gpus={"count": 8, "model": "H100"})
    assert finding.verdict == FAIL
    assert f"not counted: {ADDRESSES[1]} (NVIDIA A100-SXM4-80GB" in finding.found


@pytest.mark.parametrize(
    ("hardware", "verdict"),
    [
        ({"count": 8}, PASS),
        ({"count": 8, "model": "H100"}, UNKNOWN),
        ({"count": 9, "model": "H100"}, FAIL),
        ({"count": 7}, FAIL),
    ],
)
def test_without_the_driver_the_count_is_judged_and_the_model_is_not(hardware: dict[str, Any], verdict: str) -> None:
    document = eight()
    document["listings"][NVIDIA] = {"error": "ENOENT"}
    finding = judge(document, "gpu.present", gpus=hardware)
    assert finding.verdict == verdict
    if verdict == UNKNOWN:
        assert finding.found == f"8 GPUs may count; NVIDIA's driver doesn't run the GPU {FIRST}"


def adapters(*rates: str) -> Document:
    """Adapters with an RDMA port each: ``400 Gb/sec (4X NDR)``; an empty rate is a port without a link."""
    document = copy.deepcopy(ONE)
    document["listings"]["/sys/class/infiniband"] = []
    for number, rate in enumerate(rates):
        address, device = f"0000:{0x40 + number:02x}:00.0", f"mlx5_{number}"
        one_more("0x020700", "0x15b3", address)(document)
        document["links"][f"{PCI}/{address}/driver"] = "../../../bus/pci/drivers/mlx5_core"
        document["listings"][f"{PCI}/{address}/infiniband"] = [device]
        ports = f"/sys/class/infiniband/{device}/ports"
        document["listings"][ports] = ["1"]
        document["files"][f"{ports}/1/state"] = "4: ACTIVE\n" if rate else "1: DOWN\n"
        document["files"][f"{ports}/1/rate"] = (rate or "2.5 Gb/sec (1X SDR)") + "\n"
    return document


NDR, EDR = "400 Gb/sec (4X NDR)", "100 Gb/sec (4X EDR)"


@pytest.mark.parametrize(
    ("rates", "verdict", "words"),
    [
        ((NDR, NDR, EDR), PASS, "2 network adapters: 0000:40:00.0, 0000:41:00.0"),
        ((NDR, EDR), FAIL, "0000:41:00.0 (driver mlx5_core, 100 Gbit/s)"),
        ((NDR, ""), FAIL, "0000:41:00.0 (driver mlx5_core, no active port)"),
        ((NDR, NDR, NDR), FAIL, "expected 2, found 3"),
        ((NDR, "fast"), UNKNOWN, "2 network adapters may count"),
    ],
)
def test_adapters_count_by_driver_and_rate(rates: tuple[str, ...], verdict: str, words: str) -> None:
    devices = {"count": 2, "driver": "mlx5_core", "link": 400}
    finding = judge(adapters(*rates), "nic.present", nics=devices)
    assert finding.verdict == verdict
    assert words in finding.found


def test_without_keys_nothing_is_expected() -> None:
    for check in ("gpu.present", "nic.present", "nvme.present"):
        finding = judge(eight(), check)
        assert (finding.verdict, "the profile has no key" in finding.found) == (NOT_APPLICABLE, True)


def test_a_link_that_was_not_recorded_leaves_the_count_open() -> None:
    document = eight()
    del document["links"][f"{PCI}/0000:10:00.4/physfn"]
    assert judge(document, "gpu.present", gpus={"count": 9}).verdict == UNKNOWN


def test_an_unknown_driver_is_not_reported_as_none() -> None:
    document = eight()
    path = f"{PCI}/{FIRST}/driver"
    for link, words in (({"error": "EACCES"}, ""), ({"error": "ENOENT"}, ", no driver")):
        document["links"][path] = link
        (line,) = [line for line in judge(document, "gpu.present", gpus={"count": 8}).evidence if FIRST in line]
        assert line == f"/sys/bus/pci/devices/{FIRST}: NVIDIA H100 80GB HBM3{words}"
