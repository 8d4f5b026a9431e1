"""Choosing and solving, on package lists in memory; tests/repos imitates the traps of NVIDIA's repositories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import pytest
from pydantic import ValidationError

from docs.gen.compat_rules import load
from gdsdeploy.errors import GdsError, NoSolution, RepositoryUnusable
from gdsdeploy.host.model.compat import Rule, rules_with
from gdsdeploy.lock.resolve import Resolution, resolve
from gdsdeploy.lock.resolve.explain import explain
from gdsdeploy.lock.resolve.target import Keep, leaves, names_in_branch
from gdsdeploy.lock.sources import PackagedModules
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.packages import Origin, PackageList, Universe, upstream
from tests.repos import cuda, packagedmodules, stack
from tests.repos.cuda import CUDA_DEBIAN, CUDA_RESOLUTE, CUDA_UBUNTU, DOCA, NOBLE, UBUNTU_SURROUNDINGS, nvlink5
from tests.repos.dkmspackages import sources, with_tree
from tests.repos.packagedmodules import LIBRARIES, archive, in_packages, kernel_of, modules, userland
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
from tests.unit.host import cases, expect

DEBIAN = stack_platform_for("debian-13")
#: Repository → its Origin field and its stanzas.
Offer = Mapping[str, tuple[str, Iterable[Stanza]]]

#: Two drivers, of which the newer goes with the newer kernel only, in rules of the test's own.
TWO_DRIVERS = [
    *TRIXIE,
    *open_driver("570.133.07", "1"),
    *proprietary_driver("570.133.07", "1"),
    *kernel("6.12.96+deb13", "6.12.96-1"),
]


def with_kernel(series: str, *, driver: bool = True) -> tuple[str, list[Stanza]]:
    """Ubuntu's archive with this kernel alone; ``driver``: and its own driver."""
    surroundings = ("linux-base", *(p["Package"] for p in UBUNTU_SURROUNDINGS))
    own = NOBLE if driver else [p for p in NOBLE if p["Package"] in surroundings]
    own = [p for p in own if not p["Package"].startswith("linux-") or p["Package"] == "linux-base"]
    return "ubuntu", [*own, *cuda.ubuntu_kernel(series, f"{series}.150")]


