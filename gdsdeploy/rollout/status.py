"""What a user sees of a rollout: a fold over its events that also keeps times.  Pure.

``lapse`` is the seconds from event to event; a clock that is set back adds nothing.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gdsdeploy.errors import JournalUnusable
from gdsdeploy.model import events
from gdsdeploy.model.events import Event, Facts, StepError, plan_of, read
from gdsdeploy.model.rollout import FAILURES, Outcome, Plan, Step, Wave

#: States of a host before it has an outcome.
WAITING, BETWEEN = "waiting", "between steps"
#: States of the whole rollout.
PLANNED, RUNNING, PAUSED, HALTED, ABORTED, ROLLBACK, FINISHED = (
    "planned", "running", "paused", "halted", "being aborted", "being rolled back", "finished",
)  # fmt: skip
#: Its ends beside FINISHED.
CUT, ROLLED_BACK = "aborted", "rolled back"
_ENDS = {ABORTED: CUT, ROLLBACK: ROLLED_BACK}
#: Outcomes that a rollback changes.
_TAKEN_BACK = frozenset({Outcome.DONE, Outcome.KEPT, Outcome.LOST})


@dataclass
class StepAttempt:
    """One attempt at one step; times as ``lapse`` has them."""

    step: str
    attempt: int
    begin: float
    end: float | None = None
    error: StepError | None = None


@dataclass
class HostStatus:
    """One host of a rollout."""

    name: str
    #: number of its wave, from 0; None: it takes no part
    wave: int | None
    works: list[StepAttempt] = field(default_factory=list)
    outcome: str = ""
    reason: str = ""
    #: lapse at which it came to its outcome
    ended: float | None = None
    #: facts from its steps, merged
    data: dict[str, Any] = field(default_factory=dict)
    #: (lapse at which it was taken out of work, and at which it came back; None: it is out of work)
    outages: list[tuple[float, float | None]] = field(default_factory=list)
    #: its failure no longer counts, by ``--accept``
    accepted: bool = False
    #: to be rolled back after its soak
    recalled: bool = False

    @property
    def away(self) -> bool:
        """Whether it is out of work."""
        return bool(self.outages) and self.outages[-1][1] is None

    @property
    def running(self) -> StepAttempt | None:
        """The step that is under way."""
        return self.works[-1] if self.works and self.works[-1].end is None else None

    @property
    def facts(self) -> Facts:
        """The typed facts; raises ValueError for a value of another type."""
        return read(Facts, self.data)

    @property
    def state(self) -> str:
        """Its outcome, the step under way, ``waiting`` or ``between steps``."""
        if self.outcome:
            return self.outcome
        return self.running.step if self.running else BETWEEN if self.works else WAITING

    @property
    def errors(self) -> list[tuple[str, StepError]]:
        """Every failure: (step, error)."""
        return [(work.step, work.error) for work in self.works if work.error is not None]

    @property
    def seconds(self) -> float:
        """From its first step to its end, as far as both have been seen."""
        if not self.works:
            return 0.0
        last = self.ended if self.ended is not None else self.works[-1].end
        return max(0.0, (last if last is not None else self.works[-1].begin) - self.works[0].begin)

    def out_of_work(self, now: float) -> float:
        """Seconds until ``now`` in which it was out of work."""
        return sum((now if end is None else end) - begin for begin, end in self.outages)

    def leave(self, now: float) -> None:
        """It is taken out of work."""
        if not self.away:
            self.outages.append((now, None))

    def come_back(self, now: float) -> None:
        """It has work again."""
        if self.away:
            self.outages[-1] = (self.outages[-1][0], now)

    def worked(self, now: float) -> float:
        """Seconds of its steps until ``now``, without waiting and soaking."""
        ends = ((work.begin, now if work.end is None else work.end) for work in self.works if work.step != Step.SOAK)
        return sum(end - begin for begin, end in ends)


@dataclass
class WaveStatus:
    """The progress of one wave."""

    number: int
    wave: Wave
    #: waiting, open, soaking, closed
    state: str = WAITING
    opened: float | None = None
    closed: float | None = None
    #: seconds since the epoch
    until: float | None = None


class Status:
    """Feed it events, in their order, one by one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parts = [WaveStatus(number, wave) for number, wave in enumerate(plan.waves)]
        self.hosts = {name: HostStatus(name, part.number) for part in self.parts for name in part.wave.hosts}
        for name, reason in plan.skipped.items():
            self.hosts[name] = HostStatus(name, None, outcome=str(Outcome.SKIPPED), reason=reason)
        self.phase, self.reason = PLANNED, ""
        self._interrupted = PLANNED
        self.finished = False
        #: out of work for reasons outside of the rollout
        self.down = set(plan.down)
        self.began = 0.0
        self.lapse = 0.0
        self.last: Event | None = None

    def feed(self, event: Event) -> None:
        """Take the next event; raises JournalUnusable for content that this program doesn't write."""
        try:
            dt.datetime.fromtimestamp(event.time, dt.UTC)  # Refuses what can't be shown later.
            self._feed(event)
        except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            message = f"line {event.number} of the journal ({event.kind}) is not understood: {error}"
            raise JournalUnusable(message, hint="Use the gdsdeploy that wrote it, or a newer one") from error

    def _feed(self, event: Event) -> None:
        if self.last is None:
            self.began = event.time
        else:
            self.lapse += max(0.0, event.time - self.last.time)
        self.last = event
        if event.host:
            self._host(event)
        else:
            self._whole(event)

    # -- for readers

    def counts(self) -> Counter[str]:
        """Outcome → hosts that have come to it, without those that take no part."""
        return Counter(host.outcome for host in self.hosts.values() if host.wave is not None and host.outcome)

    def taking_part(self) -> list[HostStatus]:
        return [host for host in self.hosts.values() if host.wave is not None]

    def under_way(self) -> list[HostStatus]:
        return [host for host in self.taking_part() if host.works and not host.outcome]

    def failed(self) -> list[HostStatus]:
        """Hosts whose outcome counts as a failure, and hosts that are being rolled back after one."""
        return [host for host in self.taking_part() if host.outcome in FAILURES or (not host.outcome and host.errors)]

    def away(self) -> set[str]:
        """Hosts out of work, for any reason."""
        return {*self.down, *(host.name for host in self.hosts.values() if host.away)}

    def left(self) -> float | None:
        """Seconds until the end; None: the rollout isn't running.

        The expected times, corrected by those of finished hosts, over the hosts that run at once; a wave takes at least
        as long as its slowest host; then the soaks.
        """
        if self.phase not in (RUNNING, PLANNED):
            return None
        done = [host for host in self.taking_part() if host.outcome == Outcome.DONE and host.name in self.plan.expected]
        expected = self.plan.expected
        pairs = [(host.worked(self.lapse), expected[host.name]) for host in done if expected[host.name] > 0]
        factor = statistics.median(took / guess for took, guess in pairs) if pairs else 1.0
        slots = max(1, min(self.plan.max_unavailable - len(self.down), int(self.plan.settings.get("parallel", 1))))
        return sum(self._left(part, factor, slots) for part in self.parts if part.state != "closed")

    def _left(self, part: WaveStatus, factor: float, slots: int) -> float:
        if part.state == "soaking" and part.until is not None and self.last is not None:
            return max(0.0, part.until - self.last.time)
        rest = [self._rest(self.hosts[name], factor) for name in part.wave.hosts if not self.hosts[name].outcome]
        # A wave of hosts that have the lock already has nothing to soak.
        soaks = any(self.plan.expected.get(name, 1.0) > 0 for name in part.wave.hosts)
        return max(sum(rest) / slots, max(rest, default=0.0)) + (part.wave.soak if soaks else 0)

    def _rest(self, host: HostStatus, factor: float) -> float:
        return max(0.0, self.plan.expected.get(host.name, 0.0) * factor - host.worked(self.lapse))

    # -- events

    def _host(self, event: Event) -> None:
        # A journal with a host that isn't in the plan can still be shown.
        host = self.hosts.setdefault(event.host, HostStatus(event.host, None))
        match event.payload:
            case events.StepBegun(step, attempt):
                self._begun(host, step, attempt)
            case events.StepDone(step, facts):
                self._over(host, step)
                host.data.update(facts)
                if step == Step.RETURN:
                    host.come_back(self.lapse)
                if step == Step.SOAK and host.recalled:
                    self._reopen(host)
            case events.StepFailed(step, error):
                self._over(host, step).error = error or StepError()
                if step == Step.SOAK:
                    self._reopen(host)
            case events.HostEnded(outcome, reason):
                host.outcome, host.reason, host.ended = outcome, reason, self.lapse
            case events.HostRecalled(reason):
                self._reopen(host)
                host.reason = reason

    def _reopen(self, host: HostStatus) -> None:
        """The host has no outcome any more."""
        host.outcome, host.ended, host.reason, host.recalled = "", None, "", False

    def _begun(self, host: HostStatus, step: str, attempt: int) -> None:
        if (before := host.running) is not None:
            # The controller was stopped before it wrote the end.
            before.end = self.lapse
        host.works.append(StepAttempt(step, attempt, self.lapse))
        if step != Step.SOAK and host.outcome:
            self._reopen(host)
        if step == Step.DRAIN:
            host.leave(self.lapse)

    def _over(self, host: HostStatus, step: str) -> StepAttempt:
        work = host.running
        if work is None or work.step != step:
            work = StepAttempt(step, 1, self.lapse)
            host.works.append(work)
        work.end = self.lapse
        return work

    def _whole(self, event: Event) -> None:
        match event.payload:
            case events.WavePayload(wave):
                self._wave(event, wave)
            case events.RolloutPaused(reason):
                self._interrupted = self._interrupted if self.phase == PAUSED else self.phase
                self._enter(PAUSED, reason)
            case events.RolloutResumed():
                # An abort or a rollback continues.
                before = self._interrupted if self.phase == PAUSED else self.phase
                self._enter(before if before in (ABORTED, ROLLBACK) else RUNNING, event.payload.reason)
                self._resumed(event.payload)
            case events.RolloutHalted(reason):
                self._enter(HALTED, reason)
            case events.RolloutAborted(reason):
                self._enter(ABORTED, reason)
            case events.RollbackBegun(reason):
                self._enter(ROLLBACK, reason)
                for host in self.hosts.values():
                    if host.outcome in _TAKEN_BACK and host.running:
                        host.recalled = True
                    elif host.outcome in _TAKEN_BACK:
                        self._reopen(host)
            case events.RolloutFinished():
                self._enter(_ENDS.get(self.phase, FINISHED), self.reason)
                self.finished = True

    def _resumed(self, resumed: events.RolloutResumed) -> None:
        for name in resumed.accept:
            self.hosts.setdefault(name, HostStatus(name, None)).accepted = True
        for name in resumed.back:
            self.down.discard(name)
            if name in self.hosts and self.hosts[name].outcome in (Outcome.KEPT, Outcome.LOST):
                self.hosts[name].come_back(self.lapse)
        self.down |= set(resumed.down)

    def _enter(self, phase: str, reason: str) -> None:
        self.phase, self.reason, self.finished = phase, reason, False

    def _wave(self, event: Event, name: str) -> None:
        part = next((part for part in self.parts if part.wave.name == name), None)
        if part is None:
            return
        match event.payload:
            case events.WaveOpened():
                part.state, part.opened = "open", self.lapse
                if self.phase == PLANNED:
                    self.phase = RUNNING
            case events.WaveSoaking(until=until):
                part.state, part.until = "soaking", until
            case events.WaveClosed():
                part.state, part.closed = "closed", self.lapse


def fold(events: Iterable[Event]) -> Status:
    """The status after all of ``events``, of which the first holds the plan.

    Raises ValueError where that is no plan, and JournalUnusable.
    """
    iterator = iter(events)
    status = first_status(next(iterator, None))
    for event in iterator:
        status.feed(event)
    return status


def first_status(first: Event | None) -> Status:
    """The status after a journal's first event; raises ValueError where that is no plan."""
    status = Status(plan_of(first))
    assert first is not None
    status.feed(first)
    return status
