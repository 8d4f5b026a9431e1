"""A host is one run's own while it is changed; and what each step of a rollout is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge import desired
from gdsdeploy.converge.ansible import HostResult
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.machine import RunFiles
from gdsdeploy.errors import Busy, ConvergeFailed, GdsError, HostUnreachable, Interrupted
from gdsdeploy.host.apply.model import Change
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout import session
from gdsdeploy.rollout.steps import upgrade
from gdsdeploy.rollout.steps.upgrade import Look
from gdsdeploy.rollout.steps.work import release_host, wait_until_free
from tests.roles.tasks import IMPORT, role_of
from tests.unit.rollout.asked import ScriptedWork, status, work

ROOT = Path(__file__).parents[3]
OTHERS = status(apply={"run": "provision-1", "who": "anna@ops: provision", "works": False})
#: Resources that no step of Ansible's applies: they are asked for, or steps of their own.
ELSEWHERE = {"preflight", "boot_default", "loaded", "reboot", "image"}


# -- waiting for others


def test_another_run_is_waited_for() -> None:
    replies = [OTHERS, OTHERS, status()]
    messages: list[str] = []
    host = work(Step.APPLY, {"rollout status": lambda number: replies[number]})
    object.__setattr__(host, "say", messages.append)
    assert wait_until_free(host).apply.who == ""
    assert host.waited == [2, 2]
    assert messages == ["gpu1: anna@ops: provision is changing this host; waiting"]


def test_but_not_for_ever() -> None:
    host = work(Step.APPLY, {"rollout status": OTHERS})
    with pytest.raises(Busy, match=r"gpu1: anna@ops: provision is changing this host, for more than 10 s") as caught:
        wait_until_free(host)
    assert "rollout status" in str(caught.value.hint)


def test_ones_own_lease_is_no_obstacle() -> None:
    host = work(Step.MODULES, {})
    own = status(apply={"run": host.rollout, "who": "who drove it before: rollout", "works": False})
    object.__setattr__(host, "replies", {"rollout status": own})
    wait_until_free(host)
    assert host.waited == []


def test_a_call_of_ones_own_whose_connection_broke_is_waited_for() -> None:
    host = work(Step.APPLY, {})
    own = {"run": host.rollout, "who": "anna: rollout"}
    replies = [status(apply={**own, "works": True}), status(apply={**own, "works": False})]
    object.__setattr__(host, "replies", {"rollout status": lambda number: replies[number]})
    wait_until_free(host)
    assert host.waited == [2]


def played(monkeypatch: pytest.MonkeyPatch, host: ScriptedWork, *failures: GdsError | None) -> list[dict[str, Any]]:
    """Play a step; each start of Ansible ends with one of the failures.  Returns the inventories."""
    inventories: list[dict[str, Any]] = []
    ends = iter(failures)

    def once(_: Any, _step: str, inventory: dict[str, Any]) -> HostResult:
        inventories.append(inventory)
        return HostResult(["gds_repo: Pins"], failure=next(ends))

    monkeypatch.setattr(upgrade, "_play_once", once)
    machine = upgrade.machine_in_run(host, RunFiles(supplies={"gpu1": Supply("build", "", "w")}))
    assert upgrade.play(host, "apply", machine, {"gds_driver_superseded": ["x"]}) == ["gds_repo: Pins"]
    return inventories


def test_a_step_is_done_again_when_a_run_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    host = work(Step.APPLY, {"rollout status": status()})
    assert len(played(monkeypatch, host, Busy("gpu1: anna is changing this host"), None)) == 2
    assert host.calls("rollout", "status")


def test_it_is_not_done_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    host = work(Step.APPLY, {"rollout status": status()})
    with pytest.raises(Busy):
        played(monkeypatch, host, *[Busy("gpu1: anna is changing this host")] * 9)
    assert len(host.questions) == upgrade._TRIES


def test_other_failures_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = work(Step.APPLY, {})
    with pytest.raises(ConvergeFailed):
        played(monkeypatch, host, ConvergeFailed("gpu1: no"), None)


def test_every_call_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    host = work(Step.APPLY, {})
    (inventory,) = played(monkeypatch, host, None)
    variables = inventory["all"]["vars"]
    assert variables["gds_run"] == host.rollout
    assert variables["gds_who"].endswith(f": rollout {host.rollout}")


def test_what_only_a_rollout_knows_wins_against_the_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible prefers a host's variables to those of its groups."""
    (inventory,) = played(monkeypatch, work(Step.APPLY, {}), None)
    values = inventory["all"]["children"]["hosts"]["hosts"]["gpu1"]
    assert values["gds_driver_superseded"] == ["x"]
    assert "gds_driver_superseded" not in inventory["all"]["vars"]


