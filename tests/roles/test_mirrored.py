"""A fleet with a mirror: its one source and key in the originals' place, and nothing else changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from gdsdeploy.converge import plan_fleet
from gdsdeploy.converge.inventory import inventory
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.packages.dnf import render_repositories
from gdsdeploy.host.apply.packages.managers import Index
from gdsdeploy.host.model import schema
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import host_vars
from gdsdeploy.mirror.host_vars import HOST_KEY, HOST_KEYRING
from gdsdeploy.model.repository import Mirror

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tests" / "golden" / "lab"


def render(fleet_file: Path) -> dict[str, dict[str, Any]]:
    fleet, lock = load_fleet(fleet_file), lockfile.read(LAB / "gdsdeploy.lock")
    groups = plan_fleet.variables(inventory(fleet, lock, plan_fleet.write_run_files(fleet, lock, fleet_file.parent)))
    return {name: values for name, (_, values) in groups.items()}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "fleet.yml"
    path.write_text((LAB / "fleet.yml").read_text())
    return path


def test_the_mirror_takes_the_place_of_every_index(fleet: Path) -> None:
    before = render(fleet)
    mirror = {"uri": "http://mirror.example/gds/", "keyring": "keys/mirror.gpg"}
    fleet.write_text(yaml.safe_dump({**yaml.safe_load(fleet.read_text()), "mirror": mirror}))
    after = render(fleet)
    spec = yaml.safe_load((ROOT / "roles/gds_repo/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    for name, values in after.items():
        (index,) = values["gds_repo_indices"]
        assert (index["uri"], index["suite"]) == ("http://mirror.example/gds", "debian-13")
        assert index["components"] == ["stack", "system"]
        assert values["gds_repo_keys"] == [{"src": str(fleet.parent / "keys/mirror.gpg"), "dest": HOST_KEYRING}]
        assert index["host_keyring"] == HOST_KEYRING
        changed = {key for key in values if values[key] != before[name][key]}
        assert changed == {"gds_repo_indices", "gds_repo_keys"}, "pins and checksums stay the lock's"
        variables = {key: value for key, value in values.items() if key.startswith("gds_repo_")}
        assert not ArgumentSpecValidator(spec["options"]).validate(variables).error_messages


def test_the_lock_still_fits_the_fleet(fleet: Path) -> None:
    """A mirror is no other choice of packages."""
    mirror = {"uri": "file:///srv/gds", "keyring": "/srv/gds/gdsdeploy-mirror.gpg"}
    fleet.write_text(yaml.safe_dump({**yaml.safe_load(fleet.read_text()), "mirror": mirror}))
    lock = lockfile.read(LAB / "gdsdeploy.lock")
    before = lockfile.status(load_fleet(LAB / "fleet.yml"), lock)
    assert lockfile.status(load_fleet(fleet), lock) == before


@pytest.mark.parametrize(
    "mirror", [{"uri": "ftp://x", "keyring": "k"}, {"uri": "http://x"}, {"uri": "http://x", "keyring": ""}]
)
def test_half_a_mirror_is_refused_with_its_place(mirror: dict[str, str], fleet: Path) -> None:
    fleet.write_text(yaml.safe_dump({**yaml.safe_load(fleet.read_text()), "mirror": mirror}))
    with pytest.raises(FleetInvalid, match=r"fleet\.yml:\d+:\d+: mirror"):
        load_fleet(fleet)


@pytest.mark.parametrize("named", ["gdsdeploy-mirror.gpg", "gdsdeploy-mirror.asc"])
def test_rpm_hosts_get_their_own_repository_and_the_makers_keys(named: str) -> None:
    """Packages keep their makers' signatures, and rpm reads armoured keys alone."""
    target = lockfile.read(LAB / "gdsdeploy.lock").targets["gds"]
    keys = ("/etc/pki/rpm-gpg/a", "/usr/share/b", "/etc/pki/rpm-gpg/a")
    indices = tuple(target.indices[0].model_copy(update={"kind": "rpm", "host_keyring": key}) for key in keys)
    of_rpm = target.model_copy(update={"indices": indices, "os": "rocky-9"})
    mirror = Mirror(uri="http://mirror.example/gds/", keyring=named)
    brought = {"src": "/fleet/a.asc", "dest": keys[0]}
    variables = host_vars.variables(mirror, of_rpm, Path("/fleet"), [brought])
    (index,) = variables["gds_repo_indices"]
    assert index["uri"] == f"http://mirror.example/gds/rpm/rocky-9/{target.arch}"
    assert (index["host_keyring"], index["package_keys"]) == (HOST_KEY, ["/etc/pki/rpm-gpg/a", "/usr/share/b"])
    assert variables["gds_repo_keys"] == [{"src": "/fleet/gdsdeploy-mirror.asc", "dest": HOST_KEY}, brought]
    spec = yaml.safe_load((ROOT / "roles/gds_repo/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    assert (
        not ArgumentSpecValidator(spec["options"])
        .validate({"gds_repo_manager": "dnf", "gds_repo_pins": [], **variables})
        .error_messages
    )
    source = render_repositories([schema.load(Index, index, "index")], [])
    assert f"gpgkey=file://{HOST_KEY} file:///etc/pki/rpm-gpg/a file:///usr/share/b\n" in source
    of_apt = host_vars.variables(mirror, target, Path("/fleet"))
    assert of_apt["gds_repo_keys"] == [{"src": "/fleet/gdsdeploy-mirror.gpg", "dest": HOST_KEYRING}]
