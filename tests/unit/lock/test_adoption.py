"""What hosts have of their driver is locked with it; on package lists in memory."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.lock.resolve import Resolution, resolve
from gdsdeploy.lock.resolve.target import leaves, names_in_branch
from gdsdeploy.model.fleet import Profile
from gdsdeploy.platform import stack_platform_for
from tests.repos.cuda import CUDA_UBUNTU, NOBLE, cuda_driver
from tests.repos.dkmspackages import sources
from tests.repos.stack import Stanza, package, without
from tests.unit.lock.test_resolve import Offer, universe, versions

UBUNTU = stack_platform_for("ubuntu-24.04")
VERSION = "580.95.05"
FULL = f"{VERSION}-0ubuntu1"


def pieces(version: str, *, source: str = "nvidia-graphics-drivers-580") -> list[Stanza]:
    """Userland that the stack itself doesn't need."""
    full = f"{version}-0ubuntu1"
    return [
        package("libnvidia-decode-580", full, source=source, depends=f"libnvidia-compute-580 (= {full})"),
        package("libnvidia-encode-580", full, source=source, depends=f"libnvidia-decode-580 (= {full})"),
        package("libnvidia-nscq", f"{version}-1", depends="libc6"),
    ]


OFFER: Offer = {"cuda": ("nvidia", [*CUDA_UBUNTU, *pieces(VERSION), *pieces("580.82.07")]), "ubuntu": ("ubuntu", NOBLE)}


def solve(*wishes: str, offer: Offer = OFFER, **profile: Any) -> Resolution:
    wish = Profile.model_validate({"os": "ubuntu-24.04", "driver": "580.95", **profile})
    return resolve("gds", wish, UBUNTU, universe(offer), [], sources, wishes=wishes)


def reasons(resolution: Resolution) -> dict[str, str]:
    return {one.name: one.reason for one in resolution.left_out}


def test_pieces_of_the_driver_come_in_its_version_and_nothing_else_moves() -> None:
    plain = solve()
    adopted = solve("libnvidia-encode-580", "libnvidia-nscq", "libnvidia-gl-580")
    assert adopted.target.adopted == ("libnvidia-encode-580", "libnvidia-gl-580", "libnvidia-nscq")
    assert adopted.left_out == ()
    before, after = versions(plain.target), versions(adopted.target)
    assert {name: after[name] for name in before} == before
    assert {name: version for name, version in after.items() if name not in before} == {
        "libnvidia-encode-580": FULL,
        "libnvidia-decode-580": FULL,
        "libnvidia-gl-580": FULL,
        "libnvidia-nscq": f"{VERSION}-1",
    }
    new = [each for each in adopted.target.packages if each.package not in before]
    assert {(each.part, each.needed_by) for each in new} == {("driver-userland", "host")}
    assert all(len(each.sha256) == 64 for each in new)


def test_what_the_lock_has_anyway_is_not_adopted() -> None:
    resolution = solve("libnvidia-compute-580", "nvidia-utils-580")
    assert (resolution.target.adopted, resolution.left_out) == ((), ())
    assert resolution.target == solve().target


def test_names_of_other_branches_become_those_of_the_driver() -> None:
    """A host with branch 570 moves to 580, and one with 580 to a branch without numbers."""
    assert names_in_branch("libnvidia-decode-570", "580") == ["libnvidia-decode-580", "libnvidia-decode"]
    assert (
        names_in_branch("nvidia-driver-570-open", "595")
        == ["nvidia-driver-595-open", "nvidia-driver-open"] + ["nvidia-driver-595-open"] * 0
    )
    assert names_in_branch("nvidia-open", "580") == ["nvidia-open"]
    assert names_in_branch("nvidia-open-580", "580") == ["nvidia-open-580"]
    assert solve("libnvidia-gl-570").target.adopted == ("libnvidia-gl-580",)
    offer: Offer = {"cuda": ("nvidia", [*OFFER["cuda"][1], *cuda_driver("590.48.01")]), "ubuntu": ("ubuntu", NOBLE)}
    assert solve("libnvidia-gl-580", offer=offer, driver="590").target.adopted == ("libnvidia-gl",)


@pytest.mark.parametrize("name", ["nvidia-open", "nvidia-open-580", "nvidia-driver-580-open"])
def test_a_metapackage_with_exactly_this_driver_is_adopted_where_hosts_build(name: str) -> None:
    target = solve(name, modules="build").target
    assert name in target.adopted
    assert versions(target)[name] == FULL
    (reason,) = reasons(solve(name)).values()
    assert reason.startswith("it needs dkms, nvidia-dkms-580-open, ")
    assert reason.endswith("only where they build their modules; with `modules: build` it is adopted")


