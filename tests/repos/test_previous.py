"""The packages that a host had before: fetched once, kept whatever the archive does, and offered signed."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from gdsdeploy.errors import RollbackFailed
from gdsdeploy.host.apply.packages import dnf, managers
from gdsdeploy.host.apply.packages.managers import RETURNING
from gdsdeploy.model.lock import Component, Index, Kernel, LockedDriver, Package, Target
from gdsdeploy.repo.repository import verify
from gdsdeploy.rollout import previous_packages


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))


def deb(folder: Path, version: str) -> Path:
    """A package nvidia-small of dpkg's own."""
    root = folder / version
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: nvidia-small\nVersion: {version}\nArchitecture: amd64\nDepends: libc6 (>= 2.36)\n"
        "Maintainer: nobody <nobody@archive.example>\nDescription: small\n with a second line\n"
    )
    path = folder / f"nvidia-small_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, path], check=True, capture_output=True)
    return path


def locked(file: Path) -> Package:
    data, version = file.read_bytes(), file.name.split("_")[1]
    return Package(
        package="nvidia-small", version=version, architecture="amd64", part="driver-userland", needed_by="host",
        file=f"pool/{file.name}", size=len(data), sha256=hashlib.sha256(data).hexdigest(), repository="small",
        suite="stable", component="main",
    )  # fmt: skip


def target(root: Path, *packages: Package) -> Target:
    index = Index(
        repository="small", uri=f"file://{root}", suite="stable", components=("main",), date="2026-01-01T00:00:00Z",
        signed_by="A" * 40, host_keyring="/etc/apt/keyrings/gdsdeploy-small.gpg",
    )  # fmt: skip
    return Target(
        os="debian-13",
        arch="x86_64",
        kernel=Kernel(release="6.12.94+deb13-amd64", version="1"),
        driver=LockedDriver(version="550.1", flavour="open", source_tree="/usr/src/nvidia", dkms_name="nvidia"),
        nvidia_fs=None,
        libcufile=Component(version="1.9.1.3"),
        gds_tools=None,
        rules=(),
        pins={},
        indices=(index,),
        packages=packages,
    )


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    root = tmp_path / "archive"
    (root / "pool").mkdir(parents=True)
    for version in ("1", "2"):
        deb(tmp_path, version).rename(root / f"pool/nvidia-small_{version}_amd64.deb")
    return root


def test_only_what_the_new_lock_does_not_have_is_needed(archive: Path) -> None:
    one, two = (locked(archive / f"pool/nvidia-small_{version}_amd64.deb") for version in ("1", "2"))
    assert previous_packages.differing_packages([one], [two]) == [one]
    assert previous_packages.differing_packages([one], [one, two]) == []


def test_what_was_fetched_outlives_the_archive(archive: Path) -> None:
    one = locked(archive / "pool/nvidia-small_1_amd64.deb")
    lock_target = target(archive, one)
    messages: list[str] = []
    first = previous_packages.fetch_packages(lock_target, [one], messages.append)
    assert len(messages) == 1
    (archive / one.file).unlink()
    assert previous_packages.fetch_packages(lock_target, [one], messages.append) == first
    assert len(messages) == 1, "it was fetched once"
    assert hashlib.sha256(first[one].read_bytes()).hexdigest() == one.sha256


def test_what_cannot_be_had_is_listed_before_anything_is_changed(archive: Path) -> None:
    absent, changed = (locked(archive / f"pool/nvidia-small_{version}_amd64.deb") for version in ("1", "2"))
    (archive / absent.file).unlink()
    (archive / changed.file).write_bytes(b"x" * changed.size)
    with pytest.raises(RollbackFailed) as caught:
        previous_packages.fetch_packages(target(archive, absent, changed), [absent, changed], lambda _: None)
    assert re.search(r"nvidia-small 1: .*no such file", caught.value.message)
    assert re.search(r"nvidia-small 2: .*not the file that the signed index names", caught.value.message)
    assert "mirror" in str(caught.value.hint)


def test_the_offer_is_a_signed_repository_that_is_gone_afterwards(archive: Path, tmp_path: Path) -> None:
    one = locked(archive / "pool/nvidia-small_1_amd64.deb")
    lock_target = target(archive, one)
    files = previous_packages.fetch_packages(lock_target, [one], lambda _: None)
    with previous_packages.offer_packages(lock_target, files) as offer:
        assert offer is not None
        with tarfile.open(offer.archive) as tar:
            tar.extractall(tmp_path / "host", filter="data")
        listing = ["gpg", "--batch", "--with-colons", "--show-keys", str(offer.keyring)]
        shown = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
        fingerprint = next(line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:"))
        release = tmp_path / "host/dists/restore/InRelease"
        signed = verify(release.read_bytes(), keyring=offer.keyring, fingerprints=[fingerprint], name="InRelease")
        folder = offer.archive.parent
    assert not folder.exists(), "the key with which it was signed has gone, too"
    packages = (tmp_path / "host/dists/restore/stack/binary-amd64/Packages").read_bytes()
    assert hashlib.sha256(packages).hexdigest() in signed.text.decode()
    text = packages.decode()
    assert "Depends: libc6 (>= 2.36)\n" in text
    assert f"SHA256: {one.sha256}\n" in text
    place = next(line.removeprefix("Filename: ") for line in text.splitlines() if line.startswith("Filename: "))
    assert hashlib.sha256((tmp_path / "host" / place).read_bytes()).hexdigest() == one.sha256


def test_where_nothing_has_to_come_back_nothing_is_offered(archive: Path) -> None:
    with previous_packages.offer_packages(target(archive), {}) as offer:
        assert offer is None


def test_a_host_with_dnf_gets_the_files_by_the_names_that_it_looks_for(archive: Path) -> None:
    one = locked(archive / "pool/nvidia-small_1_amd64.deb").model_copy(update={"version": "3:1-1.el9"})
    lock_target = target(archive, one).model_copy(update={"os": "rhel-9"})
    files = previous_packages.fetch_packages(lock_target, [one], lambda _: None)
    (archive / one.file).unlink()
    with previous_packages.offer_packages(lock_target, files) as offer:
        assert offer is not None
        assert offer.keyring is None
        with tarfile.open(offer.archive) as tar:
            (member,) = tar
            content = tar.extractfile(member)
            assert content is not None
            assert hashlib.sha256(content.read()).hexdigest() == one.sha256
    assert f"{RETURNING}/{member.name}" == dnf.file_of(managers.Package("nvidia-small", "3:1-1.el9"))
