"""What a run has of built modules: taken from the cache, kept for later; and what is said when nobody delivers."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.builds import assign, cache
from gdsdeploy.builds.assign import BuildFacts, Supply, archive_of
from gdsdeploy.builds.cache import BuilderKeys, fingerprint
from gdsdeploy.converge import diff, plan_fleet, plan_report, provision
from gdsdeploy.converge.ansible import HostResult, Outcome
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import BuildCacheUnusable, ConvergeFailed, GdsError, NotProvisioned, SigningKeyUnusable
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.secure_boot.certificate import read_certificate
from gdsdeploy.lock import lockfile
from gdslab.signing import make_key
from tests.loopback.builds.test_cache import EVIL, ORIGIN, OTHER, SIGNER, archive

LAB = Path(__file__).parents[2] / "golden" / "lab"
LOCK = lockfile.read(LAB / "gdsdeploy.lock")
TARGET = LOCK.targets["gds"]
FLEET = load_fleet(LAB / "fleet.yml")
PROFILE = FLEET.profiles["gds"]
WANT = "a" * 32


BUILDS = {"build1": Supply("build", "", WANT, delivers=True)}


@pytest.fixture(autouse=True)
def _manifest(own_folders: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the archives of these tests are of, in the place of the lab's lock."""
    monkeypatch.setattr(
        assign, "expected_manifest", lambda *_: {"kernel_release": "6.12.94", "driver_version": "550.1"}
    )


@pytest.fixture
def keys(tmp_path: Path) -> BuilderKeys:
    """The fleet's record, which has build1's key."""
    record = BuilderKeys.of(tmp_path / "fleet.yml")
    record.path("build1").write_text(ORIGIN.public)
    return record


def keep(shelf: assign.RunArchives) -> list[GdsError]:
    return shelf.keep(LOCK, FLEET, BUILDS)


@pytest.mark.usefixtures("keys")
def test_what_one_run_is_handed_the_next_one_has(tmp_path: Path) -> None:
    tar = archive(tmp_path / "a.tar", "a")
    with assign.open_run_archives(tmp_path / "fleet.yml") as shelf:
        assert shelf.look(WANT, ["build1"]) is None
        archive_of(WANT, shelf.folder).write_bytes(tar.read_bytes())
        assert keep(shelf) == []
        folder = shelf.folder
    assert not folder.exists()
    with assign.open_run_archives(tmp_path / "fleet.yml") as shelf:
        assert shelf.look(WANT, ["gpu1"]) is None
        build = shelf.look(WANT, ["gpu1", "build1"])
        assert build is not None
        assert (build.builder, build.manifest["compiler"]) == ("build1", "a")
        path = archive_of(WANT, shelf.folder)
        assert path.read_bytes() == tar.read_bytes()
        path.write_bytes(archive(tmp_path / "b.tar", "b").read_bytes())
        assert keep(shelf) == []
    assert {entry.manifest["compiler"] for entry in cache.default(print).entries()} == {"a", "b"}
    with assign.open_run_archives(tmp_path / "other.yml") as shelf:
        assert shelf.look(WANT, ["build1"]) is None, "another fleet knows another build1, or none"


@pytest.mark.usefixtures("keys")
def test_what_cannot_be_kept_is_said_and_nothing_else_happens(tmp_path: Path) -> None:
    with assign.open_run_archives(tmp_path / "fleet.yml") as shelf:
        archive_of(WANT, shelf.folder).write_text("half of an archive")
        (error,) = keep(shelf)
    assert isinstance(error, BuildCacheUnusable)
    assert cache.default(print).entries() == []


@pytest.mark.usefixtures("keys")
def test_what_is_signed_by_another_or_claims_another_stack_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with assign.open_run_archives(tmp_path / "fleet.yml") as shelf:
        path = archive_of(WANT, shelf.folder)
        for signer in (None, OTHER, SIGNER._replace(seed=OTHER.seed)):
            archive(path, "a", signer=signer)
            assert "what build1 built cannot be kept" in keep(shelf)[0].message
        archive(path, "a")
        for name, value in (("driver_version", "551"), ("kernel_release", "6.13"), ("nvidia_fs_version", "2")):
            monkeypatch.setattr(assign, "expected_manifest", lambda *_, manifest={name: value}: manifest)
            assert f"its {name.replace('_', ' ')} is" in keep(shelf)[0].message
        assert cache.default(print).entries() == []


