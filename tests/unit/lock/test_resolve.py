"""Choosing and solving, on package lists in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from gdsdeploy.errors import NoSolution
from gdsdeploy.lock.compat import load, shipped
from gdsdeploy.lock.resolve import Resolution, resolve
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.packages import Origin, PackageList, Universe
from tests.repos.dkmspackages import sources
from tests.repos.stack import (
    SURROUNDINGS,
    TRIXIE,
    Stanza,
    gds,
    kernel,
    open_driver,
    package,
    proprietary_driver,
    text,
    without,
)

KERNEL = ("linux-image", "linux-headers", "linux-kbuild")
DEBIAN = stack_platform_for("debian-13")


def universe(stanzas: Iterable[Stanza], *, origin: str = "debian") -> Universe:
    where = Origin("debian", "trixie", "main", origin, ("amd64", "all"), "https://mirror.example/Packages")
    return Universe([PackageList(text(stanzas), where)])


def solve(stanzas: Iterable[Stanza] = TRIXIE, *, origin: str = "debian", **profile: Any) -> Resolution:
    wish = Profile.model_validate({"os": "debian-13", **profile})
    return resolve("gds", wish, DEBIAN, universe(stanzas, origin=origin), [], sources)


def target(stanzas: Iterable[Stanza] = TRIXIE, **profile: Any) -> Target:
    return solve(stanzas, **profile).target


def versions(target: Target) -> dict[str, str]:
    return {package.package: package.version for package in target.packages}


def reasons(stanzas: Iterable[Stanza] = TRIXIE, **profile: Any) -> list[str]:
    """The lines of NoSolution's message that begin with a rule."""
    with pytest.raises(NoSolution) as error:
        solve(stanzas, **profile)
    return [line[4:] for line in error.value.message.splitlines() if line.startswith("  - ")]


#: Two drivers, of which the newer goes with the newer kernel only, in rules of the test's own.
TWO_DRIVERS = [
    *TRIXIE,
    *open_driver("570.133.07", "1"),
    *proprietary_driver("570.133.07", "1"),
    *kernel("6.12.99+deb13", "6.12.99-1"),
]


def test_the_newest_driver_wins_then_the_newest_kernel() -> None:
    result = target(TWO_DRIVERS)
    assert (result.driver.version, result.kernel.release) == ("570.133.07", "6.12.107+deb13-amd64")


def test_a_branch_holds_the_driver_and_the_kernel_follows() -> None:
    result = target(TWO_DRIVERS, driver="550")
    assert (result.driver.version, result.kernel.release) == ("550.163.01", "6.12.99+deb13-amd64")


@pytest.mark.parametrize(
    "pin", ["6.12.94", "6.12.94-1", "6.12.94+deb13-amd64", "6.12.94+deb13", "<6.12.99", "==6.12.94"]
)
def test_a_kernel_is_pinned_by_any_of_its_names(pin: str) -> None:
    assert target(TWO_DRIVERS, kernel=pin).kernel.release == "6.12.94+deb13-amd64"


def test_every_package_that_follows_the_driver_has_its_version() -> None:
    packages = versions(target(TWO_DRIVERS, driver="550"))
    following = ("libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-alternative", "firmware-nvidia-gsp",
                 "nvidia-open-kernel-dkms", "nvidia-open-kernel-support")  # fmt: skip
    assert {packages[name] for name in following} == {"550.163.01-2"}


def test_the_newest_revision_of_userland_is_taken() -> None:
    """A rebuilt userland of the same driver is welcome; the pieces of it have to be of one build."""
    packages = versions(target([*TRIXIE, *proprietary_driver("550.163.01", "2+deb13u1")]))
    assert packages["libcuda1"] == packages["nvidia-alternative"] == packages["libnvidia-ml1"] == "550.163.01-2+deb13u1"
    assert packages["nvidia-open-kernel-dkms"] == "550.163.01-2"


