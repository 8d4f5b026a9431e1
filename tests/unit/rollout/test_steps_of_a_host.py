"""Steps before the first change, checks that don't apply, and the way back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.machine import RunFiles
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, HostUnfit, RebootFailed, RollbackFailed, RolloutRefused
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS, Finding
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.lock import Package
from gdsdeploy.model.rollout import Step
from gdsdeploy.report.model import HostReport, Report
from gdsdeploy.rollout.steps import rollback, upgrade
from gdsdeploy.rollout.steps.answers import STATUS
from gdsdeploy.rollout.steps.upgrade import Look
from gdsdeploy.rollout.steps.work import Work, wait_until_free
from tests.unit.rollout.asked import BOOT, KERNEL, NEXT, OLD, ScriptedWork, compared, differs, snapshot, status, work
from tests.unit.rollout.planned_fleet import lock


def locked(program: str = "apt-get") -> dict[str, Any]:
    lock = {"path": "/var/lib/dpkg/lock-frontend", "pid": 7, "program": program}
    return status(packages={"manager": "dpkg", "broken": [], "interrupted": False, "locks": [lock]})


def test_a_package_manager_at_work_is_waited_for() -> None:
    answers = [locked(), locked(), status()]
    host = work(Step.APPLY, {"rollout status": lambda n: answers[n]})
    assert wait_until_free(host).packages.model_dump() == status()["packages"]
    assert host.waited == [2, 2]


def test_but_not_for_ever() -> None:
    host = work(Step.APPLY, {"rollout status": locked("unattended-upgr")})
    with pytest.raises(
        HostUnfit, match=r"unattended-upgr \(process 7\) holds the lock .*lock-frontend.* more than 10 s"
    ):
        wait_until_free(host)


@pytest.mark.parametrize(
    "state", [{"broken": [{"package": "nvidia-driver", "state": "iHR"}], "interrupted": False},
              {"broken": [], "interrupted": True}],
)  # fmt: skip
def test_half_installed_packages_are_refused(state: dict[str, Any]) -> None:
    host = work(Step.PREFLIGHT, {"rollout status": status(packages={"manager": "dpkg", "locks": [], **state})})
    with pytest.raises(HostUnfit, match=r"half-installed: (nvidia-driver|dpkg was interrupted)") as caught:
        upgrade.preflight(host)
    assert "dpkg --configure -a" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("kind", "kernel"), [("install", True), ("upgrade", True), ("downgrade", True), ("hold", False), ("remove", False)]
)
def test_room_is_asked_for_what_is_to_be_installed(kind: str, kernel: bool) -> None:
    """By the kind of a change and its subject."""
    row = {"fits": False, "says": "/boot (/boot) needs 210 MB"}
    host = work(Step.PREFLIGHT, {"rollout space": {"fits": False, "filesystems": [row]}})
    (image,) = (entry for target in lock(host.fleet, "1").targets.values() for entry in target.packages)
    object.__setattr__(host.machine, "target", host.machine.target.model_copy(update={"packages": (image,)}))
    change = Change(kind, image.package, "", image.version, "missing", resource="packages.kernel")
    look = Look(HostPlan("gpu1", (change,)), host.machine)
    with pytest.raises(HostUnfit, match=r"no room for the new files: /boot \(/boot\) needs 210 MB"):
        upgrade.require_room(host, STATUS.read("gpu1", status()), look)
    (need,) = [json.loads(text) for text in host.inputs if text]
    assert (need["/boot"] > 0, need["/var"]) == (kernel, image.size if kernel else 0)


def test_what_the_role_asks_for_is_asked_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would refuse a host that is out of work already."""
    host = work(Step.PREFLIGHT, {"rollout space": {"fits": True, "filesystems": []}})
    look = Look(HostPlan("gpu1"), host.machine)
    full = {"/boot": {"bytes": 100 << 20}}
    with pytest.raises(HostUnfit, match="/boot has 105 MB left, of 210 MB that are required"):
        upgrade.require_room(host, STATUS.read("gpu1", status(space=full)), look)
    monkeypatch.setattr(upgrade, "FREE_MIB", {"/boot": 50})
    upgrade.require_room(host, STATUS.read("gpu1", status(space=full)), look)


def test_a_host_returns_only_in_the_boot_that_was_judged() -> None:
    facts = {"validated_boot": BOOT}
    assert upgrade.give_back(work(Step.RETURN, {"rollout status": status(BOOT)}, facts))["returned"] is True
    with pytest.raises(RebootFailed, match="it has booted since its validation"):
        upgrade.give_back(work(Step.RETURN, {"rollout status": status(NEXT)}, facts))
    with pytest.raises(RebootFailed, match="validated in none"):
        upgrade.give_back(work(Step.RETURN, {"rollout status": status(BOOT)}))


