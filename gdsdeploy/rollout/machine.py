"""Decides what a rollout does next.  Pure.

``decide`` changes nothing and costs O(log n) for each decision.  The driver writes the events down, applies them, and
performs the tasks.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gdsdeploy.host.io.wording import first_few
from gdsdeploy.model import events
from gdsdeploy.model.events import Draft, Event
from gdsdeploy.model.rollout import Outcome, Step, Task
from gdsdeploy.rollout.budget import Claims
from gdsdeploy.rollout.fold import Fold
from gdsdeploy.rollout.hoststate import HostState

#: Seconds after which the preflight of a host that waits at the gate is repeated.
STALE = 900


@dataclass(frozen=True)
class Decisions:
    """Write ``events`` down, apply them, and decide again; without events, begin ``tasks``."""

    events: tuple[Event, ...] = ()
    tasks: tuple[Task, ...] = ()
    #: seconds since the epoch at which to decide again without an event; None: never
    wake_at: float | None = None
    #: only a person can make the rollout continue
    over: bool = False


class StateMachine(Fold):
    """A rollout: apply events to it, and ask it what to do next."""

    def decide(self, now: float, *, open_window: bool) -> Decisions:
        """Decide at ``now``, seconds since the epoch; ``open_window``: whether hosts may be begun then."""
        drafts = [*self._settle()] or [*self._judge(now)] or [*self._advance(now, open_window)]
        if drafts:
            return Decisions(events=self._numbered(drafts, now))
        tasks = () if self.paused else tuple(self._tasks(now, open_window))
        if not tasks and not self._running and not self.paused and (why := self._stuck(open_window)):
            return Decisions(events=self._numbered([("", events.RolloutHalted(why))], now))
        wave, wake_at = self.wave, None
        if wave is not None and wave.state == "soaking" and self._going and now < wave.until:
            wake_at = wave.until
        over = not tasks and not self._running and wake_at is None and not self._waits_for_window(open_window)
        return Decisions((), tasks, wake_at, over)

    def removed(self, names: Collection[str], now: float) -> tuple[Event, ...]:
        """Events for hosts that are no longer in the fleet; a host that was begun is finished."""
        drafts: list[Draft] = []
        for name in names:
            host = self.hosts.get(name)
            if host is None or host.outcome is not None:
                continue
            if host.waits == "wave":
                drafts.append((name, events.HostEnded(Outcome.SKIPPED, "it is no longer in the fleet file")))
            else:
                drafts.append((name, events.Note("no longer in the fleet file; it was begun, and is finished")))
        return self._numbered(drafts, now)

    def _numbered(self, drafts: list[Draft], now: float) -> tuple[Event, ...]:
        return tuple(Event.of(number, now, *draft) for number, draft in enumerate(drafts, self.number + 1))

    # -- events

    def _settle(self) -> Iterator[Draft]:
        for host in sorted(self._due.values(), key=lambda host: (host.wave, host.place)):
            assert host.due is not None
            yield host.name, events.HostEnded(host.due, host.reason)
        for name in self._ask:
            yield name, events.HostRecalled("it is asked again whether it is back")

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
            if not self._active and not self._running and not self._back:
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
        return "", events.RolloutFinished(self.outcomes())

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
        for name in self._pending.first(lanes, claims):
            yield _task(self.hosts[name])

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
