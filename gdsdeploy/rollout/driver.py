"""Performs a rollout: writes down each decision, performs it, and writes down its end.

The caller's thread decides and writes the journal; each step has a thread of its own.  A step's BEGIN is on disk before
the step begins, and its END after it.  After a crash in between, the next driver repeats the step as its next attempt.

*Clocks.*  The machine's clock may be set during a rollout.  Maintenance windows follow it; a soak keeps its length.
Time without a driver counts towards a soak within one boot of this machine.  After a reboot, or on another machine, the
recorded rest of the soak begins again.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from gdsdeploy import cancel
from gdsdeploy.errors import MEMORY, ControllerUnfit, GdsError, Interrupted, JournalUnusable
from gdsdeploy.model.events import (
    Draft,
    Event,
    Kind,
    Measurement,
    Note,
    RolloutPaused,
    StepBegun,
    StepDone,
    StepError,
    StepFailed,
    WaveClosed,
    WaveSoaking,
)
from gdsdeploy.model.rollout import Standing, Step, Task
from gdsdeploy.rollout import control
from gdsdeploy.rollout.drain import PATIENCE
from gdsdeploy.rollout.journal import Writer
from gdsdeploy.rollout.machine import StateMachine
from gdsdeploy.ssh.endpoint import allow_files

#: Seconds; time synchronization makes smaller corrections all the time.
TOLERANCE: Final = 2.0

T = TypeVar("T")


class Clock:
    """The clocks of this machine; tests replace them."""

    def wall(self) -> float:
        """Seconds since the epoch; may jump."""
        return time.time()

    def steady(self) -> float:
        """Seconds since this machine's boot, suspension included; never jumps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot(self) -> str:
        """Which boot of which machine ``steady`` counts from."""
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def get(self, source: queue.SimpleQueue[T], seconds: float) -> T | None:
        """The next value of ``source``; None: none came within ``seconds``."""
        try:
            return source.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None


class Soaks:
    """Corrects the ends of soaks when the clock is set.  Feed it every event."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boot = clock.boot()
        self._offset = clock.wall() - clock.steady()
        #: wave → end of its soak in seconds since the epoch, and the measurement of its rest
        self._open: dict[str, tuple[float, Measurement | None]] = {}

    def feed(self, event: Event) -> None:
        match event.payload:
            case WaveSoaking(wave, until, measured) if until is not None:
                self._open[wave] = until, measured
            case WaveClosed(wave):
                self._open.pop(wave, None)

    def dated(self, soak: WaveSoaking) -> WaveSoaking:
        """The soak with a measurement of its rest."""
        left = (soak.until or 0.0) - self._clock.wall()
        return replace(soak, measured=Measurement(left, self._boot, self._clock.steady()))

    def taken_up(self) -> list[WaveSoaking]:
        """Soaks of an earlier driver whose end the clock alone would get wrong."""
        return [
            self.dated(WaveSoaking(wave, self._clock.wall() + left))
            for wave, (until, measured) in self._open.items()
            if measured is not None
            and not math.isclose(self._clock.wall() + (left := self._left(measured)), until, abs_tol=TOLERANCE)
        ]

    def _left(self, measured: Measurement) -> float:
        passed = self._clock.steady() - measured.steady if measured.boot == self._boot else 0.0
        return measured.left - max(0.0, passed)

    def jumped(self) -> float:
        """Seconds by which the clock was set since the last call; 0: it wasn't."""
        offset = self._clock.wall() - self._clock.steady()
        jump = offset - self._offset
        if abs(jump) < TOLERANCE:
            return 0.0
        self._offset = offset
        return jump

    def moved(self, jump: float) -> list[WaveSoaking]:
        """Open soaks, after the clock was set by ``jump``."""
        return [self.dated(WaveSoaking(wave, until + jump)) for wave, (until, _) in self._open.items()]


#: Seconds between two looks at requests, windows and the clock.
POLL: Final = 0.5
#: Seconds between two looks at the fleet file, and for which it's known who is out of work.
LOOK: Final = 5.0
#: Seconds after which that is asked again while others keep hosts out.
MINUTE: Final = 60.0
#: Seconds in which stopped steps have to end.
GRACE: Final = 30.0
_ENDS: Final = frozenset({Kind.END, Kind.FAIL})


