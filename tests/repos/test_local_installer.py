"""NVIDIA's local installers: cuda-repo-*-local holds a flat repository, in a folder, with a key for each build."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gdsdeploy.converge.machine import keyrings
from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.fleetfile.load import load_fleet
from tests.commandline import run
from tests.repos.archive import Archive, Key
from tests.repos.conftest import Rhel, Ubuntu, Verb, lock, publish_all, signed_by
from tests.repos.cuda import CUDA_UBUNTU, flat
from tests.repos.rpmarchive import RpmArchive, sign

LOCAL = "cuda-repo-ubuntu2404-13-0-local"


def unpacked(folder: Path, key: Key) -> Path:
    """What the package puts into /var: the packages and a Release signed by the build's key."""
    publish_all(Archive(folder / LOCAL), [flat(CUDA_UBUNTU)], key, detached=True)
    return folder / LOCAL


def write_fleet(ubuntu: Ubuntu, uri: str, key: Key) -> None:
    ubuntu.write({"nvidia": f"uri: '{uri}', {signed_by(key)}", **ubuntu.own}, "os: ubuntu-24.04, driver: '580'")


@pytest.mark.parametrize("served", [False, True], ids=["folder", "mirror"])
def test_a_local_installer_resolves_from_its_folder_and_from_a_mirror(
    ubuntu: Ubuntu, other_key: Key, tmp_path: Path, *, served: bool
) -> None:
    root = unpacked(ubuntu.archive.root.parent if served else tmp_path / "var", other_key)
    uri = f"{ubuntu.server.uri}/{LOCAL}" if served else root.as_uri()
    write_fleet(ubuntu, uri, other_key)
    target = lock(ubuntu.fleet)
    assert target.driver.version == "580.95.05"
    (index,) = [index for index in target.indices if index.repository == "nvidia"]
    assert (index.uri, index.suite, index.signed_by) == (uri, "/", other_key.fingerprint)
    (driver,) = [package for package in target.packages if package.package == "nvidia-dkms-580-open"]
    assert (root / driver.file).is_file()
    assert run("lock", "--check", ubuntu.fleet) == 0
    brought = keyrings(load_fleet(ubuntu.fleet), target, ubuntu.fleet.parent)
    assert brought["/etc/apt/keyrings/gdsdeploy-nvidia.gpg"] == str(other_key.keyring)


def test_a_folder_that_this_machine_lacks_is_named_with_what_to_do(ubuntu: Ubuntu, tmp_path: Path, verb: Verb) -> None:
    folder = tmp_path / "var" / LOCAL
    write_fleet(ubuntu, folder.as_uri(), ubuntu.key)
    words = verb("lock", ubuntu.fleet, error=RepositoryUnusable).words
    assert f"repository nvidia: this machine has no folder {folder}" in words
    assert "unpack its package into the same folder" in words


def test_an_rpm_installer_is_used_by_the_signatures_of_its_packages(rhel: Rhel, other_key: Key, tmp_path: Path) -> None:
    """Its folder has the build's public key beside the packages, and no signed index."""
    root = tmp_path / "var" / "cuda-repo-rhel9-13-0-local"
    shutil.copytree(rhel.cuda.root, root)
    sign(root.glob("*.rpm"), other_key)
    (root / "0123ABCD.pub").write_text(other_key.armoured())
    RpmArchive(root, streams=rhel.cuda.streams).publish(None)
    choice = f"metadata: unsigned, why: a local installer, package_keys: [{other_key.fingerprint}]"
    nvidia = f"kind: rpm, uri: '{root.as_uri()}', keyring: '{root}/0123ABCD.pub', {choice}"
    rhel.write({"baseos": rhel.entry("baseos"), "nvidia": nvidia}, "os: rhel-9, driver: '580'")
    target = lock(rhel.fleet)
    assert target.modules == ("nvidia-driver:580-open",)
    (index,) = [index for index in target.indices if index.repository == "nvidia"]
    assert (index.uri, index.metadata) == (root.as_uri(), "unsigned")
