"""kernel_changes.yml, the program that reads tags for it, and the rules that come of both."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import resources

import pytest

from docs.gen import compat_rules, kernel_changes
from docs.gen.kernel_changes import Change, Tag
from gdsdeploy.host import data
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import FITS, KINDS, REFUSED, UNKNOWN, WARNED, parse_versions, version_order


def test_hosts_have_the_rules_as_the_tables_make_them() -> None:
    assert resources.files(data).joinpath("compat.json").read_text(encoding="utf-8") == compat_rules.table()


def test_the_tags_are_read_again_in_time() -> None:
    last = kernel_changes.table().read_again_after
    newest = kernel_changes.tags()["driver"]
    assert newest.date < last
    assert datetime.now(UTC).date() <= last, (
        f"the newest tag of tags.yml, {newest.newest}, is of {newest.date}, kernel_changes.yml has read_again_after:"
        f" {last}; follow 'Add a release of the driver' in docs/guides/extend.md"
    )


# -- What it read, against facts that were found otherwise.

#: kernel, change, branch → the first release that knows it; none of the other branches' releases do.  535.247.01 and
#: 535.261.03 have a probe for the string of MODULE_IMPORT_NS(), and their nv-frontend.c does not ask for its answer.
FIRST = (
    ("6.13", "driver-module-import-ns", {"535": "535.274.02", "550": "550.144.03", "570": "570.86.15",
                                         "575": "575.51.02", "580": "580.65.06", "590": "590.44.01",
                                         "595": "595.44.02"}),
    ("6.15", "driver-page-pgmap", {"535": "535.261.03", "570": "570.153.02", "575": "575.57.08", "580": "580.65.06",
                                   "590": "590.44.01", "595": "595.44.02"}),
    ("6.17", "driver-drm-fb-create", {"535": "535.274.02", "570": "570.190", "580": "580.82.07", "590": "590.44.01",
                                      "595": "595.44.02"}),
    ("6.19", "driver-folio-free", {"580": "580.126.09", "595": "595.44.02"}),
    ("6.19", "driver-zone-device-page-init", {"580": "580.126.18", "595": "595.44.02"}),
    ("7.0", "driver-vma-write-locked", {"580": "580.142", "595": "595.44.03"}),
)  # fmt: skip
#: releases for developers: lower numbers, later dates
ASIDE = ("535.43.", "550.40.", "570.123.", "580.94.")
DRIVERS = [
    version
    for branch, versions in kernel_changes.tags()["driver"].tags.items()
    if int(branch) >= 535
    for version in versions
    if not version.startswith(ASIDE)
]
RULES = [rule for rule in compat.rules_with(()) if rule.looks_at >= {"driver", "kernel"}]


def kinds(driver: str, kernel: str, **more: str) -> dict[str, str]:
    """Rule → what it says of NVIDIA's own driver."""
    pair = {"driver": driver, "kernel": kernel, "driver_origin": "nvidia", "flavour": "open", **more}
    return {verdict.rule: verdict.kind for verdict in compat.judge(pair, RULES)}


def worst(driver: str, kernel: str, **more: str) -> str:
    found = kinds(driver, kernel, **more).values()
    return next((kind for kind in KINDS if kind in found), "nothing")


def lacks(driver: str, kernel: str) -> bool:
    """Whether the driver doesn't know one of FIRST that the kernel has, or calls get_dev_pagemap() as before 6.18."""
    for since, _, first in FIRST:
        known = first.get(driver.split(".")[0])
        if version_order(since) <= version_order(kernel) and (
            known is None or version_order(driver) < version_order(known)
        ):
            return True
    return driver in ("580.95.05", "580.105.08") and version_order(kernel) >= version_order("6.18")


@pytest.mark.parametrize(("kernel", "change", "first"), FIRST, ids=[row[1] for row in FIRST])
def test_the_first_releases_that_know_a_change(kernel: str, change: str, first: dict[str, str]) -> None:
    seen = kernel_changes.tags()["driver"].changes[change]
    exact = [v for v in DRIVERS if any(parse_versions(text).admits(v) for text in seen.knows)]
    known = {branch: next(v for v in exact if v.startswith(branch)) for branch in {v.split(".")[0] for v in exact}}
    assert known == first


