"""Waves, their soak, what may be out of work at a time, and windows."""

from __future__ import annotations

import pytest

from gdsdeploy.model.events import Kind
from gdsdeploy.model.rollout import Outcome, Step, Wave
from gdsdeploy.rollout.machine import STALE
from tests.unit.rollout.rehearsed import (
    ERROR,
    FORWARD_STEPS,
    SILENT,
    UNDO,
    Play,
    failing,
    one,
    plan,
    reach,
    run,
    soaking,
    unavailable,
    waits,
)

# -- waves, soak, budget


def test_waves_follow_each_other() -> None:
    play = run(Play(plan(Wave("1", ("a", "b")), Wave("2", ("c",)))))
    about = [(e.kind.value, e.host or e.data.get("wave", "")) for e in play.events]
    assert about.index(("closed", "1")) > about.index(("outcome", "b"))
    assert about.index(("opened", "2")) < about.index(("begin", "c"))
    assert about.index(("closed", "1")) < about.index(("opened", "2"))


def test_a_soak_lasts_and_is_judged() -> None:
    play = soaking()
    assert play.decide().wake_at == play.now + 60
    assert play.machine.phase == "soaking"
    play.now += 59
    assert not play.step().over
    assert not play.under_way
    play.now += 1
    play.step()
    assert {task.step for task in play.under_way.values()} == {Step.SOAK}
    play.end("a")
    play.step()
    assert play.machine.waves[0].state == "soaking"
    assert unavailable(play.machine) == 0
    play.end("b")
    play.step()
    assert play.machine.waves[0].state == "closed"
    assert play.under_way["c"].step is Step.PREFLIGHT


def test_a_soak_that_is_not_passed_takes_the_host_back_and_counts() -> None:
    play = run(soaking(), failing(a_soak=ERROR))
    assert play.steps("a")[-7:] == ["soak", "drain", *UNDO]
    assert play.outcome("a") is Outcome.ROLLED_BACK
    assert play.outcome("b") is Outcome.DONE
    assert play.machine.phase == "halted"
    assert play.steps("c") == []


def test_a_soak_that_is_not_passed_where_failed_hosts_are_kept() -> None:
    play = run(soaking(settings={"on_failure": "keep"}), failing(a_soak=ERROR))
    assert play.steps("a")[-2:] == ["soak", "drain"]
    assert play.outcome("a") is Outcome.KEPT


def test_a_drain_on_the_way_back_that_fails() -> None:
    play = soaking()
    play.now += 60
    play.step()
    play.fail("a")
    run(play, failing(a_drain=ERROR))
    assert play.outcome("a") is Outcome.KEPT


def test_a_wave_in_which_nothing_changed_has_no_soak() -> None:
    play = Play(plan(Wave("canary", ("a",), soak=60)))
    play.step()
    play.end("a", {"satisfied": True})
    run(play)
    assert play.occurrences(Kind.SOAKING) == []
    assert play.machine.phase == "finished"


def test_a_clock_that_was_set_back_makes_no_soak_endless() -> None:
    play = soaking()
    play.now -= 86400
    play.step()
    assert play.occurrences(Kind.SOAKING) == ["soaking"] * 2
    assert play.decide().wake_at == play.now + 60
    assert run(play).machine.phase == "finished"


def test_a_clock_that_is_set_back_while_a_soak_is_judged() -> None:
    play = soaking()
    play.now += 60
    play.step()
    play.now -= 86400
    play.step()
    assert play.decide().wake_at == play.now + 60
    play.now += 60
    play.end("a")
    play.step()
    assert list(play.under_way) == ["b"]
    play.end("b")
    run(play)
    assert play.machine.phase == "finished"
    assert (play.steps("a").count("soak"), play.steps("b").count("soak")) == (1, 1)


def test_no_more_hosts_are_out_than_may_be() -> None:
    hosts = tuple("abcdef")
    play = one(*hosts, max_unavailable=3, down=("x",))
    play.step()
    assert sorted(play.under_way) == ["a", "b"]
    play.end("a")
    play.step()
    assert sorted(play.under_way) == ["a", "b"]
    run(play)
    assert play.machine.outcomes() == {"done": 6}


def test_a_host_that_is_out_anyway_costs_nothing_and_goes_first() -> None:
    play = one("a", "b", "c", max_unavailable=1, down=("c",))
    play.step()
    assert list(play.under_way) == ["c"]
    run(play)
    assert play.machine.outcomes() == {"done": 3}, "once it is back others may be out"


def test_a_host_that_somebody_else_drained_stays_unavailable() -> None:
    play = one("a", "b", max_unavailable=1)
    reach(play, "a", "return")
    play.end("a", {"returned": False})
    run(play)
    assert play.outcome("a") is Outcome.DONE
    assert unavailable(play.machine) == 1
    assert play.machine.halted == "b cannot be begun while out of work: a; at most 1 are at a time"
    play.say(Kind.RESUMED, back=["a"])
    assert run(play).machine.outcomes() == {"done": 2}


def test_a_host_that_somebody_else_drained_before_our_drain_came_to_its_end() -> None:
    play = one("a", "b", max_unavailable=1)
    reach(play, "a", "drain")
    play.fail("a")
    reach(play, "a", "return")
    play.end("a", {"returned": False})
    run(play)
    assert play.outcome("a") is Outcome.ROLLED_BACK
    assert play.steps("b") == []