class Effects(Protocol):
    """Performs steps.  Called by several threads at once, never twice at once for one host."""

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """Do one step and return its facts, as JSON.

        An earlier attempt may have done it, wholly or in part: the end must be the same.
        progress: gets one line of text at a time.  Raises GdsError when the step failed.
        """

    def stop(self) -> None:
        """Have every running ``perform`` end soon, with Interrupted.  Called from another thread."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a driver, in the thread that called it."""

    #: gets every event once it's on disk; its errors don't stop the rollout
    observe: Callable[[Event], None] = lambda _: None
    #: gets host and text of each line of progress; likewise
    progress: Callable[[str, str], None] = lambda _host, _text: None
    #: whether hosts may be begun at this time, in seconds since the epoch
    open_window: Callable[[float], bool] = lambda _: True
    #: hosts of the plan that are no longer in the fleet file; called before hosts are begun, every few seconds at most
    removed: Callable[[], Collection[str]] = lambda: ()
    #: sentences about files that changed after the planning; called once
    notices: Callable[[], Iterable[str]] = lambda: ()
    #: who keeps each host out of work now, as far as it's known; gets the hosts that others kept out of it,
    #: and whether this is the first time since a person had the rollout go on.  In a thread of its own, before hosts
    #: are drained; without an answer none is.  None: the plan is believed
    look: Callable[[Collection[str], bool], Mapping[str, Standing]] | None = None


@dataclass(frozen=True)
class _StepEnd:
    task: Task
    facts: Mapping[str, Any] | None = None
    error: BaseException | None = None


@dataclass(frozen=True)
class _Look:
    """What a look at the scheduler found, or why it found nothing."""

    standings: Mapping[str, Standing] | None = None
    error: GdsError | None = None


#: From other threads: how a step ended, what a look found, or host and text of progress; None: a signal came.
_Message = _StepEnd | _Look | tuple[str, str] | None


def drive(
    writer: Writer, rollout: str, effects: Effects, *, hooks: Hooks | None = None, clock: Clock | None = None
) -> StateMachine:
    """Continue ``rollout`` from its journal until it's finished, halted or paused.

    Raises Interrupted after a signal: the first one pauses, the second one stops at once.  Raises JournalUnusable when
    the journal can't be written.  ControllerUnfit, and an error that is a bug, pause it and are raised at the end.
    """
    driver = _Driver(writer, rollout, effects, hooks or Hooks(), clock or Clock())
    # The first one pauses, the second one stops.
    with cancel.signals(driver._signalled):
        return driver.run()


