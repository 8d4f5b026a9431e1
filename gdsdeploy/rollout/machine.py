"""The state of a rollout, from the events of its journal, what it does next, and what a user sees of it.  Pure.

An event that can't follow the earlier ones raises JournalUnusable; an event costs O(log n).  ``decide`` changes nothing
and costs O(log n) for each decision.  The driver writes the events down, applies them, and performs the tasks.
"""

from __future__ import annotations

import datetime as dt
import heapq
import statistics
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gdsdeploy.errors import JournalUnusable
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.model import events
from gdsdeploy.model.events import Draft, Event, plan_of
from gdsdeploy.model.rollout import FAILURES, Outcome, Plan, Standing, Step, Task, Wave
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import hoststate
from gdsdeploy.rollout.hoststate import HostState, StepAttempt, Tally, Ways
from gdsdeploy.rollout.waves import Claims, Queue, Slots, keys_of

#: States of the whole rollout, in words.
PLANNED, RUNNING, PAUSED, HALTED, ABORTED, ROLLBACK, FINISHED = (
    "planned", "running", "paused", "halted", "being aborted", "being rolled back", "finished",
)  # fmt: skip
#: Its ends beside FINISHED.
CUT, ROLLED_BACK = "aborted", "rolled back"
_HINT: Final = "Use the gdsdeploy that wrote it, or a newer one"


@dataclass(slots=True)
class WaveState:
    """The progress of one wave."""

    index: int
    wave: Wave
    state: Literal["waiting", "open", "soaking", "closed"] = "waiting"
    #: lapse; None: not yet
    opened: float | None = None
    closed: float | None = None
    #: when its soak began and when it ends, in seconds since the epoch; 0: not yet
    soaking: float = 0.0
    until: float = 0.0
    #: hosts without an outcome
    remaining: int = 0
    #: hosts that are done and have to be validated again
    unjudged: int = 0

    @property
    def group(self) -> tuple[bool, bool]:
        """Waves with an equal group count their failures together."""
        return self.wave.canary, self.wave.drain


