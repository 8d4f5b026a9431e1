"""Machines that the fleet file has build supply the others of their key: who, and why, from what the machines told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from gdsdeploy.builds.assign import BuildFacts, Supply, by_intent, supplies, want as want_of
from gdsdeploy.builds.cache import CacheEntry
from gdsdeploy.converge.plan_report import built_on, origins
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet, references
from gdsdeploy.model.lock import Target
from tests.unit.host import cases, expect

LOCK = lockfile.read(Path(__file__).parents[2] / "golden" / "lab" / "gdsdeploy.lock")
TARGET = LOCK.targets["gds"]
PLAIN = BuildFacts(arch="x86_64")
OFED = replace(PLAIN, ofed="sha256:0f")
KERNEL = ("kernel/fs/own.ko", "aa")


def fleet(*hosts: str, builder: bool = False, profile: dict[str, Any] | None = None, **own: str) -> Fleet:
    """Hosts of one profile; ``own``: host → its key ``modules``."""
    value: dict[str, Any] = {
        "version": 1,
        "profiles": {"gds": {"os": "debian-13", "driver": "550", **(profile or {})}},
        "hosts": {name: {"profile": "gds", **({"modules": own[name]} if name in own else {})} for name in hosts},
    }
    if builder:
        value["builders"] = {"build1": "gds"}
        value["profiles"]["gds"]["builder"] = "build1"
    return Fleet.model_validate(value)


def want(target: Target, facts: BuildFacts) -> str:
    return want_of(target, facts)


def chosen(
    intent: Fleet, facts: dict[str, BuildFacts], *wants: str, manifest: dict[str, Any] | None = None, by: str = ""
) -> dict[str, Supply]:
    """``wants``: those of kept builds; ``by``: who built them, by default whoever may."""

    def cached(key: str, builders: Sequence[str]) -> CacheEntry | None:
        builder = by or next(iter(builders), "")
        entry = CacheEntry("", builder, "", 0, 0.0, manifest or {})
        return entry if key in wants and builder in builders else None

    return supplies(intent, LOCK, facts, cached)


def summary(hosts: dict[str, Supply]) -> dict[str, str]:
    return {name: supply.builder or supply.source for name, supply in hosts.items()}


CASES = cases.load("builds/assign")
#: What a machine tells, in a word.
TOLD = {
    "plain": PLAIN,
    "ofed": OFED,
    "built": replace(PLAIN, built=True),
    "ofed and built": replace(OFED, built=True),
    "received": replace(PLAIN, received=True),
    "kernel": replace(PLAIN, kernel_build=KERNEL),
    "other kernel": replace(PLAIN, kernel_build=(KERNEL[0], "bb")),
    "away": replace(PLAIN, kernel_build=("kernel/fs/other.ko", "cc")),
    "enforcing": replace(PLAIN, signatures="enforced"),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    for number, look in enumerate(CASES[name], 1):
        given = {"hosts", "builder", "profile", "asked", "told", "kept", "by", "manifest"}
        expected = {key: value for key, value in look.items() if key not in given}
        assert expected
        own = {host: modules for host, modules in look["hosts"].items() if modules}
        builder = look.get("builder", False)
        intent = fleet(*look["hosts"], builder=builder, profile=look.get("profile"), **own)
        asked = look.get("asked", [*(["build1"] if builder else []), *look["hosts"]])
        facts = {host: TOLD[look.get("told", {}).get(host, "plain")] for host in asked}
        kept = [want(TARGET, TOLD[look["kept"]])] if "kept" in look else []
        hosts = chosen(intent, facts, *kept, manifest=look.get("manifest"), by=look.get("by", ""))
        found = {
            "supplies": summary(hosts),
            "delivers": [host for host, supply in hosts.items() if supply.delivers],
            **{key: {host: getattr(hosts[host], key) for host in hosts} for key in ("why", "lack", "origin")},
        }
        for difference in expect.differences(expected, found, f"look {number}"):
            pytest.fail(f"tests/cases/builds/assign.yml: {name}: {difference}", pytrace=False)


@pytest.mark.parametrize("builder", [True, False])
def test_a_machine_that_is_named_to_build_supplies_other_profiles_of_the_same_stack(builder: bool) -> None:
    intent = fleet("a", builder=True) if builder else fleet("a", "build1", build1="build")
    value = intent.model_dump()
    value["profiles"]["other"] = {**value["profiles"]["gds"], "builder": None}
    value["hosts"]["b"] = {"profile": "other"}
    lock = LOCK.model_copy(update={"targets": {"gds": TARGET, "other": TARGET}})
    facts = dict.fromkeys(("build1", "a", "b"), PLAIN)
    hosts = supplies(Fleet.model_validate(value), lock, facts, lambda *_: None)
    assert summary(hosts) == {"build1": "build", "a": "build1", "b": "build1"}


def test_an_ofed_of_the_lock_is_the_same_on_every_host() -> None:
    package = TARGET.packages[0].model_copy(update={"part": "doca", "package": "doca-ofed"})
    locked = TARGET.model_copy(update={"packages": (*TARGET.packages, package)})
    assert want(locked, PLAIN) == want(locked, OFED) != want(TARGET, PLAIN)
    assert want(TARGET, PLAIN) != want(TARGET, OFED)


def test_a_fleets_own_signature_is_not_another_fleets() -> None:
    signing = {"signing": {"certificate": "/etc/keys/modules.der"}}
    wants = {
        chosen(fleet(*names, profile=profile), {"a": PLAIN})["a"].want
        for names, profile in ((("a",), signing), (("a", "b"), signing), (("a",), {}))
    }
    assert len(wants) == 3


def test_a_host_that_enforces_signatures_receives_from_a_builder_that_does_not() -> None:
    enforcing = replace(PLAIN, signatures="enforced")
    signing = {"signing": {}}
    hosts = chosen(fleet("a", builder=True, profile=signing), {"a": enforcing, "build1": PLAIN})
    assert summary(hosts) == {"a": "build1", "build1": "build"}
    # What isn't signed doesn't fit it.
    hosts = chosen(fleet("a", builder=True), {"a": enforcing, "build1": PLAIN})
    assert hosts["a"].want != hosts["build1"].want


def test_what_the_fleet_file_says_alone() -> None:
    assert by_intent(fleet("a"), LOCK, "a").mode == "build"
    assert by_intent(fleet("a", builder=True), LOCK, "a").builder == "build1"
    assert by_intent(fleet("a", builder=True, a="build"), LOCK, "a").mode == "build"
    assert by_intent(fleet("a", a="receive"), LOCK, "a").source == "none"


def test_a_builder_builds() -> None:
    intent = Fleet.model_validate(
        {
            "version": 1,
            "profiles": {"gds": {"os": "debian-13"}},
            "builders": {"build1": {"profile": "gds", "modules": "receive"}},
            "hosts": {"a": "gds"},
        }
    )
    assert references(intent) == [(("builders", "build1", "modules"), "a builder builds; leave this key out")]


def test_what_a_builder_has_built_is_looked_up() -> None:
    wants: list[str] = []
    facts = {
        "a": replace(PLAIN, built=True, kernel_build=KERNEL),
        "b": replace(PLAIN, built=True, kernel_build=(KERNEL[0], "b")),
    }
    hosts = supplies(fleet("a", "b"), LOCK, facts, lambda key, _: wants.append(key))
    assert {supply.want for supply in hosts.values()} <= set(wants)


class TestClaims:
    """What a host claims of itself decides what it does, never what others run."""

    CLAIM = replace(PLAIN, built=True)

    def test_a_host_of_a_profile_that_builds_supplies_no_other_profile(self) -> None:
        value = fleet("gpu1", "gpu2").model_dump()
        value["profiles"]["other"] = {**value["profiles"]["gds"], "modules": "build"}
        value["hosts"] = {"evil": {"profile": "other"}, **value["hosts"]}
        lock = LOCK.model_copy(update={"targets": {"gds": TARGET, "other": TARGET}})
        hosts = supplies(
            Fleet.model_validate(value), lock, dict.fromkeys(("evil", "gpu1", "gpu2"), PLAIN), lambda *_: None
        )
        assert summary(hosts) == {"evil": "build", "gpu1": "build", "gpu2": "build"}

    @given(
        order=strategies.permutations(["gpu1", "gpu2", "gpu3", "evil"]),
        claims=strategies.builds(
            BuildFacts,
            arch=strategies.sampled_from(["x86_64", "aarch64", ""]),
            ofed=strategies.sampled_from(["none", "sha256:0f"]),
            kernel_build=strategies.sampled_from([("", ""), KERNEL, (KERNEL[0], "bb")]),
            built=strategies.booleans(),
            received=strategies.booleans(),
            builder=strategies.sampled_from(["", "evil", "gpu1"]),
        ),
        honest=strategies.lists(strategies.sampled_from([PLAIN, OFED, replace(PLAIN, built=True)]), min_size=3),
    )
    @settings(max_examples=100, deadline=None)
    def test_no_claim_promotes_a_host(self, order: list[str], claims: BuildFacts, honest: list[BuildFacts]) -> None:
        """Whoever runs another machine's build runs that of a supplier, which is one before anybody is asked."""
        intent = fleet(*order, gpu2="build")
        facts = {name: claims if name == "evil" else honest[int(name[3:]) - 1] for name in order}
        for name, supply in chosen(intent, facts).items():
            assert supply.origin in ("", name, "gpu2") or (name, supply.source) == ("evil", "kept")

    def test_in_a_fleet_of_one_its_suppliers_are_those_of_the_whole(self) -> None:
        intent = fleet("gpu1", "gpu2", gpu1="build")
        assert intent.alone("gpu2").suppliers("gpu2") == ("gpu1",)
        hosts = chosen(intent.alone("gpu2"), {"gpu2": PLAIN})
        assert (summary(hosts), hosts["gpu2"].delivers) == ({"gpu2": "build"}, False)


def test_a_fallback_needs_a_builder_to_fall_back_from() -> None:
    intent = fleet("a", profile={"builder_fallback": True})
    assert references(intent) == [
        (("profiles", "gds", "builder_fallback"), "there is no builder to fall back from: name one")
    ]


def test_a_plan_says_whose_code_hosts_run() -> None:
    hosts = chosen(fleet("a", "b", "c", builder=True), {"build1": PLAIN, "a": PLAIN, "b": OFED, "c": PLAIN})
    assert built_on(hosts) == {"build1": ["a", "c"]}
    assert origins(hosts) == ["These hosts run kernel code built on build1: a, c"]
    facts = replace(PLAIN, received=True, builder="old1")
    hosts = chosen(fleet("a", "b", builder=True), {"a": facts, "b": replace(facts, builder="")})
    assert {supply.source for supply in hosts.values()} == {"kept"}
    assert origins(hosts) == ["These hosts run kernel code built on old1: a"]
