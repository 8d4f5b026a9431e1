"""Choosing and solving with NVIDIA's CUDA repository, whose traps tests/repos/cuda.py imitates; in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest

from gdsdeploy.errors import NoSolution, RepositoryUnusable
from gdsdeploy.lock.resolve import Resolution, resolve
from gdsdeploy.lock.resolve.target import Keep
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.packages import Origin, PackageList, Universe
from tests.repos.cuda import (
    CUDA_DEBIAN,
    CUDA_RESOLUTE,
    CUDA_UBUNTU,
    DOCA,
    NOBLE,
    UBUNTU_SURROUNDINGS,
    cuda_driver,
    cuda_gds,
    nvlink5,
    ubuntu_kernel,
)
from tests.repos.dkmspackages import sources, with_tree
from tests.repos.stack import TRIXIE, Stanza, package, text, without

#: Repository → its Origin field and its stanzas.
Offer = dict[str, tuple[str, Iterable[Stanza]]]

UBUNTU: Offer = {"cuda": ("nvidia", CUDA_UBUNTU), "ubuntu": ("ubuntu", NOBLE)}
DEBIAN: Offer = {"cuda": ("nvidia", CUDA_DEBIAN), "debian": ("debian", TRIXIE)}


def universe(offer: Offer) -> Universe:
    lists = []
    for repository, (origin, stanzas) in offer.items():
        where = Origin(repository, "suite", "", origin, ("amd64", "all"), f"https://mirror.example/{repository}")
        lists.append(PackageList(text(stanzas), where))
    return Universe(lists)


def solve(offer: Offer = UBUNTU, os: str = "ubuntu-24.04", **profile: Any) -> Resolution:
    wish = Profile.model_validate({"os": os, **profile})
    return resolve("gds", wish, stack_platform_for(os), universe(offer), [], sources)


def target(offer: Offer = UBUNTU, os: str = "ubuntu-24.04", **profile: Any) -> Target:
    return solve(offer, os, **profile).target


def versions(target: Target) -> dict[str, str]:
    return {package.package: package.version for package in target.packages}


def refused(target: Target) -> set[tuple[str, str]]:
    return {(r.what, r.rule) for r in target.refused}


def reasons(offer: Offer = UBUNTU, os: str = "ubuntu-24.04", **profile: Any) -> list[str]:
    """The lines of NoSolution's message that begin with a rule."""
    with pytest.raises(NoSolution) as error:
        solve(offer, os, **profile)
    return [line[4:] for line in error.value.message.splitlines() if line.startswith("  - ")]


# ── Ubuntu ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_whole_stack_on_ubuntu() -> None:
    result = target(driver="580.95")
    assert (result.kernel.release, result.kernel.version) == ("6.11.0-26-generic", "6.11.0-26.26~24.04.1")
    assert result.driver.model_dump() == {
        "version": "580.95.05", "flavour": "open", "source_tree": "/usr/src/nvidia-580.95.05", "dkms_name": "nvidia",
        "module": "nvidia",
    }  # fmt: skip
    assert result.nvidia_fs is not None
    assert (result.nvidia_fs.version, result.nvidia_fs.source_tree) == ("2.28.4", "/usr/src/nvidia-fs-2.28.4")
    assert result.libcufile.version == "1.15.1.6"
    assert {p.package: (p.version, p.part, p.needed_by) for p in result.packages} == {
        "dkms": ("1:3.1.8-1", "dkms", "build"),
        "gds-tools-13-0": ("1.15.1.6-1", "gds-tools", "host"),
        "libcufile-13-0": ("1.15.1.6-1", "libcufile", "host"),
        "libnvidia-cfg1-580": ("580.95.05-0ubuntu1", "driver-userland", "host"),
        "libnvidia-compute-580": ("580.95.05-0ubuntu1", "driver-userland", "host"),
        "linux-headers-6.11.0-26": ("6.11.0-26.26~24.04.1", "kernel-headers", "build"),
        "linux-headers-6.11.0-26-generic": ("6.11.0-26.26~24.04.1", "kernel-headers", "build"),
        "linux-image-6.11.0-26-generic": ("6.11.0-26.26~24.04.1", "kernel-image", "both"),
        "linux-modules-6.11.0-26-generic": ("6.11.0-26.26~24.04.1", "kernel-image", "both"),
        "linux-modules-extra-6.11.0-26-generic": ("6.11.0-26.26~24.04.1", "kernel-image", "host"),
        "nvidia-compute-utils-580": ("580.95.05-0ubuntu1", "driver-userland", "host"),
        "nvidia-dkms-580-open": ("580.95.05-0ubuntu1", "driver-source", "build"),
        "nvidia-firmware-580": ("580.95.05-0ubuntu1", "companion", "both"),
        "nvidia-fs-dkms": ("2.28.4-1", "nvidia-fs-source", "build"),
        "nvidia-kernel-common-580": ("580.95.05-0ubuntu1", "driver-userland", "both"),
        "nvidia-kernel-source-580-open": ("580.95.05-0ubuntu1", "driver-source", "build"),
        "nvidia-modprobe": ("580.95.05-0ubuntu1", "driver-userland", "both"),
        "nvidia-utils-580": ("580.95.05-0ubuntu1", "driver-userland", "host"),
    }


