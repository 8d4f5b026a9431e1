"""The lab's local installers, unpacked as on a host: the folder is a repository that `gdsdeploy lock` uses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gdsdeploy.host.apply.packages.aptsources import missing_stanzas, parse_sources
from gdsdeploy.host.apply.packages.managers import Index
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from gdslab.kit import cuda, deb, installer
from gdslab.kit.rpm import Rpm
from tests.commandline import run
from tests.repos import kitcontent, rpmstack
from tests.repos.conftest import Rhel, Ubuntu
from tests.repos.cuda import CUDA_UBUNTU, NOBLE, noble_suites
from tests.repos.stack import package

LOCAL = {"ubuntu-24.04": "cuda-repo-ubuntu2404-12-4-local", "rocky-9": "cuda-repo-rhel9-12-4-local"}


def locked(fleet: Path) -> Target:
    assert run("lock", fleet) == 0
    return lockfile.read(lockfile.beside(fleet)).targets["gds"]


def fingerprint(key: Path) -> str:
    argv = ["gpg", "--show-keys", "--with-colons", key]
    shown = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return next(line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:"))


@pytest.fixture
def debian_root(tmp_path: Path) -> Path:
    """The root of a host with the kit's package for apt; its packages are the kit's, with small files."""
    work = tmp_path / "work"
    packages = cuda.debs(kitcontent.content(work), cuda.Offer())
    deb.build(packages, tmp_path / "cuda", work / "build")
    file = installer.build_deb("ubuntu-24.04", packages, tmp_path / "cuda", tmp_path, work)
    assert file.name == f"{LOCAL['ubuntu-24.04']}_12.4.1-{cuda.DRIVER}-1_amd64.deb"
    subprocess.run(["dpkg-deb", "-x", file, tmp_path / "root"], check=True)
    return tmp_path / "root"


def test_the_package_for_apt_holds_a_repository_with_a_key_of_its_own(ubuntu: Ubuntu, debian_root: Path) -> None:
    folder = debian_root / "var" / LOCAL["ubuntu-24.04"]
    (keyring,) = folder.glob("cuda-*-keyring.gpg")
    assert keyring.name == f"cuda-{fingerprint(keyring)[-8:]}-keyring.gpg"
    ubuntu.publish(noble_suites([*NOBLE, package("libstdc++6", "14-20240412-0ubuntu1")]), CUDA_UBUNTU)
    ubuntu.write_fleet("driver: '550', kernel: '6.8'")
    signed = f"keyring: '{keyring}', fingerprints: [{fingerprint(keyring)}]"
    entry = f"  cuda: {{uri: '{folder.as_uri()}', suites: ['/'], {signed}}}"
    lines = ubuntu.fleet.read_text().splitlines()
    ubuntu.fleet.write_text("\n".join(entry if line.startswith("  cuda: ") else line for line in lines))
    target = locked(ubuntu.fleet)
    # One version of each package, as an installer has.
    assert (target.driver.version, target.libcufile.version) == (cuda.DRIVER, "1.9.1.3")
    assert target.nvidia_fs is not None
    assert target.nvidia_fs.version == cuda.NVIDIA_FS[-1]
    assert len(list(folder.glob("nvidia-fs-dkms_*.deb"))) == 1


def test_the_source_entry_that_the_package_brings_is_the_hosts_own(debian_root: Path) -> None:
    """apt takes each repository once, signed one way: nothing is added where the installer's entry is."""
    (path,) = (debian_root / "etc/apt/sources.list.d").iterdir()
    assert path.name == "cuda-ubuntu2404-12-4-local.list"
    (source,) = parse_sources(path.read_text(), str(path))
    assert source.uri == f"file:///var/{LOCAL['ubuntu-24.04']}"
    assert source.signed_by is not None
    assert Path(source.signed_by).name in {
        file.name for file in (debian_root / "var" / LOCAL["ubuntu-24.04"]).iterdir()
    }
    for uri in (source.uri, source.uri.replace("///", "/"), source.uri + "/"):
        assert missing_stanzas([source], [Index("cuda", uri, "/", [], "/k.gpg")]) == []
    other = Index("cuda", "file:///var/other", "/", [], "/k.gpg")
    assert [stanza.uri for stanza in missing_stanzas([source], [other])] == ["file:///var/other"]


def test_the_package_for_rpm_holds_signed_packages_and_an_unsigned_index(rhel: Rhel, tmp_path: Path) -> None:
    packages = [Rpm(own.name, own.version, own.arch) for own in rpmstack.CUDA]
    file = installer.build_rpm("rocky-9", packages, rhel.cuda.root, tmp_path, tmp_path / "work")
    assert file.name == f"{LOCAL['rocky-9']}-12.4.1_{cuda.DRIVER}-1.x86_64.rpm"
    (tmp_path / "root").mkdir()
    subprocess.run(["rpm2archive", file], check=True)
    subprocess.run(["tar", "-xzf", f"{file}.tgz", "-C", tmp_path / "root"], check=True)
    folder = tmp_path / "root/var" / LOCAL["rocky-9"]
    (key,) = folder.glob("*.pub")
    (entry,) = (tmp_path / "root/etc/yum.repos.d").iterdir()
    assert f"gpgkey=file:///var/{LOCAL['rocky-9']}/{key.name}\n" in entry.read_text()
    assert not list(folder.rglob("*.asc"))
    signed = f"keyring: '{rhel.key.keyring}', fingerprints: [{rhel.key.fingerprint}]"
    choice = f"metadata: unsigned, why: an installer, package_keys: [{fingerprint(key)}]"
    rhel.fleet.write_text(
        f"version: 1\n"
        f"repositories:\n"
        f"  baseos: {{kind: rpm, uri: '{rhel.server.uri}/baseos', {signed}}}\n"
        f"  nvidia: {{kind: rpm, uri: '{folder.as_uri()}', keyring: '{key}', {choice}}}\n"
        f"profiles:\n  gds: {{os: rhel-9, repositories: [baseos, nvidia], driver: newest}}\n"
        f"hosts:\n  gpu1: gds\n"
    )
    (index,) = [index for index in locked(rhel.fleet).indices if index.repository == "nvidia"]
    assert (index.metadata, index.package_keys) == ("unsigned", (fingerprint(key),))