def test_a_metapackage_of_the_other_flavour_is_explained() -> None:
    resolution = solve("cuda-drivers-580", modules="build")
    assert resolution.target.adopted == ()
    assert "nvidia-dkms-580" in reasons(resolution)["cuda-drivers-580"]


def test_a_metapackage_that_has_only_the_newest_driver_is_explained() -> None:
    stanzas = [s for s in OFFER["cuda"][1] if (s["Package"], s["Version"]) != ("nvidia-open", FULL)]
    newest = package("nvidia-open", "595.1-0ubuntu1", depends="nvidia-driver-open (= 595.1-0ubuntu1)")
    offer: Offer = {"cuda": ("nvidia", [*stanzas, newest]), "ubuntu": ("ubuntu", without(NOBLE, "nvidia-open"))}
    resolution = solve("nvidia-open", offer=offer, modules="build")
    assert resolution.target.adopted == ()
    assert "don't have it in version 580.95.05, but in" in reasons(resolution)["nvidia-open"]


def test_without_a_wish_no_metapackage_is_chosen() -> None:
    assert not {name for name in versions(solve(modules="build").target) if "nvidia-open" in name}


def test_what_is_not_on_offer_or_of_another_maker_is_explained() -> None:
    other = [*NOBLE, package("libnvidia-fbc1-580", FULL, source="nvidia-graphics-drivers-580", depends="libc6")]
    offer: Offer = {**OFFER, "ubuntu": ("ubuntu", other)}
    resolution = solve("libnvidia-fbc1-580", "libnvidia-strange", "libnvidia-gl-580", offer=offer)
    assert resolution.target.adopted == ("libnvidia-gl-580",)
    assert reasons(resolution) == {
        "libnvidia-fbc1-580": "only ubuntu has it in version 580.95.05, and the driver is made by nvidia",
        "libnvidia-strange": "the profile's repositories don't have it",
    }


def test_gds_metapackages_go_with_the_locked_libcufile() -> None:
    library = next(p for p in solve().target.packages if p.part == "libcufile").package
    number = library.removeprefix("libcufile-")
    own = package(f"nvidia-gds-{number}", "1.0-1", depends=f"{library}, nvidia-fs-dkms, gds-tools-{number}")
    later = package("nvidia-gds", "99.0-1", depends="libcufile-99-0")
    offer: Offer = {**OFFER, "cuda": ("nvidia", [*OFFER["cuda"][1], own, later])}
    resolution = solve(f"nvidia-gds-{number}", "nvidia-gds", offer=offer, modules="build")
    assert resolution.target.adopted == (f"nvidia-gds-{number}",)
    assert "libcufile-99-0" in reasons(resolution)["nvidia-gds"]


def test_nothing_is_adopted_that_moves_or_doubles_another_part_of_the_lock() -> None:
    source = "nvidia-graphics-drivers-580"
    extra = [
        # The lock has 1:3.1.8.
        package("dkms", "99.0-1", architecture="all", depends="libc6"),
        package("libnvidia-greedy-580", FULL, source=source, depends="dkms (<< 1:3)"),
        package("libcufile-99-0", "99.0-1"),
        package("libnvidia-second-580", FULL, source=source, depends="libcufile-99-0"),
    ]
    offer: Offer = {**OFFER, "cuda": ("nvidia", [*OFFER["cuda"][1], *extra])}
    profile = {"modules": "build", "libcufile": "<90"}
    resolution = solve("libnvidia-greedy-580", "libnvidia-second-580", offer=offer, **profile)
    assert resolution.target == solve(offer=offer, **profile).target
    assert reasons(resolution) == {
        "libnvidia-greedy-580": "with it, other versions of dkms would be locked",
        "libnvidia-second-580": "it brings along libcufile-99-0, which the lock has in another way",
    }


def test_whether_what_is_left_out_would_leave() -> None:
    mine = package("mine", "1", depends="libc6, libnvidia-compute-580 (= 580.82.07-0ubuntu1)")
    free = package("free", "1", depends="libc6")
    rival = package("rival", "1", conflicts="nvidia-utils-580")
    offer: Offer = {**OFFER, "cuda": ("nvidia", [*OFFER["cuda"][1], mine, free, rival])}
    packages = solve(offer=offer).target.packages
    names = ("mine", "free", "rival", "unknown")
    assert [leaves(UBUNTU, universe(offer), packages, name, "1") for name in names] == [True, False, True, None]