def test_names_lose_their_branch_at_590() -> None:
    packages = versions(target(driver="590"))
    assert packages["nvidia-dkms-open"] == packages["libnvidia-compute"] == "590.44.01-1ubuntu1"
    assert not [name for name in packages if "580" in name or "590" in name]


def test_a_package_that_became_a_stub_is_no_driver_of_its_branch() -> None:
    """nvidia-dkms-570-open 580.95.05 is the newest of that name, and would pull branch 580."""
    result = target(driver="570")
    assert result.driver.version == "570.172.08"
    assert versions(result)["nvidia-dkms-570-open"] == "570.172.08-0ubuntu1"
    stub = reasons(driver="580.95.05", libcufile="1.15", companions=["imex"])
    assert any("nvidia-dkms-570-open 580.95.05-0ubuntu1 is an empty package that pulls branch 580" in r for r in stub)


def test_the_proprietary_flavour_takes_its_own_packages_alone() -> None:
    packages = versions(target(driver={"version": "580.95", "flavour": "proprietary"}, mode="compat"))
    assert "nvidia-dkms-580" in packages
    assert "nvidia-kernel-source-580" in packages
    assert not [name for name in packages if name.endswith("-open")]


def test_the_other_flavour_does_not_come_in_as_a_dependency() -> None:
    """If something of the stack wants it, there is no solution rather than two flavours."""
    bent = [
        p | {"Depends": "nvidia-dkms-580 (= 580.95.05-0ubuntu1)"} if p["Package"] == "nvidia-fs-dkms" else p
        for p in CUDA_UBUNTU
    ]
    lines = reasons({**UBUNTU, "cuda": ("nvidia", bent)}, driver="580.95")
    assert any(
        "needs nvidia-dkms-580 (= 580.95.05-0ubuntu1), of which the repositories have nothing" in r for r in lines
    )


def test_a_kernel_without_headers_is_passed_over_and_flavours_are_no_kernels() -> None:
    result = target(driver="580.95", kernel="6.8")
    assert result.kernel.release == "6.8.0-60-generic"
    assert ("kernel 6.8.0-71-generic", "kernel-headers") in refused(result)
    assert "linux-image-unsigned-6.8.0-60-generic" not in versions(result)


def test_a_tilde_sorts_before_the_release() -> None:
    """libcufile 1.16.0.49~rc1 has no tools and is not taken; with them it would still be older than its release."""
    final = cuda_gds("13-1", "1.16.0.49", toolkit="13.1.0", driver="590.44.01")
    offer: Offer = {**UBUNTU, "cuda": ("nvidia", [*CUDA_UBUNTU, *final])}
    assert versions(target(offer, driver="590"))["libcufile-13-1"] == "1.16.0.49-1"
    assert ("libcufile 1.16.0.49", "gds-tools") in refused(target(driver="580"))


def test_cuda_13s_library_needs_its_driver() -> None:
    result = target(driver="570")
    assert result.libcufile.version == "1.14.1.1"
    assert ("libcufile 1.15.1.6", "cuda-13-driver") in refused(result)