def test_a_host_whose_lock_is_not_known_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    host = work(Step.PREFLIGHT, {})
    with pytest.raises(RolloutRefused, match="never provisioned"):
        upgrade.release_of(host, "")
    with pytest.raises(RolloutRefused, match="it has the lock abababababab, which is not kept") as caught:
        upgrade.release_of(host, "sha256:" + "ab" * 32)
    assert "--from LOCK" in str(caught.value.hint)
    path = tmp_path / "fleet.yml"
    path.write_text(yaml.safe_dump({"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "hosts": {"gpu1": "gds"}}))
    object.__setattr__(host, "fleet_path", path)
    lockfile.write(lockfile.beside(path), host.lock)
    release = releases.store(path, host.lock)
    assert upgrade.release_of(host, host.lock.digest) == release


def test_the_boot_default_moves_only_when_everything_else_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it moves back when what the next boot starts does not pass."""
    host = work(
        Step.VALIDATE,
        {"boot show": {"default": "old"}, "guard default": {"changed": True}, "boot default": {"changed": True}},
    )
    order: list[str] = []

    def checked(_: Any, *, but: Any = (), load: bool = False) -> HostReport:
        order.append("but" if but else "all")
        if not but:
            raise ChecksFailed("modules.next-boot")
        return HostReport("gpu1", "gds", boot_id=BOOT)

    monkeypatch.setattr(upgrade, "check_host", checked)
    with pytest.raises(ChecksFailed):
        upgrade.validate(host)
    assert order == ["but", "all"]
    assert host.questions == [("boot", "show"), ("guard", "default"), ("boot", "default", "--kernel", "old")]


SKIPPED, CHECKED = (Finding(f"x.{verdict}", verdict, "t", "e", "f") for verdict in (NOT_APPLICABLE, PASS))


def check(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> HostReport:
    report = Report("f", "d", "w", (HostReport("gpu1", "gds", findings),))
    monkeypatch.setattr(upgrade.validation, "validate", lambda *_, **__: report)
    parts: dict[str, Any] = dict.fromkeys(("fleet", "lock"))
    work = SimpleNamespace(
        name="gpu1", fleet_path="fleet.yml", patience=SimpleNamespace(validation=1.0), say=print, **parts
    )
    return upgrade.check_host(cast("Work", work))


def test_checks_that_are_not_applicable_do_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(monkeypatch, SKIPPED, CHECKED).verdict == PASS


@pytest.mark.parametrize("findings", [(SKIPPED,), ()])
def test_a_host_without_any_other_check_does(monkeypatch: pytest.MonkeyPatch, findings: tuple[Finding, ...]) -> None:
    with pytest.raises(ChecksUnknown, match="gpu1: no check examined anything"):
        check(monkeypatch, *findings)


RECEIVES, BUILDS = Supply("receive", "", ""), Supply("build", "", "")


def differences(
    monkeypatch: pytest.MonkeyPatch,
    *rows: dict[str, str],
    changes: tuple[Change, ...] = (),
    supply: Supply = RECEIVES,
    leftovers: bool = False,
    running: str = KERNEL,
) -> list[str]:
    host = work(
        Step.UNDO,
        {"rollout compare": compared(*rows), "rollout status": status(kernel=running)},
        {"snapshot": snapshot()},
    )
    monkeypatch.setattr(upgrade, "look_at", lambda *_: SimpleNamespace(plan=HostPlan("gpu1", changes)))
    monkeypatch.setattr(rollback, "_managed", lambda *_: {"/etc/cufile.json"})
    machine = upgrade.machine_in_run(host, RunFiles(supplies={"gpu1": supply}))
    return rollback._differences(host, host, machine, None, leftovers=leftovers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "difference",
    [
        differs("package", "nvidia-driver"),
        differs("hold", "nvidia-driver", "held", ""),
        differs("module", f"{OLD}/updates/gdsdeploy/nvidia.ko"),
        differs("boot", "default", OLD, KERNEL),
        differs("file", "/etc/depmod.d/gdsdeploy-x.conf"),
        differs("provision", "held"),
        differs("kernel", KERNEL, "", "installed"),
    ],
)
def test_whatever_differs_is_named(monkeypatch: pytest.MonkeyPatch, difference: dict[str, str]) -> None:
    assert differences(monkeypatch, difference) == [difference["says"]]


def test_what_its_lock_says_is_right_whatever_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences(monkeypatch, differs("file", "/etc/cufile.json")) == []


def test_what_its_lock_lacks_is_wrong_although_it_was_so(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Change("write", "/etc/cufile.json", "sha256:1", "sha256:2", "content", resource="cufile")
    reboot = Change("reboot", "kernel 2", "kernel 1", "kernel 2", "kernel", "reboot", "reboot")
    place = Change("place", "/lib/modules/1/updates/gdsdeploy", "", "", "content", resource="modules")
    assert differences(monkeypatch, changes=(write, place, reboot)) == [
        "gds_cufile: write /etc/cufile.json: found other content, wanted sha256:2…"
    ]


def test_modules_that_are_built_again_need_not_have_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    built = differs("module", f"{OLD}/updates/dkms/nvidia.ko")
    assert differences(monkeypatch, built, supply=BUILDS) == []
    assert differences(monkeypatch, built, supply=RECEIVES) == [built["says"]]


def test_what_belongs_to_the_kernel_that_runs_goes_after_the_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [differs("kernel", "running", OLD, KERNEL), differs("kernel", KERNEL, "", "installed"),
            differs("package", f"linux-image-{KERNEL}", "", "6.12")]  # fmt: skip
    assert differences(monkeypatch, *left, leftovers=True) == []
    assert len(differences(monkeypatch, *left, leftovers=False)) == 3
    # Once the old kernel runs, nothing of the new one is excused.
    assert len(differences(monkeypatch, *left[1:], leftovers=True, running=OLD)) == 2


def test_a_host_that_is_not_what_it_was_says_so() -> None:
    rollback._refuse(work(Step.UNDO, {}), [])
    with pytest.raises(
        RollbackFailed, match=r"(?s)gpu1: it is not what it was before:\n  - a\n.*\n  and 2 more"
    ) as caught:
        rollback._refuse(work(Step.UNDO, {}), ["a", *(f"b{n}" for n in range(11))])
    assert "stays out of work" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("modules_before", "mode", "source"),
    [
        ({"mode": "build", "want": "w", "archive": ""}, "build", "build"),
        ({"mode": "receive", "want": "w", "archive": "/var/lib/gdsdeploy/rollout/x/modules.tar"}, "receive", "kept"),
        ({"mode": "receive", "want": "w", "archive": ""}, "receive", "cache"),
        ({"mode": "packaged", "want": "w", "archive": ""}, "packaged", "packaged"),
    ],
)
def test_modules_come_back_as_they_had_come(modules_before: dict[str, str], mode: str, source: str) -> None:
    host: ScriptedWork = work(Step.UNDO, {}, {"modules_before": modules_before})
    supply = rollback._supply(host, SimpleNamespace(look=lambda *_: None))  # type: ignore[arg-type]
    assert (supply.mode, supply.source) == (mode, source)


def test_what_is_needed_to_build_for_a_kernel_goes_with_the_kernel() -> None:
    """The headers' packages depend on each other: with one of them gone early, apt refuses the whole transaction."""
    headers = [f"linux-headers-{KERNEL}", "linux-headers-6.12.94+deb13-common", "linux-kbuild-6.12.94+deb13"]
    versions = {name: {"version": "", "held": False} for name in [*headers, "nvidia-open-kernel-dkms"]}
    host = work(Step.UNDO, {}, {"snapshot": snapshot(packages=versions)})
    packages = tuple(
        Package.model_construct(package=name, version="1", part="kernel-headers", needed_by="build") for name in headers
    )
    lock = lockfile.build({"gds": host.machine.target.model_copy(update={"packages": packages})})
    host = dataclasses.replace(host, lock=lock)
    inputs = rollback._restore_variables(host, host)
    assert inputs["gds_driver_superseded"] == [{"package": "nvidia-open-kernel-dkms", "version": ""}]
    assert inputs["gds_restore_new_packages"] == sorted(versions)


def test_packages_with_modules_leave_with_the_userland_that_they_need() -> None:
    """The userland goes back to an earlier version, which the new kernel's modules exclude."""
    names = {f"linux-image-{KERNEL}": "kernel-image", f"linux-modules-nvidia-580-open-{KERNEL}": "driver-modules"}
    versions = {name: {"version": "", "held": False} for name in names}
    host = work(Step.UNDO, {}, {"snapshot": snapshot(packages=versions)})
    packages = tuple(
        Package.model_construct(package=name, version="1", part=part, needed_by="host") for name, part in names.items()
    )
    lock = lockfile.build({"gds": host.machine.target.model_copy(update={"packages": packages})})
    inputs = rollback._restore_variables(dataclasses.replace(host, lock=lock), host)
    assert {entry["package"] for entry in inputs["gds_driver_superseded"]} >= {
        f"linux-modules-nvidia-580-open-{KERNEL}"
    }
    assert f"linux-image-{KERNEL}" not in {entry["package"] for entry in inputs["gds_driver_superseded"]}