def test_the_chosen_flavour_wins_over_the_order_of_alternatives() -> None:
    packages = versions(target())
    assert "nvidia-open-kernel-dkms" in packages
    assert "nvidia-kernel-dkms" not in packages
    assert "nvidia-kernel-support" not in packages


def test_the_proprietary_flavour_with_an_nvidia_fs_that_does_not_link() -> None:
    old = [*TRIXIE, *gds("2.13.5", "1.4.0.31", "11.8.0", "5"), *kernel("6.1.0-50", "6.1.176-1")]
    result = target(old, driver={"version": "550", "flavour": "proprietary"}, kernel="6.1")
    assert result.nvidia_fs is not None
    assert result.nvidia_fs.version == "2.13.5"
    assert result.driver.source_tree == "/usr/src/nvidia-current-550.163.01"
    assert "nvidia-open-kernel-dkms" not in versions(result)
    assert "nvidia-kernel-support" in versions(result)


def test_the_other_flavour_does_not_come_in_as_a_dependency() -> None:
    strict = [p | {"Depends": "nvidia-kernel-dkms"} if p["Package"] == "nvidia-fs-dkms" else p for p in TRIXIE]
    (first, *_) = reasons(strict)
    assert "nvidia-fs-dkms 2.19.7~12.4.1-2 needs nvidia-kernel-dkms, of which the repositories have nothing" in first


def test_an_alternative_that_the_stack_has_anyway_wins() -> None:
    either = [
        *[p | {"Depends": "glx-x | nvidia-smi"} if p["Package"] == "dkms" else p for p in TRIXIE],
        package("glx-x", "1", source="glx-alternatives"),
    ]
    assert "glx-x" not in versions(target(either))


def test_headers_of_another_build_do_not_do() -> None:
    older = [p for p in kernel("6.12.99+deb13", "6.12.99-1") if p["Package"].startswith("linux-headers")]
    result = target([*TRIXIE, *kernel("6.12.99+deb13", "6.12.99-2", headers=False), *older])
    assert result.kernel.release == "6.12.94+deb13-amd64"
    assert ("kernel 6.12.99+deb13-amd64", "kernel-headers") in {(r.what, r.rule) for r in result.refused}


def test_recommends_are_not_followed() -> None:
    assert "nvidia-persistenced" not in versions(target())


def test_what_is_outside_the_stack_is_not_locked() -> None:
    assert not {"libc6", "gcc-14", "linux-base", "kmod", "python3"} & versions(target()).keys()


def test_kernels_build_tools_come_from_its_own_build() -> None:
    shared = [
        p | {"Package": "linux-kbuild-6.12", "Depends": "libc6"} if p["Package"].startswith("linux-kbuild") else
        p | {"Depends": p.get("Depends", "").replace("linux-kbuild-6.12.94+deb13", "linux-kbuild-6.12")
             .replace("linux-kbuild-6.12.107+deb13", "linux-kbuild-6.12")}
        for p in TRIXIE
    ]  # fmt: skip
    assert versions(target(shared))["linux-kbuild-6.12"] == "6.12.94-1"


def test_why_newer_kernels_were_refused_is_kept() -> None:
    refused = {r.what: r for r in target().refused}
    assert refused["kernel 6.12.107+deb13-amd64"].rule == "driver-550-pci-resize"
    assert "kernel 6.12.107" in refused["kernel 6.12.107+deb13-amd64"].words
    assert refused["kernel 6.12.100+deb13-amd64"].rule == "kernel-headers"
    assert set(refused) == {"kernel 6.12.107+deb13-amd64", "kernel 6.12.100+deb13-amd64"}


def test_a_kernel_refused_for_its_nvidia_fs_is_named_as_a_kernel() -> None:
    """The rule is about nvidia-fs, but what was given up is the kernel."""
    both = [*kernel("6.16.3+deb13", "6.16.3-1"), *kernel("6.12.94+deb13", "6.12.94-1")]
    rest = [p for p in TRIXIE if not p["Package"].startswith(KERNEL)]
    result = target([*both, *rest])
    assert result.kernel.release == "6.12.94+deb13-amd64"
    assert [(r.what, r.rule) for r in result.refused] == [("kernel 6.16.3+deb13-amd64", "debian-nvidia-fs-2.19")]