class Fold:
    """The state of one rollout; attributes without an underscore are for readers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = Rollout.model_validate(dict(plan.settings))
        self.hosts: dict[str, HostState] = {}
        self.waves = [WaveState(index, wave) for index, wave in enumerate(plan.waves)]
        #: number and time of the last event
        self.number = 0
        self.time = 0.0
        self.last: Event | None = None
        #: time of the first event, and seconds since then from event to event: a clock that is set back adds nothing
        self.began = self.lapse = 0.0
        #: of the last pause, halt, …
        self.reason = ""
        #: the reason; empty: it isn't
        self.paused = self.halted = self.aborted = self.rolling_back = ""
        self.finished = False
        #: why a step can't tell whether its host is in work; empty: none waits for that
        self._doubt = ""
        #: index of the wave that was opened last; -1: none was
        self.current = -1
        self._failures: Counter[tuple[bool, bool]] = Counter()
        self._limits: dict[tuple[bool, bool], int] = {}
        self._by_name = {state.wave.name: state for state in self.waves}
        settings = self.settings
        keys = {name: keys_of(settings.apart, labels) for name, labels in plan.labels.items()}
        self.slots = Slots(plan.max_unavailable, lambda name: keys.get(name, ()), plan.down)
        self._pending, self._back = Queue(self.slots), Queue(self.slots)
        self._soak = Queue(Slots(sys.maxsize, lambda _: (), ()))
        #: host → state, in the order of arrival
        self._ready: dict[str, HostState] = {}
        self._gate: dict[str, HostState] = {}
        self._due: dict[str, HostState] = {}
        self._running: dict[str, HostState] = {}
        self._active: dict[str, HostState] = {}
        #: lost hosts to ask again, and those that are being asked
        self._ask: dict[str, None] = {}
        self._asked: set[str] = set()
        for state in self.waves:
            self._admit(state)

    def _admit(self, state: WaveState) -> None:
        wave, settings = state.wave, self.settings
        keep, power = settings.on_failure == "keep", settings.power_cycle is not None
        ways = Ways(drain=wave.drain, power=power, keep=keep, enrol=wave.console)
        self._limits[state.group] = min(wave.halt_at, self._limits.get(state.group, wave.halt_at))
        if self._by_name[wave.name] is not state:
            raise JournalUnusable(f"the plan has two waves {wave.name!r}")
        for place, name in enumerate(wave.hosts):
            if name in self.hosts:
                raise JournalUnusable(f"the plan has {name!r} in two waves")
            self.hosts[name] = HostState(name, state.index, place, ways)
            if not wave.drain:
                self.slots.exempt.add(name)
            self._index(self.hosts[name])

    # -- for readers

    @property
    def phase(self) -> str:
        if self.finished:
            return ROLLED_BACK if self.rolling_back else CUT if self.aborted else FINISHED
        states = (
            (self.paused, PAUSED), (self.halted, HALTED), (self.rolling_back, ROLLBACK), (self.aborted, ABORTED),
        )  # fmt: skip
        return next((word for why, word in states if why), RUNNING if self.current >= 0 else PLANNED)

    @property
    def wave(self) -> WaveState | None:
        """The wave that was opened last."""
        return self.waves[self.current] if self.current >= 0 else None

    @property
    def turned_back(self) -> bool:
        """It was aborted or rolled back, and no host is left to be taken back."""
        return bool(self.aborted or self.rolling_back) and not (self._active or self._running or self._back)

    def outcomes(self) -> Counter[str]:
        """Outcome → number of hosts that came to it; a host that is done counts while it is validated again, too."""
        return Counter(host.outcome.value for host in self.hosts.values() if host.outcome is not None)

    def too_many_failed(self) -> str:
        """Why no more hosts may be begun; empty: they may."""
        for group, number in self._failures.items():
            if number >= self._limits[group]:
                kind = "canary host" if group[0] else "host" if group[1] else "builder"
                return f"{number} {kind}{'s' * (number > 1)} failed; the rollout halts at {self._limits[group]}"
        return ""

    # -- the fold

    def apply(self, event: Event) -> None:
        """Take the next event; raises JournalUnusable: it cannot follow."""
        if event.number != self.number + 1:
            raise JournalUnusable(f"event {event.number} follows event {self.number}: some are missing", hint=_HINT)
        try:
            dt.datetime.fromtimestamp(event.time, dt.UTC)  # Refuses what can't be shown later.
            if self.last is None:
                self.began = event.time
            else:
                self.lapse += max(0.0, event.time - self.time)
            if event.host:
                host = self.hosts.get(event.host)
                if host is None:
                    raise JournalUnusable(f"event {event.number} is about {event.host!r}, which the plan does not have")
                host.moved, host.since = event.number, event.time
                self._of_host(host, event)
            else:
                self._of_all(event)
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
            message = f"line {event.number} of the journal ({event.kind}) is not understood: {error!r}"
            raise JournalUnusable(message, hint=_HINT) from error
        self.number, self.time, self.last = event.number, event.time, event

    def interrupted(self) -> None:
        """Begin the steps under way again, as their next attempt: called once, after the events of a journal."""
        for host in list(self._running.values()):
            hoststate.interrupted(host)
            self._index(host)

    def _of_host(self, host: HostState, event: Event) -> None:
        match event.payload:
            case events.StepBegun(step, attempt):
                self._begin(host, event, Step(step), attempt)
            case events.StepDone(step):
                self._in_step(host, event, step)
                self._end(host, event.payload)
            case events.StepFailed(step, error):
                self._in_step(host, event, step)
                if error is None:
                    raise self._wrong(event, "it has no error")
                host.works[-1].error = error
                hoststate.fail(host, error)
            case events.HostEnded(outcome, reason):
                self._outcome(host, event, Outcome(outcome), reason)
            case events.HostRecalled(reason):
                self._recall(host, reason)
            case events.Note():
                pass
            case _:
                raise self._wrong(event, "it is not about one host")
        self._index(host)

    def _in_step(self, host: HostState, event: Event, step: str) -> None:
        """The host's step is over; raises JournalUnusable unless it is in this one."""
        if not host.running or host.step is not Step(step):
            raise self._wrong(event, f"{host.name} is not in step {step}")
        host.works[-1].end = self.lapse

    def _begin(self, host: HostState, event: Event, step: Step, attempt: int) -> None:
        if host.running:
            hoststate.interrupted(host)
        if step is Step.PREFLIGHT and host.waits == "gate":
            hoststate.go(host, step)
        soaks = step is Step.SOAK and host.outcome is Outcome.DONE and not host.soak_passed
        follows = host.step is step and host.outcome is None and host.due is None
        if not soaks and not follows:
            raise self._wrong(event, f"{host.name} is not about to begin {step}")
        if step is Step.RETURN and (not host.validated or host.validated != host.boot):
            raise self._wrong(event, f"{host.name} did not pass its checks in the boot that it is in")
        if host.works and host.works[-1].end is None:  # The controller was stopped before it wrote the end.
            host.works[-1].end = self.lapse
        host.works.append(StepAttempt(step, attempt, self.lapse))
        hoststate.begin(host, step, attempt)

    def _end(self, host: HostState, done: events.StepDone) -> None:
        step = host.step
        if standing := done.data.get("standing"):
            hoststate.put_off(host, standing, begun=done.facts.begun)
            if standing == Standing.UNKNOWN:
                why = f"{step} waits until the scheduler says whether it is in work: {done.facts.reason}"
                self._doubt = f"{host.name}: {why}"
            return
        hoststate.end(host, done)
        if step is Step.RETURN:
            # Another drain may keep the host out of work after its end in this rollout.
            self.slots.set_down(host.name, done.facts.returned is False)

    def _outcome(self, host: HostState, event: Event, outcome: Outcome, reason: str) -> None:
        if host.running and host.outcome is None:
            hoststate.interrupted(host)
        skipped = outcome is Outcome.SKIPPED and host.waits == "wave"
        if host.outcome is not None or (host.due is not outcome and not skipped):
            raise self._wrong(event, f"{host.name} did not end so")
        host.outcome, host.due, host.ended = outcome, None, self.lapse
        host.reason = reason or host.reason
        host.waits = ""
        self._asked.discard(host.name)
        if outcome is Outcome.DONE:
            host.failed_at = None
            if self.waves[host.wave].state == "soaking":
                host.waits = "soak"
        elif outcome not in FAILURES:
            host.step = None

    def _recall(self, host: HostState, reason: str) -> None:
        if host.outcome is Outcome.LOST and host.out:
            self._asked.add(host.name)
        self._ask.pop(host.name, None)
        hoststate.recall(host, reason)
        if (self.aborted or self.rolling_back) and host.outcome is None and not host.back and host.due is None:
            host.recalled = True

    def _of_all(self, event: Event) -> None:
        why = event.kind.value
        if isinstance(event.payload, events.ReasonPayload):
            self.reason = event.payload.reason
        match event.payload:
            case events.WavePayload(wave):
                self._of_wave(event, self._by_name[wave])
            case events.RolloutPaused(reason):
                self.paused, self._doubt = reason or why, ""
            case events.RolloutResumed():
                self._resumed(event.payload)
            case events.SchedulerLooked():
                self._looked(event.payload)
            case events.RolloutHalted(reason):
                self.halted = reason or why
            case events.RolloutAborted(reason):
                self.aborted, self.paused, self.halted = reason or why, "", ""
                for host in [*self._active.values(), *(self.hosts[name] for name in self._back)]:
                    self._recall(host, self.aborted)
                    self._index(host)
            case events.RollbackBegun(reason):
                self.rolling_back, self.paused, self.halted, self.finished = reason or why, "", "", False
                for host in self.hosts.values():
                    if host.waits != "wave":
                        self._recall(host, self.rolling_back)
                        self._index(host)
            case events.RolloutFinished():
                self.finished = True
            case events.RolloutPlanned() | events.Note():
                pass
            case _:
                raise self._wrong(event, "it names no host")

    def _of_wave(self, event: Event, state: WaveState) -> None:
        soaks = isinstance(event.payload, events.WaveSoaking)
        if isinstance(event.payload, events.WaveOpened):
            if state.index != self.current + 1 or (self.current >= 0 and self.waves[self.current].state != "closed"):
                raise self._wrong(event, f"wave {state.wave.name} is not the next")
            self.current, state.state, state.opened = state.index, "open", self.lapse
        elif state.index != self.current or state.state == "closed":
            raise self._wrong(event, f"wave {state.wave.name} is not open")
        elif isinstance(event.payload, events.WaveSoaking) and (state.state == "soaking" or not state.remaining):
            if event.payload.until is None:
                raise self._wrong(event, "it has no end")
            state.state, state.soaking, state.until = "soaking", event.time, event.payload.until
        elif state.remaining:
            raise self._wrong(event, f"wave {state.wave.name} is not over")
        else:
            state.state, state.closed = "closed", self.lapse
        for name in state.wave.hosts:
            host = self.hosts[name]
            if soaks and host.outcome is Outcome.DONE and not (host.soak_passed or host.running):
                host.waits = "soak"
            self._index(host)

    def _resumed(self, resumed: events.RolloutResumed) -> None:
        self.paused, self.halted, self.finished, self._doubt = "", "", False, ""
        for name in resumed.accept:
            self.hosts[name].accepted = True
            self._index(self.hosts[name])
        lost = (host for host in self.hosts.values() if host.outcome is Outcome.LOST and host.out)
        self._ask = {host.name: None for host in lost}

    def _looked(self, looked: events.SchedulerLooked) -> None:
        down, back = set(looked.down), looked.back
        changed = self.slots.down ^ down
        for name in changed:
            self.slots.set_down(name, name in down)
        for name in self.hosts.keys() & back:
            hoststate.found_back(self.hosts[name])
            self._ask.pop(name, None)
        for name in self.hosts.keys() & {*changed, *back}:
            self._index(self.hosts[name])

    def _wrong(self, event: Event, why: str) -> JournalUnusable:
        return JournalUnusable(f"event {event.number} ({event.kind}) cannot follow: {why}", hint=_HINT)

    # -- indexes

    def _index(self, host: HostState) -> None:
        """Update the host's place in queues, indexes and counts."""
        name, waits = host.name, host.waits
        away = bool(host.outages) and host.outages[-1][1] is None
        if host.out and not away:
            host.outages.append((self.lapse, None))
        elif away and not host.out:
            host.outages[-1] = host.outages[-1][0], self.lapse
        self._count(host)
        self.slots.set_held(name, host.holds)
        open_ = waits == "wave" and host.outcome is None and self.waves[host.wave].state == "open"
        first = 0 if name in self.slots.down else 1
        _queue(self._pending, name, (first, host.place), open_ and host.wave == self.current)
        _queue(self._back, name, (first, -host.wave, host.place), waits == "back" and host.due is None)
        _queue(self._soak, name, (host.wave, host.place), waits == "soak" and not host.running)
        live = host.outcome is None
        _keep(self._gate, host, live and waits == "gate")
        _keep(self._due, host, live and host.due is not None)
        _keep(self._running, host, host.running)
        _keep(self._active, host, host.active)
        _keep(self._ready, host, live and not waits and not host.running and host.due is None)

    def _count(self, host: HostState) -> None:
        new = Tally(
            host.outcome is None,
            host.active,
            host.outcome is Outcome.DONE and not host.soak_passed,
            host.failed_at is not None and not host.accepted,
        )
        old = host.counted
        if new == old:
            return
        wave = self.waves[host.wave]
        for sign, each in ((-1, old), (1, new)):
            if each is not None:
                wave.remaining += sign * each.remains
                wave.unjudged += sign * each.unjudged
                self._failures[wave.group] += sign * each.failed
        host.counted = new


