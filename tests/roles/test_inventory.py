"""What the controller renders is what the roles' specifications take: nothing more, nothing of another type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from gdsdeploy.builds.assign import BuildFacts, archive_of, want
from gdsdeploy.converge.inventory import RunFiles, inventory
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.model.profile_parts import ImexNode
from gdsdeploy.model.repository import Repository

ROOT = Path(__file__).parents[2]
#: Used alone, or with what only a rollout knows.
OTHERS = {"gds_packages", "gds_restore"}
ROLES = sorted({p.name for p in (ROOT / "roles").iterdir()} - OTHERS)
LAB = ROOT / "tests" / "golden" / "lab"


@pytest.fixture
def fleet() -> Fleet:
    return load_fleet(LAB / "fleet.yml")


@pytest.fixture
def lock() -> Lock:
    return lockfile.read(LAB / "gdsdeploy.lock")


def render(fleet: Fleet, lock: Lock) -> dict[str, dict[str, Any]]:
    """Host → its variables."""
    sources = RunFiles(
        fleet_dir=Path("/fleet"),
        program=Path("/cache/gdsdeploy-host.pyz"),
        modules=Path("/cache/modules"),
        expectations=dict.fromkeys(fleet.hosts, "{}\n"),
        cufile=dict.fromkeys(fleet.hosts, "{}\n"),
    )
    groups = inventory(fleet, lock, sources)["all"]["children"]
    return {name: values for group in groups.values() for name, values in group["hosts"].items()}


def self_building(fleet: Fleet) -> Fleet:
    profile = fleet.profiles["gds"].model_copy(update={"builder": None})
    return fleet.model_copy(update={"profiles": {"gds": profile}, "builders": {}})


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("alone", [False, True], ids=["builder", "self-building"])
def test_rendered_variables_fit_the_specification(role: str, alone: bool, fleet: Fleet, lock: Lock) -> None:
    spec = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text())
    options = spec["argument_specs"]["main"]["options"]
    for name, values in render(self_building(fleet) if alone else fleet, lock).items():
        variables = {key: value for key, value in values.items() if key.startswith(f"{role}_")}
        assert variables.keys() <= options.keys(), f"{name}: {role} does not know {variables.keys() - options.keys()}"
        result = ArgumentSpecValidator(options).validate(variables)
        assert not result.error_messages, f"{name}: {result.error_messages}"


def test_host_keys_are_checked_with_the_fleets_own_file(fleet: Fleet, lock: Lock) -> None:
    host = render(fleet, lock)["gpu1"]
    assert host["ansible_ssh_common_args"] == (
        "-o StrictHostKeyChecking=yes -o BatchMode=yes "
        '-o UserKnownHostsFile="/fleet/known_hosts" -o GlobalKnownHostsFile=/dev/null'
    )
    assert (host["ansible_host"], host["ansible_user"], host["ansible_become"]) == ("127.0.0.1", "admin", True)


def test_a_host_with_a_builder_needs_no_compiler(fleet: Fleet, lock: Lock) -> None:
    inventory = render(fleet, lock)
    host = {p["package"] for key, value in inventory["gpu1"].items() if key.endswith("_packages") for p in value}
    builder = {p["package"] for key, value in inventory["build1"].items() if key.endswith("_packages") for p in value}
    assert {
        "libcuda1",
        "libcufile0",
        "gds-tools",
        "linux-image-6.12.94+deb13-amd64",
        "nvidia-open-kernel-support",
    } <= host
    assert not host & {"dkms", "nvidia-fs-dkms", "nvidia-open-kernel-dkms", "linux-headers-6.12.94+deb13-amd64"}
    assert {"dkms", "nvidia-fs-dkms", "nvidia-open-kernel-dkms", "linux-headers-6.12.94+deb13-amd64"} <= builder
    assert not builder & {"libcufile0", "gds-tools"}
    assert inventory["gpu1"]["gds_modules_from"] == "receive"
    assert inventory["build1"]["gds_modules_from"] == "build"
    assert inventory["gpu1"]["gds_modules_archive"] == inventory["build1"]["gds_modules_archive"] != ""


def test_a_host_without_a_builder_builds_its_own(fleet: Fleet, lock: Lock) -> None:
    host = render(self_building(fleet), lock)["gpu1"]
    names = [p["package"] for key, value in host.items() if key.endswith("_packages") for p in value]
    assert {"dkms", "nvidia-fs-dkms", "libcufile0", "linux-headers-6.12.94+deb13-amd64"} <= set(names)
    assert len(names) == len(set(names)), "a package belongs to one role"
    assert (host["gds_modules_from"], host["gds_modules_archive"]) == ("build", "")


def with_companions(fleet: Fleet, companions: tuple[str, ...], **profile: Any) -> Fleet:
    changed = fleet.profiles["gds"].model_copy(update={"companions": companions, **profile})
    node = ImexNode(domain="rack1", address="10.0.0.1") if "imex" in companions else None
    host = fleet.hosts["gpu1"].model_copy(update={"imex": node})
    return fleet.model_copy(update={"profiles": {"gds": changed}, "hosts": {**fleet.hosts, "gpu1": host}})


def test_a_host_in_an_imex_domain_gets_its_nodes_and_a_channel(fleet: Fleet, lock: Lock) -> None:
    hosts = render(with_companions(fleet, ("imex",)), lock)
    usual = render(fleet, lock)["gpu1"]
    assert hosts["gpu1"]["gds_driver_imex_nodes"] == hosts["gpu1"]["gds_preflight_imex_nodes"] == ["10.0.0.1"]
    assert hosts["gpu1"]["gds_driver_options"] == {**usual["gds_driver_options"], "NVreg_CreateImexChannel0": "1"}
    assert (usual["gds_driver_imex_nodes"], "NVreg_CreateImexChannel0" in usual["gds_driver_options"]) == ([], False)
    assert hosts["build1"]["gds_preflight_driver_version"] == "", "nothing runs on a builder"
    driver = fleet.profiles["gds"].driver.model_copy(update={"options": {"NVreg_CreateImexChannel0": 0}})
    own = render(with_companions(fleet, ("imex",), driver=driver), lock)["gpu1"]
    assert own["gds_driver_options"]["NVreg_CreateImexChannel0"] == "0", "the fleet file decides"


def test_nvlsm_finds_its_module(fleet: Fleet, lock: Lock) -> None:
    host = render(with_companions(fleet, ("nvlink5",)), lock)["gpu1"]
    assert host["gds_driver_modules"] == ["nvidia", "nvidia-fs", "ib_umad"] == host["gds_modules_loaded"]
    assert host["gds_modules_names"] == ["nvidia", "nvidia-fs"], "the kernel has it: it isn't built"


def test_a_host_without_a_kernel_of_its_own_is_not_booted_and_loads_nothing(fleet: Fleet, lock: Lock) -> None:
    profile = fleet.profiles["gds"].model_copy(update={"own_kernel": False})
    other = render(fleet.model_copy(update={"profiles": {"gds": profile}}), lock)["gpu1"]
    usual = render(fleet, lock)["gpu1"]
    assert (usual["gds_kernel_boot"], other["gds_kernel_boot"]) == (True, False)
    different = {key for key in usual if usual[key] != other[key]}
    assert different == {"gds_kernel_boot", "gds_preflight_unasked_kernel"}, "it gets all else"


def test_what_depends_on_the_driver_moves_with_it(fleet: Fleet, lock: Lock) -> None:
    inventory = render(fleet, lock)
    assert {"gds-tools", "libcufile0"} <= {entry["package"] for entry in inventory["gpu1"]["gds_driver_along"]}
    assert inventory["gpu1"]["gds_driver_along"] == inventory["gpu1"]["gds_cufile_packages"]
    assert inventory["build1"]["gds_driver_along"] == []
    leaving = {entry["package"] for entry in inventory["gpu1"]["gds_driver_leaving"]}
    assert leaving == {"nvidia-open-kernel-dkms", "nvidia-fs-dkms"}, "it may have built them before"
    assert inventory["build1"]["gds_driver_leaving"] == [], "all of a builder's comes in one transaction"
    for name in ("gpu1", "build1"):
        assert {"dkms", "libcuda1", "nvidia-fs-dkms"} <= set(inventory[name]["gds_driver_locked"])


def test_every_locked_package_of_a_machine_is_pinned(fleet: Fleet, lock: Lock) -> None:
    for name, values in render(fleet, lock).items():
        installed = {p["package"] for key, value in values.items() if key.endswith("_packages") for p in value}
        assert installed <= {p["package"] for p in values["gds_repo_pins"]}, name


def modules_archive(target: Target) -> Path:
    return archive_of(want(target, BuildFacts()), Path("/m"))


def test_modules_of_another_lock_have_another_name(lock: Lock) -> None:
    target = lock.targets["gds"]
    source = next(p for p in target.packages if p.part == "nvidia-fs-source")
    changed = tuple(p.model_copy(update={"sha256": "0" * 64}) if p is source else p for p in target.packages)
    other = target.model_copy(update={"packages": changed})
    assert modules_archive(target) != modules_archive(other)
    assert modules_archive(target) == modules_archive(target.model_copy())


def test_p2pdma_loads_no_nvidia_fs(fleet: Fleet, lock: Lock) -> None:
    profile = fleet.profiles["gds"].model_copy(update={"mode": "p2pdma"})
    host = render(fleet.model_copy(update={"profiles": {"gds": profile}}), lock)["gpu1"]
    assert host["gds_driver_modules"] == ["nvidia"]
    assert host["gds_modules_nvidia_fs_version"] == ""


def test_kernels_that_a_rule_refused_are_kept_out(fleet: Fleet, lock: Lock) -> None:
    denied = render(fleet, lock)["gpu1"]["gds_repo_deny"]
    assert {"linux-image-6.12.107+deb13-amd64", "linux-headers-6.12.107+deb13-amd64"} <= set(denied)
    # Only its headers are missing: no host can build for it, so nothing breaks.
    assert "linux-image-6.12.105+deb13-amd64" not in denied
    assert f"linux-image-{lock.targets['gds'].kernel.release}" not in denied


def test_a_repository_of_the_fleets_own_brings_its_key_and_offers_nothing_else(fleet: Fleet, lock: Lock) -> None:
    target = lock.targets["gds"]
    place = "/etc/apt/keyrings/gdsdeploy-cuda.gpg"
    index = target.indices[0].model_copy(update={"repository": "cuda", "host_keyring": place})
    lock = lock.model_copy(update={"targets": {"gds": target.model_copy(update={"indices": (index, *target.indices)})}})
    added = {"cuda": Repository(uri="https://mirror.example/cuda", keyring="/keys/cuda.gpg")}
    fleet = fleet.model_copy(update={"repositories": {**fleet.repositories, **added}})
    host = render(fleet, lock)["gpu1"]
    assert host["gds_repo_keys"] == [{"src": "/keys/cuda.gpg", "dest": place}]
    assert [entry["exclusive"] for entry in host["gds_repo_indices"]] == [True, *[False] * len(target.indices)]
