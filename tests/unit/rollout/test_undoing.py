"""When a host is what it was before, and what is said when it is not."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import RollbackFailed
from gdsdeploy.host.apply.model import Change
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Package
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout.steps import rollback, upgrade
from tests.unit.rollout.asked import KERNEL, OLD, ScriptedWork, compared, differs, snapshot, status, work

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
    return rollback._differences(host, host, None, supply, {}, leftovers=leftovers)  # type: ignore[arg-type]


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
    lock = lockfile.build({"gds": host.target.model_copy(update={"packages": packages})})
    host = dataclasses.replace(host, lock=lock)
    inputs = rollback._restore_variables(host, host)
    assert inputs["gds_driver_leaving"] == [{"package": "nvidia-open-kernel-dkms", "version": ""}]
    assert inputs["gds_restore_unwanted"] == sorted(versions)


def test_packages_with_modules_leave_with_the_userland_that_they_need() -> None:
    """The userland goes back to an earlier version, which the new kernel's modules exclude."""
    names = {f"linux-image-{KERNEL}": "kernel-image", f"linux-modules-nvidia-580-open-{KERNEL}": "driver-modules"}
    versions = {name: {"version": "", "held": False} for name in names}
    host = work(Step.UNDO, {}, {"snapshot": snapshot(packages=versions)})
    packages = tuple(
        Package.model_construct(package=name, version="1", part=part, needed_by="host") for name, part in names.items()
    )
    lock = lockfile.build({"gds": host.target.model_copy(update={"packages": packages})})
    inputs = rollback._restore_variables(dataclasses.replace(host, lock=lock), host)
    assert {entry["package"] for entry in inputs["gds_driver_leaving"]} >= {f"linux-modules-nvidia-580-open-{KERNEL}"}
    assert f"linux-image-{KERNEL}" not in {entry["package"] for entry in inputs["gds_driver_leaving"]}
