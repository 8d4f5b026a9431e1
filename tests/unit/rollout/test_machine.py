"""Every way through a rollout: what follows from each end and each failure, and what stops what."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.errors import JournalUnusable
from gdsdeploy.model.events import Event, Kind, StepError
from gdsdeploy.model.rollout import Outcome, Wave
from gdsdeploy.rollout.hoststate import MAX_REFUSALS
from gdsdeploy.rollout.machine import StateMachine
from tests.unit.rollout.rehearsed import (
    ERROR,
    FORWARD_STEPS,
    POWER,
    SILENT,
    UNDO,
    Play,
    failing,
    one,
    plan,
    reach,
    run,
    step_data,
    unavailable,
)

# -- one host


def test_everything_goes_well() -> None:
    play = run(one())
    assert play.steps("a") == FORWARD_STEPS
    assert play.outcome("a") is Outcome.DONE
    assert play.machine.phase == "finished"
    assert play.events[-1].data == {"outcomes": {"done": 1}}
    assert play.decide().over


def test_a_host_that_has_the_lock_is_not_drained() -> None:
    play = one()
    play.step()
    play.end("a", {"satisfied": True, "boot_id": "x"})
    run(play)
    assert play.steps("a") == ["preflight"]
    assert play.outcome("a") is Outcome.SATISFIED


def test_what_steps_found_is_known_to_later_ones() -> None:
    play = one()
    reach(play, "a", "apply")
    facts = play.under_way["a"].data
    assert facts["boot_id"] == "boot-1"
    assert facts["drained"] is True
    assert facts["snapshot"] == {}


CHANGED = ["apply", "modules", "audit", "reboot", "boot", "validate"]


@pytest.mark.parametrize(
    ("step", "way", "outcome"),
    [
        ("preflight", [], Outcome.REFUSED),
        ("drain", ["undo-validate", "return"], Outcome.ROLLED_BACK),
        ("snapshot", ["undo-validate", "return"], Outcome.ROLLED_BACK),
        *[(step, UNDO, Outcome.ROLLED_BACK) for step in CHANGED],
    ],
)
def test_a_step_that_fails(step: str, way: list[str], outcome: Outcome) -> None:
    play = run(one(), failing(**{f"a_{step}": ERROR}))
    assert play.steps("a") == FORWARD_STEPS[: FORWARD_STEPS.index(step) + 1] + way
    assert play.outcome("a") is outcome
    host = play.machine.hosts["a"]
    assert host.failed_at == step
    assert host.error == StepError(**ERROR)
    assert host.reason == "it broke"
    assert not host.out


@pytest.mark.parametrize("step", CHANGED)
def test_a_fleet_that_keeps_failed_hosts(step: str) -> None:
    play = run(one(settings={"on_failure": "keep"}), failing(**{f"a_{step}": ERROR}))
    assert play.steps("a")[-1] == step
    assert play.outcome("a") is Outcome.KEPT
    assert play.machine.hosts["a"].out


@pytest.mark.parametrize("step", ["drain", "snapshot"])
def test_there_is_nothing_to_keep_where_nothing_was_changed(step: str) -> None:
    play = run(one(settings={"on_failure": "keep"}), failing(**{f"a_{step}": ERROR}))
    assert play.outcome("a") is Outcome.ROLLED_BACK


@pytest.mark.parametrize("step", ["undo", "undo_reboot", "undo_boot", "undo_validate"])
@pytest.mark.parametrize(("error", "outcome"), [(ERROR, Outcome.KEPT), (SILENT, Outcome.LOST)])
def test_a_way_back_that_fails(step: str, error: dict[str, Any], outcome: Outcome) -> None:
    play = run(one(), failing(a_apply=ERROR, **{f"a_{step}": error}))
    assert play.steps("a")[-1] == step.replace("_", "-")
    assert play.outcome("a") is outcome
    assert play.machine.hosts["a"].out
    assert play.machine.hosts["a"].failed_at == "apply"
    assert unavailable(play.machine) == 1


def test_an_undo_that_needs_no_reboot() -> None:
    play = one()
    reach(play, "a", "apply")
    play.fail("a")
    play.step()
    play.end("a", {"disruption": "none"})
    run(play)
    assert play.steps("a")[-3:] == ["undo", "undo-validate", "return"]
    assert play.outcome("a") is Outcome.ROLLED_BACK


def test_what_boot_it_is_in_is_not_known_after_a_reboot_until_it_is_proven() -> None:
    """It came back as it was, so that nothing has to be booted for the way back."""
    play = one()
    reach(play, "a", "boot")
    play.fail("a")
    play.step()
    play.end("a", {"disruption": "none"})
    play.step()
    play.end("a", {"validated_boot": "boot-2"})
    run(play)
    assert play.steps("a")[-4:] == ["boot", "undo", "undo-validate", "return"]


def test_a_host_that_does_not_come_back_is_lost() -> None:
    play = run(one(), failing(a_boot=SILENT))
    assert play.steps("a")[-1] == "boot"
    assert play.outcome("a") is Outcome.LOST
    assert unavailable(play.machine) == 1


def test_power_heals_a_host_that_does_not_come_back() -> None:
    play = one(**POWER)
    reach(play, "a", "boot")
    play.fail("a", SILENT)
    run(play)
    assert play.steps("a")[-8:] == ["boot", "power", "boot", *UNDO]
    assert play.outcome("a") is Outcome.ROLLED_BACK


def test_a_host_that_answers_needs_no_power() -> None:
    assert "power" not in run(one(**POWER), failing(a_boot=ERROR)).steps("a")


def test_power_that_does_not_help() -> None:
    play = run(one(**POWER), failing(a_boot=SILENT, a_power=ERROR))
    assert play.steps("a")[-2:] == ["boot", "power"]
    assert play.outcome("a") is Outcome.LOST
    play.say(Kind.RESUMED)
    run(play)
    assert play.steps("a")[-3:] == ["boot", "validate", "return"], "asked again, it is back"
    assert play.outcome("a") is Outcome.DONE


def test_power_on_the_way_back_is_tried_once() -> None:
    play = run(one(**POWER), failing(a_apply=ERROR, a_undo_boot=SILENT))
    assert play.steps("a")[-3:] == ["undo-boot", "power", "undo-boot"]
    assert play.outcome("a") is Outcome.LOST


def test_power_and_keep() -> None:
    play = one(settings={**POWER["settings"], "on_failure": "keep"})
    reach(play, "a", "boot")
    play.fail("a", SILENT)
    run(play)
    assert play.steps("a")[-3:] == ["boot", "power", "boot"]
    assert play.outcome("a") is Outcome.KEPT


def test_a_host_that_is_silent_after_power_too() -> None:
    play = run(one(**POWER), failing(a_boot=SILENT))
    assert play.steps("a")[-3:] == ["boot", "power", "boot"]
    assert play.outcome("a") is Outcome.LOST


# -- no return without a validation of this boot


def test_a_return_that_is_refused_is_judged_again_a_few_times() -> None:
    play = run(one(), failing(a_return=ERROR))
    assert play.steps("a")[8:] == ["validate", "return"] * (MAX_REFUSALS + 1)
    assert play.outcome("a") is Outcome.KEPT
    assert play.machine.hosts["a"].failed_at == "return"


def test_a_return_that_is_refused_once() -> None:
    play = one()
    reach(play, "a", "return")
    play.fail("a")
    play.step()
    assert play.under_way["a"].step == "validate"
    play.end("a", {"validated_boot": "boot-9"})
    run(play)
    assert play.outcome("a") is Outcome.DONE
    assert play.machine.hosts["a"].failed_at is None


def test_one_that_may_be_in_work_is_drained_before_it_is_changed() -> None:
    """The return failed, perhaps after it had happened; then the host is not what it should be."""
    play = one()
    reach(play, "a", "return")
    play.fail("a")
    run(play, failing(a_validate=ERROR))
    assert play.steps("a")[-8:] == ["return", "validate", "drain", *UNDO]
    assert play.outcome("a") is Outcome.ROLLED_BACK


def test_a_refused_return_on_the_way_back() -> None:
    play = run(one(), failing(a_apply=ERROR, a_return=ERROR))
    assert play.steps("a")[-2:] == ["undo-validate", "return"]
    assert play.steps("a").count("undo-validate") == MAX_REFUSALS + 1
    assert play.outcome("a") is Outcome.KEPT


@pytest.mark.parametrize("data", [{"validated_boot": "boot-9"}, {"validated_boot": ""}, {}])
def test_a_judgement_of_another_boot_is_none(data: dict[str, Any]) -> None:
    play = one()
    for _ in range(MAX_REFUSALS + 1):
        reach(play, "a", "validate")
        play.end("a", data)
    run(play)
    assert "return" not in play.steps("a")
    assert play.steps("a")[-4:] == ["boot", "validate"] * 2
    assert play.outcome("a") is Outcome.KEPT


def test_no_journal_returns_a_host_that_was_not_validated() -> None:
    play = one()
    reach(play, "a", "validate")
    bad = Event(play.machine.number + 1, play.now, Kind.BEGIN, "a", {"step": "return", "attempt": 1})
    with pytest.raises(JournalUnusable, match="not about to begin return"):
        play.machine.apply(bad)
    play = one()
    reach(play, "a", "return")
    play.machine.hosts["a"].boot = "another"
    with pytest.raises(JournalUnusable, match="did not pass its checks in the boot that it is in"):
        play.machine.apply(Event(play.machine.number + 1, play.now, Kind.BEGIN, "a", {"step": "return"}))


# -- journals that cannot be


def test_numbers_follow_each_other() -> None:
    machine = StateMachine(plan(Wave("1", ("a",))))
    machine.apply(Event(1, 0.0, Kind.PLANNED))
    for number in (1, 3):
        with pytest.raises(JournalUnusable, match="some are missing"):
            machine.apply(Event(number, 0.0, Kind.NOTE))


@pytest.mark.parametrize(
    ("kind", "host", "data"),
    [
        (Kind.BEGIN, "a", {"step": "apply", "attempt": 1}),
        (Kind.BEGIN, "a", {"step": "soak"}),
        (Kind.BEGIN, "a", {"step": "jump"}),
        (Kind.BEGIN, "z", {"step": "preflight"}),
        (Kind.BEGIN, "a", {}),
        (Kind.END, "a", {"step": "preflight"}),
        (Kind.FAIL, "a", {"step": "preflight", "error": {}}),
        (Kind.FAIL, "b", {"step": "preflight"}),
        (Kind.END, "b", {"step": "drain"}),
        (Kind.OUTCOME, "b", {"outcome": "done"}),
        (Kind.OUTCOME, "b", {"outcome": "skipped"}),
        (Kind.OUTCOME, "a", {"outcome": "lovely"}),
        (Kind.CLOSED, "", {"wave": "1"}),
        (Kind.SOAKING, "", {"wave": "1", "until": 5.0}),
        (Kind.OPENED, "", {"wave": "1"}),
        (Kind.OPENED, "", {"wave": "2"}),
        (Kind.CLOSED, "", {"wave": "2"}),
        (Kind.OPENED, "", {"wave": "9"}),
        (Kind.PAUSED, "a", {}),
        (Kind.BEGIN, "", {"step": "preflight"}),
        (Kind.RESUMED, "", {"accept": ["z"]}),
    ],
)
def test_what_cannot_follow(kind: Kind, host: str, data: dict[str, Any]) -> None:
    play = Play(plan(Wave("1", ("b", "a")), Wave("2", ("c",)), settings={"parallel": 1}))
    play.step()
    with pytest.raises(JournalUnusable):
        play.machine.apply(Event(play.machine.number + 1, 0.0, kind, host, data))


def test_a_plan_that_names_something_twice() -> None:
    with pytest.raises(JournalUnusable, match="'a' in two waves"):
        StateMachine(plan(Wave("1", ("a",)), Wave("2", ("a",))))
    with pytest.raises(JournalUnusable, match="two waves '1'"):
        StateMachine(plan(Wave("1", ("a",)), Wave("1", ("b",))))


# -- what is shown


def test_what_is_shown_of_a_rollout() -> None:
    play = Play(plan(Wave("1", ("a", "b")), settings={"parallel": 1}))
    assert play.machine.phase == "planned"
    reach(play, "a", "apply")
    assert play.machine.phase == "running"
    assert play.machine.counts() == {"apply": 1, "waiting": 1}
    assert play.machine.waves[0].counts["waiting"] == 1
    assert play.machine.hosts["a"].state == "apply"
    assert play.machine.outcomes() == {}
    assert unavailable(play.machine) == 1
    play.fail("a")
    assert [host.name for host in play.machine.failed()] == ["a"]


def test_deciding_changes_nothing() -> None:
    play = one(*"abc")
    play.step()
    assert play.decide() == play.decide()
    play.end("a")
    first = play.decide()
    assert first.tasks == play.decide().tasks != ()
    assert step_data(first.tasks[0]) == {"drained": True, "reason": "gdsdeploy rollout"}


# -- keys that a person enrols at the console


def waiting(**changed: Any) -> Play:
    """One host, whose wave waits for a person at its console."""
    return Play(plan(Wave("console-1", ("a",), halt_at=99, console=True), **changed))


def test_a_key_is_enrolled_after_the_drain_and_before_any_change() -> None:
    play = run(waiting())
    assert play.steps("a") == ["preflight", "drain", "enrol", *FORWARD_STEPS[2:]]
    assert play.outcome("a") is Outcome.DONE


def test_a_host_whose_key_was_not_confirmed_is_validated_as_it_was_and_returns() -> None:
    play = run(waiting(), failing(a_enrol=ERROR))
    assert play.steps("a") == ["preflight", "drain", "enrol", "undo-validate", "return"]
    assert play.outcome("a") is Outcome.ROLLED_BACK


def test_a_host_that_does_not_come_back_from_its_console_is_lost_and_asked_again() -> None:
    play = run(waiting(), failing(a_enrol=SILENT))
    assert play.outcome("a") is Outcome.LOST
    assert play.machine.hosts["a"].step == "enrol"
    assert play.machine.hosts["a"].out
