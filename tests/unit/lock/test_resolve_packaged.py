"""Choosing a kernel and a driver together, of which the distribution has built the modules; in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import ValidationError

from gdsdeploy.errors import NoSolution, RepositoryUnusable
from gdsdeploy.lock.resolve import Resolution, resolve
from gdsdeploy.lock.resolve.explain import explain
from gdsdeploy.lock.resolve.target import Keep
from gdsdeploy.lock.sources import PackagedModules
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.packages import Origin, PackageList, Universe
from tests.repos.dkmspackages import sources
from tests.repos.packagedmodules import CANONICAL, LIBRARIES, archive, in_packages, kernel_of, modules, userland
from tests.repos.stack import Stanza, text, without

OLD, NEW = "580.142-0ubuntu0.24.04.1", "580.159.03-0ubuntu0.24.04.1"
SPARK, SPARK_VERSION = "6.17.0-1032-nvidia", "6.17.0-1032.32"
#: Noble: two generic kernels of the hardware-enablement stack, an aws one, and two nvidia ones with nvidia-fs.
NOBLE = archive(
    kernel_of("generic", "6.17.0-22", "6.17.0-22.22~24.04.1"),
    kernel_of("generic", "6.17.0-35", "6.17.0-35.35~24.04.1"),
    kernel_of("aws", "6.17.0-1010", "6.17.0-1010.10", "6.17"),
    kernel_of("nvidia", "6.17.0-1026", "6.17.0-1026.26", "6.17"),
    kernel_of("nvidia", "6.17.0-1032", SPARK_VERSION, "6.17"),
    userland("580", NEW),
    userland("580-server", NEW),
    userland("570", "570.211.01-0ubuntu0.24.04.1"),
    [
        modules("580", "580.142", "6.17.0-22-generic", "6.17.0-22.22~24.04.1"),
        modules("580", "580.159.03", "6.17.0-22-generic", "6.17.0-22.22~24.04.1+1"),
        modules("580", "580.159.03", "6.17.0-35-generic", "6.17.0-35.35~24.04.1", bounded=False),
        modules("580-server", "580.159.03", "6.17.0-35-generic", "6.17.0-35.35~24.04.1"),
        modules("570", "570.211.01", "6.17.0-22-generic", "6.17.0-22.22~24.04.1"),
        modules("580", "580.159.03", "6.17.0-1010-aws", "6.17.0-1010.10+1"),
        modules("580", "580.159.03", "6.17.0-1026-nvidia", "6.17.0-1026.26+2"),
        modules("580", "580.159.03", SPARK, "6.17.0-1032.32+1"),
        modules("580", "580.159.03", SPARK, "6.17.0-1032.32+1", flavour="proprietary"),
    ],
)


def universe(stanzas: Iterable[Stanza]) -> Universe:
    offer = {"cuda": ("nvidia", LIBRARIES), "ubuntu": ("ubuntu", stanzas)}
    return Universe(
        [
            PackageList(text(each), Origin(name, "suite", "", origin, ("amd64", "all"), f"https://m.example/{name}"))
            for name, (origin, each) in offer.items()
        ]
    )


def solve(
    stanzas: Iterable[Stanza] = NOBLE,
    reader: PackagedModules = in_packages("580.159.03"),  # noqa: B008 - it keeps nothing
    keep: Keep | None = None,
    os: str = "ubuntu-24.04",
    **profile: Any,
) -> Resolution:
    wish = Profile.model_validate({"os": os, "modules": "packaged", **profile})
    return resolve("gds", wish, stack_platform_for(os), universe(stanzas), [], sources, keep=keep, modules=reader)


def target(*arguments: Any, **profile: Any) -> Target:
    return solve(*arguments, **profile).target


def versions(target: Target) -> dict[str, str]:
    return {package.package: package.version for package in target.packages}


def refused(target: Target) -> set[tuple[str, str]]:
    return {(r.what, r.rule) for r in target.refused}


def reasons(*arguments: Any, **profile: Any) -> str:
    with pytest.raises(NoSolution) as error:
        solve(*arguments, **profile)
    return f"{error.value.message}\n{error.value.hint}"


NVIDIA = {"kernel": {"flavour": "nvidia"}}


def test_the_whole_stack_comes_from_packages() -> None:
    result = target(**NVIDIA)
    assert (result.kernel.release, result.kernel.version) == (SPARK, SPARK_VERSION)
    assert result.driver.model_dump() == {
        "version": "580.159.03", "flavour": "open", "source_tree": "", "dkms_name": "", "module": "nvidia",
    }  # fmt: skip
    assert result.nvidia_fs is not None
    assert (result.nvidia_fs.version, result.nvidia_fs.source_tree) == ("2.26.6", "")
    assert {p.package: (p.version, p.part, p.needed_by) for p in result.packages} == {
        "gds-tools-13-0": ("1.15.1.6-1", "gds-tools", "host"),
        "libcufile-13-0": ("1.15.1.6-1", "libcufile", "host"),
        "libnvidia-cfg1-580": (NEW, "driver-userland", "host"),
        "libnvidia-compute-580": (NEW, "driver-userland", "host"),
        f"linux-image-{SPARK}": (SPARK_VERSION, "kernel-image", "host"),
        f"linux-modules-{SPARK}": (SPARK_VERSION, "kernel-image", "host"),
        f"linux-modules-nvidia-580-open-{SPARK}": ("6.17.0-1032.32+1", "driver-modules", "host"),
        f"linux-modules-nvidia-fs-{SPARK}": (SPARK_VERSION, "nvidia-fs-modules", "host"),
        "nvidia-compute-utils-580": (NEW, "driver-userland", "host"),
        "nvidia-firmware-580-580.159.03": (NEW, "companion", "host"),
        "nvidia-kernel-common-580": (NEW, "driver-userland", "host"),
        "nvidia-modprobe": ("580.95.05-1", "driver-userland", "host"),
        "nvidia-utils-580": (NEW, "driver-userland", "host"),
    }


def test_the_lock_has_each_module_with_its_signer() -> None:
    packaged = target(**NVIDIA).packaged
    assert [(module.module, module.package, module.version, module.signer) for module in packaged] == [
        ("nvidia", f"linux-modules-nvidia-580-open-{SPARK}", "580.159.03", CANONICAL),
        ("nvidia_fs", f"linux-modules-nvidia-fs-{SPARK}", "2.26.6", CANONICAL),
        ("nvidia_uvm", f"linux-modules-nvidia-580-open-{SPARK}", "580.159.03", CANONICAL),
    ]


@pytest.mark.parametrize(
    ("flavour", "release", "mode"),
    [
        ("generic", "6.17.0-35-generic", "p2pdma"),
        ("generic", "6.17.0-35-generic", "compat"),
        ("aws", "6.17.0-1010-aws", "compat"),
        ("nvidia", SPARK, "p2pdma"),
        ("nvidia", SPARK, "nvidia-fs"),
    ],
)
def test_each_flavour_has_its_own_modules(flavour: str, release: str, mode: str) -> None:
    driver = {"version": "580"}
    result = target(kernel={"flavour": flavour}, mode=mode, driver=driver)
    assert result.kernel.release == release
    names = [name for name in versions(result) if name.startswith("linux-modules-nvidia-5")]
    # On a tie the data-centre build of a driver wins.
    build = "580-server" if flavour == "generic" else "580"
    assert names == [f"linux-modules-nvidia-{build}-open-{release}"]
    assert (f"linux-modules-nvidia-fs-{release}" in versions(result)) == (mode == "nvidia-fs")
    assert f"nvidia-kernel-common-{build}" in versions(result)


def test_kernel_and_driver_are_chosen_together() -> None:
    """The newest kernel has no modules of branch 570, so an older kernel is chosen with it."""
    reader = in_packages("570.211.01")
    result = target(NOBLE, reader, driver="570", mode="compat")
    assert (result.kernel.release, result.driver.version) == ("6.17.0-22-generic", "570.211.01")
    assert ("kernel 6.17.0-35-generic", "packaged-modules") in refused(result)
    words = next(r.words for r in result.refused if r.rule == "packaged-modules")
    assert "no modules of driver 570.211.01 (open)" in words


def test_of_two_builds_for_a_kernel_the_one_of_the_userland_counts() -> None:
    result = target(kernel={"version": "6.17.0-22"}, driver="580", mode="compat")
    assert versions(result)["linux-modules-nvidia-580-open-6.17.0-22-generic"] == "6.17.0-22.22~24.04.1+1"


def test_modules_without_their_userland_are_no_driver() -> None:
    lines = reasons(kernel={"version": "6.17.0-22"}, driver="580.142", mode="compat")
    assert "[packaged-userland] driver 580.142: linux-modules-nvidia-580-open-6.17.0-22-generic" in lines
    assert f"have no userland of that version: nvidia-kernel-common-580 {NEW}" in lines


@pytest.mark.parametrize("bounded", [True, False])
def test_a_kernel_that_lost_its_userland_is_passed_over_for_one_that_has_it(bounded: bool) -> None:
    """The newest kernel's modules lag behind the archive's userland: its next boot would have no driver."""
    lagging = [
        *(p for p in NOBLE if not (p["Package"].startswith("linux-modules-nvidia-580") and SPARK in p["Package"])),
        modules("580", "580.142", SPARK, "6.17.0-1032.32", bounded=bounded),
    ]
    result = target(lagging, **NVIDIA)
    assert result.kernel.release == "6.17.0-1026-nvidia"
    assert (f"kernel {SPARK}", "packaged-modules") in refused(result)


def test_a_userland_that_the_modules_exclude_is_none() -> None:
    """Of the same upstream version, but later than the relations allow."""
    later = without(NOBLE, *(p["Package"] for p in userland("580", NEW)))
    lines = reasons([*later, *userland("580", "580.159.03-2ubuntu1")], **NVIDIA)
    assert "have no userland of that version: nvidia-kernel-common-580 580.159.03-2ubuntu1" in lines


def test_a_userland_of_the_same_version_by_another_maker_is_none() -> None:
    """NVIDIA's repository has nvidia-kernel-common-580, too; its driver and Canonical's modules exclude each other."""
    stanzas = without(NOBLE, *(p["Package"] for p in userland("580", NEW)))
    offer = {"cuda": ("nvidia", [*LIBRARIES, *userland("580", NEW)]), "ubuntu": ("ubuntu", stanzas)}
    lists = [
        PackageList(text(each), Origin(name, "s", "", origin, ("amd64", "all"), f"https://m.example/{name}"))
        for name, (origin, each) in offer.items()
    ]
    wish = Profile.model_validate({"os": "ubuntu-24.04", "modules": "packaged", **NVIDIA})
    with pytest.raises(NoSolution, match="no userland of that version: nothing of that name from this maker"):
        resolve("gds", wish, stack_platform_for(wish.os), Universe(lists), [], sources)


@pytest.mark.parametrize("flavour", ["generic", "aws"])
def test_a_flavour_without_nvidia_fs_names_what_works(flavour: str) -> None:
    lines = reasons(kernel={"flavour": flavour})
    assert "kernel flavours that have one: nvidia (6.17.0-1032-nvidia)" in lines
    assert "`mode: p2pdma`, which needs no nvidia-fs, or have a host build the modules: `modules: build`" in lines
    assert f"[packaged-modules] kernel 6.17.0-{'35-generic' if flavour == 'generic' else '1010-aws'}" in lines


def test_a_flavour_without_any_modules_says_so() -> None:
    stanzas = [*NOBLE, *kernel_of("gcp", "6.17.0-1005", "6.17.0-1005.5", "6.17")]
    lines = reasons(stanzas, kernel={"flavour": "gcp"}, mode="compat")
    assert "[driver] the repositories have no package with the driver's modules (open)" in lines
    assert "kernel 6.17.0-1005-gcp: The repositories have no package with modules of the driver (open) for it." in lines
    assert "`modules: build`" in lines


def test_a_pin_that_no_modules_meet_names_those_on_offer() -> None:
    lines = reasons(driver="595", **NVIDIA)
    assert "[pin] the pin driver: '595' admits nothing that is on offer: 580.159.03; choose another driver" in lines
    assert "or have a host build the modules: `modules: build`" in lines


def test_the_pin_of_nvidia_fs_is_about_what_the_package_has() -> None:
    lines = reasons(nvidia_fs=">=2.28", **NVIDIA).splitlines()
    assert [line for line in lines if "[pin]" in line] == [
        f"  - [pin] The pin nvidia_fs: '>=2.28' doesn't admit 2.26.6, which linux-modules-nvidia-fs-{kernel} has."
        for kernel in (f"{SPARK} {SPARK_VERSION}", "6.17.0-1026-nvidia 6.17.0-1026.26")
    ]
    result = target(NOBLE, in_packages("580.159.03", "2.28.4"), nvidia_fs=">=2.28", **NVIDIA)
    assert result.nvidia_fs is not None
    assert result.nvidia_fs.version == "2.28.4"


def test_rules_judge_the_nvidia_fs_in_the_package() -> None:
    """nvidia-fs 2.25.6 panics, whoever built it."""
    assert "[nvidia-fs-2.25.6" in reasons(NOBLE, in_packages("580.159.03", "2.25.6"), **NVIDIA)


def test_proprietary_modules_are_refused_because_hosts_link_them() -> None:
    lines = reasons(driver={"flavour": "proprietary"}, mode="compat", **NVIDIA)
    assert "objects that each host links when they are installed" in lines
    assert "`modules: build`" in lines


@pytest.mark.parametrize(
    ("os", "words"),
    [
        ("rocky-9", "NVIDIA's precompiled kmods (streams NNN and latest) are proprietary and linked on each host"),
        ("rhel-10", "no repository has nvidia-fs for a kernel"),
        ("amazon-2023", "linked on each host"),
        ("debian-13", "no packages with modules of NVIDIA's driver for debian-13's own kernels are known"),
    ],
)
def test_other_systems_are_refused_with_the_reason(os: str, words: str) -> None:
    lines = reasons(os=os, mode="compat")
    assert words in lines
    assert "`modules: build`, or `receive`" in lines


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (in_packages("580.142"), "is of driver 580.142, and the package's relations say 580.159.03"),
        (in_packages("580.159.03", terms="NVIDIA"), "has the license 'NVIDIA', which the open flavour doesn't have"),
        (in_packages("580.159.03", built_for="6.17.0-1031-nvidia"), "is for kernel 6.17.0-1031-nvidia"),
        (in_packages("580.159.03", without="nvidia"), "it has no module nvidia"),
        (in_packages("580.159.03", without="nvidia_fs"), "it has no module nvidia_fs"),
        (in_packages("580.159.03", ""), "doesn't say its version"),
        (in_packages("580.159.03", built_against="570.211.01"), "was built against driver 570.211.01"),
    ],
)
def test_a_package_that_has_something_else_than_it_says_is_refused(reader: PackagedModules, words: str) -> None:
    with pytest.raises(RepositoryUnusable, match="linux-modules-nvidia") as error:
        solve(NOBLE, reader, **NVIDIA)
    assert words in error.value.message


def test_what_a_lock_cannot_prove_is_a_warning() -> None:
    warnings = {verdict.rule: verdict.words for verdict in solve(**NVIDIA).warnings}
    assert "only a real transfer proves that they fit" in warnings["packaged-nvidia-fs"]
    recorded = solve(NOBLE, in_packages("580.159.03", built_against="580.159.03"), **NVIDIA)
    assert "packaged-nvidia-fs" not in {verdict.rule for verdict in recorded.warnings}
    assert "packaged-nvidia-fs" not in {verdict.rule for verdict in solve(mode="p2pdma", **NVIDIA).warnings}


def test_a_lock_stays_until_it_is_upgraded() -> None:
    before = target(without(NOBLE, f"linux-image-{SPARK}"), **NVIDIA)
    assert before.kernel.release == "6.17.0-1026-nvidia"
    assert target(keep=Keep(before), **NVIDIA) == before
    assert target(keep=Keep(before, frozenset({"kernel"})), **NVIDIA).kernel.release == SPARK


def test_explain_names_the_newer_kernel_and_why_it_is_not_taken() -> None:
    profile = Profile.model_validate({"os": "ubuntu-24.04", "modules": "packaged", "driver": "570", "mode": "compat"})
    locked = target(NOBLE, in_packages("570.211.01"), driver="570", mode="compat")
    index = {"repository": "ubuntu", "uri": "https://m.example", "suite": "suite", "components": ()}
    signed = Index(**index, date="2026-11-01T00:00:00Z", signed_by="A" * 40, host_keyring="/k")  # type: ignore[arg-type]
    locked = locked.model_copy(update={"indices": (signed,)})
    platform = stack_platform_for("ubuntu-24.04")
    (newer,) = explain("gds", profile, platform, universe(NOBLE), locked, "kernel").newer
    assert newer.what == "kernel 6.17.0-35-generic"
    assert any("no modules of driver 570.211.01 (open)" in reason for reason in newer.forbidden_by)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"signing": {}}, "who made the packages has signed the modules"),
        ({"builder": "build1"}, "no machine builds for these hosts"),
        ({"doca": ["doca-ofed"]}, "another RDMA core"),
        ({"rdma": "peermem"}, "write rdma: dmabuf"),
    ],
)
def test_a_profile_says_what_packages_can_not_give(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Profile.model_validate({"os": "ubuntu-24.04", "modules": "packaged", **more})
