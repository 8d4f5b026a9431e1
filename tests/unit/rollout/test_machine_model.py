"""Whatever happens, in whatever order: what a rollout promises holds after each event.

Beside the machine is a world of hosts that knows nothing of it: which boot each is in, whether it is in work, in which
boot it passed its checks.  Steps act on that world, wholly, in part or not at all; controllers are killed; clocks,
windows and people do what they like.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import Outcome, Plan, Step, Task, Wave
from gdsdeploy.rollout.machine import Fold
from tests.unit.rollout.rehearsed import ERROR, SILENT, Play, failed, plan, refolded

CHANGING = {Step.SNAPSHOT, Step.APPLY, Step.MODULES, Step.REBOOT, Step.UNDO, Step.UNDO_REBOOT}
IN_WORK = {Outcome.DONE, Outcome.SATISFIED, Outcome.ROLLED_BACK, Outcome.REFUSED, Outcome.SKIPPED}


@dataclass
class Real:
    """A host as it is."""

    boot: int = 1
    #: boot in which every check passed
    passed: int = 0
    out: bool = False
    #: somebody else wants it out of work, too
    elsewhere: bool = False


class World(Play):
    """Plays with hosts that are something, and looks at every event."""

    def __init__(self, plan: Plan) -> None:
        self.real = {name: Real() for wave in plan.waves for name in wave.hosts}
        #: hosts that a person says are out of work, or were when it began
        self.down = set(plan.down)
        self.wave_of = {name: wave for wave in plan.waves for name in wave.hosts}
        super().__init__(plan)

    def away(self) -> set[str]:
        """Out of work, or perhaps: a drain was begun, or a return has not ended."""
        out = {name for name in self.real if self.machine.hosts[name].out}
        return self.down | out | {name for name, real in self.real.items() if real.out or real.elsewhere}

    def say(self, kind: Kind, host: str = "", **data: Any) -> Event:
        if kind is Kind.BEGIN:
            self.check_begin(host, Step(data["step"]), data["attempt"])
        event = super().say(kind, host, **data)
        if kind is Kind.FINISHED:
            for name, real in self.real.items():
                state = self.machine.hosts[name]
                assert not real.out or state.outcome in (Outcome.KEPT, Outcome.LOST), f"{name} was forgotten"
        if kind is Kind.OUTCOME and data["outcome"] in IN_WORK:
            assert not self.real[host].out
            assert not self.machine.hosts[host].out
        if kind is Kind.CLOSED:
            hosts = [self.machine.hosts[name] for name in self.plan_wave(data["wave"]).hosts]
            assert all(each.outcome is not None for each in hosts)
            soaked = [each for each in hosts if each.outcome is Outcome.DONE and self.wave_of[each.name].soak]
            assert all(each.soak_passed for each in soaked)
        return event

    def plan_wave(self, name: str) -> Wave:
        return next(wave for wave in self.plan.waves if wave.name == name)

    def check_begin(self, host: str, step: Step, attempt: int) -> None:
        state, real, machine = self.machine.hosts[host], self.real[host], self.machine
        wave = self.wave_of[host]
        assert host not in self.under_way, "one step at a time"
        first = step is Step.PREFLIGHT or (step is Step.DRAIN and not state.back)
        if first and attempt == 1 and wave.drain:
            assert self.open
        if first and attempt == 1:
            assert [machine.paused, machine.halted, machine.aborted, machine.rolling_back] == [""] * 4
            assert all(each.state == "closed" for each in machine.waves[: state.wave])
            assert not machine.too_many_failed()
        assert not machine.paused
        if step in CHANGING and wave.drain:
            assert real.out, f"{host} is changed while it works"
        if step is Step.RETURN:
            assert state.validated
            assert state.validated == state.boot
        if step is Step.DRAIN and not state.out:
            self.check_room(host)
        if wave.drain is False:
            assert step not in (Step.DRAIN, Step.RETURN)

    def check_room(self, host: str) -> None:
        others = self.away() - {host}
        assert host in self.away() or len(others) + 1 <= self.plan.max_unavailable
        for label in self.machine.settings.apart:
            value = self.plan.labels[host].get(label)
            values = {self.plan.labels[name].get(label) for name in others if name in self.plan.labels}
            assert value is None or value not in values, f"two of {label} {value} would be out"

    def happen(self, task: Task, wish: str) -> dict[str, Any] | None:
        """Do what a step does; None: it must fail."""
        real = self.real[task.host]
        boot = f"{task.host}/{real.boot}"
        match task.step:
            case Step.PREFLIGHT:
                return {"boot_id": boot, "satisfied": wish == "satisfied"}
            case Step.DRAIN:
                real.out = True
                return {"drained": True}
            case Step.REBOOT | Step.UNDO_REBOOT | Step.POWER:
                if wish != "no reboot":
                    real.boot += 1
            case Step.BOOT | Step.UNDO_BOOT:
                return {"boot_id": boot}
            case Step.VALIDATE | Step.UNDO_VALIDATE:
                real.passed = real.boot
                return {} if wish == "no boot" else {"validated_boot": boot}
            case Step.RETURN:
                if task.data["validated_boot"] != boot:
                    return None
                assert real.passed == real.boot, "returned without a validation of this boot"
                real.out = False
                real.elsewhere = wish == "elsewhere"
                self.down.discard(task.host)
                return {"returned": not real.elsewhere}
            case Step.UNDO if wish == "no reboot":
                return {"disruption": "none"}
        return {}

    def finish_step(self, host: str, wish: str) -> None:
        task = self.under_way[host]
        if wish in ("fail", "silent"):
            if task.step in (Step.DRAIN, Step.REBOOT, Step.UNDO_REBOOT):
                self.happen(task, "")
            self.fail(host, ERROR if wish == "fail" else SILENT)
        elif wish == "half-way":
            if task.step is not Step.RETURN or self.real[host].passed == self.real[host].boot:
                self.happen(task, "")
            self.fail(host)
        elif (data := self.happen(task, wish)) is None:
            self.fail(host, ERROR)
        else:
            self.end(host, data)


def same(one: Fold, other: Fold) -> None:
    """Two machines of one journal are in one state, and who is out of work is out since then."""
    for host in one.hosts.values():
        assert bool(host.outages and host.outages[-1][1] is None) is host.out
    for name in ("hosts", "waves", "number", "paused", "halted", "aborted", "rolling_back", "finished", "current"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.outcomes() == other.outcomes()
    assert one.phase == other.phase
    assert (one.slots.used, one.slots.held, one.slots.down) == (other.slots.used, other.slots.held, other.slots.down)
    assert +one.slots.busy == +other.slots.busy
    assert sorted(one._pending) == sorted(other._pending)
    assert sorted(one._back) == sorted(other._back)
    assert sorted(one._soak) == sorted(other._soak)


TROUBLE = ("fail", "fail", "silent", "silent", "half-way", "satisfied", "no reboot", "no boot", "elsewhere")
wishes = st.sampled_from(("well",) * 6 + TROUBLE)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    waves, labels, at = [], {}, 0
    for number in range(draw(st.integers(1, 4))):
        hosts = [f"h{at + i}" for i in range(draw(st.integers(1, 12)))]
        at += len(hosts)
        labels |= {
            host: {"rack": draw(st.sampled_from("abcdef")), "row": draw(st.sampled_from("xyz"))} for host in hosts
        }
        waves.append(
            Wave(str(number), tuple(hosts), draw(st.sampled_from([0, 60])), draw(st.integers(1, 8)), number == 0,
                 drain=number > 0 or draw(st.integers(0, 3)) > 0)
        )  # fmt: skip
    options = {
        "parallel": draw(st.sampled_from([1, 2, 5, 16])),
        "apart": draw(st.sampled_from([[], [], ["rack"], ["rack", "row"]])),
        "on_failure": draw(st.sampled_from(["rollback", "keep"])),
        "drain": {"by": "slurm"},
        **draw(st.sampled_from([{}, {"power_cycle": ["ipmi"]}])),
    }
    down = draw(st.sets(st.sampled_from([*labels, "elsewhere1", "elsewhere2"]), max_size=2))
    return plan(
        *waves, settings=options, labels=labels, down=tuple(sorted(down)), max_unavailable=draw(st.integers(1, 12))
    )


class Rollouts(RuleBasedStateMachine):
    """Anything that may happen to a rollout."""

    world: World
    chance: random.Random
    #: per cent of steps
    trouble: int

    @initialize(rollout_plan=plans(), seed=st.integers(0, 1 << 16), trouble=st.sampled_from([0, 3, 10]))
    def begin(self, rollout_plan: Plan, seed: int, trouble: int) -> None:
        self.chance, self.trouble = random.Random(seed), trouble
        self.world = World(rollout_plan)
        self.world.step()

    def pick(self, number: int) -> str:
        return sorted(self.world.under_way)[number % len(self.world.under_way)]

    @precondition(lambda self: self.world.under_way)
    @rule(which=st.integers(0, 15), wish=wishes)
    def one_step_ends(self, which: int, wish: str) -> None:
        self.world.finish_step(self.pick(which), wish)
        self.world.step()

    @precondition(lambda self: self.world.under_way)
    @rule(number=st.integers(1, 80))
    def many_steps_end(self, number: int) -> None:
        """Some of them in trouble."""
        for _ in range(number):
            if self.world.under_way:
                self.world.finish_step(self.pick(self.chance.randrange(99)), self.fate())
                self.world.step()

    def fate(self) -> str:
        return self.chance.choice(TROUBLE) if self.chance.random() * 100 < self.trouble else "well"

    @rule(seconds=st.sampled_from([1, 59, 61, 1000, 86400, -50, -100000]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds
        self.world.step()

    @rule()
    def a_window_opens_or_closes(self) -> None:
        self.world.open = not self.world.open
        self.world.step()

    @rule(happened=st.booleans(), written=st.integers(0, 5))
    def the_controller_is_killed(self, happened: bool, written: int) -> None:
        """At any write: perhaps after the steps under way were done, perhaps with some decisions written down."""
        world = self.world
        for task in world.under_way.values():
            if happened and (
                task.step is not Step.RETURN or world.real[task.host].passed == world.real[task.host].boot
            ):
                world.happen(task, "")
        world.under_way.clear()
        decided = world.decide()
        world.take(decided.events[:written])
        for task in decided.tasks[:written]:
            world.say(Kind.BEGIN, task.host, step=task.step.value, attempt=task.attempt)
        again = refolded(world.plan, world.events)
        again.interrupted()
        world.machine.interrupted()
        same(world.machine, again)
        assert world.decide() == again.decide(world.now, open_window=world.open)
        world.step()

    @rule(which=st.integers(0, 50))
    def a_host_restarts_by_itself(self, which: int) -> None:
        names = list(self.world.real)
        self.world.real[names[which % len(names)]].boot += 1

    @rule(kind=st.sampled_from([Kind.PAUSED, Kind.PAUSED, Kind.HALTED]))
    def somebody_stops_it(self, kind: Kind) -> None:
        self.world.say(kind, reason="a person")
        self.world.step()

    @rule(accept=st.booleans(), repaired=st.integers(0, 2))
    def somebody_resumes_it(self, accept: bool, repaired: int) -> None:
        self.resume(accept, repaired)
        self.world.step()

    def resume(self, accept: bool, repaired: int) -> None:
        """Of the hosts that were kept, some are brought back to work."""
        world = self.world
        kept_hosts = [host.name for host in world.machine.hosts.values() if host.outcome is Outcome.KEPT]
        back = kept_hosts[:repaired] + [name for name in sorted(world.down) if repaired and name not in world.real]
        for name in back:
            world.down.discard(name)
            if name in world.real:
                world.real[name].out = world.real[name].elsewhere = False
        accepted = failed(world.machine) if accept else []
        self.look(back)
        world.say(Kind.RESUMED, accept=accepted)

    def look(self, back: list[str]) -> None:
        """The scheduler says that these work."""
        self.world.say(Kind.LOOKED, down=sorted(self.world.machine.slots.down.difference(back)), back=back)

    @rule(kind=st.sampled_from([Kind.ABORTED, Kind.ROLLBACK]), really=st.integers(0, 9))
    def somebody_turns_it_back(self, kind: Kind, really: int) -> None:
        if not really:
            self.world.say(kind, reason="a person")
            self.world.step()

    @rule(which=st.integers(0, 50), really=st.integers(0, 4))
    def somebody_recalls_a_host(self, which: int, really: int) -> None:
        names = list(self.world.real)
        if not really:
            self.world.say(Kind.RECALL, names[which % len(names)], reason="a person")
            self.world.step()

    @rule(which=st.integers(0, 50))
    def a_host_leaves_the_fleet(self, which: int) -> None:
        names = list(self.world.real)
        self.world.take(self.world.machine.removed([names[which % len(names)]]))
        self.world.step()

    def teardown(self) -> None:
        """With patience and repairs every rollout comes to its end."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.open = True
        for left in range(100 * len(world.real) + 200, 0, -1):
            if world.machine.finished:
                break
            decided = world.step()
            if world.under_way:
                world.finish_step(min(world.under_way), self.fate() if left > 70 * len(world.real) else "well")
            elif decided.wake_at is not None:
                world.now = decided.wake_at
            elif decided.over and not world.machine.finished:
                for name in [*world.down, *(n for n, real in world.real.items() if real.elsewhere)]:
                    world.down.discard(name)
                    if name in world.real:
                        world.real[name].elsewhere = False
                        world.real[name].out &= world.machine.hosts[name].outcome not in (Outcome.KEPT, Outcome.LOST)
                    self.look([name])
                    world.say(Kind.RESUMED)
                self.resume(True, 99)
        assert world.machine.finished, "it does not end"
        again = refolded(world.plan, world.events)
        again.interrupted()
        world.machine.interrupted()
        same(world.machine, again)


Rollouts.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRollouts = Rollouts.TestCase