def test_a_key_is_on_record_from_the_first_time_on_and_another_is_refused(tmp_path: Path) -> None:
    with assign.open_run_archives(tmp_path / "fleet.yml") as shelf:
        keys = shelf.keys
        assert keys.origin("build1") is None
        keys.path("build1").write_text(ORIGIN.public)
        assert shelf.first_keys() == {"build1": fingerprint(ORIGIN.public)}
        with pytest.raises(SigningKeyUnusable, match="build1 has shown no other key"):
            keys.accept("build1")
        keys.path("build1").with_name("build1.pub.new").write_text(EVIL.public)
        assert keys.refused("build1") == fingerprint(EVIL.public) == keys.accept("build1")
        assert keys.fingerprints() == {"build1": fingerprint(EVIL.public)}
        keys.path("build1").write_text(ORIGIN.public[:60])
        with pytest.raises(SigningKeyUnusable, match=r"build1\.pub: the builder's public key: not an Ed25519 key"):
            keys.origin("build1")


def answered(dkms: Any = (), received: Any = None, key: Any = None, coming: Sequence[str] = ()) -> dict[str, Any]:
    """Variants as a host answers them."""
    own = {"arch": "x86_64", "ofed": "sha256:0f", "signatures": "enforced",
           "kernel_build": {"file": "kernel/own.ko", "sha256": "aa"}}  # fmt: skip
    kernel = [Change("upgrade", name, "1", "2", "version").to_json() for name in coming]
    report = {"dkms": list(dkms), "received": received or {}, "key": own if key is None else key}
    return {"build": [{"name": "packages.kernel", "changes": kernel}, {"name": "modules", "report": report}]}


def facts_from(value: dict[str, Any], certificate: bytes = b"") -> BuildFacts:
    """The facts in a host's answer; certificate: whose signature its modules need."""
    content = base64.b64encode(certificate).decode()
    document = {"variants": {"build": [{"resource": "signing", "desired": {"certificate_content": content}}]}}
    answer = diff.variants(json.loads(json.dumps(value)))
    return plan_fleet.build_facts_from(answer, PROFILE, TARGET, document)


def test_what_a_host_told() -> None:
    assert facts_from(answered()) == BuildFacts("x86_64", "sha256:0f", "enforced", ("kernel/own.ko", "aa"))
    assert facts_from(answered(dkms=["nvidia-current-open/550.163.01"])).built is False
    assert facts_from(answered(dkms=["nvidia-fs/2.19.7", "nvidia-current-open/550.163.01"])).built
    assert facts_from({}) == BuildFacts()
    assert facts_from(answered(key={"kernel_build": []})) == BuildFacts()
    assert facts_from({"keep": [{"name": "modules", "report": {"key": 5, "dkms": {}, "received": 7}}]}) == BuildFacts()


def test_modules_with_another_keys_signature_are_received_anew(tmp_path: Path) -> None:
    for name in ("own", "other"):
        make_key(tmp_path / f"{name}.key", tmp_path / f"{name}.der", name)
    own, other = ((tmp_path / f"{name}.der").read_bytes() for name in ("own", "other"))
    stack = {"driver": {"version": "550.163.01", "flavour": "open"}, "nvidia_fs": {"version": "2.19.7"}}
    assert facts_from(answered(received=stack), own).received, "an older program doesn't name the signers"
    for signers, received in (
        (sorted(read_certificate(own).identities), True),
        (sorted(read_certificate(other).identities), False),
        ([*read_certificate(own).identities, ""], False),
        ([], False),
    ):
        assert facts_from(answered(received={**stack, "signers": signers}), own).received is received
        assert facts_from(answered(received={**stack, "signers": signers})).received, "nobody's signature is needed"


def test_half_a_character_of_a_host_breaks_nothing() -> None:
    value = answered(key={"arch": "\ud800", "ofed": "\udfff", "signatures": "\ud800"})
    facts = facts_from(value)
    assign.want(TARGET, facts)


def test_another_kernel_package_is_going_to_be_replaced() -> None:
    image = next(package.package for package in TARGET.packages if package.part == "kernel-image")
    assert facts_from(answered(coming=[image])).kernel_build == ("", "")
    assert facts_from(answered(coming=["linux-headers"])).kernel_build == ("kernel/own.ko", "aa")
    value = answered()
    value["build"][0]["unknown"] = ["dpkg did not answer"]
    assert facts_from(value).kernel_build == ("", "")