def test_no_pair_that_lacks_a_change_passes_in_silence() -> None:
    kernels = ("6.13", "6.15", "6.17", "6.18", "6.19", "7.0")
    lacking = [(driver, kernel) for driver in DRIVERS for kernel in kernels if lacks(driver, kernel)]
    assert len(lacking) > 400
    # The open modules leave out what kernel 7.0 changed.  595.45.04 is older than 595.44.03.
    open_ones = {("580.126.18", "7.0"), ("580.126.20", "7.0"), ("595.44.02", "7.0"), ("595.45.04", "7.0")}
    assert [(*pair, worst(*pair)) for pair in lacking if pair not in open_ones and worst(*pair) != REFUSED] == []
    assert {worst(*pair) for pair in open_ones} == {WARNED}
    assert {worst(*pair, flavour="proprietary") for pair in open_ones} == {REFUSED}


@pytest.mark.parametrize(
    ("driver", "kernel", "kind"),
    [
        # compiled here
        ("580.142", "6.12.118", FITS), ("580.126.09", "7.2.12", REFUSED), ("595.45.04", "7.2.12", REFUSED),
        # reports
        ("580.126.09", "6.19.2", REFUSED), ("580.105.08", "6.18.1", REFUSED), ("580.126.18", "6.19.2", FITS),
        ("570.153.02", "6.15.1", FITS), ("530.30.02", "6.3.1", REFUSED), ("530.41.03", "6.3.1", FITS),
        ("535.54.03", "6.5.0", REFUSED), ("580.173.02", "7.1.3", FITS), ("580.159.03", "7.1.3", REFUSED),
        ("580.159.03", "7.0.13", FITS), ("610.43.02", "7.1.0", FITS), ("610.43.03", "7.2.0", REFUSED),
        ("615.71.09", "7.2.5", FITS), ("595.71.05", "7.0.0", FITS), ("570.172.08", "6.12.97", REFUSED),
        ("580.173.02", "7.2.6", REFUSED), ("580.178.04", "7.2.6", FITS), ("610.57.04", "7.2.0", FITS),
        ("515.48.07", "6.1.0", REFUSED), ("515.57", "6.0.3", FITS), ("545.29.02", "6.7.0", REFUSED),
        ("535.129.03", "6.7.0", REFUSED), ("535.154.05", "6.7.3", FITS), ("535.261.03", "6.1.0-57-amd64", REFUSED),
        ("535.261.03", "6.1.0-50-amd64", FITS), ("550.78", "6.8.9", FITS), ("550.78", "6.10.5", REFUSED),
        ("545.29.06", "6.8.0", REFUSED),
        ("570.172.08", "6.12.96", FITS), ("595.71.05", "5.15.206", UNKNOWN), ("535.309.01", "6.12.117", FITS),
        # nothing tells
        ("570.230.01", "6.19.0", UNKNOWN), ("590.48.02", "7.2.3", UNKNOWN), ("615.71.09", "7.3.1", UNKNOWN),
        ("470.256.02", "5.15.0", UNKNOWN), ("540.3.0", "5.15.0", UNKNOWN), ("550.163.01", "6.6.140", UNKNOWN),
        ("580.95.05", "5.14.0-570.12.1.el9_6.x86_64", UNKNOWN), ("580.95.05", "6.12.0-211.el10.x86_64", UNKNOWN),
        ("580.95.05", "6.4.0-150600.23.47-default", UNKNOWN), ("580.95.05", "6.12.0-160000.5-default", UNKNOWN),
        ("535.261.03", "6.1.0-55-amd64", UNKNOWN),
        # what everybody has
        ("580.95.05", "6.8.0-90-generic", FITS), ("535.183.01", "6.8.0-45-generic", FITS),
        ("550.54.14", "5.15.0-105-generic", FITS),
    ],
)  # fmt: skip
def test_pairs(driver: str, kernel: str, kind: str) -> None:
    assert worst(driver, kernel) == kind


