"""Before anything is changed: who is refused, who is waited for, and who may return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import BOOT, NEXT, status, work

from gdsdeploy import lockfile
from gdsdeploy.errors import ChecksFailed, HostUnfit, RebootFailed, RolloutRefused
from gdsdeploy.model.rollout import Step
from gdsdeploy.report.model import HostReport
from gdsdeploy.rollout import before, judging, releases


def locked(program: str = "apt-get") -> dict[str, Any]:
    lock = {"path": "/var/lib/dpkg/lock-frontend", "pid": 7, "program": program}
    return status(packages={"manager": "dpkg", "broken": [], "interrupted": False, "locks": [lock]})


def test_a_package_manager_at_work_is_waited_for() -> None:
    answers = [locked(), locked(), status()]
    host = work(Step.APPLY, {"rollout status": lambda n: answers[n]})
    assert before.packages_at_rest(host) == status()
    assert host.waited == [2, 2]


def test_but_not_for_ever() -> None:
    host = work(Step.APPLY, {"rollout status": locked("unattended-upgr")})
    with pytest.raises(
        HostUnfit, match=r"unattended-upgr \(process 7\) holds the lock .*lock-frontend.* more than 10 s"
    ):
        before.packages_at_rest(host)


@pytest.mark.parametrize(
    "state", [{"broken": [{"package": "nvidia-driver", "state": "iHR"}], "interrupted": False},
              {"broken": [], "interrupted": True}],
)  # fmt: skip
def test_half_installed_packages_are_refused(state: dict[str, Any]) -> None:
    host = work(Step.PREFLIGHT, {"rollout status": status(packages={"manager": "dpkg", "locks": [], **state})})
    with pytest.raises(HostUnfit, match=r"half-installed: (nvidia-driver|dpkg was interrupted)") as caught:
        before.preflight(host)
    assert "dpkg --configure -a" in str(caught.value.hint)


def test_a_host_returns_only_in_the_boot_that_was_judged() -> None:
    known = {"validated_boot": BOOT}
    assert before.give_back(work(Step.RETURN, {"rollout status": status(BOOT)}, known))["returned"] is True
    with pytest.raises(RebootFailed, match="it has booted since it was judged"):
        before.give_back(work(Step.RETURN, {"rollout status": status(NEXT)}, known))
    with pytest.raises(RebootFailed, match="judged in none"):
        before.give_back(work(Step.RETURN, {"rollout status": status(BOOT)}))


def test_a_host_whose_lock_is_not_known_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    host = work(Step.PREFLIGHT, {})
    with pytest.raises(RolloutRefused, match="never provisioned"):
        before.release_of(host, "")
    with pytest.raises(RolloutRefused, match="it has the lock abababababab, which is not kept") as caught:
        before.release_of(host, "sha256:" + "ab" * 32)
    assert "--from LOCK" in str(caught.value.hint)
    path = tmp_path / "fleet.yml"
    path.write_text(yaml.safe_dump({"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "hosts": {"gpu1": "gds"}}))
    object.__setattr__(host, "fleet_path", path)
    lockfile.write(lockfile.beside(path), host.lock)
    kept = releases.store(path, host.lock)
    assert before.release_of(host, host.lock.digest) == kept


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

    monkeypatch.setattr(judging, "checked", checked)
    with pytest.raises(ChecksFailed):
        judging.validate(host)
    assert order == ["but", "all"]
    assert host.questions == [("boot", "show"), ("guard", "default"), ("boot", "default", "--kernel", "old")]