def _queue(queue: Queue, name: str, rank: tuple[int, ...], waits: bool) -> None:
    if waits:
        queue.add(name, rank)
    else:
        queue.discard(name)


def _keep(index: dict[str, HostState], host: HostState, belongs: bool) -> None:
    if belongs:
        index[host.name] = host
    else:
        index.pop(host.name, None)


#: Seconds after which the preflight of a host that waits at the gate is repeated.
STALE = 900


@dataclass(frozen=True)
class Decisions:
    """Write ``events`` down, apply them, and decide again; without events, begin ``tasks``."""

    events: tuple[Draft, ...] = ()
    tasks: tuple[Task, ...] = ()
    #: seconds since the epoch at which to decide again without an event; None: never
    wake_at: float | None = None
    #: only a person can make the rollout continue
    over: bool = False


class StateMachine(Fold):
    """A rollout: apply events to it, and ask it what to do next."""

    def decide(self, now: float, *, open_window: bool) -> Decisions:
        """Decide at ``now``, seconds since the epoch; ``open_window``: whether hosts may be begun then."""
        if drafts := [*self._settle()] or [*self._judge(now)] or [*self._advance(now, open_window)]:
            return Decisions(tuple(drafts))
        tasks = () if self.paused else tuple(self._tasks(now, open_window))
        if not tasks and not self._running and not self.paused and (why := self._stuck(open_window)):
            return Decisions((("", events.RolloutHalted(why)),))
        wave, wake_at = self.wave, None
        if wave is not None and wave.state == "soaking" and self._going and now < wave.until:
            wake_at = wave.until
        over = not tasks and not self._running and wake_at is None and not self._waits_for_window(open_window)
        return Decisions((), tasks, wake_at, over)

    def removed(self, names: Collection[str]) -> Iterator[Draft]:
        """Events for hosts that are no longer in the fleet; a host that was begun is finished."""
        for name in names:
            host = self.hosts.get(name)
            if host is None or host.outcome is not None:
                continue
            if host.waits == "wave":
                yield name, events.HostEnded(Outcome.SKIPPED, "it is no longer in the fleet file")
            else:
                yield name, events.Note("no longer in the fleet file; it was begun, and is finished")

    def looked(self, standings: Mapping[str, Standing]) -> Iterator[Draft]:
        """An event where others keep other hosts out of work than before, or hosts that were left out are in work.

        standings: of every host of which it's known.  Of another that was left out a person says it, by accepting its
        failure; one that is to be drained is thought to work, where a scheduler could have said more.
        """
        # This rollout has drained a host that is thought to work: it was unknown, and accepted.
        here = {name for name, host in self.hosts.items() if host.out}
        down = {
            name
            for name, standing in standings.items()
            if standing is Standing.THEIRS or (standing is Standing.OURS and name not in here)
        }
        asked = self.settings.drain.by in ("slurm", "kubernetes")
        out = {name: host for name, host in self.hosts.items() if host.out and (host.stuck or host.drained_next)}
        said = {name: Standing.WORKS for name, host in out.items() if (host.accepted if host.stuck else asked)}
        back = [name for name in out if standings.get(name, said.get(name)) is Standing.WORKS]
        if down != self.slots.down or back:
            yield "", events.SchedulerLooked(tuple(sorted(down)), tuple(back))

    # -- events

    def _settle(self) -> Iterator[Draft]:
        if self._doubt and not self.paused:
            yield "", events.RolloutPaused(self._doubt)
        for host in sorted(self._due.values(), key=lambda host: (host.wave, host.place)):
            assert host.due is not None
            yield host.name, events.HostEnded(host.due, host.reason)
        yield from ((name, events.HostRecalled("it is asked again whether it is back")) for name in self._ask)

    def _judge(self, now: float) -> Iterator[Draft]:
        """Too many failures, or a clock that was set back to before a soak began."""
        if self._going and not self._asked and (why := self.too_many_failed()):
            yield "", events.RolloutHalted(why)
        wave = self.wave
        if wave is not None and wave.state == "soaking" and now < wave.soaking and not wave.remaining:
            yield "", events.WaveSoaking(wave.wave.name, now + wave.wave.soak)

    def _advance(self, now: float, open_window: bool) -> Iterator[Draft]:
        if self.finished:
            return
        wave = self.wave
        if self.aborted or self.rolling_back:
            if self.turned_back:
                yield self._finished()
        elif wave is not None and wave.state != "closed":
            if wave.remaining:
                return
            if wave.state == "open" and wave.wave.soak and wave.unjudged:
                yield "", events.WaveSoaking(wave.wave.name, now + wave.wave.soak)
            elif wave.state == "open" or not wave.unjudged:
                yield "", events.WaveClosed(wave.wave.name)
        elif self.current + 1 < len(self.waves):
            following = self.waves[self.current + 1]
            if self._may_begin and (open_window or not following.wave.drain):
                yield "", events.WaveOpened(following.wave.name)
        elif not self._active and not self._running and not self._back:
            yield self._finished()

    def _finished(self) -> Draft:
        return "", events.RolloutFinished(dict(self.outcomes()))

    # -- tasks

    @property
    def _going(self) -> bool:
        """Whether nothing stops the rollout from beginning hosts."""
        return not (self.paused or self.halted or self.aborted or self.rolling_back or self.finished)

    @property
    def _may_begin(self) -> bool:
        return self._going and not self.too_many_failed()

    def _tasks(self, now: float, open_window: bool) -> Iterator[Task]:
        """Hosts under way first, then those to roll back, then those to validate again, then new ones."""
        lanes = self.settings.parallel - len(self._running)
        claims = Claims(self.slots.limit - self.slots.used)
        if lanes <= 0:
            return
        for host in heapq.nsmallest(lanes, self._ready.values(), key=lambda host: host.moved):
            lanes -= 1
            yield _task(host)
        for name in self._back.first(lanes, claims):
            lanes -= 1
            yield _task(self.hosts[name])
        wave = self.wave
        if wave is None or not self._going:
            return
        if wave.state == "soaking" and now >= wave.until:
            for name in self._soak.first(lanes, Claims(sys.maxsize)):
                lanes -= 1
                yield _task(self.hosts[name], Step.SOAK)
        if not self._may_begin or not (open_window or not wave.wave.drain):
            return
        for host in self._gate.values():
            if lanes <= 0 or not self.slots.claim(host.name, claims):
                continue
            lanes -= 1
            stale = not 0 <= now - host.since <= STALE
            yield _task(host, Step.PREFLIGHT if stale else None)
        yield from (_task(self.hosts[name]) for name in self._pending.first(lanes, claims))

    # -- waiting

    def _stuck(self, open_window: bool) -> str:
        """Why hosts can't be begun although no host is under way; empty: they can."""
        if self.halted or self.finished:
            return ""
        waiting = [*self._back]
        wave = self.wave
        if wave is not None and self._may_begin and (open_window or not wave.wave.drain):
            waiting += [*self._pending, *self._gate]
        if not waiting:
            return ""
        slots = self.slots
        out = sorted({*slots.down, *(name for name in slots.held if self.hosts[name].out)})
        key = slots.blocking(waiting[0])
        limit = f"no two of {key[0]} {key[1]} are at a time" if key else f"at most {slots.limit} are at a time"
        return f"{first_few(waiting, 5)} cannot be begun while out of work: {first_few(out, 5)}; {limit}"

    def _waits_for_window(self, open_window: bool) -> bool:
        if open_window or not self._may_begin:
            return False
        wave = self.wave
        if wave is None or wave.state == "closed":
            return self.current + 1 < len(self.waves) and self.waves[self.current + 1].wave.drain
        return wave.wave.drain and bool(self._pending or self._gate)