UBUNTU: Offer = {"cuda": ("nvidia", CUDA_UBUNTU), "ubuntu": ("ubuntu", NOBLE)}
WITH_CUDA: Offer = {"cuda": ("nvidia", CUDA_DEBIAN), "debian": ("debian", TRIXIE)}
WITH_NVLSM: Offer = {
    **UBUNTU, "ubuntu": ("ubuntu", [*NOBLE, package("nvlsm", "2026.01.01-0ubuntu1", depends="libc6")])
}  # fmt: skip
#: A userland, and a kernel of Canonical's with nvidia-fs.
USERLAND = "580.159.03-0ubuntu0.24.04.1"
SPARK, SPARK_VERSION = "6.17.0-1032-nvidia", "6.17.0-1032.32"
#: Noble: two generic kernels of the hardware-enablement stack, an aws one, and two nvidia ones with nvidia-fs.
PACKAGED = archive(
    kernel_of("generic", "6.17.0-22", "6.17.0-22.22~24.04.1"),
    kernel_of("generic", "6.17.0-35", "6.17.0-35.35~24.04.1"),
    kernel_of("aws", "6.17.0-1010", "6.17.0-1010.10", "6.17"),
    kernel_of("nvidia", "6.17.0-1026", "6.17.0-1026.26", "6.17"),
    kernel_of("nvidia", "6.17.0-1032", SPARK_VERSION, "6.17"),
    userland("580", USERLAND),
    userland("580-server", USERLAND),
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
WITHOUT_USERLAND = without(PACKAGED, *(p["Package"] for p in userland("580", USERLAND)))
CUDA_12_4 = [p for p in CUDA_UBUNTU if p["Package"] != "cuda" or p["Version"].startswith("12.4")]
OFFERS: dict[str, Offer] = {
    "debian": {"debian": ("debian", TRIXIE)},
    "two drivers": {"debian": ("debian", TWO_DRIVERS)},
    "debian's packages, made by nvidia": {"debian": ("nvidia", TRIXIE)},
    "nothing of the stack": {"debian": ("debian", SURROUNDINGS)},
    "debian with cuda": WITH_CUDA,
    "debian with cuda, its own driver first": dict(reversed(WITH_CUDA.items())),
    "ubuntu": UBUNTU,
    "ubuntu, its own driver first": dict(reversed(UBUNTU.items())),
    "ubuntu, with a distribution's nvlsm": WITH_NVLSM,
    "ubuntu first, with a distribution's nvlsm": dict(reversed(WITH_NVLSM.items())),
    "ubuntu, with CUDA 12.4 alone": {**UBUNTU, "cuda": ("nvidia", CUDA_12_4)},
    "ubuntu with doca": {**UBUNTU, "doca": ("mellanox technologies", DOCA)},
    "ubuntu 22.04": {**UBUNTU, "ubuntu": with_kernel("5.15.0-140")},
    "ubuntu 26.04": {"cuda": ("nvidia", CUDA_RESOLUTE), "ubuntu": with_kernel("7.0.0-12", driver=False)},
    "packaged": {"cuda": ("nvidia", LIBRARIES), "ubuntu": ("ubuntu", PACKAGED)},
    "packaged, with a later userland": {
        "cuda": ("nvidia", LIBRARIES),
        "ubuntu": ("ubuntu", [*WITHOUT_USERLAND, *userland("580", "580.159.03-2ubuntu1")]),
    },
    "packaged, with a userland of NVIDIA's": {
        "cuda": ("nvidia", [*LIBRARIES, *userland("580", USERLAND)]),
        "ubuntu": ("ubuntu", WITHOUT_USERLAND),
    },
    "ubuntu 26.04, kernel 7.2": {"cuda": ("nvidia", CUDA_RESOLUTE), "ubuntu": with_kernel("7.2.0-3", driver=False)},
}


#: A driver with userland that the stack itself doesn't need, and the same of an older one.
PIECES = [piece for version in ("580.95.05", "580.82.07") for piece in cuda.driver_pieces(version)]
OFFERS["ubuntu with pieces"] = {"cuda": ("nvidia", [*CUDA_UBUNTU, *PIECES]), "ubuntu": ("ubuntu", NOBLE)}


def universe(offer: Offer | Iterable[Stanza]) -> Universe:
    """An offer's lists; stanzas alone are Debian's."""
    lists = []
    repositories: Offer = offer if isinstance(offer, Mapping) else {"debian": ("debian", offer)}
    for repository, (origin, stanzas) in repositories.items():
        where = Origin(repository, "trixie", "main", origin, ("amd64", "all"), f"https://mirror.example/{repository}")
        lists.append(PackageList(text(stanzas), where))
    return Universe(lists)


READER = in_packages("580.159.03")


def solve(
    offer: Offer | Iterable[Stanza] = TRIXIE,
    os: str = "debian-13",
    reader: PackagedModules = READER,
    wishes: Sequence[str] = (),
    keep: Keep | None = None,
    **profile: Any,
) -> Resolution:
    wish = Profile.model_validate({"os": os, **profile})
    offered = universe(offer)
    return resolve(
        "gds", wish, stack_platform_for(os), offered, [], sources, rules=rules_with(()), keep=keep, wishes=wishes,
        modules=reader,
    )  # fmt: skip


def target(offer: Offer | Iterable[Stanza] = TRIXIE, os: str = "debian-13", **profile: Any) -> Target:
    return solve(offer, os, **profile).target


def versions(target: Target) -> dict[str, str]:
    return {package.package: package.version for package in target.packages}


CASES = cases.load("lock/resolve")


def offered(case: dict[str, Any]) -> Offer:
    """The offer of a case, after its changes."""
    offer = OFFERS[case.get("offer", "debian")]
    result: dict[str, tuple[str, list[Stanza]]] = {}
    for repository, (origin, stanzas) in offer.items():
        gone = [pattern.removeprefix(f"{repository}/") for pattern in case.get("without", ())]
        rest = [p for p in stanzas if not any(fnmatch(p["Package"], pattern) for pattern in gone)]
        added: list[Stanza] = []
        for maker, *words in case.get("add", {}).get(repository, ()):
            named = words.pop() if isinstance(words[-1], dict) else {}
            made = next(getattr(kit, maker) for kit in (stack, cuda, packagedmodules) if hasattr(kit, maker))
            more = made(*words, **named)
            added += more if isinstance(more, list) else [more]
        result[repository] = (origin, [p | case.get("change", {}).get(p["Package"], {}) for p in [*rest, *added]])
    return result


def reasons(error: GdsError) -> list[str]:
    """The lines of the message that begin with a rule."""
    return [line[4:] for line in error.message.splitlines() if line.startswith("  - ")]


def found(case: dict[str, Any]) -> dict[str, Any]:
    offer = offered(case)
    os = case.get("os", "ubuntu-24.04" if "ubuntu" in offer else "debian-13")
    words = case.get("modules", ["580.159.03"])
    named = words[-1] if isinstance(words[-1], dict) else {}
    reader = in_packages(*(word for word in words if word is not named), **named)
    profile, wishes = case.get("profile", {}), case.get("wishes", ())
    try:
        resolution = solve(offer, os, reader, wishes, **profile)
    except (NoSolution, RepositoryUnusable) as error:
        return {"reasons": reasons(error), "error": f"{error.message}\n{error.hint}"}
    target = resolution.target
    before = versions(solve(offer, os, reader, **profile).target if wishes else target)
    after = versions(target)
    return {
        "adopted": list(target.adopted),
        "left_out": [f"{one.name}: {one.reason}" for one in resolution.left_out],
        "adds": [f"{name} {after[name]}" for name in sorted(after.keys() - before.keys())],
        "moved": [name for name, version in before.items() if after.get(name) != version],
        "kernel": target.kernel.release,
        "driver": target.driver.model_dump(),
        "nvidia_fs": target.nvidia_fs and target.nvidia_fs.model_dump(),
        "libcufile": target.libcufile.version,
        "versions": versions(target),
        "parts": {p.package: p.part for p in target.packages},
        "packages": {p.package: [p.version, p.part, p.needed_by] for p in target.packages},
        "makers": {p.package: p.repository for p in target.packages},
        "count": len(target.packages),
        "refused": sorted(f"{refused.what}: {refused.rule}" for refused in target.refused),
        "words": {refused.what: refused.words for refused in target.refused},
        "rules": list(target.rules),
        "warnings": [verdict.rule for verdict in resolution.warnings],
        "warned": {verdict.rule: verdict.words for verdict in resolution.warnings},
        "packaged": [module.model_dump() for module in target.packaged],
        "pins": dict(target.pins),
    }


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    assert set(CASES[name]) <= {"offer", "os", "profile", "wishes", "modules", "without", "add", "change", "found"}
    assert CASES[name]["found"]
    for difference in expect.differences(CASES[name]["found"], found(CASES[name]), "found"):
        pytest.fail(f"tests/cases/lock/resolve.yml: {name}: {difference}", pytrace=False)


def test_headers_of_another_build_do_not_do() -> None:
    older = [p for p in kernel("6.12.96+deb13", "6.12.96-1") if p["Package"].startswith("linux-headers")]
    result = target([*TRIXIE, *kernel("6.12.96+deb13", "6.12.96-2", headers=False), *older])
    assert result.kernel.release == "6.12.94+deb13-amd64"
    assert ("kernel 6.12.96+deb13-amd64", "kernel-headers") in {(r.what, r.rule) for r in result.refused}


def test_kernels_build_tools_come_from_its_own_build() -> None:
    shared = [
        p | {"Package": "linux-kbuild-6.12", "Depends": "libc6"} if p["Package"].startswith("linux-kbuild") else
        p | {"Depends": p.get("Depends", "").replace("linux-kbuild-6.12.94+deb13", "linux-kbuild-6.12")
             .replace("linux-kbuild-6.12.107+deb13", "linux-kbuild-6.12")}
        for p in TRIXIE
    ]  # fmt: skip
    assert versions(target(shared))["linux-kbuild-6.12"] == "6.12.94-1"


def test_one_combination_that_passes_is_enough() -> None:
    """Ten drivers with ten kernels: the one pair that a rule of the test's own admits is found."""
    drivers = [s for n in range(10) for s in (*open_driver(f"55{n}.1", "1"), *proprietary_driver(f"55{n}.1", "1"))]
    kernels = [s for n in range(10) for s in kernel(f"6.{n}.5+deb13", f"6.{n}.5-1")]
    gone = ("linux-image", "linux-headers", "linux-kbuild", "nvidia-open", "libcuda")
    rest = [p for p in TRIXIE if not p["Package"].startswith(gone)]
    rule = """
rules:
- {id: only-one, says: X., known: measured, source: this test, refuses: {driver: "!=553.1"}}
- {id: nor-this, says: X., known: measured, source: this test, refuses: {kernel: "!=6.4.5"}}
"""
    wish = Profile.model_validate({"os": "debian-13"})
    rules = [*load(rule), *(r for r in rules_with(()) if r.id == "nvidia-fs-open-only")]
    result = resolve("gds", wish, DEBIAN, universe([*drivers, *kernels, *rest]), [], sources, rules=rules).target
    assert (result.driver.version, result.kernel.release) == ("553.1", "6.4.5+deb13-amd64")
    assert len(result.refused) == 6 + 5


#: What is on offer beside the stack's DKMS 3.2.2, the version that a rule needs beside driver 570, and what is chosen.
JUDGED_DKMS = [
    ((), ">=3.1.8", "570.133.07", "3.2.2-1~deb13u1"),
    ((), ">=3.9", "550.163.01", "3.2.2-1~deb13u1"),
    (("3.1.6-1",), "<3.2", "570.133.07", "3.1.6-1"),
    (("4.0-1", "4.1-1"), "<4", "570.133.07", "3.2.2-1~deb13u1"),
]


@pytest.mark.parametrize(("others", "needed", "driver", "dkms"), JUDGED_DKMS)
def test_the_dkms_that_builds_the_modules_is_chosen_with_them(
    others: Sequence[str], needed: str, driver: str, dkms: str
) -> None:
    """It comes in as a dependency, after the choice, and there are many versions of what doesn't matter for it."""
    many = [p for n in range(120) for p in gds("2.19.7", f"1.9.2.{n}", "12.4.2", "1")]
    older = [package("dkms", version, architecture="all") for version in others]
    wish, offer = Profile.model_validate({"os": "debian-13", "kernel": "6.12.94"}), [*TWO_DRIVERS, *many, *older]
    rule = Rule("dkms-new", "DKMS.", "source", "this test", when={"driver": ("570",)}, needs={"dkms": (needed,)})
    result = resolve("gds", wish, DEBIAN, universe(offer), [], sources, rules=[rule]).target
    assert (result.driver.version, versions(result)["dkms"]) == (driver, dkms)
    assert result.judged["dkms"] == upstream(dkms)
    refused = [one.what for one in result.refused if one.rule == "dkms-new"]
    assert refused == ([] if driver == "570.133.07" else ["driver 570.133.07 (open)"])


def test_what_was_tried_is_in_the_error() -> None:
    wish = Profile.model_validate({"os": "debian-13"})
    needs = {"dkms": (">=3.9",)}
    rule = Rule("dkms-new", "DKMS is too old.", "source", "this test", when={"driver": (">=1",)}, needs=needs)
    with pytest.raises(NoSolution) as error:
        resolve("gds", wish, DEBIAN, universe(TWO_DRIVERS), [], sources, rules=[rule])
    lines = error.value.message.splitlines()
    assert lines[2].startswith("  tried: the packages of 2 combinations, the last driver 550.163.01 (open), kernel ")
    assert lines[3:] == [
        f"  - [dkms-new] DKMS is too old. Here: driver {driver}, dkms 3.2.2." for driver in ("570.133.07", "550.163.01")
    ]


def tree(name: str, stanza: Stanza, version: str = "") -> Stanza:
    """The digest of a package file that has this tree."""
    return {"SHA256": hashlib.sha256(with_tree(name, version or stanza["Version"])).hexdigest()}


def test_the_source_tree_is_the_one_that_the_packages_have() -> None:
    """Ubuntu's data-centre builds have a DKMS name of their own, and nothing but dkms.conf says so."""
    server = [p if "nvidia-kernel-source" not in p["Package"] else {**p, **tree("nvidia-srv", p)} for p in CUDA_UBUNTU]
    result = target({**UBUNTU, "cuda": ("nvidia", server)}, os="ubuntu-24.04", driver="580.95")
    assert (result.driver.source_tree, result.driver.dkms_name) == ("/usr/src/nvidia-srv-580.95.05", "nvidia-srv")


def test_a_source_tree_of_another_driver_ends_the_resolution() -> None:
    wrong = [p if p["Package"] != "nvidia-kernel-source-580-open" else {**p, **tree("nvidia", p, "570.1-1")}
             for p in CUDA_UBUNTU]  # fmt: skip
    with pytest.raises(RepositoryUnusable, match=r"dkms\.conf is of 570\.1, and it is 580\.95\.05"):
        target({**UBUNTU, "cuda": ("nvidia", wrong)}, os="ubuntu-24.04", driver="580.95")


def test_a_locked_nvlsm_stays_while_its_driver_does() -> None:
    older = {**UBUNTU, "cuda": ("nvidia", [*CUDA_UBUNTU, *nvlink5("580.82.07", "2025.03.1-1")])}
    before = target(older, "ubuntu-24.04", driver="580", companions=["nvlink5"])
    newer = {**UBUNTU, "cuda": ("nvidia", [*CUDA_UBUNTU, *nvlink5("580.82.07", "2025.03.1-1", "2025.06.10-1")])}
    after = target(newer, "ubuntu-24.04", keep=Keep(before), driver="580", companions=["nvlink5"])
    assert versions(after)["nvlsm"] == "2025.03.1-1"


#: A profile whose modules come from packages, for a kernel of NVIDIA's.
PACKAGED_PROFILE: dict[str, Any] = {"os": "ubuntu-24.04", "modules": "packaged", "kernel": {"flavour": "nvidia"}}


def test_a_lock_of_packaged_modules_stays_until_it_is_upgraded() -> None:
    before = target(offered({"offer": "packaged", "without": [f"ubuntu/linux-image-{SPARK}"]}), **PACKAGED_PROFILE)
    assert before.kernel.release == "6.17.0-1026-nvidia"
    offer = OFFERS["packaged"]
    assert target(offer, keep=Keep(before), **PACKAGED_PROFILE) == before
    assert target(offer, keep=Keep(before, frozenset({"kernel"})), **PACKAGED_PROFILE).kernel.release == SPARK


def test_a_rule_about_packaged_nvidia_fs_costs_one_try_for_each_kernel() -> None:
    """Which nvidia-fs a kernel's package has is read after the choice, and no libcufile changes it."""
    many = [package(f"{name}-13-0", f"1.15.9.{n}-1") for n in range(120) for name in ("libcufile", "gds-tools")]
    offer = {**OFFERS["packaged"], "cuda": ("nvidia", [*LIBRARIES, *many])}
    rule = Rule("ours", "Ours.", "measured", "this test", refuses={"nvidia_fs": ("2.26",), "libcufile": (">=0",)})
    wish, ubuntu = Profile.model_validate(PACKAGED_PROFILE), stack_platform_for("ubuntu-24.04")
    with pytest.raises(NoSolution, match=r"\[ours\] Ours\. Here: nvidia-fs 2\.26\.6") as error:
        resolve("gds", wish, ubuntu, universe(offer), [], sources, rules=[rule], modules=READER)
    assert "tried: the packages of 2 combinations" in error.value.message


def test_explain_names_the_newer_kernel_and_why_it_is_not_taken() -> None:
    wish = {"os": "ubuntu-24.04", "modules": "packaged", "driver": "570", "mode": "compat"}
    offer, profile = OFFERS["packaged"], Profile.model_validate(wish)
    locked = target(offer, reader=in_packages("570.211.01"), **wish)
    index = {"repository": "ubuntu", "uri": "https://mirror.example/ubuntu", "suite": "trixie", "components": ("main",)}
    signed = Index(**index, date="2026-11-01T00:00:00Z", signed_by="A" * 40, host_keyring="/k")  # type: ignore[arg-type]
    locked = locked.model_copy(update={"indices": (signed,)})
    platform = stack_platform_for("ubuntu-24.04")
    (newer,) = explain("gds", profile, platform, universe(offer), locked, "kernel", rules_with(())).newer
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


def test_names_of_other_branches_become_those_of_the_driver() -> None:
    """A host with branch 570 moves to 580, and one with 580 to a branch without numbers."""
    assert names_in_branch("libnvidia-decode-570", "580") == ["libnvidia-decode-580", "libnvidia-decode"]
    assert names_in_branch("nvidia-driver-570-open", "595") == ["nvidia-driver-595-open", "nvidia-driver-open"]
    assert names_in_branch("nvidia-open", "580") == ["nvidia-open"]
    assert names_in_branch("nvidia-open-580", "580") == ["nvidia-open-580"]


def test_whether_what_is_left_out_would_leave() -> None:
    more = [
        package("mine", "1", depends="libc6, libnvidia-compute-580 (= 580.82.07-0ubuntu1)"),
        package("free", "1", depends="libc6"),
        package("rival", "1", conflicts="nvidia-utils-580"),
    ]
    offer: Offer = {"cuda": ("nvidia", [*CUDA_UBUNTU, *more]), "ubuntu": ("ubuntu", NOBLE)}
    packages = target(offer, "ubuntu-24.04", driver="580.95").packages
    names, ubuntu = ("mine", "free", "rival", "unknown"), stack_platform_for("ubuntu-24.04")
    assert [leaves(ubuntu, universe(offer), packages, name, "1") for name in names] == [True, False, True, None]
