"""From one mode to another: every step is what rendering and the roles would really do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.converge import p2pdma
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.inventory import load_order
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Component, LockedDriver
from gdsdeploy.validate.mechanisms import Migration, migration
from tests.unit.converge.test_expectation import fleet, lock, package

OPEN = {"version": "580.95.05", "source_tree": "/usr/src/nvidia-580.95.05", "dkms_name": "nvidia"}


def planned(
    to: str, adapters: str, *, flavour: str = "open", libcufile: str = "1.15.1", **profile: object
) -> Migration:
    nvfs = package("nvidia-fs-dkms", "build").model_copy(update={"part": "nvidia-fs-source"})
    driver = LockedDriver(flavour=flavour, **OPEN)  # type: ignore[arg-type]
    changes = lock(libcufile=Component(version=libcufile), packages=(nvfs,), driver=driver)
    migration_plan = fleet(**profile).profiles["gds"]
    return migration("gds", migration_plan, changes.targets["gds"], to, adapters)  # type: ignore[arg-type]


def steps(migration_plan: Migration) -> dict[str, tuple[str, str, str]]:
    return {step.where: (step.before, step.after, step.by) for step in migration_plan.steps}


def test_what_is_there_already_takes_no_step() -> None:
    assert planned("nvidia-fs", "none") == Migration((), (), reboot=False)


def test_to_p2pdma() -> None:
    migration_plan = planned("p2pdma", "none")
    changes = steps(migration_plan)
    assert changes["profiles.gds.mode in the fleet file"] == ("nvidia-fs", "p2pdma", "you")
    assert changes["package in the lock"] == ("nvidia-fs-dkms nvidia-fs-dkms-1", "", "lock")
    assert changes["module loaded at boot"] == ("nvidia-fs", "", "provision")
    assert changes["properties.use_pci_p2pdma in cufile.json"] == ("false", "true", "provision")
    words = "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"
    assert changes["NVreg_RegistryDwords of nvidia in modprobe.d"] == ("", words, "provision")
    assert changes["nvme_core in modprobe.d"] == ("", "multipath=N", "provision")
    assert changes["kernel command line"][2] == "you"
    assert (migration_plan.reboot, migration_plan.obstacles) == (True, ())
    assert migration_plan.steps[-1].where == "reboot"


def test_kernel_arguments_are_provisions_where_the_profile_sets_them() -> None:
    changes = steps(planned("p2pdma", "none", boot="auto"))
    before, after, by = changes["kernel arguments"]
    assert (before, after, by) == (
        "intel_iommu=off amd_iommu=off", "intel_iommu=off amd_iommu=off nvme_core.multipath=N", "provision",
    )  # fmt: skip
    assert "kernel command line" not in changes
    assert "profiles.gds.boot in the fleet file" in steps(planned("p2pdma", "none"))


def test_options_of_the_fleet_file_stay_and_are_completed() -> None:
    driver = {"options": {"NVreg_RegistryDwords": "rmforcestaticbar1=1; X=2"}}
    changes = steps(planned("p2pdma", "none", driver=driver, gpu="ampere"))
    assert changes["NVreg_RegistryDwords of nvidia in modprobe.d"] == (
        "rmforcestaticbar1=1; X=2",
        "rmforcestaticbar1=1; X=2;RmForceDisableIomapWC=1;ForceP2P=0;",
        "provision",
    )
    back = steps(planned("nvidia-fs", "none", driver=driver, mode="p2pdma"))
    assert back["profiles.gds.driver.options in the fleet file"][1] == "", "and they go with the mode"
    assert back["nvme_core in modprobe.d"] == ("multipath=N", "", "provision")
    complete = {"options": {"NVreg_RegistryDwords": "RMForceStaticBar1=1;RmForceDisableIomapWC=1"}}
    assert not any("RegistryDwords" in step.where for step in planned("p2pdma", "none", driver=complete).steps)


def test_grace_needs_no_options() -> None:
    changes = steps(planned("p2pdma", "none", arch="aarch64", gpu="grace-hopper"))
    assert changes["profiles.gds.mode in the fleet file"][1] == "p2pdma"
    assert not [where for where in changes if "modprobe.d" in where or where == "kernel command line"]


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
    assert p2pdma.driver_options(profile) == {"NVreg_RegistryDwords": words}
    assert p2pdma.driver_options(fleet(gpu=gpu).profiles["gds"]) == {}


def test_what_stands_against_a_mode_is_said() -> None:
    assert planned("p2pdma", "none", flavour="proprietary").obstacles == (
        "the locked driver is proprietary: only the open flavour has static BAR1 as P2PDMA memory",
    )
    old = planned("p2pdma", "none", libcufile="1.9.1")
    assert any("1.9.1" in line for line in old.obstacles), "this libcufile has no such key"


def test_from_peermem_to_dma_buf_needs_no_reboot() -> None:
    migration_plan = planned("nvidia-fs", "dmabuf", rdma="peermem")
    changes = steps(migration_plan)
    assert changes["module loaded at boot"] == ("nvidia-peermem", "", "provision")
    assert changes["properties.rdma_peer_type in cufile.json"] == ("nvidia_peermem", "dmabuf", "provision")
    assert not migration_plan.reboot
    assert planned("nvidia-fs", "dmabuf", rdma="peermem", flavour="proprietary").obstacles


def test_to_peermem_asks_for_ofed() -> None:
    assert steps(planned("nvidia-fs", "peermem"))["profiles.gds.doca in the fleet file"][2] == "you"
    driver = {"doca": ["doca-ofed"]}
    assert "profiles.gds.doca in the fleet file" not in steps(planned("nvidia-fs", "peermem", **driver))


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
    migration_plan = expectation(load_fleet(folder / "fleet.yml"), lock(), "gpu1").topology
    assert (migration_plan["nvme"], migration_plan["golden"]["label"]) == ("PXB", "gds")
    (folder / "gds.topology.json").write_text("{")
    with pytest.raises(FleetInvalid, match="not JSON"):
        expectation(load_fleet(folder / "fleet.yml"), lock(), "gpu1")
