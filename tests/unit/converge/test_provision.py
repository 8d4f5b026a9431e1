"""A run has an id by which hosts know it, and lets them go; a profile may take its modules from packages."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.builds.assign import BuildFacts, by_intent, supplies
from gdsdeploy.converge import ansible, desired, plan_fleet, plan_report, provision
from gdsdeploy.converge.diff import PACKAGED, HostPlan, Result, plan
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine, RunFiles
from gdsdeploy.converge.plan_fleet import FleetPlan
from gdsdeploy.errors import FleetInvalid, GdsError, HostUnreachable, Interrupted, NotProvisioned
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.model import Change
from gdsdeploy.lock import lockfile
from gdsdeploy.lock.lockfile import Difference
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.preflight.trial import StackChoices, preflight
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.rollout.preconditions import Trial
from gdsdeploy.ssh import transport
from tests.unit.lock.test_resolve import OFFERS, PACKAGED_PROFILE, SPARK, SPARK_VERSION, target

LAB = Path(__file__).parents[2] / "golden" / "lab"


pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[str]]]:
    """(hosts, arguments) of every call of the host program; none of them is answered."""
    runs: list[tuple[list[str], list[str]]] = []

    def fan_out(endpoints: Sequence[Any], _program: bytes, argv: Sequence[str], **_: Any) -> Iterator[Any]:
        runs.append(([endpoint.host for endpoint in endpoints], list(argv)))
        raise HostUnreachable("gone")
        yield  # it is a generator, as the real one

    monkeypatch.setattr(transport, "fan_out", fan_out)
    return runs


def provisioned(
    monkeypatch: pytest.MonkeyPatch, play: Any, flags: ansible.Flags = ansible.NO_FLAGS
) -> provision.ProvisionRun:
    plans = {"build1": HostPlan("build1"), "gpu1": HostPlan("gpu1", unknown=("why",))}
    path = LAB / "fleet.yml"
    # Whose bytes are the host program doesn't matter.
    files = RunFiles(LAB, program=path)
    monkeypatch.setattr(provision, "plan_fleet", lambda *_, **__: FleetPlan(plans, {}, files))
    monkeypatch.setattr(ansible, "play", play)
    lock = lockfile.read(LAB / "gdsdeploy.lock")
    return provision.provision(load_fleet(path), lock, path, names=list(plans), flags=flags, progress=lambda _: None)


def ended(*_: Any, **__: Any) -> ansible.Outcome:
    return ansible.Outcome(status=0, hosts={"gpu1": ansible.HostResult()})


def interrupted(*_: Any, **__: Any) -> ansible.Outcome:
    raise Interrupted("Ctrl-C")


def test_a_run_lets_go_of_the_hosts_that_it_worked_on(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]], tmp_path: Path
) -> None:
    run = provisioned(monkeypatch, ended)
    assert run.failures() == {}, "a host that isn't reached is free when the lease ends"
    ((hosts, argv),) = calls
    assert hosts == ["gpu1"], "the satisfied host was left alone"
    assert argv[:3] == ["apply", "--json", "--release"]
    (place,) = (tmp_path / "state" / "runs").rglob("inventory.yml")
    inventory = place.read_text()
    assert f'gds_run: !unsafe "{argv[3]}"' in inventory
    assert ': provision"' in inventory


def test_also_when_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]]
) -> None:
    with pytest.raises(Interrupted):
        provisioned(monkeypatch, interrupted)
    assert len(calls) == 1


def test_a_check_keeps_no_host(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]]) -> None:
    provisioned(monkeypatch, ended, ansible.Flags(("-DC",), frozenset({"check", "diff"})))
    assert calls == []


def test_a_host_without_a_result_is_not_provisioned(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]]
) -> None:
    run = provisioned(monkeypatch, ended, ansible.Flags(("--tags", "x"), frozenset({"tags"})))
    assert calls[0][0] == ["build1", "gpu1"]
    ((name, failure),) = run.failures().items()
    assert (name, type(failure)) == ("build1", NotProvisioned)
    assert "build1: not played" in failure.message
    assert "not played" in json.loads(provision.summary(run))["hosts"]["build1"]["error"]


def test_who_runs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "controller")
    one, other = provision.Identity.of("provision"), provision.Identity.of("provision")
    assert one.who == "alice@controller: provision"
    assert one.run != other.run


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert provision.Identity.of("remove").who.partition("@")[0].isdigit()


# -- A profile that takes its modules from packages: supply, plan, what a host is asked, and its expectation.

DRIVER, NVIDIA_FS = f"linux-modules-nvidia-580-open-{SPARK}", f"linux-modules-nvidia-fs-{SPARK}"


def fleet(**more: Any) -> Fleet:
    return Fleet.model_validate({"version": 1, "profiles": {"gds": PACKAGED_PROFILE}, "hosts": {"gpu1": "gds"}, **more})


@pytest.fixture(scope="module")
def locked() -> Lock:
    return lockfile.build({"gds": target(OFFERS["packaged"], **PACKAGED_PROFILE)})


def test_a_lock_with_packages_is_read_as_it_was_written(locked: Lock, tmp_path: Path) -> None:
    path = tmp_path / "gdsdeploy.lock"
    lockfile.write(path, locked)
    assert lockfile.read(path) == locked
    assert "source_tree: ''" in path.read_text()
    text = path.read_text().replace("file: kernel/drivers/nvidia-fs.ko.zst", "file: ../../etc/passwd")
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(GdsError, match="write the path of a module below its kernel's"):
        lockfile.read(path)


def test_modules_are_either_packaged_or_built(locked: Lock) -> None:
    value = locked.targets["gds"].model_dump()
    with pytest.raises(ValueError, match="modules are either packaged or built from a source tree"):
        Target.model_validate({**value, "packaged": ()})
    with pytest.raises(ValueError, match="modules are either packaged or built from a source tree"):
        Target.model_validate({**value, "driver": {**value["driver"], "source_tree": "/usr/src/nvidia-1"}})


def test_a_lock_goes_stale_when_the_profile_builds_again(locked: Lock) -> None:
    building = fleet(profiles={"gds": {**PACKAGED_PROFILE, "modules": "build"}})
    reasons = [r for r in lockfile.status(building, locked) if r.difference is Difference.PIN_CHANGED]
    assert [(r.subject, r.expected, r.found) for r in reasons] == [("modules", "nothing", "packaged")]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"hosts": {"gpu1": {"profile": "gds", "modules": "build"}}}, r"hosts\.gpu1\.modules: its profile 'gds' takes"),
        (
            {"builders": {"build1": "gds"}},
            r"builders\.build1\.modules: its profile 'gds' takes its modules from packages",
        ),
        (
            {"hosts": {"gpu1": {"profile": "gds", "modules": "packaged"}}},
            "input should be 'auto', 'build' or 'receive'",
        ),
    ],
)
def test_only_a_profile_may_ask_for_packages(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    path = tmp_path / "fleet.yml"
    value = {"version": 1, "profiles": {"gds": PACKAGED_PROFILE}, "hosts": {"gpu1": "gds"}, **more}
    path.write_text(yaml.safe_dump(value))
    with pytest.raises(FleetInvalid, match=words):
        load_fleet(path)


def test_no_machine_builds_for_such_a_host(locked: Lock) -> None:
    value = fleet(
        profiles={"gds": PACKAGED_PROFILE, "other": {"os": "ubuntu-24.04"}},
        hosts={"gpu1": "gds", "gpu2": {"profile": "other", "modules": "build"}},
    )
    lock = lockfile.build({"gds": locked.targets["gds"], "other": locked.targets["gds"]})
    facts = {"gpu1": BuildFacts(built=True, received=True), "gpu2": BuildFacts()}
    for supply in (supplies(value, lock, facts, lambda *_: None)["gpu1"], by_intent(value, lock, "gpu1")):
        assert (supply.mode, supply.source, supply.origin, supply.delivers) == ("packaged", "packaged", "", False)
        words = plan_report.supply_words(supply)
        assert words == (
            f"has its modules from packages: the lock has {DRIVER} 6.17.0-1032.32+1, {NVIDIA_FS} {SPARK_VERSION}"
        )


def resources_of(locked: Lock) -> dict[str, Any]:
    """Name of a resource → its desired state, as the host program reads what such a host is asked."""
    assert plan_fleet.likely_variant(fleet(), "gpu1") == PACKAGED
    variants = plan_fleet.Documents(fleet(), locked, RunFiles()).of("gpu1", [PACKAGED])["variants"]
    return {e.name: e.desired for e in engine.read_resources({"version": 1, "resources": variants[PACKAGED]})}


def test_a_host_is_asked_for_its_packages_modules_alone(locked: Lock) -> None:
    resources = resources_of(locked)
    assert not {"recipes", "packages.modules", "signing"} & resources.keys()
    modules = resources["modules"]
    assert (modules.source, modules.driver_tree, modules.archive_sha256, modules.hand_over) == (
        "packaged",
        "",
        "",
        False,
    )
    assert [(file.module, file.package, file.version) for file in modules.packaged] == [
        ("nvidia", DRIVER, "6.17.0-1032.32+1"),
        ("nvidia_fs", NVIDIA_FS, SPARK_VERSION),
        ("nvidia_uvm", DRIVER, "6.17.0-1032.32+1"),
    ]


def test_the_roles_bring_no_archive(locked: Lock) -> None:
    assert desired.variables(Machine(fleet(), locked, "gpu1"))["gds_modules_archive"] == ""


def test_the_kernel_comes_with_its_modules_and_after_the_userland(locked: Lock) -> None:
    resources = resources_of(locked)
    names = list(resources)
    assert names.index("packages.driver") < names.index("packages.kernel") < names.index("modules")
    kernel = {package.package for package in resources["packages.kernel"].packages}
    assert kernel == {f"linux-image-{SPARK}", f"linux-modules-{SPARK}", DRIVER, NVIDIA_FS}
    everything = {
        package.package
        for entry in ("driver", "kernel", "cufile")
        for package in resources[f"packages.{entry}"].packages
    }
    assert not [name for name in everything if "dkms" in name or "headers" in name or "source" in name]


def test_packages_by_which_dkms_builds_leave(locked: Lock) -> None:
    resources = resources_of(locked)
    for name in ("packages.driver", "packages.kernel"):
        leaving = {(package.package, package.version) for package in resources[name].superseded}
        assert {("nvidia-dkms-580-open", ""), ("nvidia-dkms-open", ""), ("nvidia-dkms-580-server", "")} <= leaving
        assert ("nvidia-fs-dkms", "") in leaving


def test_the_plan_is_that_of_the_packaged_variant(locked: Lock) -> None:
    supply = by_intent(fleet(), locked, "gpu1")
    leaves = Change("unbuild", "nvidia/580.95.05", SPARK, "", "shadows", resource="modules")
    shown: HostPlan = plan("gpu1", {PACKAGED: [Result("modules", (leaves,))]}, supply, None)
    text = plan_report.text({"gpu1": shown})
    assert "  has its modules from packages: the lock has linux-modules-nvidia-580-open" in text
    assert "  - uninstall DKMS's build of nvidia/580.95.05" in text
    assert "found modules that have precedence over the packages'; wanted nothing" in text


def test_the_expectation_has_the_files_and_no_source_tree(locked: Lock) -> None:
    expected = expectation(Machine(fleet(), locked, "gpu1"))
    assert expected.driver_tree == ""
    assert [(file.module, file.origin) for file in expected.packaged][:2] == [
        ("nvidia", f"{DRIVER} 6.17.0-1032.32+1"), ("nvidia_fs", f"{NVIDIA_FS} {SPARK_VERSION}"),
    ]  # fmt: skip
    assert DRIVER in expected.packages
    assert expected.nvidia_fs_version == "2.26.6"


def test_a_preflight_says_that_there_is_nothing_to_build(locked: Lock, tmp_path: Path) -> None:
    with pytest.raises(
        GdsError, match="profile gds takes its modules from packages: there is nothing to build"
    ) as error:
        preflight(
            fleet(), locked, ["gds"], StackChoices(), again=False, fetcher=Fetcher(tmp_path, apt={})
        )  # fmt: skip
    assert "only that boot proves that they load" in str(error.value.hint)


def test_a_rollout_needs_no_preflight_of_packaged_modules() -> None:
    assert Trial("gds", SPARK, "580.159.03", None, packaged=True).ok
    assert not Trial("gds", SPARK, "580.159.03", None).ok
