"""Performs a rollout: what the machine decides is written down, then done, then its end is written down.

One thread, the caller's, decides and writes the journal; each step is performed by a thread of its own.  A step's BEGIN
is on disk before the step is begun and its END after it was done.  Whoever is killed in between leaves a BEGIN without
an END: the next driver begins the same step again as its next attempt, which steps are made for.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gdsdeploy.errors import GdsError, Interrupted, JournalUnusable
from gdsdeploy.model.events import (
    Draft,
    Event,
    Kind,
    Note,
    RolloutPaused,
    StepBegun,
    StepDone,
    StepError,
    StepFailed,
    WaveSoaking,
)
from gdsdeploy.model.rollout import Step, Task
from gdsdeploy.rollout import control
from gdsdeploy.rollout.clock import Clock, Soaks
from gdsdeploy.rollout.effects import Effects
from gdsdeploy.rollout.journal import PHASES, Writer
from gdsdeploy.rollout.machine import Machine, WaveState

#: Seconds after which wishes, windows and the clock are looked at although nothing happened.
POLL: Final = 0.5
#: Seconds between two looks at the fleet file, which may be a long one.
LOOK: Final = 5.0
#: Seconds that steps have to end in once they were told to stop.
GRACE: Final = 30.0
#: A first one pauses, a second one stops; SIGHUP: the terminal is gone.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDS: Final = frozenset({Kind.END, Kind.FAIL})


@dataclass(frozen=True)
class Hooks:
    """What a driver asks and tells others; all of it in the thread that called it."""

    #: gets every event once it is written down; what it raises never stops a rollout
    observe: Callable[[Event], None] = lambda _: None
    #: gets lines of progress: host, text; likewise
    progress: Callable[[str, str], None] = lambda _host, _text: None
    #: whether hosts may be begun at this time, in seconds since the epoch
    open_window: Callable[[float], bool] = lambda _: True
    #: hosts of the plan that are no longer in the fleet file; asked before hosts are begun, every few seconds at most
    removed: Callable[[], Collection[str]] = lambda: ()
    #: what is no longer as it was planned, in sentences; asked once
    notices: Callable[[], Iterable[str]] = lambda: ()


@dataclass(frozen=True)
class _Done:
    """How a step ended."""

    task: Task
    found: Mapping[str, Any] | None = None
    error: BaseException | None = None


class _Wake:
    """A signal came."""


#: What threads say: how a step ended, a line of progress, or that there is something to look at.
_Said = _Done | tuple[str, str] | _Wake


def drive(
    writer: Writer, rollout: str, effects: Effects, *, hooks: Hooks | None = None, clock: Clock | None = None
) -> Machine:
    """Go on with ``rollout`` from what the journal says until nothing is left to do that needs no person.

    Returns the machine as it is then: finished, halted or paused by somebody's wish.
    Raises Interrupted after a signal: paused and written down by the first one, stopped at once by a second;
    JournalUnusable: it cannot be written any more; then nothing was begun since.  After all of them it can be resumed.
    What an effect raises that is no GdsError fails its step, pauses the rollout, and is raised in the end.
    """
    driver = _Driver(writer, rollout, effects, hooks or Hooks(), clock or Clock())
    with driver.signals():
        return driver.run()


class _Driver:
    def __init__(self, writer: Writer, rollout: str, effects: Effects, hooks: Hooks, clock: Clock) -> None:
        self.machine = Machine(writer.go_on(rollout))
        self._writer = writer
        self._rollout = rollout
        self._effects = effects
        self._hooks = hooks
        self._clock = clock
        self._soaks = Soaks(clock)
        self._phases: list[Event] = []
        self._said: queue.SimpleQueue[_Said] = queue.SimpleQueue()
        #: what the machine knows already and the journal does not
        self._unwritten: list[Event] = []
        self._answers: list[tuple[control.Request, Event]] = []
        self._running: set[str] = set()
        self._removed: set[str] = set()
        self._look_after = 0.0
        self._notes: set[str] = set()
        #: seconds by which the clock was set, and which the end of an open soak does not have yet
        self._ahead = 0.0
        self._signals = 0
        self._signal = ""
        #: what is under way was told to stop
        self._stopped = False
        #: raised when the steps under way are over
        self._bug: BaseException | None = None

    def run(self) -> Machine:
        """As ``drive`` says."""
        for event in self._writer.events(self._rollout):
            self._take(event)
        self.machine.interrupted()
        try:
            self._add(("", Note(text)) for text in self._hooks.notices())
            if self._soaking:
                self._add(("", soak) for soak in self._soaks.taken_up())
            self._loop()
            self._flush()
        except BaseException as error:
            self._leave(error)
            raise
        if self._bug is not None:
            raise self._bug
        if (self._signals or self._stopped) and not self.machine.finished:
            raise Interrupted(
                self._interrupted(), hint=f"Go on with: gdsdeploy rollout resume {self.machine.plan.fleet}"
            )
        return self.machine

    # -- the loop

    def _loop(self) -> None:
        """Until nothing is left to do that needs no person, or somebody wants it to end."""
        while True:
            self._look_at_clock()
            self._heed_signals()
            self._fulfil_wishes()
            if self._stopped:
                self._drain(GRACE)
                return
            now = self._clock.wall()
            window = self._hooks.open_window(now)
            now -= self._ahead
            decisions = self.machine.decide(now, open_window=window)
            if decisions.events:
                self._add((event.host, event.payload) for event in decisions.events)
            elif decisions.tasks:
                if not self._left_out(decisions.tasks, now):
                    self._begin(decisions.tasks)
            elif decisions.over and not self._running:
                return
            else:
                wake = POLL if decisions.wake_at is None else min(POLL, decisions.wake_at - now)
                self._wait(max(0.0, wake))

    def _wait(self, seconds: float) -> None:
        """Until something ended, for ``seconds`` at most; before, everything is on disk."""
        self._flush()
        first = self._clock.get(self._said, seconds)
        said = [] if first is None else [first]
        with contextlib.suppress(queue.Empty):
            while said:
                said.append(self._said.get_nowait())
        for item in said:
            if isinstance(item, tuple):
                self._tell(self._hooks.progress, *item)
        done = [item for item in said if isinstance(item, _Done)]
        self._running -= {item.task.host for item in done}
        self._add(draft for item in done if (draft := self._draft(item)) is not None)
        for item in done:
            if isinstance(item.error, Interrupted) and not self._stopped:
                self._pause(f"{item.task.host}: {item.task.step} was interrupted")
                self._stop()
            elif item.error is not None and not isinstance(item.error, GdsError):
                self._bug = self._bug or item.error
                text = f"{type(item.error).__name__}: {item.error}"
                self._pause(f"{item.task.host}: {item.task.step} met a bug: {text}")

    def _draft(self, done: _Done) -> Draft | None:
        """How the end of a step is written down; None: it was stopped, which says nothing about the host."""
        task, error = done.task, done.error
        if error is None:
            return task.host, StepDone(task.step, done.found or {})
        if isinstance(error, Interrupted) or (self._stopped and isinstance(error, GdsError)):
            return None
        reason = StepError(type(error).__name__, str(error), getattr(error, "hint", None))
        return task.host, StepFailed(task.step, reason)

    def _begin(self, tasks: Sequence[Task]) -> None:
        self._add((task.host, StepBegun(task.step, task.attempt)) for task in tasks)
        self._flush()
        for task in tasks:
            self._running.add(task.host)
            # Daemons: a step that does not end when it is told to must not keep a stopped driver alive.
            thread = threading.Thread(target=self._perform, args=(task,), name=f"{task.host} {task.step}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads: nothing that the host has done
                self._said.put(_Done(task, error=Interrupted(f"this machine: {error}")))

    def _perform(self, task: Task) -> None:
        """In a thread of its own."""
        try:
            found = self._effects.perform(task, lambda text: self._said.put((task.host, text)))
            self._said.put(_Done(task, json.loads(json.dumps(dict(found), allow_nan=False))))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the driver writes it down and raises it
            self._said.put(_Done(task, error=error))

    def _left_out(self, tasks: Sequence[Task], now: float) -> bool:
        """Whether hosts are no longer in the fleet, which changes what is to be done."""
        steady = self._clock.steady()
        if steady < self._look_after or not any(task.step is Step.PREFLIGHT for task in tasks):
            return False
        self._look_after = steady + LOOK
        try:
            new = set(self._hooks.removed()) - self._removed
        except GdsError as error:
            self._note(f"it cannot be told whether hosts were taken out of the fleet: {error.message}")
            return False
        self._removed |= new
        events = self.machine.removed(sorted(new), now)
        self._add((event.host, event.payload) for event in events)
        return bool(events)

    # -- what is written, and who is told

    def _add(self, drafts: Iterable[Draft]) -> list[Event]:
        """Have the machine know of events; what follows from them is then written down with them, in one commit."""
        events = []
        for host, payload in drafts:
            if isinstance(payload, WaveSoaking) and payload.measured is None:
                payload = self._soaks.dated(payload)
            events.append(Event.of(self.machine.number + 1, self._clock.wall(), host, payload))
            self._take(events[-1])
            self._unwritten.append(events[-1])
        return events

    def _flush(self) -> None:
        """Write down what is not yet, and tell those who watch."""
        while self._unwritten:
            self._writer.extend(self._unwritten)
            events, self._unwritten = self._unwritten, []
            answers, self._answers = self._answers, []
            for request, event in answers:
                request.fulfilled(event)
            for event in events:
                self._tell(self._hooks.observe, event)

    def _take(self, event: Event) -> None:
        self.machine.apply(event)
        self._soaks.feed(event)
        if event.kind in PHASES:
            self._phases.append(event)

    def _tell(self, observer: Callable[..., None], *what: object) -> None:
        try:
            observer(*what)
        except Exception as error:  # noqa: BLE001 - who watches must not stop what is watched
            self._note(f"somebody who is told of this rollout failed: {type(error).__name__}")

    def _note(self, text: str) -> None:
        """Once each."""
        if text not in self._notes:
            self._notes.add(text)
            self._add([("", Note(text))])

    # -- wishes and the clock

    @property
    def _wave(self) -> WaveState | None:
        return self.machine.waves[self.machine.current] if self.machine.current >= 0 else None

    @property
    def _soaking(self) -> bool:
        """Whether the end of a soak may be moved."""
        wave = self._wave
        return wave is not None and wave.state == "soaking" and not wave.remaining

    def _look_at_clock(self) -> None:
        """Until the end of an open soak is moved along with the clock, decisions are made by the clock as it was."""
        if jump := self._soaks.jumped():
            self._ahead += jump
            text = f"this machine's clock was set {abs(jump):.0f} s {'forward' if jump > 0 else 'back'}"
            self._add([("", Note(text))])
        wave = self._wave
        if wave is None or wave.state != "soaking":
            self._ahead = 0.0
        elif self._ahead and self._soaking and not self._running:
            self._add(("", soak) for soak in self._soaks.moved(self._ahead))
            self._ahead = 0.0

    def _fulfil_wishes(self) -> None:
        for request in control.requests(self._writer.path):
            kind = request.payload.kind
            why = control.objection(kind, self._phases)
            if self._stopped or self._bug is not None:
                why = "its driver is stopping"
            if why:
                request.refused(control.refusal(self._rollout, kind, why))
            else:
                self._answers += [(request, event) for event in self._add([("", request.payload)])]

    def _pause(self, reason: str) -> None:
        if control.objection(Kind.PAUSED, self._phases) is None:
            self._add([("", RolloutPaused(reason))])

    # -- the end

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Count signals for the block instead of ending by them; those that are ignored stay ignored."""
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, self._signalled)
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _signalled(self, number: int, _frame: object) -> None:
        self._signals += 1
        self._signal = signal.Signals(number).name
        self._said.put(_Wake())

    def _heed_signals(self) -> None:
        if self._signals and "signal" not in self._notes:
            self._notes.add("signal")
            self._pause(f"interrupted by {self._signal}")
            if self._running:
                text = f"pausing: {len(self._running)} steps are finished first; a second signal stops them"
                self._tell(self._hooks.progress, "", text)
        if self._signals > 1 and not self._stopped:
            self._stop()

    def _stop(self) -> None:
        self._stopped = True
        self._effects.stop()

    def _leave(self, error: BaseException) -> None:
        """After an error: nothing is begun any more, and what steps under way come to is written down if it can be."""
        for request, event in self._answers:
            request.refused(control.refusal(self._rollout, event.kind, "its driver met an error"))
        if self._running:
            text = f"{error}\n{len(self._running)} steps are finished before this ends; a signal stops them"
            self._tell(self._hooks.progress, "", text)
        ends: list[Draft] = [(event.host, event.payload) for event in self._unwritten if event.kind in _ENDS]
        signals, until = min(self._signals, 1), math.inf
        while True:
            with contextlib.suppress(JournalUnusable):
                self._writer.append_many(ends)
                ends = []
            if self._signals > signals and not self._stopped:
                self._stop()
                until = self._clock.steady() + GRACE
            if not self._running or self._signals > signals + 1 or self._clock.steady() > until:
                return
            said = self._clock.get(self._said, POLL)
            if isinstance(said, _Done):
                self._running.discard(said.task.host)
                ends += [draft] if (draft := self._draft(said)) is not None else []

    def _drain(self, seconds: float) -> None:
        """Wait for the steps that were told to stop; a further signal ends the waiting, too."""
        end, signals = self._clock.steady() + seconds, self._signals
        while self._running and self._signals == signals and self._clock.steady() < end:
            self._wait(min(POLL, end - self._clock.steady()))

    def _interrupted(self) -> str:
        if not self._stopped:
            return "paused; hosts that were begun stay where they are"
        left = f"; {len(self._running)} steps had not ended" if self._running else ""
        return f"stopped at once{left}; steps that were under way are begun again"