def _task(host: HostState, step: Step | None = None) -> Task:
    step = step or host.step
    assert step is not None
    return Task(host.name, step, host.attempt + 1 if step is host.step else 1, dict(host.data))


class Status(Fold):
    """A rollout as a user sees it: who takes part, who is out of work, and the time left."""

    def everyone(self) -> dict[str, HostState]:
        """The hosts of the plan, those that take no part last."""
        skipped = self.plan.skipped.items()
        others = {name: HostState(name, -1, 0, Ways(), outcome=Outcome.SKIPPED, reason=why) for name, why in skipped}
        return {**self.hosts, **others}

    def under_way(self) -> list[HostState]:
        return [host for host in self.hosts.values() if host.works and host.outcome is None]

    def failed(self) -> list[HostState]:
        """Hosts whose outcome counts as a failure, and hosts that are being rolled back after one."""
        hosts = self.hosts.values()
        return [host for host in hosts if host.outcome in FAILURES or (host.outcome is None and host.errors)]

    def away(self) -> set[str]:
        """Hosts out of work, for any reason."""
        return {*self.slots.down, *(host.name for host in self.hosts.values() if host.out)}

    def left(self) -> float | None:
        """Seconds until the end; None: the rollout isn't running.

        The expected times, corrected by those of finished hosts, over the hosts that run at once; a wave takes at least
        as long as its slowest host; then the soaks.
        """
        if self.phase not in (RUNNING, PLANNED):
            return None
        expected = self.plan.expected
        done = [host for host in self.hosts.values() if host.outcome is Outcome.DONE and expected.get(host.name, 0) > 0]
        pairs = [(host.worked(self.lapse), expected[host.name]) for host in done]
        factor = statistics.median(took / guess for took, guess in pairs) if pairs else 1.0
        slots = max(1, min(self.slots.limit - len(self.slots.down), self.settings.parallel))
        return sum(self._left(part, factor, slots) for part in self.waves if part.state != "closed")

    def _left(self, part: WaveState, factor: float, slots: int) -> float:
        if part.state == "soaking":
            return max(0.0, part.until - self.time)
        expected, hosts = self.plan.expected, [self.hosts[name] for name in part.wave.hosts]
        rest = [
            max(0.0, expected.get(host.name, 0.0) * factor - host.worked(self.lapse))
            for host in hosts
            if host.outcome is None
        ]
        # A wave of hosts that have the lock already has nothing to soak.
        soaks = any(expected.get(host.name, 1.0) > 0 for host in hosts)
        return max(sum(rest) / slots, max(rest, default=0.0)) + (part.wave.soak if soaks else 0)


def fold(events: Iterable[Event]) -> Status:
    """The status after all of ``events``, of which the first holds the plan.

    Raises ValueError where that is no plan, and JournalUnusable.
    """
    iterator = iter(events)
    status = first_status(next(iterator, None))
    for event in iterator:
        status.apply(event)
    return status


def first_status(first: Event | None) -> Status:
    """The status after a journal's first event; raises ValueError where that is no plan."""
    status = Status(plan_of(first))
    assert first is not None
    status.apply(first)
    return status