# -- letting go


def failing(error: GdsError) -> Callable[[Any], dict[str, Any]]:
    def step(_: Any) -> dict[str, Any]:
        raise error

    return step


def performed(monkeypatch: pytest.MonkeyPatch, step: Step, error: GdsError | None = None) -> list[tuple[str, ...]]:
    """What the host is asked after a step that ends well, or with an error."""
    body = failing(error) if error else lambda _: {"done": True}
    monkeypatch.setattr(session, "STEPS", {step: body})
    host = work(step, {"apply --release": {"released": True}, "rollout status": status()})
    if error is None:
        assert session._perform(host) == {"done": True}
    else:
        with pytest.raises(type(error)):
            session._perform(host)
    return [words for words in host.questions if words != ("rollout", "status")]


RELEASED = [("apply", "--release", "20261121T1054-7f3a")]


def test_a_host_that_returns_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert performed(monkeypatch, Step.RETURN) == RELEASED
    for step in (Step.APPLY, Step.MODULES, Step.VALIDATE, Step.UNDO, Step.UNDO_VALIDATE):
        assert performed(monkeypatch, step) == []


@pytest.mark.parametrize("step", [Step.APPLY, Step.MODULES, Step.AUDIT, Step.UNDO, Step.UNDO_VALIDATE, Step.RETURN])
def test_a_host_whose_step_fails_is_free_for_whoever_repairs_it(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    assert performed(monkeypatch, step, ConvergeFailed("gpu1: no")) == RELEASED


@pytest.mark.parametrize("error", [HostUnreachable("gpu1: gone"), Interrupted("stopped")])
def test_one_that_cannot_be_asked_is_free_when_its_lease_ends(monkeypatch: pytest.MonkeyPatch, error: GdsError) -> None:
    assert performed(monkeypatch, Step.APPLY, error) == []


@pytest.mark.parametrize("step", [Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT, Step.SOAK, Step.POWER])
def test_one_to_which_nothing_was_done_was_not_kept(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    assert performed(monkeypatch, step, ConvergeFailed("gpu1: no")) == []


def test_a_builder_is_free_after_its_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedWork, "is_builder", True)
    assert performed(monkeypatch, Step.VALIDATE) == performed(monkeypatch, Step.UNDO_VALIDATE) == RELEASED


def test_a_host_that_is_not_let_go_is_no_failure() -> None:
    host = work(Step.RETURN, {"apply --release": Busy("gpu1: a call still works")})
    release_host(host)


# -- what steps are made of


def test_every_resource_belongs_to_one_step() -> None:
    names = {use.name for use in desired.RESOURCES}
    parts = [*upgrade.RESOURCES_OF_STEP.values(), ELSEWHERE]
    assert set.union(*map(set, parts)) == names
    assert sum(map(len, parts)) == len(names)


def test_the_playbook_plays_the_roles_of_each_step() -> None:
    for step, names in upgrade.RESOURCES_OF_STEP.items():
        played = roles_of(step)
        roles = {role_of(task) for task in played}
        assert {desired.ROLES[name] for name in names} <= roles | {"gds_packages"}
        # What is loaded is exchanged by the step of reboots, when the audit has passed.
        assert all(task[IMPORT].get("tasks_from") not in ("load", "default", "run") for task in played)


def test_a_rollback_plays_all_roles_of_both_steps() -> None:
    undo = roles_of("undo")
    assert [role for role in undo if role in roles_of("apply")] == roles_of("apply")[1:]
    # Whatever builds has its repositories from the step before.
    assert [role for role in undo if role in roles_of("modules")][-5:] == roles_of("modules")[-5:]
    assert undo[-1:] == roles_of("leftovers")


def roles_of(step: str) -> list[dict[str, Any]]:
    (play,) = yaml.safe_load((ROOT / f"playbooks/{upgrade.PLAYBOOK.format(step)}.yml").read_text())
    tasks: list[dict[str, Any]] = play["tasks"]
    return tasks


def test_what_a_step_lacks_is_told_by_the_resource_alone() -> None:
    changes = [Change("install", "x", resource=use.name) for use in desired.RESOURCES]
    look = Look(HostPlan("gpu1", tuple(changes)), work(Step.APPLY, {}).machine)
    assert {change.resource for change in look.lacks("apply")} == upgrade.RESOURCES_OF_STEP["apply"]
    assert {change.resource for change in look.lacks("modules")} == upgrade.RESOURCES_OF_STEP["modules"]
