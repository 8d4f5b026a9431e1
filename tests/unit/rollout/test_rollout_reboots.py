"""Reboots that go wrong, through the real driver and journal: what becomes of the host, and of the rollout.

The hosts are pretended (``pretended_hosts``); what real ones do is in the tests with virtual machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.errors import HostUnreachable, RebootFailed
from gdsdeploy.model.events import Kind, RolloutResumed
from gdsdeploy.model.rollout import Outcome, Plan, Step, Task, Wave
from gdsdeploy.rollout import control, journal
from gdsdeploy.rollout.driver import drive
from gdsdeploy.rollout.machine import StateMachine
from tests.loopback.rollout.test_rollout_driver import Performing
from tests.unit.rollout.driven_rollout import PLAN, Hurried
from tests.unit.rollout.pretended_hosts import NEW, OLD, Hosts
from tests.unit.rollout.rehearsed import unavailable

TWO = replace(PLAN, waves=(Wave("canary", ("a",), canary=True), Wave("2", ("b",))))
Own = Callable[[Task], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.sqlite"


def driven(path: Path, plan: Plan, hosts: Hosts, own: Own, *, resume: bool = False) -> StateMachine:
    with journal.writing(path, doing="rollout") as writer:
        if resume:
            control.write(writer, RolloutResumed("test"))
        else:
            writer.begin(plan)
        return drive(writer, plan.id, Performing(hosts, own), clock=Hurried())


def steps(path: Path, name: str) -> list[str]:
    with journal.reading(path) as reader:
        return [e.data["step"] for e in reader.events(PLAN.id) if e.host == name and e.kind is Kind.BEGIN]


def silent(task: Task) -> None:
    if task.step is Step.BOOT:
        raise HostUnreachable(f"{task.host}: no answer for 1200 s")


def test_one_that_does_not_come_back_is_lost_and_taken_back_once_somebody_has_switched_it_off_and_on(
    path: Path,
) -> None:
    hosts = Hosts(path.parent, TWO)
    machine = driven(path, TWO, hosts, silent)
    assert (machine.phase, machine.hosts["a"].outcome, machine.hosts["b"].outcome) == ("halted", Outcome.LOST, None)
    assert unavailable(machine) == 1
    assert hosts.look()["a"].drained
    assert hosts.broken(None) == []

    # A power cycle lands in the old kernel: the new one was to boot once.
    hosts.append("a", "reboot:old")
    machine = driven(path, TWO, hosts, lambda _: None, resume=True)
    assert machine.hosts["a"].outcome is Outcome.ROLLED_BACK
    assert steps(path, "a")[-5:] == ["boot", "validate", "undo", "undo-validate", "return"]
    state = hosts.look()["a"]
    assert (state.lock, state.runs, state.drained) == (OLD, OLD, False)
    assert state.count["reboot:new"] == 1
    assert [problem for problem in hosts.broken(machine) if not problem.startswith("b:")] == []


def test_one_that_is_silent_still_stays_lost_and_out_of_work(path: Path) -> None:
    hosts = Hosts(path.parent, TWO)
    driven(path, TWO, hosts, silent)
    machine = driven(path, TWO, hosts, silent, resume=True)
    assert machine.hosts["a"].outcome is Outcome.LOST
    assert hosts.look()["a"].drained
    assert steps(path, "a").count("reboot") == 1


def test_a_fleet_that_says_how_heals_it_by_itself(path: Path) -> None:
    settings = {**PLAN.settings, "power_cycle": ("ipmi", "{host}")}
    plan = replace(TWO, settings=settings)
    hosts = Hosts(path.parent, plan)
    on: list[str] = []

    def own(task: Task) -> None:
        if task.step is Step.POWER:
            hosts.append(task.host, "reboot:old")
            on.append(task.host)
        elif task.step is Step.BOOT and not on:
            silent(task)
        elif task.step is Step.BOOT:
            raise RebootFailed(f"{task.host}: it runs the old kernel")

    machine = driven(path, plan, hosts, own)
    assert on == ["a"]
    assert (machine.phase, machine.hosts["a"].outcome) == ("halted", Outcome.ROLLED_BACK)
    assert steps(path, "a").count("reboot") == 1
    assert hosts.broken(machine) == []
    assert hosts.look()["b"].lock == OLD, "the canary's failure halts the rollout"


def test_one_that_comes_back_with_the_old_kernel_is_taken_back(path: Path) -> None:
    hosts = Hosts(path.parent, TWO)

    def own(task: Task) -> None:
        if task.step is Step.BOOT:
            hosts.append(task.host, "reboot:old")
            raise RebootFailed(f"{task.host}: it runs the old kernel; the new one fell back")

    machine = driven(path, TWO, hosts, own)
    assert (machine.phase, machine.hosts["a"].outcome) == ("halted", Outcome.ROLLED_BACK)
    assert hosts.broken(machine) == []
    assert NEW not in (hosts.look()["a"].lock, hosts.look()["a"].runs)
