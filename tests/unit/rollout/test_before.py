"""Before anything is changed: who is refused, who is waited for, and who may return."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import ChecksFailed, HostUnfit, RebootFailed, RolloutRefused
from gdsdeploy.host.apply.model import Change
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.rollout import Step
from gdsdeploy.report.model import HostReport
from gdsdeploy.rollout.steps import upgrade
from gdsdeploy.rollout.steps.answers import STATUS
from gdsdeploy.rollout.steps.upgrade import Look
from gdsdeploy.rollout.steps.work import wait_until_free
from tests.unit.rollout.asked import BOOT, NEXT, status, work
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
    target = host.target.model_copy(update={"packages": (image,)})
    object.__setattr__(host, "lock", SimpleNamespace(targets={"gds": target}))
    change = Change(kind, image.package, "", image.version, "missing", resource="packages.kernel")
    look = Look(HostPlan("gpu1", (change,)), Supply("build", "", ""), {})
    with pytest.raises(HostUnfit, match=r"no room for the new files: /boot \(/boot\) needs 210 MB"):
        upgrade.require_room(host, STATUS.read("gpu1", status()), look)
    (need,) = [json.loads(text) for text in host.inputs if text]
    assert (need["/boot"] > 0, need["/var"]) == (kernel, image.size if kernel else 0)


def test_what_the_role_asks_for_is_asked_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would refuse a host that is out of work already."""
    host = work(Step.PREFLIGHT, {"rollout space": {"fits": True, "filesystems": []}})
    look = Look(HostPlan("gpu1"), Supply("build", "", ""), {})
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