@pytest.mark.parametrize(
    ("driver", "nvidia_fs", "received"),
    [
        ({"version": "550.163.01", "flavour": "open"}, {"version": "2.19.7"}, True),
        ({"version": "550.163.02", "flavour": "open"}, {"version": "2.19.7"}, False),
        ({"version": "550.163.01", "flavour": "proprietary"}, {"version": "2.19.7"}, False),
        ({"version": "550.163.01", "flavour": "open"}, {"version": "2.19.6"}, False),
        (None, None, False),
    ],
)
def test_what_was_received_counts_if_it_is_of_the_lock(driver: Any, nvidia_fs: Any, received: bool) -> None:
    assert facts_from(answered(received={"driver": driver, "nvidia_fs": nvidia_fs})).received is received


@pytest.mark.parametrize("name", ["", None, 5, "../build1", "a/b", "build1\n", "x" * 64, "\ud800", ["build1"]])
def test_whose_build_was_received_is_a_name(name: Any) -> None:
    """It becomes part of a path."""
    assert facts_from(answered(received={"builder": name})).builder == ""
    assert facts_from(answered(received={"builder": "build1"})).builder == "build1"


def run(failures: dict[str, str], waiting: str) -> provision.ProvisionRun:
    """A run that ended with these failures; modules were not delivered to the hosts in ``waiting``."""
    results = {
        name: HostResult(failure=ConvergeFailed(text), kind="not-delivered" if name in waiting else "io")
        for name, text in failures.items()
    }
    return provision.ProvisionRun(Outcome(status=2, hosts=results), {}, Path("log"))


def test_those_who_wait_for_a_failed_build_are_told_which(tmp_path: Path) -> None:
    supplies = {
        "a": Supply("build", "", WANT),
        "b": Supply("receive", "", WANT, builder="a"),
        "c": Supply("receive", "", "c" * 32, cached=True),
        "d": Supply("receive", "", WANT, builder="a"),
    }
    failures = {
        "a": "a: gds_modules: Build with DKMS: nvidia does not compile\n| more",
        "b": "b: the archive of modules isn't on the controller",
        "c": "c: disk full",
        "d": "d: disk full",
    }
    errors = provision._explained(run(failures, "b"), supplies, tmp_path).failures()
    assert isinstance(errors["b"], NotProvisioned)
    assert errors["b"].message == (
        "b: not provisioned because a, which builds its modules (key aaaaaaaaaaaa), failed:"
        " a: gds_modules: Build with DKMS: nvidia does not compile"
    )
    assert {name: type(error).__name__ for name, error in errors.items() if name != "b"} == dict.fromkeys(
        "acd", "ConvergeFailed"
    )
    archive_of(WANT, tmp_path).touch()
    assert isinstance(provision._explained(run(failures, "b"), supplies, tmp_path).failures()["b"], ConvergeFailed)


def test_a_host_for_which_nobody_builds_is_left_alone() -> None:
    lacking = Supply("receive", "", WANT, lack="nobody is there")
    plans = {
        "a": HostPlan("a", supply=lacking),
        "b": HostPlan("b", supply=lacking),
        "c": HostPlan("c", supply=Supply("build", "", WANT)),
    }
    (failure,) = provision._without_supply(plans, ["b"]).values()
    assert failure.message == "a: not provisioned: no machine builds its modules: nobody is there"


@pytest.mark.parametrize(
    ("supply", "words"),
    [
        (Supply("build", "it is a builder", WANT), "builds its modules: it is a builder"),
        (Supply("receive", "x", WANT, builder="b1"), "receives its modules from b1: x"),
        (Supply("receive", "x", WANT, cached=True), "takes its modules from the cache: x"),
        (Supply("receive", "x", WANT), "keeps its modules: x"),
        (Supply("receive", "x", WANT, lack="y"), "has no machine to receive its modules from: y"),
    ],
)
def test_a_plan_says_where_modules_come_from(supply: Supply, words: str) -> None:
    plans = {"a": HostPlan("a", unknown=("why",), supply=supply)}
    assert f"? a:\n  {words}\n" in plan_report.text(plans)
    modules = json.loads(plan_report.to_json(plans, {}, fleet="f", lock_digest="d"))["hosts"]["a"]["modules"]
    assert (modules["from"], modules["want"]) == (supply.source, WANT)


def test_a_plan_groups_hosts_by_whose_code_they_run() -> None:
    supply = Supply("receive", "x", WANT, cached=True, origin="build1")
    plans = {name: HostPlan(name, unknown=("why",), supply=supply) for name in ("a", "b")}
    assert "\n\nThese hosts run kernel code built on build1: a, b" in plan_report.text(plans)
    document = json.loads(plan_report.to_json(plans, {}, fleet="f", lock_digest="d"))
    assert document["code_built_on"] == {"build1": ["a", "b"]}
