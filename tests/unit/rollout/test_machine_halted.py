"""Rollouts that halt, pause, go back, lose a controller or a host of the fleet, and go on."""

from __future__ import annotations

import pytest

from gdsdeploy.model.events import Kind
from gdsdeploy.model.rollout import Outcome, Step, Task, Wave
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
    refolded,
    run,
    soaking,
    unavailable,
)

# -- thresholds, pause, resume


def test_the_first_canary_that_fails_halts() -> None:
    play = Play(plan(Wave("canary", ("a", "b"), canary=True), Wave("2", ("c",)), settings={"parallel": 1}))
    reach(play, "a", "apply")
    play.fail("a")
    play.step()
    assert play.machine.phase == "halted", "while it is being taken back already"
    run(play)
    assert play.outcome("a") is Outcome.ROLLED_BACK
    assert play.steps("b") == play.steps("c") == []
    assert play.machine.halted == "1 canary host failed; the rollout halts at 1"
    assert play.decide().over


def test_hosts_under_way_finish_when_it_halts() -> None:
    play = one("a", "b", "c")
    play.machine._limits[(False, True)] = 1
    reach(play, "b", "apply")
    play.fail("b")
    run(play)
    assert play.machine.outcomes() == {"done": 2, "rolled-back": 1}


def test_a_host_that_was_only_looked_at_is_not_drained_when_it_halts() -> None:
    play = one("a", "b")
    play.machine._limits[(False, True)] = 1
    play.step()
    play.fail("a")
    play.end("b")
    run(play)
    assert play.steps("b") == ["preflight"]
    assert play.machine.phase == "halted"


def test_failures_of_canaries_and_of_later_waves_are_counted_apart() -> None:
    waves = (
        Wave("canary", ("a", "b"), halt_at=2, canary=True),
        Wave("2", ("c",), halt_at=2),
        Wave("3", ("d",), halt_at=2),
    )
    play = run(Play(plan(*waves)), failing(a_apply=ERROR, c_apply=ERROR))
    assert play.machine.phase == "finished"
    play = run(Play(plan(*waves, Wave("4", ("e",), halt_at=2))), failing(c_apply=ERROR, d_apply=ERROR))
    assert play.machine.halted == "2 hosts failed; the rollout halts at 2"
    assert play.steps("e") == []


def halted() -> Play:
    waves = Wave("canary", ("a", "b"), canary=True), Wave("2", ("c",))
    return run(Play(plan(*waves, settings={"parallel": 1})), failing(a_apply=ERROR))


def test_resume_without_a_word_about_the_failure_halts_again() -> None:
    play = halted()
    play.say(Kind.RESUMED)
    run(play)
    assert play.machine.phase == "halted"
    assert play.steps("b") == []


def test_resume_past_a_failure_and_up_to_the_next() -> None:
    play = halted()
    play.say(Kind.RESUMED, accept=["a"])
    run(play, until=lambda p: "b" in p.under_way and p.under_way["b"].step is Step.APPLY)
    assert play.machine.phase == "running"
    play.fail("b")
    run(play)
    assert play.machine.phase == "halted"
    play.say(Kind.RESUMED, accept=["b"])
    assert run(play).machine.phase == "finished"
    assert play.machine.outcomes() == {"rolled-back": 2, "done": 1}


def test_a_halt_by_somebody_is_lifted_by_resume() -> None:
    play = one("a", "b")
    play.say(Kind.HALTED, reason="the lock was edited")
    run(play)
    assert (play.machine.phase, play.machine.halted) == ("halted", "the lock was edited")
    assert play.steps("a") == []
    play.say(Kind.RESUMED)
    assert run(play).machine.phase == "finished"


def test_a_lost_host_is_asked_again_and_only_then_goes_it_on() -> None:
    play = Play(plan(Wave("canary", ("a",), canary=True), Wave("2", ("c",))))
    run(play, failing(a_boot=SILENT))
    assert play.machine.phase == "halted"
    play.say(Kind.RESUMED)
    play.step()
    assert play.occurrences(Kind.RECALL) == ["recall"]
    assert play.under_way["a"].step is Step.BOOT
    assert play.machine.phase == "running"
    assert play.steps("c") == []
    run(play)
    assert play.machine.outcomes() == {"done": 2}


def test_nobody_is_begun_while_lost_hosts_are_asked_again() -> None:
    play = Play(plan(Wave("canary", ("a", "b", "c"), canary=True), settings={"parallel": 2}))
    run(play, failing(a_boot=SILENT, b_boot=SILENT))
    play.say(Kind.RESUMED)
    play.step()
    assert sorted(play.under_way) == ["a", "b"]
    reach(play, "a", "return")
    play.end("a")
    play.step()
    assert play.outcome("a") is Outcome.DONE
    assert play.machine.phase == "running", "b may come back, too"
    assert play.steps("c") == []
    run(play)
    assert play.machine.outcomes() == {"done": 3}


def test_a_lost_host_that_came_back_as_it_was() -> None:
    play = run(one(), failing(a_boot=SILENT))
    play.say(Kind.RESUMED)
    run(play, failing(a_boot=ERROR))
    assert play.outcome("a") is Outcome.ROLLED_BACK