@pytest.mark.parametrize(
    ("driver", "kernel", "kind"),
    [
        ("515.57", "6.0.3", REFUSED), ("515.65.01", "6.0.3", FITS),
        # pfn_valid() needed a symbol under the GPL for some stable releases
        ("545.29.02", "6.1.76", REFUSED), ("525.125.06", "6.1.0-18-cloud-amd64", REFUSED),
        ("535.154.05", "6.7.3", REFUSED), ("545.29.06", "6.6.15", REFUSED), ("545.29.06", "6.6.16", FITS),
        ("535.161.07", "6.7.3", FITS), ("550.54.14", "6.7.3", FITS), ("535.129.03", "6.1.75", FITS),
        ("535.129.03", "6.1.78", UNKNOWN), ("535.129.03", "6.1.90", FITS),
        ("535.104.05", "5.15.0-1064-azure", UNKNOWN), ("535.104.05", "5.15.0-76-generic", FITS),
        ("535.104.05", "5.15.160", REFUSED), ("580.126.09", "5.15.160", UNKNOWN), ("580.105.08", "5.15.160", FITS),
    ],
)  # fmt: skip
def test_pairs_of_proprietary_modules(driver: str, kernel: str, kind: str) -> None:
    assert worst(driver, kernel, flavour="proprietary") == kind


def test_what_ubuntu_patches_is_not_known_where_nvidia_s_breaks() -> None:
    assert worst("580.95.05", "7.0.0-15-generic", driver_origin="ubuntu") == UNKNOWN
    assert worst("580.95.05", "6.8.0-90-generic", driver_origin="ubuntu") == FITS


CHANGES = [each for each in kernel_changes.changes() if each.module == "driver" and each.kernel]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.id)
def test_a_rule_holds_from_the_kernel_on_that_has_the_change(change: Change) -> None:
    """Its cases: each release before and with, on the first kernel that has it and on the one before."""
    seen = kernel_changes.tags()["driver"].changes[change.id]
    rules = [rule for rule in RULES if rule.id == change.id]
    flavour = change.when.get("flavour", ("open",))[0]
    since = change.kernel[-1].split(",")[0].removeprefix(">=")
    *series, last = map(int, since.split("."))
    # 5.19 and 6.19 were the last of their major versions.
    before = ".".join(map(str, (*series, last - 1))) if last else f"{series[0] - 1}.19.0"
    for driver in (v for versions in kernel_changes.tags()["driver"].tags.values() for v in versions):
        pair = {"driver": driver, "driver_origin": "nvidia", "flavour": flavour}
        breaks = any(parse_versions(text).admits(driver) for text in seen.breaks)
        assert [v.kind for v in compat.judge({**pair, "kernel": since}, rules)] == [REFUSED if breaks else FITS]
        assert compat.judge({**pair, "kernel": before}, rules) == []


def test_releases_without_a_tag_are_like_their_neighbours_or_unknown() -> None:
    states = [("515.1", "breaks"), ("520.1", "breaks"), ("520.3", "knows"), ("535.1", "knows"), ("545.1", "breaks")]
    seen = kernel_changes.ranges([(Tag(version, day), state) for day, (version, state) in enumerate(states)])  # type: ignore[misc]
    assert seen.breaks == ("<=515.1", ">=516, <=520.1", ">=545.1, <=545.1")
    assert seen.knows == (">=520.3, <536",)
    assert seen.unknown == (">515.1, <516", ">520.1, <520.3", ">=536, <545.1", ">545.1")


#: nvidia-fs of NVIDIA → kernels on which it was compiled, as far as known, and how that ended.
COMPILED = {
    "2.14.13": {"6.1.176": False},
    "2.15.1": {"6.2.12": False},
    "2.16.1": {"6.1.176": False},
    "2.17.5": {"6.1.176": True, "6.1.192": True, "6.12.95": False},
    "2.18.3": {"6.1.176": True, "6.3.1": False, "6.5.0": False, "6.12.95": False},
    "2.19.7": {"6.1.176": True, "6.12.95": False},
    "2.24.2": {"6.1.176": True, "6.12.118": False},
    "2.25.7": {"6.1.176": True, "6.12.118": True},
    "2.26.6": {"6.12.95": True, "6.17.0": False},
    "2.28.2": {"6.12.95": True, "6.18.8": False},
    "2.28.4": {"6.12.118": True, "7.0.0": False, "7.2.12": False},
    "2.29.4": {"7.1.9": True},
    "2.30.1": {"7.2.5": True},
}


@pytest.mark.parametrize("version", COMPILED)
def test_nvidia_fs_is_judged_as_it_compiled(version: str) -> None:
    for kernel, compiles in COMPILED[version].items():
        combination = {"nvidia_fs": version, "nvidia_fs_origin": "nvidia", "kernel": kernel}
        kinds = {verdict.kind for verdict in compat.judge(combination, compat.rules_with(()))}
        assert (compat.REFUSED in kinds) is not compiles, kernel
        assert not compiles or compat.UNKNOWN not in kinds, kernel