def test_older_kernels_are_not_listed_as_refused() -> None:
    result = target([*TRIXIE, *kernel("6.12.90+deb13", "6.12.90-1", headers=False)])
    assert not [r for r in result.refused if "6.12.90" in r.what]


def test_rules_that_spoke_are_listed_and_warnings_returned() -> None:
    resolution = solve()
    assert {"nvidia-fs-open-only", "driver-550-pci-resize", "nvidia-fs-vm-io"} <= set(resolution.target.rules)
    assert list(resolution.target.rules) == sorted(resolution.target.rules)
    assert [w.rule for w in resolution.warnings] == ["nvidia-fs-vm-io"]


def test_rules_look_at_who_made_the_package() -> None:
    """The same nvidia-fs as upstream has it does not compile on this kernel."""
    lines = reasons(origin="nvidia")
    assert lines[0].startswith("[nvidia-fs-unsigned-offset]")


# ── no solution ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_reasons_are_nearest_first() -> None:
    """One rule is against the older kernel, two are against the newer one."""
    lines = reasons(driver={"version": "newest", "flavour": "proprietary"})
    assert [line.split("]")[0] for line in lines] == ["[nvidia-fs-open-only", "[driver-550-pci-resize"]
    assert lines[0].endswith("(2 of 2 combinations) Fixed in the open kernel modules, or nvidia-fs 2.17.4.")
    assert lines[1].endswith("(1 of 2 combinations)")


def test_every_pin_that_nothing_fits_is_listed_at_once() -> None:
    lines = reasons(driver="580", kernel="7", nvidia_fs="2.28", libcufile=">=1.17")
    assert [line.split(": ")[0] for line in lines[:4]] == [
        "[pin] the pin driver",
        "[pin] the pin kernel",
        "[pin] the pin nvidia_fs",
        "[pin] the pin libcufile",
    ]


def test_packages_that_nobody_offers_are_named() -> None:
    lines = reasons(without(SURROUNDINGS))
    assert [line.split("] ")[1] for line in lines] == [
        "the repositories have no nvidia-open-kernel-dkms",
        "the repositories have no kernel image of flavour amd64 with headers of its version",
        "the repositories have no nvidia-fs-dkms",
        "the repositories have no libcufile0 with its gds-tools",
    ]


def test_gds_tools_of_another_version_do_not_do() -> None:
    other = [*without(TRIXIE, "gds-tools"), package("gds-tools", "1.8.0~12.3-1", source="nvidia-cuda-toolkit (12.3-1)")]
    assert any(
        "[gds-tools] libcufile 1.9.1.3: The repositories have no gds-tools 1.9.1.3~12.4.1-2" in r
        for r in reasons(other)
    )


def test_a_missing_dependency_is_named_with_who_needs_it() -> None:
    (first, *_) = reasons(without(TRIXIE, "nvidia-modprobe"))
    assert first.startswith("[dependencies] driver 550.163.01 (open): ")
    assert (
        "nvidia-open-kernel-support 550.163.01-2 needs nvidia-modprobe (>= 550), of which the repositories have nothing"
        in first
    )


def test_a_dependency_that_is_too_old_is_named_with_what_there_is() -> None:
    old = [*without(TRIXIE, "nvidia-modprobe"), package("nvidia-modprobe", "535.161.07-1")]
    (first, *_) = reasons(old)
    assert "needs nvidia-modprobe (>= 550), of which the repositories have nvidia-modprobe 535.161.07-1" in first


def test_a_conflict_is_named() -> None:
    clash = [p | {"Conflicts": "nvidia-modprobe"} if p["Package"] == "dkms" else p for p in TRIXIE]
    (first, *_) = reasons(clash)
    assert "dkms 3.2.2-1~deb13u1 conflicts with nvidia-modprobe" in first


