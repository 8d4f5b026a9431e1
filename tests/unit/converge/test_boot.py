"""What a profile means for modules and boots by its mode, its RDMA and its key boot, for roles and for checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gdsdeploy.converge import boot
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.inventory import load_order
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.boot import arguments
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.model import profile_parts as model
from gdsdeploy.model.fleet import Profile
from tests.unit.converge.test_expectation import fleet, lock

NO_IOMMU = ["intel_iommu=off", "amd_iommu=off"]
MULTIPATH = "nvme_core.multipath=N"


def profile(value: Any, **more: Any) -> Profile:
    return Profile.model_validate({"os": "debian-13", "boot": value, **more})


@pytest.mark.parametrize(
    ("mode", "arch", "expected"),
    [
        ("p2pdma", "x86_64", [*NO_IOMMU, MULTIPATH]),
        ("nvidia-fs", "x86_64", NO_IOMMU),
        ("compat", "x86_64", []),
        ("p2pdma", "aarch64", []),
        ("nvidia-fs", "aarch64", []),
    ],
)
def test_auto(mode: str, arch: str, expected: list[str]) -> None:
    assert boot.arguments(profile("auto", mode=mode, arch=arch)) == expected
    assert boot.arguments(Profile.model_validate({"os": "debian-13", "mode": mode, "arch": arch})) == []


def test_what_the_profile_writes_counts_before_the_preset() -> None:
    own = {"preset": "auto", "arguments": {"nvme-core.multipath": "Y", "nokaslr": None, "hugepages": 8}}
    own_words = ["nvme-core.multipath=Y", "nokaslr", "hugepages=8"]
    assert boot.arguments(profile(own, mode="p2pdma")) == [*own_words, *NO_IOMMU]
    # One word about the IOMMU decides alone.
    for word in ("iommu", "intel_iommu"):
        settings = {"preset": "auto", "arguments": {word: "pt"}}
        assert boot.arguments(profile(settings, mode="p2pdma")) == [f"{word}=pt", MULTIPATH]


def test_parameters_that_a_boot_has_to_show() -> None:
    settings = {"arguments": {"nvme_core.io_timeout": 30}, "module_options": {"ib-core": {"x": "1"}, "empty": {}}}
    assert boot.expected_parameters(profile(settings)) == {"ib_core.x": "1", "nvme_core.io_timeout": "30"}
    assert boot.module_options(profile(settings)) == {"ib-core": {"x": "1"}}
    assert boot.expected_parameters(profile("none", mode="p2pdma")) == {"nvme_core.multipath": "N"}
    # An argument counts over modprobe.d, as modprobe has it.
    own = {"arguments": {"nvme_core.multipath": "Y"}}
    assert boot.expected_parameters(profile(own, mode="p2pdma")) == {"nvme_core.multipath": "Y"}


def test_a_host_expects_them() -> None:
    settings = {"preset": "auto", "module_options": {"nvme_core": {"io_timeout": "30"}}}
    expected = expectation(fleet(boot=settings), lock(), "gpu1")
    assert (expected.boot_arguments, expected.module_parameters) == (NO_IOMMU, {"nvme_core.io_timeout": "30"})
    assert from_json(expected.to_json()) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"arguments": {"intel_iommu": False}}, "write the value in quotes"),
        ({"arguments": {"root": "/dev/sda1"}}, "decides which system boots"),
        ({"arguments": {"init": "/bin/sh"}}, "decides which system boots"),
        ({"arguments": {"rd.break": None}}, "decides which system boots"),
        ({"arguments": {"systemd.unit": "rescue.target"}}, "decides which system boots"),
        ({"arguments": {"a-b": "1", "a_b": "2"}}, "listed twice"),
        ({"arguments": {"a b": "1"}}, "match pattern"),
        ({"arguments": {"a": "1 init=/bin/sh"}}, "match pattern"),
        ({"arguments": {"a": "1\n"}}, "match pattern"),
        ({"arguments": {"a": "$(id)"}}, "match pattern"),
        ({"arguments": {"a": "1;reboot"}}, "match pattern"),
        ({"arguments": {"a": 'x"'}}, "match pattern"),
        ({"module_options": {"nvidia": {"x": "1"}}}, "belong into driver.options"),
        ({"module_options": {"a": {"x": "1 y=2"}}}, "match pattern"),
        ({"module_options": {"a": {"x": True}}}, "write the value in quotes"),
        ({"module_options": {"a b": {"x": "1"}}}, "match pattern"),
        ("always", "Input should be"),
        ({"more": 1}, "Extra inputs"),
    ],
)
def test_what_is_refused(value: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        profile(value)


def test_hosts_that_do_not_choose_their_kernel_choose_no_arguments() -> None:
    with pytest.raises(ValidationError, match="own_kernel is false"):
        profile("auto", own_kernel=False)
    assert not profile("none", own_kernel=False).own_kernel


def test_fleet_file_and_hosts_refuse_the_same() -> None:
    assert model.FORBIDDEN_ARGUMENTS == arguments.FORBIDDEN
    assert model.FORBIDDEN_ARGUMENT_PREFIXES == arguments.FORBIDDEN_PREFIXES
    for word in boot.preset(profile("auto", mode="p2pdma")):
        assert arguments.objection(word) == ""


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("hopper", "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"),
        ("ada", "RMForceStaticBar1=1;RmForceDisableIomapWC=1;ForceP2P=0;"),
        (None, "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"),
    ],
)
def test_the_registry_of_a_profile_in_p2pdma_mode(gpu: str | None, words: str) -> None:
    profile = fleet(mode="p2pdma", gpu=gpu).profiles["gds"]
    assert boot.driver_options(profile) == {"NVreg_RegistryDwords": words}
    assert boot.driver_options(fleet(gpu=gpu).profiles["gds"]) == {}


def test_options_of_the_fleet_file_stay_and_are_completed() -> None:
    def registry(words: str, **profile: object) -> str:
        options = {"options": {"NVreg_RegistryDwords": words}}
        return boot.driver_options(fleet(mode="p2pdma", driver=options, **profile).profiles["gds"])[boot.REGISTRY]

    own = "rmforcestaticbar1=1; X=2"
    assert registry(own, gpu="ampere") == f"{own};RmForceDisableIomapWC=1;ForceP2P=0;"
    complete = "RMForceStaticBar1=1;RmForceDisableIomapWC=1"
    assert registry(complete) == complete


def test_grace_needs_no_options() -> None:
    profile = fleet(mode="p2pdma", arch="aarch64", gpu="grace-hopper").profiles["gds"]
    assert boot.driver_options(profile) == {}
    assert not boot.needs_p2pdma_options(profile)


@pytest.mark.parametrize(
    ("os", "driver", "kind"),
    [
        ("debian-13", "550", "dmabuf"),
        ("debian-13", {"version": "550", "flavour": "proprietary"}, "peermem"),
        ("rhel-9", {"flavour": "open"}, "dmabuf"),
        ("oracle-9", {"version": "580", "flavour": "proprietary"}, "peermem"),
    ],
)
def test_rdma_auto_is_dma_buf_where_it_serves(os: str, driver: object, kind: str) -> None:
    profile = Profile.model_validate({"os": os, "driver": driver, "rdma": "auto"})
    assert profile.rdma == kind


def test_peermem_is_no_module_of_modules_load_d() -> None:
    profile = fleet(rdma="peermem").profiles["gds"]
    assert load_order(profile, lock().targets["gds"]) == ["nvidia", "nvidia-fs"]


FLEET = """version: 1
profiles:
  gds: {{os: debian-13, storage: [{{mount: /mnt/nvme, path: compat}}], topology: {{{topology}}}}}
hosts: {{gpu1: gds}}
"""
GOLDEN = '{"version": 1, "label": "gds", "devices": {}, "pairs": {}}'


def test_the_golden_topology_beside_the_fleet_file_is_expected(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "fleet.yml").write_text(FLEET.format(topology="nvme: PXB, golden: gds.topology.json"))
    with pytest.raises(FleetInvalid, match=r"profiles.gds.topology.golden: .*json: cannot be read: No such"):
        expectation(load_fleet(folder / "fleet.yml"), lock(), "gpu1")
    (folder / "gds.topology.json").write_text(GOLDEN)
    expected = expectation(load_fleet(folder / "fleet.yml"), lock(), "gpu1").topology
    assert (expected["nvme"], expected["golden"]["label"]) == ("PXB", "gds")
    (folder / "gds.topology.json").write_text("{")
    with pytest.raises(FleetInvalid, match="not JSON"):
        expectation(load_fleet(folder / "fleet.yml"), lock(), "gpu1")
