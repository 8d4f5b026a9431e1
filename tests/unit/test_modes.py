"""From one mode to another: every step is what rendering and the roles would really do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.inventory import load_order
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Component, LockedDriver
from gdsdeploy.validate.mechanisms import Migration, migration
from tests.unit.test_expect import fleet, lock, package

OPEN = {"version": "580.95.05", "source_tree": "/usr/src/nvidia-580.95.05", "dkms_name": "nvidia"}


def planned(
    to: str, adapters: str, *, flavour: str = "open", libcufile: str = "1.15.1", **profile: object
) -> Migration:
    nvfs = package("nvidia-fs-dkms", "build").model_copy(update={"part": "nvidia-fs-source"})
    driver = LockedDriver(flavour=flavour, **OPEN)  # type: ignore[arg-type]
    made = lock(libcufile=Component(version=libcufile), packages=(nvfs,), driver=driver)
    found = fleet(**profile).profiles["gds"]
    return migration("gds", found, made.targets["gds"], to, adapters)  # type: ignore[arg-type]


def steps(found: Migration) -> dict[str, tuple[str, str, str]]:
    return {step.where: (step.before, step.after, step.by) for step in found.steps}


def test_what_is_there_already_takes_no_step() -> None:
    assert planned("nvidia-fs", "none") == Migration((), (), reboot=False)


def test_to_p2pdma() -> None:
    found = planned("p2pdma", "none")
    made = steps(found)
    assert made["profiles.gds.mode in the fleet file"] == ("nvidia-fs", "p2pdma", "you")
    assert made["package in the lock"] == ("nvidia-fs-dkms nvidia-fs-dkms-1", "", "lock")
    assert made["module loaded at boot"] == ("nvidia-fs", "", "provision")
    assert made["properties.use_pci_p2pdma in cufile.json"] == ("false", "true", "provision")
    assert "RMForceStaticBar1=1" in made["profiles.gds.driver.options in the fleet file"][1]
    assert made["modprobe.d on the hosts, then their initramfs"][1:] == ("options nvme_core multipath=N", "you")
    assert (found.reboot, found.obstacles) == (True, ())
    assert found.steps[-1].where == "reboot"


def test_options_that_are_there_are_no_step() -> None:
    given = {"options": {"NVreg_RegistryDwords": "RMForceStaticBar1=1;"}}
    assert not any("driver.options" in step.where for step in planned("p2pdma", "none", driver=given).steps)
    back = steps(planned("nvidia-fs", "none", driver=given, mode="p2pdma"))
    assert back["profiles.gds.driver.options in the fleet file"][1] == "", "and they go with the mode"


def test_what_stands_against_a_mode_is_said() -> None:
    assert planned("p2pdma", "none", flavour="proprietary").obstacles == (
        "the locked driver is proprietary: only the open flavour has static BAR1 as P2PDMA memory",
    )
    old = planned("p2pdma", "none", libcufile="1.9.1")
    assert any("1.9.1" in line for line in old.obstacles), "this libcufile has no such key"


def test_from_peermem_to_dma_buf_needs_no_reboot() -> None:
    found = planned("nvidia-fs", "dmabuf", rdma="peermem")
    made = steps(found)
    assert made["module loaded at boot"] == ("nvidia-peermem", "", "provision")
    assert made["properties.rdma_peer_type in cufile.json"] == ("nvidia_peermem", "dmabuf", "provision")
    assert not found.reboot
    assert planned("nvidia-fs", "dmabuf", rdma="peermem", flavour="proprietary").obstacles


def test_to_peermem_asks_for_ofed() -> None:
    assert steps(planned("nvidia-fs", "peermem"))["profiles.gds.doca in the fleet file"][2] == "you"
    given = {"doca": ["doca-ofed"]}
    assert "profiles.gds.doca in the fleet file" not in steps(planned("nvidia-fs", "peermem", **given))


@pytest.mark.parametrize(
    ("os", "driver", "kind"),
    [
        ("debian-13", "550", "dmabuf"),
        ("debian-13", {"version": "550", "flavour": "proprietary"}, "peermem"),
        ("rhel-9", {"flavour": "open"}, "dmabuf"),
        ("rhel-8", "580", "peermem"),
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
    found = expectation(load_fleet(folder / "fleet.yml"), lock(), "gpu1").topology
    assert (found["nvme"], found["golden"]["label"]) == ("PXB", "gds")
    (folder / "gds.topology.json").write_text("{")
    with pytest.raises(FleetInvalid, match="not JSON"):
        expectation(load_fleet(folder / "fleet.yml"), lock(), "gpu1")
