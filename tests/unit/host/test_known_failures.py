"""The rules that explain a failed build."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdsdeploy.host.build.run import refusing, subject
from gdsdeploy.host.model import compat

FS: Mapping[str, str] = {
    "driver": "550.163.01", "flavour": "open", "arch": "x86_64", "kernel": "6.12.94", "nvidia_fs_origin": "nvidia",
}  # fmt: skip
#: nvidia-fs → whether it builds on 6.1.176 and on 6.12.95, as it was measured.
MEASURED = {
    "2.12.4": (False, None), "2.14.13": (False, None), "2.15.3": (False, None), "2.16.1": (False, None),
    "2.17.0": (True, None), "2.17.5": (True, False), "2.18.3": (True, False), "2.19.7": (True, False),
    "2.20.5": (True, False), "2.22.3": (True, False), "2.23.1": (True, False), "2.24.2": (True, False),
    "2.25.7": (True, True), "2.26.6": (True, True), "2.27.3": (True, True), "2.28.2": (True, True),
    "2.28.4": (True, True),
}  # fmt: skip


def refused(combination: Mapping[str, str], about: str = "nvidia-fs") -> list[str]:
    return [rule.id for rule in refusing(about, combination)]


@pytest.mark.parametrize(("nvidia_fs", "builds"), MEASURED.items())
def test_what_was_measured_is_known(nvidia_fs: str, builds: tuple[bool, bool | None]) -> None:
    for kernel, expected in zip(("6.1.176", "6.12.95"), builds, strict=True):
        if expected is not None:
            assert (refused({**FS, "nvidia_fs": nvidia_fs, "kernel": kernel}) == []) is expected


def test_only_rules_about_a_build_explain_a_failed_one() -> None:
    subjects = {rule.id: subject(rule) for rule in compat.rules_with(())}
    assert subjects["driver-550-pci-resize"] == "driver"
    assert subjects["nvidia-fs-unsigned-offset"] == subjects["nvidia-fs-open-only"] == "nvidia-fs"
    others = ("nvidia-fs-vm-io", "libcufile-nvidia-fs-minimum", "nvidia-fs-peermem", "gpu-open-driver")
    assert {subjects[name] for name in others} == {""}


def test_the_driver_on_kernels_that_changed_below_it() -> None:
    for kernel, expected in (
        ("6.12.94", []),
        ("6.12.107", ["driver-550-pci-resize", "driver-pci-resize"]),
        ("6.1.176", []),
    ):
        assert refused({**FS, "kernel": kernel}, "driver") == expected
    assert refused({**FS, "kernel": "6.12.107", "driver": "580.95.05"}, "driver") == ["driver-pci-resize"]
    assert refused({**FS, "kernel": "6.12.107", "driver": "580.142"}, "driver") == []
    assert refused({**FS, "flavour": "proprietary", "nvidia_fs": "2.19.7", "kernel": "6.1.176"}) == [
        "nvidia-fs-open-only"
    ]


def test_the_kernels_of_2026_explain_a_failed_build() -> None:
    """A build doesn't know whose package the driver is from, so a rule about NVIDIA's own is named."""
    assert refused({**FS, "kernel": "7.2.3", "driver": "595.84"}, "driver") == ["driver-kernel-7.2"]
    assert refused({**FS, "kernel": "7.2.3", "driver": "615.71.09"}, "driver") == []
    old = {**FS, "kernel": "7.0.9", "driver": "580.126.20"}
    assert refused(old, "driver") == []
    assert refused({**old, "flavour": "proprietary"}, "driver") == ["driver-vma-write-locked"]
    assert refused({**FS, "kernel": "6.18.8", "nvidia_fs": "2.28.4"}) == ["nvidia-fs-kernel-6.18"]
    assert refused({**FS, "kernel": "6.18.8", "nvidia_fs": "2.29.4"}) == []


def test_debians_patched_source_is_told_from_upstreams() -> None:
    ours = {**FS, "nvidia_fs": "2.19.7", "nvidia_fs_origin": "debian"}
    assert refused(ours) == []
    assert refused({**ours, "nvidia_fs_origin": "nvidia"}) == ["nvidia-fs-unsigned-offset"]