@pytest.mark.parametrize("step", FORWARD_STEPS)
def test_pause_lets_a_step_end_and_keeps_the_host_where_it_is(step: str) -> None:
    play = one("a", "b", settings={"parallel": 1})
    reach(play, "a", step)
    play.say(Kind.PAUSED, reason="lunch")
    assert not play.decide().over
    play.end("a")
    decided = play.step()
    assert decided.over
    assert play.machine.phase == "paused"
    assert play.machine.hosts["a"].out is (step not in ("preflight", "return"))
    play.say(Kind.RESUMED)
    run(play)
    assert play.steps("a") == FORWARD_STEPS
    assert play.machine.outcomes() == {"done": 2}


def test_no_soak_is_judged_while_it_is_paused() -> None:
    play = soaking()
    play.say(Kind.PAUSED)
    play.now += 120
    assert play.step().over
    play.say(Kind.RESUMED)
    play.step()
    assert play.under_way["a"].step is Step.SOAK


# -- abort, recall, rollback


@pytest.mark.parametrize(
    ("step", "way", "outcome"),
    [
        ("preflight", [], Outcome.SKIPPED),
        ("drain", ["undo-validate", "return"], Outcome.ROLLED_BACK),
        ("snapshot", ["undo-validate", "return"], Outcome.ROLLED_BACK),
        ("apply", UNDO, Outcome.ROLLED_BACK),
        ("modules", UNDO, Outcome.ROLLED_BACK),
        ("audit", UNDO, Outcome.ROLLED_BACK),
        ("reboot", ["boot", *UNDO], Outcome.ROLLED_BACK),
        ("boot", UNDO, Outcome.ROLLED_BACK),
        ("validate", UNDO, Outcome.ROLLED_BACK),
        ("return", ["drain", *UNDO], Outcome.ROLLED_BACK),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
def test_abort_takes_back_who_is_under_way(step: str, way: list[str], outcome: Outcome, waits: bool) -> None:
    play = one("a", "b", settings={"parallel": 1, "on_failure": "keep"})
    reach(play, "a", step)
    if waits:
        play.say(Kind.PAUSED)
        play.end("a")
    play.say(Kind.ABORTED, reason="no more")
    if not waits:
        play.end("a")
    run(play)
    assert play.steps("a") == FORWARD_STEPS[: FORWARD_STEPS.index(step) + 1] + way
    assert play.outcome("a") is outcome
    assert play.steps("b") == []
    assert play.outcome("b") is None
    assert play.machine.phase == "aborted"
    assert play.machine.finished
    assert unavailable(play.machine) == 0


@pytest.mark.parametrize("step", FORWARD_STEPS[1:-1])
def test_a_step_that_fails_after_the_abort(step: str) -> None:
    play = one(settings={"on_failure": "keep"})
    reach(play, "a", step)
    play.say(Kind.ABORTED)
    play.fail("a")
    run(play)
    assert play.outcome("a") is Outcome.ROLLED_BACK


def test_a_return_that_fails_after_the_abort() -> None:
    play = one()
    reach(play, "a", "return")
    play.say(Kind.ABORTED)
    play.fail("a")
    run(play)
    assert play.steps("a")[-7:] == ["return", "drain", *UNDO]


def test_abort_leaves_who_is_done_and_who_is_on_the_way_back() -> None:
    play = one("a", "b", settings={"parallel": 1})
    reach(play, "b", "apply")
    play.fail("b")
    play.step()
    play.say(Kind.ABORTED)
    run(play)
    assert play.machine.outcomes() == {"done": 1, "rolled-back": 1}
    assert play.steps("b")[-5:] == UNDO


def test_rollback_takes_everything_back_the_last_wave_first_within_the_budget() -> None:
    waves = Wave("1", ("a", "b"), soak=5), Wave("2", ("c", "d")), Wave("3", ("e",))
    play = Play(plan(*waves, max_unavailable=2))
    run(play, until=lambda p: "e" in p.under_way and p.under_way["e"].step is Step.APPLY)
    play.open = False
    play.say(Kind.ROLLBACK, reason="it was a bad driver")
    assert play.machine.phase == "rolling-back"
    order: list[str] = []

    def look(p: Play) -> bool:
        order.extend(host for host, task in p.under_way.items() if task.step is Step.DRAIN and host not in order)
        assert unavailable(p.machine) <= 2
        return False

    run(play, until=look)
    assert order == ["c", "d", "a", "b"]
    assert play.machine.outcomes() == {"rolled-back": 5}
    assert play.machine.phase == "finished"
    assert play.machine.failed() == []


def test_rollback_of_a_finished_rollout_with_its_lost_and_kept_hosts() -> None:
    play = run(one(*"abcd"), failing(b_boot=SILENT, c_apply=ERROR, c_undo=ERROR, d_preflight=ERROR))
    assert play.machine.outcomes() == {"done": 1, "kept": 1, "lost": 1, "refused": 1}
    play.say(Kind.ROLLBACK)
    run(play)
    assert play.machine.outcomes() == {"rolled-back": 3, "refused": 1}
    assert play.steps("b")[-6:] == ["boot", *UNDO], "where it is has to be known first"


def test_rollback_while_a_soak_is_judged() -> None:
    play = soaking()
    play.now += 60
    play.step()
    play.say(Kind.ROLLBACK)
    run(play, failing(b_soak=ERROR))
    assert play.steps("a")[-7:] == play.steps("b")[-7:] == ["soak", "drain", *UNDO]


def test_rollback_that_can_go_no_further_says_so() -> None:
    play = run(one("a", "b", max_unavailable=1))
    play.say(Kind.ROLLBACK)
    run(play, failing(a_undo=ERROR))
    assert play.outcome("a") is Outcome.KEPT
    assert play.machine.halted.startswith("b cannot be begun while out of work: a")
    play.say(Kind.RESUMED, back=["a"])
    assert run(play).outcome("b") is Outcome.ROLLED_BACK


def test_pause_and_resume_of_a_rollback() -> None:
    play = run(one("a"))
    play.say(Kind.ROLLBACK)
    play.step()
    play.say(Kind.PAUSED)
    play.end("a")
    assert play.step().over
    play.say(Kind.RESUMED)
    assert play.machine.phase == "rolling-back"
    assert run(play).outcome("a") is Outcome.ROLLED_BACK


@pytest.mark.parametrize("again", [False, True])
def test_recall_of_one_host(again: bool) -> None:
    play = run(one("a", "b"), failing(b_validate=ERROR, b_undo=ERROR))
    for host in "ab":
        play.say(Kind.RECALL, host, reason="it is needed as it was")
    if again:
        play.say(Kind.RECALL, "a", reason="twice")
    play.machine.finished = False
    run(play)
    assert play.machine.outcomes() == {"rolled-back": 2}


def test_recall_of_a_host_that_was_not_begun_leaves_it_out() -> None:
    play = one("a", "b", settings={"parallel": 1})
    play.step()
    play.say(Kind.RECALL, "b", reason="not this one")
    run(play)
    assert play.outcome("b") is Outcome.SKIPPED
    assert play.steps("b") == []


def test_a_kept_host_that_is_in_work_again_is_drained_before_it_is_changed() -> None:
    play = run(one("a", "b"), failing(a_apply=ERROR, a_undo=ERROR, b_boot=SILENT))
    play.say(Kind.RESUMED, back=["a", "b"])
    run(play)
    assert play.occurrences(Kind.RECALL) == [], "one that is back in work is not lost any more"
    assert unavailable(play.machine) == 0
    play.say(Kind.ROLLBACK)
    run(play)
    assert play.steps("a")[-6:] == play.steps("b")[-6:] == ["drain", *UNDO]


# -- hosts that leave the fleet


def test_hosts_that_leave_the_fleet() -> None:
    play = one("a", "b", "c", settings={"parallel": 1})
    reach(play, "a", "apply")
    for event in play.machine.removed(["a", "c", "unknown"], play.now):
        play.say(event.kind, event.host, **event.data)
    assert play.outcome("c") is Outcome.SKIPPED
    assert play.occurrences(Kind.NOTE) == ["note"]
    run(play)
    assert play.machine.outcomes() == {"done": 2, "skipped": 1}
    assert play.machine.removed(["a"], play.now) == ()


# -- killed and resumed


@pytest.mark.parametrize("step", [*FORWARD_STEPS, "soak", *UNDO, "power"])
def test_an_interrupted_step_is_begun_again(step: str) -> None:
    play = Play(plan(Wave("1", ("a",), soak=9, halt_at=9), **POWER))
    fault = failing(a_boot=SILENT) if step == "power" else failing(a_apply=ERROR) if step in UNDO[:-1] else failing()
    run(play, fault, until=lambda p: "a" in p.under_way and p.under_way["a"].step == step)
    before = play.under_way["a"]
    for attempt in (2, 3):
        play.kill()
        play.open = False
        play.step()
        assert play.under_way["a"] == Task("a", before.step, attempt, before.data)
    play.open = True
    run(play, failing(a_apply=ERROR) if step in UNDO[:-1] else failing())
    assert play.machine.phase == "finished"
    assert unavailable(play.machine) == 0


@pytest.mark.parametrize(
    ("step", "way"),
    [
        ("preflight", []),
        ("drain", ["undo-validate", "return"]),
        ("apply", UNDO),
        ("reboot", UNDO),
        ("boot", ["boot", *UNDO]),
        ("return", ["drain", *UNDO]),
    ],
)
@pytest.mark.parametrize("order", ["abort first", "kill first"])
def test_killed_and_aborted(step: str, way: list[str], order: str) -> None:
    play = one()
    reach(play, "a", step)
    if order == "kill first":
        play.kill()
        play.say(Kind.ABORTED)
    else:
        play.say(Kind.ABORTED)
        play.kill()
    run(play)
    assert play.steps("a")[FORWARD_STEPS.index(step) + 1 :] == way
    assert unavailable(play.machine) == 0
    refolded(play.plan, play.events)