def with_kernel(series: str, *, driver: bool = True) -> list[Stanza]:
    """Ubuntu's archive with this kernel alone; ``driver``: and its own driver."""
    surroundings = ("linux-base", *(p["Package"] for p in UBUNTU_SURROUNDINGS))
    own = NOBLE if driver else [p for p in NOBLE if p["Package"] in surroundings]
    own = [p for p in own if not p["Package"].startswith("linux-") or p["Package"] == "linux-base"]
    return [*own, *ubuntu_kernel(series, f"{series}.150")]


def test_another_release_of_ubuntu() -> None:
    offer: Offer = {**UBUNTU, "ubuntu": ("ubuntu", with_kernel("5.15.0-140"))}
    result = target(offer, "ubuntu-22.04", driver="580")
    assert result.kernel.release == "5.15.0-140-generic"
    assert result.driver.version == "580.95.05"


def resolute(series: str) -> Offer:
    return {"cuda": ("nvidia", CUDA_RESOLUTE), "ubuntu": ("ubuntu", with_kernel(series, driver=False))}


def test_ubuntu_26_04_has_the_newest_of_everything() -> None:
    result = target(resolute("7.0.0-12"), "ubuntu-26.04", companions=["fabricmanager", "imex"])
    assert (result.driver.version, result.libcufile.version) == ("615.71.09", "1.19.0.53")
    assert result.nvidia_fs is not None
    assert (result.nvidia_fs.version, result.nvidia_fs.source_tree) == ("2.30.1", "/usr/src/nvidia-fs-2.30.1")
    packages = versions(result)
    names = ("nvidia-dkms-open", "nvidia-kernel-source-open", "nvidia-firmware", "libnvidia-compute", "nvidia-utils")
    assert {packages[name] for name in names} == {"615.71.09-2ubuntu1"}
    assert (packages["nvidia-fabricmanager"], packages["nvidia-imex"]) == ("615.71.09-1", "615.71.09-1")


def test_what_a_kernel_is_too_new_for_is_passed_over() -> None:
    """The pinned nvidia-fs is too old for kernel 7.0, and the pinned driver for 7.2."""
    lines = reasons(resolute("7.0.0-12"), "ubuntu-26.04", nvidia_fs="2.28.4")
    assert any(line.startswith("[nvidia-fs-kernel-6.18]") and "Fixed in nvidia-fs 2.29.4." in line for line in lines)
    lines = reasons(resolute("7.2.0-3"), "ubuntu-26.04", driver="595")
    assert any(line.startswith("[driver-kernel-7.2]") and "Fixed in driver 615.71.09." in line for line in lines)
    warned = {verdict.rule for verdict in solve(resolute("7.0.0-12"), "ubuntu-26.04", driver="595").warnings}
    assert "cuda-13.4-driver" in warned
    assert "cuda-13.4-driver" not in {v.rule for v in solve(resolute("7.0.0-12"), "ubuntu-26.04").warnings}


# ── whose driver ─────────────────────────────────────────────────────────────────────────────────────────────────


def makers(target: Target) -> dict[str, str]:
    return {package.package: package.repository for package in target.packages}


def test_the_order_of_repositories_says_whose_driver_wins() -> None:
    ubuntu_first: Offer = {"ubuntu": UBUNTU["ubuntu"], "cuda": UBUNTU["cuda"]}
    for offer, maker, version in (
        (UBUNTU, "cuda", "580.95.05-0ubuntu1"),
        (ubuntu_first, "ubuntu", "580.95.05-0ubuntu0.24.04.2"),
    ):
        result = target(offer, driver="580.95")
        pieces = {name: where for name, where in makers(result).items() if "580" in name or name == "nvidia-modprobe"}
        assert set(pieces.values()) == {maker}
        assert versions(result)["libnvidia-compute-580"] == version


