"""What is stated about operating systems, held against this machine where it can be."""

from __future__ import annotations

import fnmatch
import subprocess
from pathlib import Path
from typing import cast

import pytest

from gdsdeploy.platform import stack_platform_for
from gdsdeploy.platform.base import DpkgPlatform
from gdsdeploy.platform.debian import ARCHIVE_KEYS, KEYRING, SECURITY_KEYS, Debian

TRIXIE = cast("Debian", stack_platform_for("debian-13"))
NOBLE = cast("DpkgPlatform", stack_platform_for("ubuntu-24.04"))


def test_the_pinned_fingerprints_are_those_of_debians_keyring(tmp_path: Path) -> None:
    """The preset's keys are in the keyring that Debian ships, under the names that the preset gives them."""
    argv = ["gpg", "--homedir", str(tmp_path), "--batch", "--with-colons", "--show-keys", str(KEYRING)]
    listing = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    owners: dict[str, str] = {}
    primary = fingerprint = ""
    for line in listing.splitlines():
        kind, fields = line.split(":", 1)[0], line.split(":")
        if kind in ("pub", "sub"):
            primary = kind
        elif kind == "fpr" and primary == "pub":
            fingerprint = fields[9]
        elif kind == "uid":
            owners.setdefault(fingerprint, fields[9])
    assert set(ARCHIVE_KEYS) | set(SECURITY_KEYS) <= set(owners)
    assert all("Security" not in owners[key] for key in ARCHIVE_KEYS)
    assert all(owners[key].startswith("Debian Security Archive Automatic Signing Key") for key in SECURITY_KEYS)


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("linux-image-6.12.94+deb13-amd64", "6.12.94+deb13-amd64"),
        ("linux-image-6.1.0-50-amd64", "6.1.0-50-amd64"),
        ("linux-image-6.12.90+deb13.1-amd64", "6.12.90+deb13.1-amd64"),
        ("linux-image-6.12-amd64", None),
        ("linux-image-amd64", None),
        ("linux-image-6.12.94+deb13-arm64", None),
        ("linux-image-6.12.94+deb13-cloud-amd64", "6.12.94+deb13-cloud-amd64"),
        ("linux-image-6.12.94+deb13-rt-amd64", "6.12.94+deb13-rt-amd64"),
        ("linux-image-6.12.94+deb13-amd64-dbg", None),
        ("linux-image-6.12.94+deb13-amd64-unsigned", None),
        ("linux-headers-6.12.94+deb13-amd64", None),
    ],
)
def test_stock_kernels_are_told_from_others(package: str, release: str | None) -> None:
    assert TRIXIE.kernel_release(package, "x86_64") == release


def test_kernels_of_the_other_architecture() -> None:
    assert TRIXIE.kernel_release("linux-image-6.12.94+deb13-arm64", "aarch64") == "6.12.94+deb13-arm64"


@pytest.mark.parametrize(
    ("flavour", "name", "out"),
    [
        ("open", "nvidia-kernel-dkms", True),
        ("open", "nvidia-open-kernel-dkms", False),
        ("open", "nvidia-kernel-common", False),
        ("open", "nvidia-legacy-check", False),
        ("open", "nvidia-legacy-390xx-kernel-dkms", True),
        ("open", "nvidia-tesla-535-kernel-dkms", True),
        ("open", "libnvidia-tesla-cuda1", True),
        ("proprietary", "nvidia-kernel-dkms", False),
        ("proprietary", "nvidia-open-kernel-dkms", True),
        ("proprietary", "nvidia-open-kernel-support", True),
    ],
)
def test_the_other_flavour_and_other_series_stay_out(flavour: str, name: str, out: bool) -> None:
    patterns = TRIXIE.excluded("open" if flavour == "open" else "proprietary")
    assert any(pattern.fullmatch(name) for pattern in patterns) is out


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("linux-image-6.8.0-60-generic", "6.8.0-60-generic"),
        ("linux-image-6.11.0-26-generic", "6.11.0-26-generic"),
        ("linux-image-unsigned-6.8.0-60-generic", None),
        ("linux-image-6.8.0-60-lowlatency", "6.8.0-60-lowlatency"),
        ("linux-image-6.8.0-1013-aws", "6.8.0-1013-aws"),
        ("linux-image-6.17.0-1026-nvidia", "6.17.0-1026-nvidia"),
        ("linux-image-6.17.0-1026-nvidia-64k", None),
        ("linux-image-unsigned-6.17.0-1026-nvidia", None),
        ("linux-image-6.8.0-1013-azure-fde", None),
        ("linux-image-6.8.0-1013-raspi", None),
        ("linux-image-nvidia-hwe-24.04", None),
        ("linux-image-generic", None),
        ("linux-image-generic-hwe-24.04", None),
        ("linux-modules-6.8.0-60-generic", None),
    ],
)
def test_ubuntus_kernels_are_told_from_others(package: str, release: str | None) -> None:
    assert NOBLE.kernel_release(package, "x86_64") == release


def test_every_release_of_ubuntu_reads_its_own_suites() -> None:
    for os, codename in (("ubuntu-22.04", "jammy"), ("ubuntu-24.04", "noble"), ("ubuntu-26.04", "resolute")):
        presets = stack_platform_for(os).presets()
        assert presets["ubuntu"].suites == (codename, f"{codename}-updates")
        assert presets["ubuntu-security"].suites == (f"{codename}-security",)
        known_as = presets["ubuntu"].known_as
        assert known_as is not None
        assert known_as.fullmatch("noble-updates")
        assert not known_as.fullmatch("noble-security")


@pytest.mark.parametrize("os", ["debian-13", "ubuntu-24.04"])
@pytest.mark.parametrize(
    ("package", "out"),
    [
        ("cuda-drivers", True), ("cuda-drivers-580", True), ("nvidia-open-580", True), ("nvidia-driver-570-open", True),
        ("nvidia-dkms-open", True), ("nvidia-fs-dkms", True), ("nvidia-fabricmanager-580", True),
        ("libcufile-12-4", True), ("libnvidia-compute-580", True), ("gds-tools-13-0", True), ("nvidia-modprobe", True),
        ("libnvidia-cfg1-580", True), ("libnvidia-common-580", True), ("libnvidia-ml1", True),
        ("libnvidia-container1", False), ("libnvidia-container-tools", False),
        ("cuda-toolkit-12-4", False), ("nvidia-container-toolkit", False), ("linux-image-6.8.0-60-generic", False),
    ],
)  # fmt: skip
def test_what_could_move_the_stack_is_kept_out(os: str, package: str, out: bool) -> None:
    globs = stack_platform_for(os).kept_out
    assert any(fnmatch.fnmatchcase(package, glob) for glob in globs) is out


def test_packages_that_hold_a_driver_on_ubuntu() -> None:
    names = [
        "nvidia-dkms-570", "nvidia-dkms-570-open", "nvidia-dkms-580-server", "nvidia-dkms-580-server-open",
        "nvidia-dkms", "nvidia-dkms-open", "nvidia-driver-570-open", "nvidia-kernel-source-570-open",
    ]  # fmt: skip
    assert NOBLE.driver_packages("open", names) == [
        "nvidia-dkms-570-open", "nvidia-dkms-580-server-open", "nvidia-dkms-open",
    ]  # fmt: skip
    assert NOBLE.driver_packages("proprietary", names) == ["nvidia-dkms", "nvidia-dkms-570", "nvidia-dkms-580-server"]
