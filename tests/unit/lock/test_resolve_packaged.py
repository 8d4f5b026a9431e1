"""Choosing a kernel and a driver together, of which the distribution has built the modules; in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import ValidationError

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.lock.resolve import Resolution, resolve
from gdsdeploy.lock.resolve.explain import explain
from gdsdeploy.lock.resolve.target import Keep
from gdsdeploy.lock.sources import PackagedModules
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.platform import stack_platform_for
from tests.repos.dkmspackages import sources
from tests.repos.packagedmodules import LIBRARIES, in_packages, modules
from tests.repos.stack import Stanza, without
from tests.unit.lock.test_resolve import OFFERS, PACKAGED, SPARK, universe, versions

NVIDIA = {"kernel": {"flavour": "nvidia"}}


def solve(
    stanzas: Iterable[Stanza] = PACKAGED,
    reader: PackagedModules = in_packages("580.159.03"),  # noqa: B008 - it keeps nothing
    keep: Keep | None = None,
    **profile: Any,
) -> Resolution:
    wish = Profile.model_validate({"os": "ubuntu-24.04", "modules": "packaged", **profile})
    offered = universe({"cuda": ("nvidia", LIBRARIES), "ubuntu": ("ubuntu", stanzas)})
    return resolve("gds", wish, stack_platform_for(wish.os), offered, [], sources, keep=keep, modules=reader)


def target(*arguments: Any, **profile: Any) -> Target:
    return solve(*arguments, **profile).target


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


@pytest.mark.parametrize("bounded", [True, False])
def test_a_kernel_that_lost_its_userland_is_passed_over_for_one_that_has_it(bounded: bool) -> None:
    """The newest kernel's modules lag behind the archive's userland: its next boot would have no driver."""
    lagging = [
        *(p for p in PACKAGED if not (p["Package"].startswith("linux-modules-nvidia-580") and SPARK in p["Package"])),
        modules("580", "580.142", SPARK, "6.17.0-1032.32", bounded=bounded),
    ]
    result = target(lagging, **NVIDIA)
    assert result.kernel.release == "6.17.0-1026-nvidia"
    assert (f"kernel {SPARK}", "packaged-modules") in {(r.what, r.rule) for r in result.refused}


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
        solve(PACKAGED, reader, **NVIDIA)
    assert words in error.value.message


def test_a_lock_stays_until_it_is_upgraded() -> None:
    before = target(without(PACKAGED, f"linux-image-{SPARK}"), **NVIDIA)
    assert before.kernel.release == "6.17.0-1026-nvidia"
    assert target(keep=Keep(before), **NVIDIA) == before
    assert target(keep=Keep(before, frozenset({"kernel"})), **NVIDIA).kernel.release == SPARK


def test_explain_names_the_newer_kernel_and_why_it_is_not_taken() -> None:
    profile = Profile.model_validate({"os": "ubuntu-24.04", "modules": "packaged", "driver": "570", "mode": "compat"})
    locked = target(PACKAGED, in_packages("570.211.01"), driver="570", mode="compat")
    index = {"repository": "ubuntu", "uri": "https://mirror.example/ubuntu", "suite": "trixie", "components": ("main",)}
    signed = Index(**index, date="2026-11-01T00:00:00Z", signed_by="A" * 40, host_keyring="/k")  # type: ignore[arg-type]
    locked = locked.model_copy(update={"indices": (signed,)})
    platform = stack_platform_for("ubuntu-24.04")
    (newer,) = explain("gds", profile, platform, universe(OFFERS["packaged"]), locked, "kernel").newer
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
