"""What the mode and the RDMA of a profile mean for its modules and their options."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.converge import boot
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.inventory import load_order
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.model.fleet import Profile
from tests.unit.converge.test_expectation import fleet, lock


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