def test_a_driver_is_never_mixed_from_two_makers() -> None:
    """Ubuntu's own userland has the right version, but NVIDIA's modules do not go with it."""
    bare = without(CUDA_UBUNTU, "libnvidia-compute-580")
    result = target({"cuda": ("nvidia", bare), "ubuntu": UBUNTU["ubuntu"]}, driver="580")
    assert makers(result)["nvidia-dkms-580-open"] == makers(result)["libnvidia-compute-580"] == "ubuntu"
    (why,) = [r for r in result.refused if r.what == "driver 580.95.05 (open)"]
    assert why.rule == "dependencies"
    assert "nothing that goes with this driver (but libnvidia-compute-580 580.95.05-0ubuntu0.24.04.2" in why.words


def test_on_debian_the_order_of_repositories_says_whose_driver_wins() -> None:
    nvidias = target(DEBIAN, "debian-13", mode="compat", driver="580")
    assert nvidias.driver.model_dump() == {
        "version": "580.95.05", "flavour": "open", "source_tree": "/usr/src/nvidia-580.95.05", "dkms_name": "nvidia",
        "module": "nvidia",
    }  # fmt: skip
    pieces = {n: w for n, w in makers(nvidias).items() if n.startswith(("nvidia-", "libcuda", "libnvidia", "firmware"))}
    assert set(pieces.values()) == {"cuda"}
    assert {"nvidia-kernel-open-dkms", "libcuda1", "nvidia-driver-cuda", "firmware-nvidia-gsp"} <= pieces.keys()
    assert makers(nvidias)["glx-alternative-nvidia"] == "debian"

    own = target({"debian": DEBIAN["debian"], "cuda": DEBIAN["cuda"]}, "debian-13")
    assert own.driver.source_tree == "/usr/src/nvidia-current-open-550.163.01"
    assert own.driver.module == "nvidia-current-open"
    assert {w for n, w in makers(own).items() if n.startswith(("nvidia-", "libcuda", "libnvidia"))} == {"debian"}
    assert own.nvidia_fs is not None
    assert own.nvidia_fs.version == "2.19.7"


def test_the_source_tree_is_the_one_that_the_packages_have() -> None:
    """Ubuntu's data-centre builds have a DKMS name of their own, and nothing but dkms.conf says so."""
    server = [p if "nvidia-kernel-source" not in p["Package"] else {**p, **tree("nvidia-srv", p)} for p in CUDA_UBUNTU]
    result = target({**UBUNTU, "cuda": ("nvidia", server)}, driver="580.95")
    assert (result.driver.source_tree, result.driver.dkms_name) == ("/usr/src/nvidia-srv-580.95.05", "nvidia-srv")


def test_a_source_tree_of_another_driver_ends_the_resolution() -> None:
    wrong = [p if p["Package"] != "nvidia-kernel-source-580-open" else {**p, **tree("nvidia", p, "570.1-1")}
             for p in CUDA_UBUNTU]  # fmt: skip
    with pytest.raises(RepositoryUnusable, match=r"dkms\.conf is of 570\.1, and it is 580\.95\.05"):
        target({**UBUNTU, "cuda": ("nvidia", wrong)}, driver="580.95")


def tree(name: str, stanza: Stanza, version: str = "") -> Stanza:
    """The digest of a package file that has this tree."""
    return {"SHA256": hashlib.sha256(with_tree(name, version or stanza["Version"])).hexdigest()}


def test_nvidias_nvidia_fs_is_judged_as_upstreams() -> None:
    """2.25.7 is not Debian's patched build: on kernel 6.18 upstream's own rule speaks."""
    result = target(DEBIAN, "debian-13", driver="580", nvidia_fs="2.26")
    assert result.nvidia_fs is not None
    assert result.nvidia_fs.source_tree == "/usr/src/nvidia-fs-2.26.6"
    assert versions(result)["libcufile-13-0"] == "1.15.1.6-1"


