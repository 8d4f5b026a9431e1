"""What a run has of built modules: taken from the cache, kept for later; and what is said when nobody delivers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_buildcache import archive

from gdsdeploy import buildcache, lockfile, provision, supplying
from gdsdeploy.builds import Supply, Told
from gdsdeploy.converge import HostResult, Outcome
from gdsdeploy.errors import BuildCacheUnusable, ConvergeFailed, NotProvisioned
from gdsdeploy.host.facts.managed import managed_facts
from gdsdeploy.inventory import archive_of
from gdsdeploy.load import load_fleet
from gdsdeploy.plan import HostPlan
from gdsdeploy.report import planned

LAB = Path(__file__).parents[1] / "golden" / "lab"
LOCK = lockfile.read(LAB / "gdsdeploy.lock")
TARGET = LOCK.targets["gds"]
PROFILE = load_fleet(LAB / "fleet.yml").profiles["gds"]
BUILDS = {
    "gds_modules_driver_dkms_name": "nvidia-current-open",
    "gds_modules_driver_version": "550.163.01",
    "gds_modules_nvidia_fs_version": "2.19.7",
    "gds_modules_nvidia_fs_dkms_name": "nvidia-fs",
    "gds_modules_nvidia_fs_tree": "/usr/src/nvidia-fs-2.19.7",
}
WANT = "a" * 32


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))


def test_what_one_run_is_handed_the_next_one_has(tmp_path: Path) -> None:
    made = archive(tmp_path / "a.tar", "a")
    with supplying.opened() as shelf:
        assert shelf.look(WANT) is None
        archive_of(WANT, shelf.folder).write_bytes(made.read_bytes())
        assert shelf.keep() == []
        gone = shelf.folder
    assert not gone.exists()
    with supplying.opened() as shelf:
        manifest = shelf.look(WANT)
        assert manifest is not None
        assert manifest["compiler"] == "a"
        path = archive_of(WANT, shelf.folder)
        assert path.read_bytes() == made.read_bytes()
        path.write_bytes(archive(tmp_path / "b.tar", "b").read_bytes())
        assert shelf.keep() == []
    assert {entry.manifest["compiler"] for entry in buildcache.default(print).entries()} == {"a", "b"}


def test_what_cannot_be_kept_is_said_and_nothing_else_happens(tmp_path: Path) -> None:
    with supplying.opened() as shelf:
        archive_of(WANT, shelf.folder).write_text("half of an archive")
        (lost,) = shelf.keep()
    assert isinstance(lost, BuildCacheUnusable)
    assert buildcache.default(print).entries() == []


def evidence(**answers: Any) -> dict[str, Any]:
    image = next(p for p in TARGET.packages if p.part == "kernel-image")
    key = {"arch": "x86_64", "ofed": "sha256:0f", "signatures": "enforced", "received": {},
           "kernel_build": {"file": "kernel/own.ko", "sha256": "aa"}}  # fmt: skip
    line = f"{image.package}\t{image.version}\t{image.architecture}\tii \n"
    return {
        "commands": {"dpkg-query": {"status": 0, "stdout": line, "stderr": ""}},
        "answers": {"key": key, "dkms": {"installed": []}, **answers},
    }


def told(value: dict[str, Any]) -> Told:
    return supplying.told(managed_facts(json.loads(json.dumps(value))), PROFILE, TARGET, BUILDS)


def test_what_a_host_told() -> None:
    assert told(evidence()) == Told("x86_64", "sha256:0f", "enforced", ("kernel/own.ko", "aa"))
    assert told(evidence(dkms={"installed": ["nvidia-current-open/550.163.01"]})).built is False
    assert told(evidence(dkms={"installed": ["nvidia-fs/2.19.7", "nvidia-current-open/550.163.01"]})).built
    assert told({}) == Told()
    assert told(evidence(key={"error": "x"})) == Told()
    assert told(evidence(key={"received": 5, "kernel_build": []})) == Told()


def test_another_kernel_package_is_going_to_be_replaced() -> None:
    value = evidence()
    value["commands"]["dpkg-query"]["stdout"] = value["commands"]["dpkg-query"]["stdout"].replace(
        "\t6.12.94-1\t", "\t6.12.94-9\t"
    )
    assert told(value).kernel_build == ("", "")


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
    value = evidence()
    value["answers"]["key"]["received"] = {"driver": driver, "nvidia_fs": nvidia_fs}
    assert told(value).received is received


def run(failures: dict[str, str]) -> provision.Run:
    results = {name: HostResult(failure=ConvergeFailed(text)) for name, text in failures.items()}
    return provision.Run(Outcome(status=2, hosts=results), {}, Path("log"))


def test_those_who_wait_for_a_failed_build_are_told_which(tmp_path: Path) -> None:
    supplies = {
        "a": Supply("build", "", WANT),
        "b": Supply("receive", "", WANT, builder="a"),
        "c": Supply("receive", "", "c" * 32, cached=True),
        "d": Supply("receive", "", WANT, builder="a"),
    }
    failures = {
        "a": "a: gds_modules: Build with DKMS: nvidia does not compile\n| more",
        "b": f"b: gds_modules: Delivered: {provision.NO_ARCHIVE} for it",
        "c": "c: disk full",
        "d": "d: disk full",
    }
    found = provision._explained(run(failures), supplies, tmp_path).failures()
    assert isinstance(found["b"], NotProvisioned)
    assert found["b"].message == (
        "b: not provisioned because a, which builds its modules (key aaaaaaaaaaaa), failed:"
        " a: gds_modules: Build with DKMS: nvidia does not compile"
    )
    assert {name: type(error).__name__ for name, error in found.items() if name != "b"} == dict.fromkeys(
        "acd", "ConvergeFailed"
    )
    archive_of(WANT, tmp_path).touch()
    assert isinstance(provision._explained(run(failures), supplies, tmp_path).failures()["b"], ConvergeFailed)


def test_a_host_for_which_nobody_builds_is_left_alone() -> None:
    lacking = Supply("receive", "", WANT, lack="nobody is there")
    plans = {
        "a": HostPlan("a", supply=lacking),
        "b": HostPlan("b", supply=lacking),
        "c": HostPlan("c", supply=Supply("build", "", WANT)),
    }
    (found,) = provision._lacking(plans, ["b"]).values()
    assert found.message == "a: not provisioned: nobody builds its modules: nobody is there"


@pytest.mark.parametrize(
    ("supply", "words"),
    [
        (Supply("build", "it is a builder", WANT), "builds its modules: it is a builder"),
        (Supply("receive", "x", WANT, builder="b1"), "receives its modules from b1: x"),
        (Supply("receive", "x", WANT, cached=True), "takes its modules from the cache: x"),
        (Supply("receive", "x", WANT), "keeps its modules: x"),
        (Supply("receive", "x", WANT, lack="y"), "has nobody to receive its modules from: y"),
    ],
)
def test_a_plan_says_where_modules_come_from(supply: Supply, words: str) -> None:
    plans = {"a": HostPlan("a", unknown=("why",), supply=supply)}
    assert f"? a:\n  {words}\n" in planned.text(plans)
    shown = json.loads(planned.to_json(plans, {}, fleet="f", lock_digest="d"))["hosts"]["a"]["modules"]
    assert (shown["from"], shown["want"]) == (supply.source, WANT)