class _Driver:
    def __init__(self, writer: Writer, rollout: str, effects: Effects, hooks: Hooks, clock: Clock) -> None:
        self.machine = StateMachine(writer.go_on(rollout))
        self._writer = writer
        self._rollout = rollout
        self._effects = effects
        self._hooks = hooks
        self._clock = clock
        self._soaks = Soaks(clock)
        #: steps for which this machine has files
        self._lanes = allow_files(self.machine.settings.parallel)
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        #: events that the machine has and the journal doesn't
        self._unwritten: list[Event] = []
        self._answers: list[tuple[control.Request, Event]] = []
        self._running: set[str] = set()
        self._removed: set[str] = set()
        self._look_after = 0.0
        #: when who is out of work was last known, since a person had the rollout go on; None: not yet
        self._known: float | None = None
        #: since when there is no answer, and when it's asked again
        self._unanswered: float | None = None
        self._ask_after = 0.0
        self._looking = False
        #: whether hosts wait for it
        self._needed = False
        self._notes: set[str] = set()
        #: seconds by which the clock was set, to be added to the end of an open soak
        self._ahead = 0.0
        self._signals = 0
        self._signal = ""
        #: steps under way are to stop
        self._stopped = False
        #: raised after the steps under way
        self._bug: BaseException | None = None

    def run(self) -> StateMachine:
        for event in self._writer.events(self._rollout):
            self._take(event)
        self.machine.interrupted()
        try:
            self._add(("", Note(text)) for text in self._hooks.notices())
            if self._lanes < (most := self.machine.settings.parallel):
                self._note(f"this machine has files for {self._lanes} steps at the same time (ulimit -Hn), not {most}")
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
            left = f"; {len(self._running)} steps had not ended" if self._running else ""
            text = "paused; hosts that were begun stay where they are"
            if self._stopped:
                text = f"stopped at once{left}; steps that were under way are begun again"
            raise Interrupted(text, hint=f"Continue with: gdsdeploy rollout resume {self.machine.plan.fleet}")
        return self.machine

    # -- the loop

    def _loop(self) -> None:
        while True:
            self._look_at_clock()
            self._heed_signals()
            self._fulfil_wishes()
            if self._stopped:
                self._drain(GRACE)
                return
            over = self.machine.paused or self.machine.turned_back
            if self._known is None and not over and not self._knows_who_is_out(LOOK):
                self._wait(POLL)
                continue
            now = self._clock.wall()
            window = self._hooks.open_window(now)
            now -= self._ahead
            decisions = self.machine.decide(now, open_window=window)
            drains = [task for task in decisions.tasks if task.step is Step.DRAIN]
            halts = not self._running and any(payload.kind is Kind.HALTED for _, payload in decisions.events)
            tasks, known = decisions.tasks, self._knows_who_is_out(LOOK if drains or halts else MINUTE)
            if drains and not known:
                tasks = tuple(task for task in tasks if task not in drains)
            tasks = tasks[: max(0, self._lanes - len(self._running))]
            if halts and not known:
                self._wait(POLL)
            elif decisions.events:
                self._add(decisions.events)
            elif tasks:
                if not self._apply_removals(tasks):
                    self._begin(tasks)
            elif drains:
                self._wait(POLL)
            elif not self._running and (decisions.over or isinstance(self._bug, ControllerUnfit)):
                return
            else:
                wake = POLL if decisions.wake_at is None else min(POLL, decisions.wake_at - now)
                self._wait(max(0.0, wake))

    def _wait(self, seconds: float) -> None:
        """Wait for a message, for ``seconds`` at most, with everything on disk."""
        self._flush()
        messages = [self._clock.get(self._inbox, seconds)]
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(self._inbox.get_nowait())
        for message in messages:
            if isinstance(message, tuple):
                self._tell(self._hooks.progress, *message)
            elif isinstance(message, _Look):
                self._take_look(message)
        ends = [message for message in messages if isinstance(message, _StepEnd)]
        self._running -= {end.task.host for end in ends}
        self._add(draft for end in ends if (draft := self._draft(end)) is not None)
        for end in ends:
            what, error = f"{end.task.host}: {end.task.step}", end.error
            match error:
                case Interrupted() if not self._stopped:
                    self._pause(f"{what} was interrupted")
                    self._stop()
                case ControllerUnfit():
                    hint = f"{error.hint}; then: gdsdeploy rollout resume {self.machine.plan.fleet}"
                    self._bug = self._bug or ControllerUnfit(f"the rollout is paused: {error}", hint=hint)
                    self._pause(f"{what}: {error}")
                case BaseException() if not isinstance(error, GdsError):
                    self._bug = self._bug or error
                    self._pause(f"{what} met a bug: {type(error).__name__}: {error}")

    def _draft(self, end: _StepEnd) -> Draft | None:
        """The event of a step's end; None: it was stopped, or this machine failed it: that says nothing of the host."""
        task, error = end.task, end.error
        if error is None:
            return task.host, StepDone(task.step, end.facts or {})
        if isinstance(error, Interrupted | ControllerUnfit) or (self._stopped and isinstance(error, GdsError)):
            return None
        reason = StepError(type(error).__name__, str(error), getattr(error, "hint", None))
        return task.host, StepFailed(task.step, reason)

    def _begin(self, tasks: Sequence[Task]) -> None:
        self._add((task.host, StepBegun(task.step, task.attempt)) for task in tasks)
        self._flush()
        for task in tasks:
            self._running.add(task.host)
            # Daemons: a step that doesn't stop must not keep the process alive.
            thread = threading.Thread(target=self._perform, args=(task,), name=f"{task.host} {task.step}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, which isn't the host's fault
                self._inbox.put(_StepEnd(task, error=ControllerUnfit(f"this machine: {error}", hint=MEMORY)))

    def _perform(self, task: Task) -> None:
        try:
            facts = self._effects.perform(task, lambda text: self._inbox.put((task.host, text)))
            self._inbox.put(_StepEnd(task, json.loads(json.dumps(dict(facts), allow_nan=False))))
        except BaseException as error:  # noqa: BLE001 - the driver writes it down and raises it
            self._inbox.put(_StepEnd(task, error=error))

    # -- who is out of work

    def _knows_who_is_out(self, seconds: float) -> bool:
        """Whether that is known as of so many seconds ago, or that others keep no hosts out; if not, it's asked."""
        steady, self._needed = self._clock.steady(), seconds == LOOK
        fresh = self._known is not None and steady < self._known + seconds
        if self._hooks.look is None or fresh or (seconds == MINUTE and not self.machine.slots.down):
            return True
        if not self._looking and steady >= self._ask_after:
            self._looking = True
            thread = threading.Thread(
                target=self._look, args=(self._hooks.look, set(self.machine.slots.down)), name="look", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self._inbox.put(_Look(error=GdsError(f"this machine: {error}")))
        return False

    def _look(self, look: Callable[[Collection[str], bool], Mapping[str, Standing]], down: Collection[str]) -> None:
        try:
            self._inbox.put(_Look(look(down, self._known is None)))
        except GdsError as error:
            self._inbox.put(_Look(error=error))
        except BaseException as error:  # noqa: BLE001 - a bug, which is told like any other reason
            self._inbox.put(_Look(error=GdsError(f"{type(error).__name__}: {error}")))

    def _take_look(self, look: _Look) -> None:
        self._looking, steady = False, self._clock.steady()
        if look.standings is not None:
            self._known, self._unanswered = steady, None
            self._add(self.machine.looked(look.standings))
            return
        assert look.error is not None
        self._ask_after = steady + LOOK
        words = f"who is out of work is not known: {look.error.message}"
        if not self._needed:
            self._unanswered = None
        elif self._unanswered is None:
            self._unanswered = steady
            self._tell(self._hooks.progress, "", f"{words}; no host is drained until it is")
        elif steady >= self._unanswered + PATIENCE:
            self._unanswered = None
            self._pause(words)

    def _apply_removals(self, tasks: Sequence[Task]) -> bool:
        """Whether hosts were removed from the fleet, which changes the decisions."""
        steady = self._clock.steady()
        if steady < self._look_after or not any(task.step is Step.PREFLIGHT for task in tasks):
            return False
        self._look_after = steady + LOOK
        try:
            new = set(self._hooks.removed()) - self._removed
        except GdsError as error:
            self._note(f"whether hosts were removed from the fleet is unknown: {error.message}")
            return False
        self._removed |= new
        return bool(self._add(list(self.machine.removed(sorted(new)))))

    # -- events

    def _add(self, drafts: Iterable[Draft]) -> list[Event]:
        """Apply events; the next flush writes them with their consequences in one commit."""
        events = []
        for host, payload in drafts:
            if isinstance(payload, WaveSoaking) and payload.measured is None:
                payload = self._soaks.dated(payload)
            events.append(Event.of(self.machine.number + 1, self._clock.wall(), host, payload))
            self._take(events[-1])
            self._unwritten.append(events[-1])
        return events

    def _flush(self) -> None:
        """Write the new events, and report them."""
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

    def _tell(self, observer: Callable[..., None], *what: object) -> None:
        try:
            observer(*what)
        except Exception as error:  # noqa: BLE001 - an observer must not stop the rollout
            self._note(f"an observer of this rollout failed: {type(error).__name__}")

    def _note(self, text: str) -> None:
        """Write each text once."""
        if text not in self._notes:
            self._notes.add(text)
            self._add([("", Note(text))])

    # -- requests and the clock

    @property
    def _soaking(self) -> bool:
        """Whether the end of a soak may be moved."""
        wave = self.machine.wave
        return wave is not None and wave.state == "soaking" and not wave.remaining

    def _look_at_clock(self) -> None:
        """Move the end of an open soak with the clock; until then, decisions use the clock from before."""
        if jump := self._soaks.jumped():
            self._ahead += jump
            text = f"this machine's clock was set {abs(jump):.0f} s {'forward' if jump > 0 else 'back'}"
            self._add([("", Note(text))])
        wave = self.machine.wave
        if wave is None or wave.state != "soaking":
            self._ahead = 0.0
        elif self._ahead and self._soaking and not self._running:
            self._add(("", soak) for soak in self._soaks.moved(self._ahead))
            self._ahead = 0.0

    def _fulfil_wishes(self) -> None:
        for request in control.requests(self._writer.path):
            kind = request.payload.kind
            why = control.objection(kind, self.machine)
            if self._stopped or self._bug is not None:
                why = "its driver is stopping"
            if why:
                request.refused(control.refusal(self._rollout, kind, why))
            else:
                self._answers += [(request, event) for event in self._add([("", request.payload)])]
                if kind is Kind.RESUMED:
                    self._known = None

    def _pause(self, reason: str) -> None:
        if control.objection(Kind.PAUSED, self.machine) is None:
            self._add([("", RolloutPaused(reason))])

    # -- the end

    def _signalled(self, number: int) -> None:
        self._signals += 1
        self._signal = signal.Signals(number).name
        self._inbox.put(None)

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
        """After an error: wait for the steps under way, and write their ends down if possible."""
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
            message = self._clock.get(self._inbox, POLL)
            if isinstance(message, _StepEnd):
                self._running.discard(message.task.host)
                ends += [draft] if (draft := self._draft(message)) is not None else []

    def _drain(self, seconds: float) -> None:
        """Wait for the stopped steps; another signal ends the wait."""
        end, signals = self._clock.steady() + seconds, self._signals
        while self._running and self._signals == signals and self._clock.steady() < end:
            self._wait(min(POLL, end - self._clock.steady()))