# ── companions ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_companions_have_the_drivers_version_and_an_older_driver_wins_where_they_lag() -> None:
    result = target(driver="580", companions=["fabricmanager", "imex", "persistenced"])
    assert result.driver.version == "580.82.07"
    picked = versions(result)
    assert picked["nvidia-fabricmanager-580"] == picked["nvidia-imex-580"] == "580.82.07-1"
    assert picked["nvidia-persistenced"] == "580.82.07-0ubuntu1"
    assert {p.part for p in result.packages if p.package.startswith(("nvidia-fabric", "nvidia-imex"))} == {"companion"}
    (why,) = [r for r in result.refused if r.rule == "companion" and r.what == "driver 580.95.05 (open)"]
    assert why.words.startswith("It needs fabricmanager of its own version (nvidia-fabricmanager-580 580.95.05); ")
    assert "there is nvidia-fabricmanager-580 580.82.07-1" in why.words
    assert result.pins["companions"] == "fabricmanager, imex, persistenced"


def test_a_pin_that_excludes_the_older_driver_names_the_lagging_package() -> None:
    lines = reasons(driver="580.95.05", companions=["fabricmanager"])
    assert lines[0].startswith("[driver] no driver on offer is complete") or lines[0].startswith("[pin]")
    (why,) = [r for r in lines if r.startswith("[companion] driver 580.95.05 (open): ")]
    assert "nvidia-fabricmanager-580 580.82.07-1" in why


def with_nvlink5(*stanzas: Stanza, ubuntu: Iterable[Stanza] = ()) -> Offer:
    return {"cuda": ("nvidia", [*CUDA_UBUNTU, *stanzas]), "ubuntu": ("ubuntu", [*NOBLE, *ubuntu])}


def test_nvlink5_brings_the_fabric_manager_of_the_driver_and_the_makers_newest_nvlsm() -> None:
    distributions = package("nvlsm", "2026.01.01-0ubuntu1", depends="libc6")
    offer = with_nvlink5(*nvlink5("580.82.07", "2025.03.1-1", "2025.06.10-1"), ubuntu=[distributions])
    result = target(offer, driver="580", gpu="blackwell", companions=["nvlink5"])
    parts = {p.package: (p.version, p.part) for p in result.packages}
    assert result.driver.version == "580.82.07"
    assert parts["nvlink5-580"] == ("580.82.07-1", "companion")
    assert parts["nvidia-fabricmanager-580"] == ("580.82.07-1", "companion")
    assert parts["nvlsm"] == ("2025.06.10-1", "companion")
    assert parts["libnvsdm-580"] == ("580.82.07-1", "driver-userland")
    first = target(dict(reversed(offer.items())), driver="580.82.07", companions=["nvlink5"])
    assert versions(first)["nvlsm"] == "2025.06.10-1", "the distribution's comes first, and has another maker"
    (why,) = [r for r in result.refused if r.rule == "companion" and r.what == "driver 580.95.05 (open)"]
    assert why.words.startswith("It needs nvlink5 of its own version (nvlink5-580 580.95.05); there is nvlink5-580 580")


def test_a_metapackage_without_nvlsm_is_refused_and_said() -> None:
    offer = with_nvlink5(*nvlink5("580.82.07"))
    (why,) = [r for r in reasons(offer, driver="580.82.07", companions=["nvlink5"]) if "580.82.07 (open)" in r]
    assert "Its companion nvlink5 needs nvlsm; there is nothing of the kind from this maker." in why


def test_a_locked_nvlsm_stays_while_its_driver_does() -> None:
    older = with_nvlink5(*nvlink5("580.82.07", "2025.03.1-1"))
    before = target(older, driver="580", companions=["nvlink5"])
    newer = with_nvlink5(*nvlink5("580.82.07", "2025.03.1-1", "2025.06.10-1"))
    wish = Profile.model_validate({"os": "ubuntu-24.04", "driver": "580", "companions": ["nvlink5"]})
    result = resolve("gds", wish, stack_platform_for("ubuntu-24.04"), universe(newer), [], sources, keep=Keep(before))
    assert versions(result.target)["nvlsm"] == "2025.03.1-1"


def test_names_of_companions_from_590_on() -> None:
    packages = versions(target(driver="590", companions=["fabricmanager", "imex"]))
    assert packages["nvidia-fabricmanager"] == packages["nvidia-imex"] == "590.44.01-1"


def test_persistenced_of_debians_archive() -> None:
    offer: Offer = {"debian": DEBIAN["debian"]}
    assert versions(target(offer, "debian-13", companions=["persistenced"]))["nvidia-persistenced"] == "550.163.01-1"
    assert any(
        "[companion]" in r and "nothing of the kind" in r for r in reasons(offer, "debian-13", companions=["imex"])
    )


