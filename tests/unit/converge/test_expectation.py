from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from gdsdeploy.converge.expectation import expectation
from gdsdeploy.cufile import render as cufile_render
from gdsdeploy.cufile.render import FitTarget, render
from gdsdeploy.errors import FleetInvalid, LockStale
from gdsdeploy.host.evidence import request_for
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.model.fleet import Fleet
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
    expected = expectation(fleet(builder="build1"), lock(), "gpu1")
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
    versions = expectation(fleet(modules=modules), lock(), "gpu1").packages
    assert set(versions) == packages
    assert versions["libcufile0"] == "libcufile0-1"


def test_a_mode_without_nvidia_fs_expects_none() -> None:
    assert expectation(fleet(mode="compat"), lock(nvidia_fs=None), "gpu1").nvidia_fs_version == ""


def test_a_lock_without_the_profile() -> None:
    empty = Lock(lock_version="1.0", digest="sha256:" + "0" * 64, targets={})
    with pytest.raises(LockStale, match="nothing for profile gds"):
        expectation(fleet(), empty, "gpu1")


def test_a_cufile_section_that_cannot_be_rendered() -> None:
    with pytest.raises(FleetInvalid, match=r"profiles\.gds\.cufile\.properties\.typo: unknown key"):
        expectation(fleet(cufile={"properties": {"typo": 1}}), lock(), "gpu1")


def test_a_mount_that_no_scratch_file_may_be_made_on_says_so() -> None:
    mounts = [{"mount": "/mnt/nvme"}, {"mount": "/data", "path": "compat", "scratch": False}]
    expected = expectation(fleet(storage=mounts), lock(), "gpu1")
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
    expected = expectation(fleet(**devices), lock(), "gpu1")
    assert expected.hardware == {**devices, "nvme": {"count": 4}}
    assert from_json(expected.to_json()) == expected
    assert expectation(fleet(), lock(), "gpu1").hardware == {}


def test_an_expectation_from_before_there_were_devices_is_read() -> None:
    document = json.loads(expectation(fleet(), lock(), "gpu1").to_json())
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
    document = {**json.loads(expectation(fleet(), lock(), "gpu1").to_json()), "hardware": hardware}
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
    digests = [expectation(each, lock(), "gpu1").cufile_sha256 for each in many for _ in range(10)]
    assert len(renders) == len(set(digests)) == 2
    # A fitted file names its host, so each host has its own; what asks for it again gets it as it is.
    profile, targets = fleet(fit={"addresses": "all"}).profiles["gds"], [FitTarget(name, facts) for name in ("a", "b")]
    texts = [render("gds", profile, "1.11.0", target) for target in targets * 10]
    assert len(renders) == 2 + len(set(texts)) == 4
    with pytest.raises(FleetInvalid):
        expectation(fleet(cufile={"logging": {"level": "NONE"}}), lock(), "gpu1")
