"""Every way through a rollout: what follows from each end and each failure, and what stops what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdsdeploy.errors import JournalUnusable
from gdsdeploy.model.events import Event, Kind, StepError
from gdsdeploy.model.rollout import Outcome, Standing, Step, Task, Wave
from gdsdeploy.rollout.hoststate import MAX_REFUSALS
from gdsdeploy.rollout.machine import STALE, StateMachine
from tests.unit.host import cases
from tests.unit.rollout.rehearsed import (
    ERROR,
    FORWARD_STEPS,
    POWER,
    SILENT,
    UNDO,
    Play,
    failed,
    failing,
    one,
    plan,
    reach,
    refolded,
    run,
    step_data,
    unavailable,
    waits,
)

CASES = cases.load("rollout/machine")
WORDS = {"error": ERROR, "silent": SILENT}


def act(play: Play, what: str, value: Any) -> None:
    """One thing that happens, as tests/cases/rollout/machine.yml names it."""
    words = value if isinstance(value, list) else [value]
    match what:
        case "run":
            run(play, failing(**{step: WORDS[error] for step, error in value.items()}))
        case "reach":
            reach(play, *words)
        case "soak":
            run(play, until=lambda p: p.machine.waves[0].state == "soaking")
        case "step":
            play.step()
        case "end":
            play.end(*words)
        case "fail":
            play.fail(words[0], *(WORDS[error] for error in words[1:]))
        case "say":
            kind, *host = [word for word in words if isinstance(word, str)]
            play.say(Kind(kind), *host, **(words[-1] if isinstance(words[-1], dict) else {}))
        case "look":
            play.take(play.machine.looked({host: Standing(word) for host, word in value.items()}))
        case "now":
            play.now += STALE if value == "stale" else value
        case "open":
            play.open = value
        case _:
            raise LookupError(what)


def steps(names: list[str]) -> list[str]:
    whole = {"FORWARD": FORWARD_STEPS, "UNDO": UNDO}
    return [step for name in names for step in whole.get(name, [name])]


#: Expectation → what is held against it, in its shape.
FOUND: dict[str, Callable[[Play, Any], Any]] = {
    "steps": lambda play, expected: {host: play.steps(host) for host in expected},
    "ends": lambda play, expected: {host: play.steps(host)[-len(names) :] for host, names in expected.items()},
    "outcome": lambda play, expected: {host: play.outcome(host) for host in expected},
    "outcomes": lambda play, _: play.machine.outcomes(),
    "phase": lambda play, _: play.machine.phase,
    "halted": lambda play, _: play.machine.halted,
    "going": lambda play, _: sorted(play.under_way),
    "in": lambda play, _: {host: task.step.value for host, task in play.under_way.items()},
    "away": lambda play, _: unavailable(play.machine),
    "out": lambda play, expected: {host: play.machine.hosts[host].out for host in expected},
    "why": lambda play, expected: {host: play.machine.hosts[host].reason for host in expected},
    "paused": lambda play, _: play.machine.paused,
    "over": lambda play, _: play.decide().over,
    "wakes": lambda play, _: (play.decide().wake_at or 0) - play.now,
    "waits": lambda play, _: waits(play.decide()),
    "said": lambda play, expected: {kind: len(play.occurrences(Kind(kind))) for kind in expected},
    "waves": lambda play, _: [wave.state for wave in play.machine.waves],
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    waves = case.get("waves", [{"hosts": case.get("hosts"), "halt_at": 99}])
    named = [Wave(str(number), **{**wave, "hosts": tuple(wave["hosts"])}) for number, wave in enumerate(waves, 1)]
    play = Play(plan(*named, **{**case.get("plan", {}), "down": tuple(case.get("plan", {}).get("down", ()))}))
    for number, entry in enumerate(case["play"], 1):
        (what, value), *expectations = entry.items()
        act(play, what, value)
        for subject, expected in expectations:
            if subject in ("steps", "ends"):
                expected = {host: steps(names) for host, names in expected.items()}
            assert FOUND[subject](play, expected) == expected, f"act {number}: {subject}"


# -- one host


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


# -- no return without a validation of this boot


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
    assert [host.state for host in play.machine.hosts.values()] == ["apply", "waiting"]
    assert play.machine.outcomes() == {}
    assert unavailable(play.machine) == 1
    play.fail("a")
    assert failed(play.machine) == ["a"]


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


# -- thresholds, pause, resume


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


def test_rollback_takes_everything_back_the_last_wave_first_within_the_budget() -> None:
    waves = Wave("1", ("a", "b"), soak=5), Wave("2", ("c", "d")), Wave("3", ("e",))
    play = Play(plan(*waves, max_unavailable=2))
    run(play, until=lambda p: "e" in p.under_way and p.under_way["e"].step is Step.APPLY)
    play.open = False
    play.say(Kind.ROLLBACK, reason="it was a bad driver")
    assert play.machine.phase == "being rolled back"
    order: list[str] = []

    def look(p: Play) -> bool:
        order.extend(host for host, task in p.under_way.items() if task.step is Step.DRAIN and host not in order)
        assert unavailable(p.machine) <= 2
        return False

    run(play, until=look)
    assert order == ["c", "d", "a", "b"]
    assert play.machine.outcomes() == {"rolled-back": 5}
    assert play.machine.phase == "rolled back"
    assert failed(play.machine) == []


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


# -- hosts that leave the fleet


def test_hosts_that_leave_the_fleet() -> None:
    play = one("a", "b", "c", settings={"parallel": 1})
    reach(play, "a", "apply")
    play.take(play.machine.removed(["a", "c", "unknown"]))
    assert play.outcome("c") is Outcome.SKIPPED
    assert play.occurrences(Kind.NOTE) == ["note"]
    run(play)
    assert play.machine.outcomes() == {"done": 2, "skipped": 1}
    assert not list(play.machine.removed(["a"]))


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
        ("reboot", ["boot", *UNDO]),
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


# -- waves, soak, budget


def test_waves_follow_each_other() -> None:
    play = run(Play(plan(Wave("1", ("a", "b")), Wave("2", ("c",)))))
    about = [(e.kind.value, e.host or e.data.get("wave", "")) for e in play.events]
    assert about.index(("closed", "1")) > about.index(("outcome", "b"))
    assert about.index(("opened", "2")) < about.index(("begin", "c"))
    assert about.index(("closed", "1")) < about.index(("opened", "2"))


def test_so_many_are_worked_on_at_a_time() -> None:
    play = one(*"abcdef", settings={"parallel": 2})
    run(play, until=lambda p: len(p.under_way) > 2 or len(p.machine.slots.held) > 2)
    assert play.machine.phase == "finished"


# -- windows


@pytest.mark.parametrize(("down", "going"), [(["x"], 1), (["x", "y"], 0)])
def test_what_went_down_meanwhile_counts_at_the_gate(down: list[str], going: int) -> None:
    play = one("a", "b", max_unavailable=2)
    play.step()
    play.open = False
    play.end("a")
    play.end("b")
    play.step()
    play.say(Kind.LOOKED, down=down)
    play.open = True
    play.step()
    assert len(play.under_way) == going
    assert bool(play.machine.halted) is (going == 0)


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