def test_kept_and_lost_hosts_use_up_the_budget_and_somebody_has_to_look() -> None:
    play = run(one("a", "b", "c", max_unavailable=2), failing(a_boot=SILENT, b_apply=ERROR, b_undo=ERROR))
    assert play.machine.phase == "halted"
    assert play.machine.halted == "c cannot be begun while out of work: a, b; at most 2 are at a time"
    assert play.decide().over
    play.say(Kind.RESUMED, back=["b"])
    run(play, failing(a_boot=SILENT))
    assert play.outcome("c") is Outcome.DONE
    assert play.outcome("a") is Outcome.LOST, "asked again, it does not answer"
    assert play.machine.phase == "finished"


def test_hosts_of_one_rack_are_apart() -> None:
    labels = {"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "2"}, "d": {}, "e": {"rack": "3"}}
    play = one(*"abcd", labels=labels, settings={"apart": ["rack"]}, down=("e",))
    play.step()
    assert sorted(play.under_way) == ["a", "c", "d"]
    run(play)
    assert play.machine.outcomes() == {"done": 4}


def test_a_lost_host_keeps_its_rack_waiting() -> None:
    labels = {host: {"rack": "1"} for host in "ab"}
    play = run(one(*"abc", labels=labels, settings={"apart": ["rack"]}), failing(a_boot=SILENT))
    assert play.outcome("c") is Outcome.DONE
    assert play.machine.halted == "b cannot be begun while out of work: a; no two of rack 1 are at a time"


def test_so_many_are_worked_on_at_a_time() -> None:
    play = one(*"abcdef", settings={"parallel": 2})
    run(play, until=lambda p: len(p.under_way) > 2 or len(p.machine.slots.held) > 2)
    assert play.machine.phase == "finished"


def test_builders_are_never_drained_and_take_no_place() -> None:
    play = Play(plan(Wave("builders", ("x",), drain=False), Wave("2", ("a",)), max_unavailable=1, down=("z",)))
    play.open = False
    run(play)
    assert play.steps("x") == [step for step in FORWARD_STEPS if step not in ("drain", "return")]
    assert play.outcome("x") is Outcome.DONE
    assert waits(play.decide())


def test_a_builder_that_fails_halts_everything() -> None:
    play = run(Play(plan(Wave("builders", ("x",), drain=False), Wave("2", ("a",)))), failing(x_modules=ERROR))
    assert play.steps("x")[-5:] == ["modules", "undo", "undo-reboot", "undo-boot", "undo-validate"]
    assert play.outcome("x") is Outcome.ROLLED_BACK
    assert play.machine.halted == "1 builder failed; the rollout halts at 1"


# -- windows


def test_nothing_begins_outside_of_a_window() -> None:
    play = one("a", "b", settings={"parallel": 1})
    play.open = False
    decided = play.step()
    assert waits(decided)
    assert not decided.over
    assert play.occurrences(Kind.OPENED) == []
    play.open = True
    reach(play, "a", "drain")
    play.open = False
    run(play)
    assert play.outcome("a") is Outcome.DONE, "what was begun is brought to its end"
    assert play.steps("b") == []
    assert waits(play.decide())


def test_a_window_that_closes_before_the_drain() -> None:
    play = one()
    play.step()
    play.open = False
    play.end("a")
    assert waits(play.step())
    play.open = True
    play.now += STALE
    play.step()
    assert play.steps("a") == ["preflight", "drain"]


def test_who_waits_at_the_gate_keeps_nobody_from_going_back() -> None:
    play = one("c", "a", settings={"parallel": 1}, max_unavailable=1)
    reach(play, "a", "preflight")
    play.open = False
    play.end("a")
    assert waits(play.step())
    play.say(Kind.RECALL, "c", reason="it is slow")
    run(play)
    assert play.outcome("c") is Outcome.ROLLED_BACK
    assert play.machine.halted == ""
    play.open = True
    assert run(play).outcome("a") is Outcome.DONE


@pytest.mark.parametrize(("down", "going"), [(["x"], 1), (["x", "y"], 0)])
def test_what_went_down_meanwhile_counts_at_the_gate(down: list[str], going: int) -> None:
    play = one("a", "b", max_unavailable=2)
    play.step()
    play.open = False
    play.end("a")
    play.end("b")
    play.step()
    play.say(Kind.RESUMED, down=down)
    play.open = True
    play.step()
    assert len(play.under_way) == going
    assert bool(play.machine.halted) is (going == 0)


def test_who_is_apart_is_so_at_the_gate() -> None:
    labels = {"a": {"rack": "1"}, "x": {"rack": "1"}}
    play = one("a", "b", labels=labels, settings={"apart": ["rack"], "parallel": 1})
    play.step()
    play.say(Kind.RESUMED, down=["x"])
    play.end("a")
    run(play)
    assert play.steps("a") == ["preflight"]
    assert play.outcome("b") is Outcome.DONE
    assert play.machine.halted == "a cannot be begun while out of work: x; no two of rack 1 are at a time"


@pytest.mark.parametrize("passed", [STALE + 1, -1])
def test_a_host_that_waited_long_is_asked_again_what_it_is(passed: int) -> None:
    play = one()
    play.step()
    play.open = False
    play.end("a")
    play.step()
    play.now += passed
    play.open = True
    run(play)
    assert play.steps("a") == ["preflight", *FORWARD_STEPS]


def test_the_way_back_needs_no_window() -> None:
    play = one()
    reach(play, "a", "validate")
    play.open = False
    play.fail("a")
    run(play)
    assert play.outcome("a") is Outcome.ROLLED_BACK