def test_breaks_of_some_versions_only_takes_another_version() -> None:
    clash = [
        *[p | {"Breaks": "nvidia-modprobe (>= 575)"} if p["Package"] == "dkms" else p for p in TRIXIE],
        package("nvidia-modprobe", "580.65.06-1"),
    ]
    assert versions(target(clash))["nvidia-modprobe"] == "570.133.07-1"


def test_a_conflict_with_ones_own_virtual_package_is_none() -> None:
    assert versions(target())["firmware-nvidia-gsp"] == "550.163.01-2"


def test_a_conflict_sends_an_alternative_elsewhere() -> None:
    """update-glx may come from either of two packages; the first one conflicts with libcufile0."""
    either = [
        *[p | {"Depends": "glx-a | glx-b"} if p["Package"] == "glx-alternative-nvidia" else p for p in TRIXIE],
        package("glx-a", "1", source="glx-alternatives", conflicts="libcufile0"),
        package("glx-b", "1", source="glx-alternatives"),
    ]
    packages = versions(target(either))
    assert "glx-b" in packages
    assert "glx-a" not in packages


def test_a_mode_that_a_rule_forbids_from_the_start_is_explained() -> None:
    lines = reasons(rdma="dmabuf", mode="compat", driver={"version": "newest", "flavour": "proprietary"})
    assert lines[0].startswith("[dmabuf-open-driver]")


def test_p2pdma_on_debians_kernels_names_every_rule() -> None:
    rules = {line.split("]")[0].strip("[") for line in reasons(mode="p2pdma")}
    assert {"p2pdma-debian-kernel", "p2pdma-driver", "p2pdma-libcufile"} <= rules


def test_one_combination_that_passes_is_enough() -> None:
    """Ten drivers with ten kernels: the one pair that a rule of the test's own admits is found."""
    drivers = [s for n in range(10) for s in (*open_driver(f"55{n}.1", "1"), *proprietary_driver(f"55{n}.1", "1"))]
    kernels = [s for n in range(10) for s in kernel(f"6.{n}.5+deb13", f"6.{n}.5-1")]
    rest = [p for p in TRIXIE if not p["Package"].startswith((*KERNEL, "nvidia-open", "libcuda"))]
    rule = """
rules:
- {id: only-one, says: X., known: measured, source: this test, refuses: {driver: "!=553.1"}}
- {id: nor-this, says: X., known: measured, source: this test, refuses: {kernel: "!=6.4.5"}}
"""
    wish = Profile.model_validate({"os": "debian-13"})
    rules = [*load(rule), *(r for r in shipped() if r.id == "nvidia-fs-open-only")]
    result = resolve("gds", wish, DEBIAN, universe([*drivers, *kernels, *rest]), [], sources, rules).target
    assert (result.driver.version, result.kernel.release) == ("553.1", "6.4.5+deb13-amd64")
    assert len(result.refused) == 6 + 5


def test_the_dkms_that_builds_the_modules_is_judged_with_them() -> None:
    """It comes in as a dependency, after the choice."""
    wish = Profile.model_validate({"os": "debian-13"})
    for needed, admitted in ((">=3.1.8", True), (">=3.9", False)):
        (rule,) = load(
            yaml.safe_dump({"rules": [{
                "id": "dkms-new", "says": "DKMS is too old.", "known": "source", "source": "this test",
                "when": {"driver": "550"}, "needs": {"dkms": needed},
            }]})
        )  # fmt: skip
        if admitted:
            result = resolve("gds", wish, DEBIAN, universe(TRIXIE), [], sources, rules=[rule]).target
            assert result.rules == ("dkms-new",)
            continue
        with pytest.raises(NoSolution) as error:
            resolve("gds", wish, DEBIAN, universe(TRIXIE), [], sources, rules=[rule])
        assert "[dkms-new] DKMS is too old. Here: driver 550.163.01, dkms 3.2.2." in error.value.message
