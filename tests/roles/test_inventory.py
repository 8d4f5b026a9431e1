"""What the controller renders is what the roles' specifications take: nothing more, nothing of another type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from docs.gen.collection import spec
from gdsdeploy.builds.assign import BuildFacts, archive_of, want
from gdsdeploy.converge.desired import RESOURCES, desired_states, plain
from gdsdeploy.converge.inventory import inventory
from gdsdeploy.converge.machine import Machine, RunFiles
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.packages.dnf import render_repositories
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import host_sources
from gdsdeploy.mirror.host_sources import HOST_KEY, HOST_KEYRING
from gdsdeploy.model.fleet import Fleet, Mirror, Repository
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.model.profile_parts import ImexNode
from plugins.plugin_utils import options
from tests.pins.rendering import RUN_FILES, render, self_building, values_in

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


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("alone", [False, True], ids=["builder", "self-building"])
def test_rendered_variables_fit_the_specification(role: str, alone: bool, fleet: Fleet, lock: Lock) -> None:
    options = spec(ROOT / "roles" / role)["options"]
    for name, values in render(self_building(fleet) if alone else fleet, lock).items():
        variables = {key: value for key, value in values.items() if key.startswith(f"{role}_")}
        assert variables.keys() <= options.keys(), f"{name}: {role} does not know {variables.keys() - options.keys()}"
        result = ArgumentSpecValidator(options).validate(variables)
        assert not result.error_messages, f"{name}: {result.error_messages}"


@pytest.mark.parametrize("alone", [False, True], ids=["builder", "self-building"])
def test_roles_apply_what_the_plan_asks_for(alone: bool, fleet: Fleet, lock: Lock, monkeypatch: Any) -> None:
    """What a task makes of its role's variables is the desired state of the plan, but for files of the controller."""
    monkeypatch.setattr(options, "_schemas", registry.schemas)
    fleet = self_building(fleet) if alone else fleet
    for name, values in render(fleet, lock).items():
        for resource, state in desired_states(Machine(fleet, lock, name, RUN_FILES)).items():
            (applied,) = (one for one in RESOURCES if one.name == resource)
            kind = resource.partition(".")[0]
            names, notes = options.of_role(applied.role, options.specification(kind), values)
            found = options.checked(kind, {option: values[variable] for option, variable in names.items()})
            expected = {key: value for key, value in plain(state).items() if key not in applied.contents}
            assert {key: found[key] for key in expected} == expected, (name, resource)
            assert not notes


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
    assert inventory["gpu1"]["gds_modules_source"] == "receive"
    assert inventory["build1"]["gds_modules_source"] == "build"
    assert inventory["gpu1"]["gds_modules_archive"] == inventory["build1"]["gds_modules_archive"] != ""


def test_a_host_without_a_builder_builds_its_own(fleet: Fleet, lock: Lock) -> None:
    host = render(self_building(fleet), lock)["gpu1"]
    names = [p["package"] for key, value in host.items() if key.endswith("_packages") for p in value]
    assert {"dkms", "nvidia-fs-dkms", "libcufile0", "linux-headers-6.12.94+deb13-amd64"} <= set(names)
    assert len(names) == len(set(names)), "a package belongs to one role"
    assert (host["gds_modules_source"], host["gds_modules_archive"]) == ("build", "")


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
    assert different == {"gds_host_expectation", "gds_kernel_boot", "gds_preflight_unasked_kernel"}, "it gets all else"


def test_what_depends_on_the_driver_moves_with_it(fleet: Fleet, lock: Lock) -> None:
    inventory = render(fleet, lock)
    assert {"gds-tools", "libcufile0"} <= {entry["package"] for entry in inventory["gpu1"]["gds_driver_dependents"]}
    assert inventory["gpu1"]["gds_driver_dependents"] == inventory["gpu1"]["gds_cufile_packages"]
    assert inventory["build1"]["gds_driver_dependents"] == []
    leaving = {entry["package"] for entry in inventory["gpu1"]["gds_driver_superseded"]}
    assert leaving == {"nvidia-open-kernel-dkms", "nvidia-fs-dkms"}, "it may have built them before"
    assert inventory["build1"]["gds_driver_superseded"] == [], "all of a builder's comes in one transaction"
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
    profile, target = fleet.profiles["gds"].model_copy(update={"mode": "p2pdma"}), lock.targets["gds"]
    newer = target.model_copy(update={"libcufile": target.libcufile.model_copy(update={"version": "1.20.0.107"})})
    lock = lock.model_copy(update={"targets": {"gds": newer}})
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


# -- A fleet with a mirror: its one source and key in the originals' place, and nothing else changed.