# ── CUDA and DOCA ────────────────────────────────────────────────────────────────────────────────────────────────


def test_pieces_of_the_toolkit_come_with_what_they_need() -> None:
    result = target(driver="580", cuda=["cuda-toolkit-12-9"])
    parts = {p.package: p.part for p in result.packages}
    assert parts["cuda-toolkit-12-9"] == parts["cuda-cudart-12-9"] == parts["cuda-nvcc-12-9"] == "cuda"
    assert {"libcufile-12-9", "libcufile-13-0"} <= parts.keys()
    assert not {"cuda-drivers", "nvidia-open", "gcc-13"} & parts.keys()


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("cuda", "cuda → cuda-12-4 → cuda-runtime-12-4 → cuda-drivers"),
        ("cuda-12-9", "cuda-12-9 → cuda-runtime-12-9 → cuda-drivers"),
        ("cuda-runtime-13-0", "cuda-runtime-13-0 → cuda-drivers"),
    ],
)
def test_a_metapackage_that_pulls_a_driver_is_refused_with_the_way(name: str, way: str) -> None:
    offer: Offer = UBUNTU
    if name == "cuda":
        only = [p for p in CUDA_UBUNTU if p["Package"] != "cuda" or p["Version"].startswith("12.4")]
        offer = {**UBUNTU, "cuda": ("nvidia", only)}
    (reason,) = [r for r in reasons(offer, cuda=[name]) if r.startswith("[cuda]")]
    assert f"would pull the driver cuda-drivers: {way};" in reason


def test_a_driver_is_no_piece_of_the_toolkit_and_what_is_not_there_is_named() -> None:
    lines = reasons(cuda=["nvidia-open-580", "cuda-toolkit-99-9"])
    assert "[cuda] nvidia-open-580 is a driver, and the driver is locked by itself: take it out of `cuda`" in lines
    assert "[cuda] the repositories have no cuda-toolkit-99-9" in lines


def test_doca_comes_from_its_own_repository_with_all_that_it_needs() -> None:
    offer: Offer = {**UBUNTU, "doca": ("mellanox technologies", DOCA)}
    result = target(offer, driver="580", kernel="6.8", doca=["doca-ofed", "mlnx-nvme-dkms"])
    parts = {p.package: (p.part, p.version, p.needed_by) for p in result.packages if p.repository == "doca"}
    assert parts == {
        "doca-ofed": ("doca", "3.2.1-044000", "both"),
        "mlnx-nvme-dkms": ("doca", "3.3.0-087000", "both"),
        "mlnx-ofed-kernel-dkms": ("support", "3.3.0-087000", "both"),
        "mlnx-tools": ("support", "25.10-0", "both"),
    }
    assert ("doca 3.3.0", "doca-3.3.0") in refused(result)
    assert "libibverbs1" not in versions(result)


def test_the_gpu_class_is_asked_only_if_it_is_declared() -> None:
    assert any(r.startswith("[gpu-open-driver-only]") for r in reasons(
        gpu="blackwell", driver={"version": "580", "flavour": "proprietary"}, mode="compat"
    ))  # fmt: skip
    assert target(driver={"version": "580", "flavour": "proprietary"}, mode="compat").pins.get("gpu") is None


def test_a_newer_userland_revision_of_another_driver_does_not_come_in() -> None:
    both = [*CUDA_UBUNTU, *cuda_driver("580.105.08", companions=())]
    packages = versions(target({**UBUNTU, "cuda": ("nvidia", both)}, driver="580.95"))
    assert {v for n, v in packages.items() if n.endswith("-580") or n == "nvidia-modprobe"} == {"580.95.05-0ubuntu1"}


def test_a_second_file_of_a_version_is_no_second_driver() -> None:
    twice = [*CUDA_UBUNTU, package("nvidia-dkms-580-open", "580.95.05-0ubuntu1", source="x")]
    assert target({**UBUNTU, "cuda": ("nvidia", twice)}, driver="580.95").driver.version == "580.95.05"
