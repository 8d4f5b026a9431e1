"""What is stated about RHEL and its equals."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import cast

import pytest

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.platform import stack_platform_for, supported_systems
from gdsdeploy.platform.base import Flavour, KernelImage
from gdsdeploy.platform.rhel import Rhel
from gdsdeploy.repo.packages import Candidate

SYSTEMS = [f"{name}-{release}" for name in ("rhel", "rocky", "almalinux") for release in ("9", "10")]
RHEL_9 = cast("Rhel", stack_platform_for("rhel-9"))


def candidate(package: str, version: str = "1-1") -> Candidate:
    return Candidate(
        package,
        version,
        "x86_64",
        package,
        version,
        (),
        (),
        (),
        (),
        f"{package}.rpm",
        1,
        "0" * 64,
        "cuda",
        "",
        "",
        "cuda",
    )


@pytest.mark.parametrize("os", SYSTEMS)
def test_every_release_is_of_one_family(os: str) -> None:
    platform = stack_platform_for(os)
    assert (platform.kind, platform.family, platform.os) == ("rpm", "rhel", os)
    assert platform.architecture("aarch64") == "aarch64"


@pytest.mark.parametrize(
    ("pin", "open_stream", "proprietary_stream"),
    [
        ("580", "580-open", "580-dkms"),
        ("580.95.05", "580-open", "580-dkms"),
        ("==580.95.05", "580-open", "580-dkms"),
        ("= 580.95.05-1.el9", "580-open", "580-dkms"),
        ("==3:580.95.05-1.el9", "580-open", "580-dkms"),
        ("newest", "open-dkms", "latest-dkms"),
        (">=580", "open-dkms", "latest-dkms"),
        (">=580, <590", "open-dkms", "latest-dkms"),
        ("<580", "open-dkms", "latest-dkms"),
        (">=580.65.06, <581", "580-open", "580-dkms"),
        (">580.65.06, <=580.95.05", "580-open", "580-dkms"),
        (">= 580, < 580.95", "580-open", "580-dkms"),
        (">=570.1, <=580", "open-dkms", "latest-dkms"),
    ],
)
def test_a_pin_names_its_stream(pin: str, open_stream: str, proprietary_stream: str) -> None:
    assert RHEL_9.module_streams(pin, "open") == {"nvidia-driver": open_stream}
    assert RHEL_9.module_streams(pin, "proprietary") == {"nvidia-driver": proprietary_stream}
    assert not stack_platform_for("rocky-10").module_streams(pin, "open")


@pytest.mark.parametrize(
    ("version", "release", "first"),
    [
        ("5.14.0-503.15.1.el9_5", "5.14.0-503.15.1.el9_5.x86_64", "5.14.0-503.15.1"),
        ("6.12.0-55.9.1.el10_0", "6.12.0-55.9.1.el10_0.x86_64", "6.12.0-55.9.1"),
        ("5.14.0-687.42.1.el9_8.0.1", "5.14.0-687.42.1.el9_8.0.1.x86_64", "5.14.0-687.42.1"),
        ("5.14.0-687.42.1+2.1.el9_8_ciq", "5.14.0-687.42.1+2.1.el9_8_ciq.x86_64", "5.14.0-687.42.1+2.1"),
        ("1:6.18.35-68.127.amzn2023", "6.18.35-68.127.amzn2023.x86_64", "6.18.35-68.127"),
    ],
)
def test_names_of_a_kernel(version: str, release: str, first: str) -> None:
    names = RHEL_9.kernel_names(KernelImage(candidate("kernel", version), release, "kernel"))
    assert names[:2] == (first, release)
    assert {version, version.split(":")[-1]} == set(names[2:])


@pytest.mark.parametrize("name", ["rhel", "rocky", "almalinux", "oracle"])
def test_release_8_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(FleetInvalid, match=f"{name}-8 isn't supported: its Python is 3.6") as error:
        stack_platform_for(f"{name}-8")
    assert f"{name}-9, {name}-10" in (error.value.hint or "")
    assert f"{name}-8" not in supported_systems()


@pytest.mark.parametrize(
    ("package", "stack", "driver"),
    [
        ("kmod-nvidia-open-dkms", True, True),
        ("nvidia-kmod-common", True, True),
        ("nvidia-driver-cuda-libs", True, True),
        ("libnvidia-ml", True, True),
        ("libnvidia-nscq", True, True),
        ("nvidia-fabricmanager", True, True),
        ("nvidia-fabric-manager", True, True),
        ("nvidia-imex-570", True, True),
        ("cuda-drivers", True, True),
        ("nvidia-driver-assistant", False, False),
        ("nvidia-driver-common", True, True),
        ("nvidia-driver-selinux", True, False),
        ("libnvidia-container1", False, False),
        ("nvidia-container-toolkit", False, False),
        ("nvidia-fs-dkms", True, False),
        ("libcufile-12-9", True, False),
        ("gds-tools-13-0", True, False),
        ("nvidia-gds-12-9", True, False),
        ("cuda-toolkit-12-9", True, False),
        ("libcublas-13-0", True, False),
        ("nvlsm", True, False),
        ("dkms", True, False),
        ("kernel", True, False),
        ("kernel-modules-core", True, False),
        ("kernel-devel", True, False),
        ("kernel-devel-matched", True, False),
        ("kernel-headers", False, False),
        ("kernel-debug-core", False, False),
        ("kernel-rt", True, False),
        ("kernel-rt-kvm", False, False),
        ("kernel-64k-modules-core", True, False),
        ("kernel-64k-devel-matched", True, False),
        ("kernel-64k-debug-core", False, False),
        ("kernel-uek-core", True, False),
        ("kernel-uek-modules-core", True, False),
        ("kernel-uek-debug", False, False),
        ("kernel6.18", True, False),
        ("kernel6.18-devel", True, False),
        ("kernel6.18-headers", False, False),
        ("glibc", False, False),
        ("linux-firmware", False, False),
    ],
)
def test_what_is_locked_and_what_is_of_the_driver(package: str, stack: bool, driver: bool) -> None:
    choice = candidate(package)
    assert (RHEL_9.in_stack(choice), RHEL_9.follows_driver(choice)) == (stack, driver)


@pytest.mark.parametrize(
    ("flavour", "package", "out"),
    [
        ("open", "kmod-nvidia-open-dkms", False),
        ("open", "kmod-nvidia-latest-dkms", True),
        ("open", "kmod-nvidia-580.95.05-5.14.0-503.15.1", True),
        ("open", "akmod-nvidia", True),
        ("open", "cuda-drivers", True),
        ("open", "cuda-drivers-580", True),
        ("open", "cuda-12-9", True),
        ("open", "cuda-toolkit-12-9", False),
        ("open", "nvidia-driver-cuda", False),
        ("proprietary", "kmod-nvidia-latest-dkms", False),
        ("proprietary", "kmod-nvidia-open-dkms", True),
        ("proprietary", "nvidia-open-580", True),
    ],
)
def test_the_other_flavour_and_what_pulls_a_driver_stay_out(flavour: Flavour, package: str, out: bool) -> None:
    packaging = RHEL_9.packaging(candidate("kmod-nvidia-open-dkms"), flavour)
    patterns = (*packaging.excluded, *packaging.umbrellas)
    assert any(pattern.fullmatch(package) for pattern in patterns) is out


@pytest.mark.parametrize(
    ("package", "excluded"),
    [
        ("kmod-nvidia-open-dkms", True),
        ("cuda-drivers-580", True),
        ("nvidia-fabric-manager", True),
        ("nvidia-fs-dkms", True),
        ("libcufile-13-0", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("cuda-toolkit-12-9", False),
        ("kernel-core", False),
    ],
)
def test_what_a_host_refuses_outside_of_the_lock(package: str, excluded: bool) -> None:
    assert any(fnmatch(package, glob) for glob in RHEL_9.kept_out()) is excluded


def test_parts() -> None:
    parts = {name: RHEL_9.part(candidate(name)) for name in ("kernel-core", "kernel-devel", "nvidia-kmod-common")}
    assert parts == {"kernel-core": "kernel-image", "kernel-devel": "kernel-headers", "nvidia-kmod-common": "companion"}
    assert RHEL_9.part(candidate("libnvidia-ml")) == "driver-userland"
    assert RHEL_9.part(candidate("cuda-nvcc-12-9")) == "cuda"
    assert RHEL_9.cuda_version(candidate("libcufile-12-9")) == "12.9"