def render_mirror(fleet_file: Path) -> dict[str, dict[str, Any]]:
    fleet, lock = load_fleet(fleet_file), lockfile.read(LAB / "gdsdeploy.lock")
    return values_in(inventory(fleet, lock, RunFiles(fleet_file.parent)))


@pytest.fixture
def fleet_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "fleet.yml"
    path.write_text((LAB / "fleet.yml").read_text())
    return path


def test_the_mirror_takes_the_place_of_every_index(fleet_path: Path) -> None:
    before = render_mirror(fleet_path)
    mirror = {"uri": "http://mirror.example/gds/", "keyring": "keys/mirror.gpg"}
    fleet_path.write_text(yaml.safe_dump({**yaml.safe_load(fleet_path.read_text()), "mirror": mirror}))
    after = render_mirror(fleet_path)
    options = spec(ROOT / "roles/gds_repo")["options"]
    for name, values in after.items():
        (index,) = values["gds_repo_indices"]
        assert (index["uri"], index["suite"]) == ("http://mirror.example/gds", "debian-13")
        assert index["components"] == ["stack", "system"]
        assert values["gds_repo_keys"] == [{"src": str(fleet_path.parent / "keys/mirror.gpg"), "dest": HOST_KEYRING}]
        assert index["host_keyring"] == HOST_KEYRING
        changed = {key for key in values if values[key] != before[name][key]}
        assert changed == {"gds_repo_indices", "gds_repo_keys"}, "pins and checksums stay the lock's"
        variables = {key: value for key, value in values.items() if key.startswith("gds_repo_")}
        assert not ArgumentSpecValidator(options).validate(variables).error_messages


def test_the_lock_still_fits_the_fleet(fleet_path: Path) -> None:
    """A mirror is no other choice of packages."""
    mirror = {"uri": "file:///srv/gds", "keyring": "/srv/gds/gdsdeploy-mirror.gpg"}
    fleet_path.write_text(yaml.safe_dump({**yaml.safe_load(fleet_path.read_text()), "mirror": mirror}))
    lock = lockfile.read(LAB / "gdsdeploy.lock")
    before = lockfile.status(load_fleet(LAB / "fleet.yml"), lock)
    assert lockfile.status(load_fleet(fleet_path), lock) == before


@pytest.mark.parametrize(
    "mirror", [{"uri": "ftp://x", "keyring": "k"}, {"uri": "http://x"}, {"uri": "http://x", "keyring": ""}]
)
def test_half_a_mirror_is_refused_with_its_place(mirror: dict[str, str], fleet_path: Path) -> None:
    fleet_path.write_text(yaml.safe_dump({**yaml.safe_load(fleet_path.read_text()), "mirror": mirror}))
    with pytest.raises(FleetInvalid, match=r"fleet\.yml:\d+:\d+: mirror"):
        load_fleet(fleet_path)


@pytest.mark.parametrize("named", ["gdsdeploy-mirror.gpg", "gdsdeploy-mirror.asc"])
def test_rpm_hosts_get_their_own_repository_and_the_makers_keys(named: str) -> None:
    """Packages keep their makers' signatures, and rpm reads armoured keys alone."""
    target = lockfile.read(LAB / "gdsdeploy.lock").targets["gds"]
    keys = ("/etc/pki/rpm-gpg/a", "/usr/share/b", "/etc/pki/rpm-gpg/a")
    indices = tuple(target.indices[0].model_copy(update={"kind": "rpm", "host_keyring": key}) for key in keys)
    of_rpm = target.model_copy(update={"indices": indices, "os": "rocky-9"})
    mirror = Mirror(uri="http://mirror.example/gds/", keyring=named)
    (index,), keyrings = host_sources.of_mirror(mirror, of_rpm, Path("/fleet"), {keys[0]: "/fleet/a.asc"})
    assert index.uri == f"http://mirror.example/gds/rpm/rocky-9/{target.arch}"
    assert (index.host_keyring, index.package_keys) == (HOST_KEY, ["/etc/pki/rpm-gpg/a", "/usr/share/b"])
    assert list(keyrings.items()) == [(HOST_KEY, "/fleet/gdsdeploy-mirror.asc"), (keys[0], "/fleet/a.asc")]
    source = render_repositories([index], [])
    assert f"gpgkey=file://{HOST_KEY} file:///etc/pki/rpm-gpg/a file:///usr/share/b\n" in source
    _, of_apt = host_sources.of_mirror(mirror, target, Path("/fleet"), {})
    assert of_apt == {HOST_KEYRING: "/fleet/gdsdeploy-mirror.gpg"}
