"""What a host is expected to be, and what it boots with by its mode, its RDMA and its key boot."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gdsdeploy.converge import boot
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.cufile import render as cufile_render
from gdsdeploy.cufile.render import FitTarget, render
from gdsdeploy.errors import FleetInvalid, LockStale
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.boot import arguments
from gdsdeploy.host.evidence import request_for
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.model import profile_parts as model
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Component, Kernel, Lock, LockedDriver, Package, Source, Target
from tests.unit.rdma_host import host as rdma_host


def package(name: str, needed_by: str) -> Package:
    return Package.model_validate(
        {
            "package": name, "version": f"{name}-1", "architecture": "amd64", "part": "support", "needed_by": needed_by,
            "file": f"pool/{name}.deb", "size": 1, "sha256": "0" * 64,
            "repository": "debian", "suite": "trixie", "component": "main",
        }
    )  # fmt: skip


def lock(**changes: Any) -> Lock:
    target = Target(
        os="debian-13",
        arch="x86_64",
        kernel=Kernel(release="6.12.94+deb13-amd64", version="6.12.94-1"),
        driver=LockedDriver(
            version="550.163.01",
            flavour="open",
            source_tree="/usr/src/nvidia-current-open-550.163.01",
            dkms_name="nvidia-current-open",
        ),
        nvidia_fs=Source(version="2.19.7", source_tree="/usr/src/nvidia-fs-2.19.7", dkms_name="nvidia-fs"),
        libcufile=Component(version="1.9.1.3"),
        gds_tools=Component(version="1.9.1.3"),
        rules=(),
        pins={},
        indices=(),
        packages=(package("libcufile0", "host"), package("gcc-14", "build"), package("linux-image", "both")),
    )
    return Lock(lock_version="1.0", digest="sha256:" + "1" * 64, targets={"gds": target.model_copy(update=changes)})


def fleet(**profile: Any) -> Fleet:
    return Fleet.model_validate(
        {
            "version": 1,
            "profiles": {"gds": {"os": "debian-13", "storage": [{"mount": "/mnt/nvme", "path": "compat"}], **profile}},
            "builders": {"build1": "gds"},
            "hosts": {"gpu1": "gds"},
        }
    )


def test_everything_comes_from_the_lock_and_the_profile() -> None:
    expected = expectation(Machine(fleet(builder="build1"), lock(), "gpu1"))
    text = render("gds", fleet().profiles["gds"], "1.9.1.3")
    assert expected.host == "gpu1"
    assert expected.profile == "gds"
    assert expected.os == "debian-13"
    assert expected.arch == "x86_64"
    assert expected.kernel_release == "6.12.94+deb13-amd64"
    assert (expected.driver_version, expected.driver_flavour) == ("550.163.01", "open")
    assert expected.driver_tree == "/usr/src/nvidia-current-open-550.163.01"
    assert (expected.mode, expected.rdma) == ("nvidia-fs", "none")
    assert (expected.nvidia_fs_version, expected.libcufile_version) == ("2.19.7", "1.9.1.3")
    assert expected.cufile_path == "/etc/cufile.json"
    assert expected.cufile_sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert expected.storage == [{"mount": "/mnt/nvme", "path": "compat"}]
    assert expected.lock_digest == "sha256:" + "1" * 64
    assert from_json(expected.to_json()) == expected


@pytest.mark.parametrize(
    ("modules", "packages"),
    [("auto", {"libcufile0", "linux-image"}), ("build", {"libcufile0", "linux-image", "gcc-14"})],
)
def test_a_host_that_has_to_build_has_what_builds(modules: str, packages: set[str]) -> None:
    versions = expectation(Machine(fleet(modules=modules), lock(), "gpu1")).packages
    assert set(versions) == packages
    assert versions["libcufile0"] == "libcufile0-1"


def test_a_mode_without_nvidia_fs_expects_none() -> None:
    assert expectation(Machine(fleet(mode="compat"), lock(nvidia_fs=None), "gpu1")).nvidia_fs_version == ""


def test_a_lock_without_the_profile() -> None:
    empty = Lock(lock_version="1.0", digest="sha256:" + "0" * 64, targets={})
    with pytest.raises(LockStale, match="nothing for profile gds"):
        expectation(Machine(fleet(), empty, "gpu1"))


def test_a_mount_that_no_scratch_file_may_be_made_on_says_so() -> None:
    mounts = [{"mount": "/mnt/nvme"}, {"mount": "/data", "path": "compat", "scratch": False}]
    expected = expectation(Machine(fleet(storage=mounts), lock(), "gpu1"))
    assert expected.storage == [
        {"mount": "/mnt/nvme", "path": "direct"},
        {"mount": "/data", "path": "compat", "scratch": "no"},
    ]
    assert request_for(expected).scratch == ("/mnt/nvme",)
    assert request_for(expected).mounts == ("/mnt/nvme", "/data")


def test_the_devices_that_a_host_must_have() -> None:
    devices = {
        "gpus": {"count": 8, "model": "H100"},
        "nics": {"count": 8, "driver": "mlx5_core", "link": 400},
        "nvme": 4,
    }
    expected = expectation(Machine(fleet(**devices), lock(), "gpu1"))
    assert expected.hardware == {**devices, "nvme": {"count": 4}}
    assert from_json(expected.to_json()) == expected
    assert expectation(Machine(fleet(), lock(), "gpu1")).hardware == {}


def test_an_expectation_from_before_there_were_devices_is_read() -> None:
    document = json.loads(expectation(Machine(fleet(), lock(), "gpu1")).to_json())
    del document["hardware"]
    assert from_json(json.dumps(document)).hardware == {}


@pytest.mark.parametrize(
    "hardware",
    [
        {"gpus": {}}, {"gpus": {"count": "8"}}, {"gpus": {"count": True}}, {"gpus": {"count": 8, "link": 400}},
        {"disks": {"count": 1}}, {"nics": {"count": 1, "driver": 5}}, {"nvme": 4}, {"nvme": None}, [],
    ],
)  # fmt: skip
def test_a_malformed_count_is_refused(hardware: Any) -> None:
    document = {**json.loads(expectation(Machine(fleet(), lock(), "gpu1")).to_json()), "hardware": hardware}
    with pytest.raises(ValueError, match="hardware"):
        from_json(json.dumps(document))


def test_one_render_of_cufile_json_for_all_hosts_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_from(rdma_host())
    renders: list[int] = []
    template = cufile_render._template()

    class Counting:
        def render(self, **values: Any) -> str:
            renders.append(1)
            return template.render(**values)

    monkeypatch.setattr(cufile_render, "_template", Counting)
    cufile_render._file.cache_clear()
    many = [fleet(), fleet(), fleet(cufile={"logging": {"level": "TRACE"}})]
    digests = [expectation(Machine(each, lock(), "gpu1")).cufile_sha256 for each in many for _ in range(10)]
    assert len(renders) == len(set(digests)) == 2
    # A fitted file names its host, so each host has its own; what asks for it again gets it as it is.
    profile, targets = fleet(fit={"addresses": "all"}).profiles["gds"], [FitTarget(name, facts) for name in ("a", "b")]
    texts = [render("gds", profile, "1.11.0", target) for target in targets * 10]
    assert len(renders) == 2 + len(set(texts)) == 4
    with pytest.raises(FleetInvalid):
        expectation(Machine(fleet(cufile={"logging": {"level": "NONE"}}), lock(), "gpu1"))


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
    assert not expectation(Machine(fleet(own_kernel=False), lock(), "gpu1")).own_kernel


def test_a_host_expects_them() -> None:
    settings = {"preset": "auto", "module_options": {"nvme_core": {"io_timeout": "30"}}}
    expected = expectation(Machine(fleet(boot=settings), lock(), "gpu1"))
    assert (expected.boot_arguments, expected.module_parameters) == (NO_IOMMU, {"nvme_core.io_timeout": "30"})
    assert from_json(expected.to_json()) == expected


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
    assert Machine(fleet(rdma="peermem"), lock(), "gpu1").loads == ["nvidia", "nvidia-fs"]


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
        expectation(Machine(load_fleet(folder / "fleet.yml"), lock(), "gpu1"))
    (folder / "gds.topology.json").write_text(GOLDEN)
    expected = expectation(Machine(load_fleet(folder / "fleet.yml"), lock(), "gpu1")).topology
    assert (expected["nvme"], expected["golden"]["label"]) == ("PXB", "gds")
    (folder / "gds.topology.json").write_text("{")
    with pytest.raises(FleetInvalid, match="not JSON"):
        expectation(Machine(load_fleet(folder / "fleet.yml"), lock(), "gpu1"))
