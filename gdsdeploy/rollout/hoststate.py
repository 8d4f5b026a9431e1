"""One host in a rollout: what each step's end or failure leads to, and when it happened.  Pure.

``step`` is the step under way (``running``) or the next one; without a next one, ``due`` is the outcome to write down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gdsdeploy.model.events import Facts, StepDone, StepError
from gdsdeploy.model.rollout import Outcome, Standing, Step
from gdsdeploy.model.text import read

#: Times that a host is validated again because it had booted since or couldn't be returned, and times that it is
#: drained again because it was found in work.
MAX_REFUSALS = 3
#: Error class of a host that doesn't answer.
UNREACHABLE = "HostUnreachable"

#: What a host waits for: ``wave``: it wasn't begun; ``gate``: begun, but not changed yet; ``soak``: in work again, to
#: be validated once more; ``back``: changed and in work, to be drained before anything else is done with it.
Waits = Literal["", "wave", "gate", "soak", "back"]

_NEXT = {
    Step.ENROL: Step.SNAPSHOT, Step.SNAPSHOT: Step.APPLY, Step.APPLY: Step.MODULES, Step.MODULES: Step.AUDIT,
    Step.AUDIT: Step.REBOOT,
    Step.REBOOT: Step.BOOT, Step.BOOT: Step.VALIDATE, Step.UNDO_REBOOT: Step.UNDO_BOOT,
    Step.UNDO_BOOT: Step.UNDO_VALIDATE,
}  # fmt: skip
_UNTOUCHED = (Step.PREFLIGHT, Step.DRAIN, Step.ENROL, Step.SNAPSHOT)


@dataclass(frozen=True)
class Ways:
    """Settings, and properties of its wave, that decide a host's next step."""

    drain: bool = True
    power: bool = False
    keep: bool = False
    enrol: bool = False


class Tally(NamedTuple):
    """How a host counts."""

    #: has no outcome
    remains: bool
    active: bool
    #: in work with the new lock, and not validated again
    unjudged: bool
    failed: bool


@dataclass(slots=True)
class StepAttempt:
    """One attempt at one step; times as the fold's ``lapse``."""

    step: str
    attempt: int
    begin: float
    end: float | None = None
    error: StepError | None = None
    #: nothing was done, because the host is in work, or may be
    put_off: bool = False


@dataclass(slots=True)
class HostState:
    """Written only by this module and by the fold."""

    name: str
    #: number of its wave from 0, and its place in it; -1: it takes no part
    wave: int
    place: int
    ways: Ways
    step: Step | None = Step.PREFLIGHT
    running: bool = False
    #: times that ``step`` was begun
    attempt: int = 0
    waits: Waits = "wave"
    #: facts from its steps, merged
    data: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    #: the outcome to write down
    due: Outcome | None = None
    #: of its outcome, or of its rollback
    reason: str = ""
    #: of the last failure
    error: StepError | None = None
    #: its first failure; None: it did not fail
    failed_at: Step | None = None
    #: its failure no longer counts, by ``--accept``
    accepted: bool = False
    #: being rolled back
    back: bool = False
    #: to be rolled back after its step
    recalled: bool = False
    #: out of work: from the beginning of its drain until its return
    out: bool = False
    #: it may have been changed; and before the step under way
    touched: bool = False
    touched_before: bool = False
    #: step that follows on its next drain, because the host was found in work then
    then: Step | None = None
    #: times that it was found in work
    found: int = 0
    #: its return began, so it may be in work
    returning: bool = False
    powered: bool = False
    #: passed the validation at the end of its wave's soak
    soak_passed: bool = False
    refusals: int = 0
    #: its last known boot, and the boot in which every check passed; empty: unknown
    boot: str = ""
    validated: str = ""
    #: every attempt at a step
    works: list[StepAttempt] = field(default_factory=list)
    #: (lapse at which it was taken out of work, and at which it came back; None: it is out of work)
    outages: list[tuple[float, float | None]] = field(default_factory=list)
    #: lapse of its outcome
    ended: float = 0.0
    #: seconds since the epoch of its last event
    since: float = 0.0
    #: number of its last event
    moved: int = 0
    #: how it was counted last
    counted: Tally | None = None

    @property
    def active(self) -> bool:
        """Begun and without an outcome; not while it works and waits for its drain."""
        return self.outcome is None and self.waits not in ("wave", "back")

    @property
    def holds(self) -> bool:
        """Whether it takes a slot; at the gate, where it may wait for days, it doesn't."""
        return self.ways.drain and ((self.active and self.waits != "gate") or self.stuck)

    @property
    def stuck(self) -> bool:
        """It was left out of work."""
        return self.out and self.outcome in (Outcome.KEPT, Outcome.LOST)

    @property
    def drained_next(self) -> bool:
        """It is about to be drained, again or once more."""
        return self.step is Step.DRAIN and self.outcome is None and not self.running

    @property
    def state(self) -> str:
        """One word for people: its outcome, the step under way, ``waiting`` or ``between steps``."""
        if self.outcome is not None:
            return self.outcome.value
        work = self.works[-1] if self.works else None
        return "waiting" if work is None else work.step if work.end is None else "between steps"

    @property
    def facts(self) -> Facts:
        """The typed facts from its steps; raises ValueError for a value of another type."""
        return read(Facts, self.data)

    @property
    def errors(self) -> list[tuple[str, StepError]]:
        """Every failure: (step, error)."""
        return [(work.step, work.error) for work in self.works if work.error is not None]

    @property
    def seconds(self) -> float:
        """From its first step to its end, as far as both have been seen."""
        if not self.works:
            return 0.0
        last = self.ended if self.outcome is not None else self.works[-1].end
        return max(0.0, (last if last is not None else self.works[-1].begin) - self.works[0].begin)

    def worked(self, now: float) -> float:
        """Seconds of its steps until ``now``, without waiting and soaking."""
        ends = ((work.begin, now if work.end is None else work.end) for work in self.works if work.step != Step.SOAK)
        return sum(end - begin for begin, end in ends)

    def out_of_work(self, now: float) -> float:
        """Seconds until ``now`` in which it was out of work."""
        return sum((now if end is None else end) - begin for begin, end in self.outages)


def go(host: HostState, step: Step, waits: Waits = "") -> None:
    host.step, host.attempt, host.running, host.waits, host.due = step, 0, False, waits, None


def finish(host: HostState, outcome: Outcome, reason: str = "") -> None:
    host.due, host.running, host.waits = outcome, False, ""
    host.reason = reason or host.reason
    if outcome is not Outcome.LOST:  # its step asks a lost host again
        host.step, host.attempt = None, 0


def begin(host: HostState, step: Step, attempt: int) -> None:
    host.step, host.attempt, host.running, host.waits = step, attempt, True, ""
    if step not in (Step.RETURN, Step.SOAK):
        host.validated = ""
    match step:
        case Step.DRAIN:
            host.out, host.returning = True, False
        # After these, the host may be in another boot.
        case Step.ENROL | Step.REBOOT | Step.UNDO_REBOOT | Step.POWER:
            host.boot = ""
            host.powered = host.powered or step is Step.POWER
        case Step.RETURN:
            host.returning = True
    host.touched_before = host.touched
    if step not in _UNTOUCHED and not host.back:
        host.touched = True


def end(host: HostState, done: StepDone) -> None:
    """The step under way is done."""
    step = host.step
    assert step is not None
    host.running = False
    host.data.update(done.data)
    if step in (Step.PREFLIGHT, Step.ENROL, Step.BOOT, Step.UNDO_BOOT):
        host.boot = done.facts.boot_id or ""
    match step:
        case Step.PREFLIGHT if done.facts.satisfied:
            finish(host, Outcome.SATISFIED, "it has this lock already")
        case Step.PREFLIGHT:
            go(host, Step.DRAIN if host.ways.drain else Step.SNAPSHOT, "gate")
        case Step.DRAIN:
            _after_drain(host)
        case Step.VALIDATE | Step.UNDO_VALIDATE:
            _after_validation(host, done.facts.validated_boot or "")
        case Step.RETURN:
            host.out = host.returning = False
            _over(host, done.facts)
        case Step.SOAK:
            host.step, host.attempt, host.soak_passed = None, 0, True
            if host.recalled:
                _from_work(host)
        case Step.POWER:
            go(host, Step.UNDO_BOOT if host.back else Step.BOOT)
        case Step.BOOT if host.powered:  # It needed a power cycle, so the change doesn't stay.
            take_back(host)
        case Step.UNDO:
            needless = done.facts.disruption == "none"
            go(host, Step.UNDO_VALIDATE if needless else Step.UNDO_REBOOT)
        case _:
            go(host, _NEXT[step])
    if host.recalled and host.step is not None and not host.back:
        turn_back(host)


def fail(host: HostState, error: StepError) -> None:
    """The step under way failed."""
    step = host.step
    assert step is not None
    host.running, host.error = False, error
    if step is Step.RETURN:
        host.boot = host.validated = ""
        _again(host, Step.UNDO_VALIDATE if host.back else Step.VALIDATE, error.message or "it could not be returned")
        if host.recalled and not host.back and host.due is None:
            turn_back(host)
        return
    host.failed_at = host.failed_at or step
    host.reason = error.message or f"{step} failed"
    silent = error.kind == UNREACHABLE
    match step:
        case Step.PREFLIGHT:
            finish(host, Outcome.REFUSED)
        case Step.SOAK:
            _from_work(host)
        case Step.DRAIN if host.back:
            finish(host, Outcome.KEPT)
        case Step.ENROL if silent:
            finish(host, Outcome.LOST)
        case Step.DRAIN | Step.ENROL | Step.SNAPSHOT:
            take_back(host)
        case Step.BOOT | Step.UNDO_BOOT if silent and host.ways.power and not host.powered:
            go(host, Step.POWER)
        case Step.BOOT:
            if silent:
                finish(host, Outcome.LOST)
            else:
                take_back(host)
        case Step.POWER:
            finish(host, Outcome.LOST)
            host.step = Step.UNDO_BOOT if host.back else Step.BOOT
        case _ if host.back:
            finish(host, Outcome.LOST if silent else Outcome.KEPT)
        case _:
            take_back(host)


def take_back(host: HostState) -> None:
    """After a failure of the upgrade: roll back, or keep the host as it is with ``on_failure: keep``."""
    if host.touched and host.ways.keep and not host.recalled:
        finish(host, Outcome.KEPT)
    else:
        _start_back(host)


def turn_back(host: HostState) -> None:
    """Roll back a host that waits, or whose step was interrupted.

    An unchanged host is skipped; the rollback of a host that reboots, or may, begins after its boot.
    """
    if host.step is Step.PREFLIGHT or host.waits == "gate":
        finish(host, Outcome.SKIPPED)
    elif host.step in (Step.BOOT, Step.POWER) or host.then is Step.POWER:
        host.recalled = True
    elif host.step is Step.REBOOT and host.attempt:
        host.recalled = True
        go(host, Step.BOOT)
    elif host.waits == "back":
        _from_work(host)
    else:
        _start_back(host)


def recall(host: HostState, reason: str) -> None:
    """Roll the host back, or ask it again if it's lost."""
    if host.due in (Outcome.DONE, Outcome.KEPT, Outcome.LOST):  # as if it were written down
        host.outcome, host.due = host.due, None
    if host.due is not None:
        return
    if host.outcome is not None:
        host.found = 0
    match host.outcome:
        case Outcome.LOST if host.out:
            host.outcome, host.powered = None, False
            go(host, host.step or (Step.UNDO_BOOT if host.back else Step.BOOT))
        case Outcome.DONE if host.running:
            host.recalled, host.refusals, host.reason = True, 0, reason
        case Outcome.DONE | Outcome.KEPT | Outcome.LOST:
            in_work = host.outcome is Outcome.DONE or (host.ways.drain and not host.out)
            host.outcome, host.recalled, host.refusals, host.reason = None, True, 0, reason
            (_from_work if in_work else _start_back)(host)
        case None if not host.back:
            host.recalled, host.reason = True, reason
            if not host.running:
                turn_back(host)


def interrupted(host: HostState) -> None:
    """The driver of its step is gone; the step may be done or not."""
    host.running = False
    if host.outcome is Outcome.DONE:  # its soak
        if host.recalled:
            _from_work(host)
        else:
            host.waits = "soak"
    elif host.recalled and not host.back:
        turn_back(host)


def _from_work(host: HostState) -> None:
    """Roll back a host that is in work; a builder isn't drained."""
    host.outcome, host.back, host.then = None, True, None
    if host.ways.drain:
        go(host, Step.DRAIN, "back")
    elif host.ways.keep and not host.recalled:
        finish(host, Outcome.KEPT)
    else:
        go(host, Step.UNDO, "back")


def _start_back(host: HostState) -> None:
    host.back, host.then = True, None
    if host.returning and host.ways.drain:
        go(host, Step.DRAIN)
    else:
        go(host, Step.UNDO if host.touched else Step.UNDO_VALIDATE)


def put_off(host: HostState, standing: str, *, begun: bool) -> None:
    """The step under way did nothing, or, with ``begun``, no more, because the host is in work, or may be.

    An unchanged host waits at the gate, as if it had never been drained, or is left alone on the way back; any other is
    drained, and the step follows.
    """
    step, host.touched = host.step, host.touched_before or (begun and host.touched)
    host.works[-1].put_off = True
    if standing != Standing.WORKS:
        interrupted(host)
        return
    host.running = host.out = host.returning = False
    host.found += 1
    if host.found > MAX_REFUSALS:
        host.failed_at = host.failed_at or step
        why = "it is in work again each time that it was drained"
        finish(host, Outcome.KEPT if host.touched else Outcome.REFUSED, why)
        return
    if host.back and not host.touched:
        finish(host, Outcome.ROLLED_BACK if host.failed_at is not None else Outcome.SKIPPED)
        return
    host.then = step if host.touched else None
    go(host, Step.DRAIN, "back" if host.touched else "gate")
    if host.recalled and not host.back:
        turn_back(host)


def found_back(host: HostState) -> None:
    """It is in work, although it was thought to be out; one that is to be drained waits for its place."""
    if host.stuck or host.drained_next:
        host.out = host.returning = False
    if host.drained_next:
        host.waits = "back" if host.touched or host.back else "gate"


def _after_drain(host: HostState) -> None:
    """The way forward, to the step that was put off, or back for a changed host that failed or is recalled."""
    if host.then is not None:
        go(host, host.then)
        host.then = None
    elif not host.back:
        go(host, Step.ENROL if host.ways.enrol else Step.SNAPSHOT)
    elif host.ways.keep and host.failed_at is not None and not host.recalled:
        finish(host, Outcome.KEPT)
    else:
        go(host, Step.UNDO if host.touched else Step.UNDO_VALIDATE)


def _after_validation(host: HostState, boot: str) -> None:
    """Every check passed in ``boot``; in another boot than BOOT saw, that one has to be proven, too."""
    if boot and host.boot in ("", boot):
        host.boot = host.validated = boot
        if host.ways.drain:
            go(host, Step.RETURN)
        else:
            _over(host)
    else:
        host.boot = host.validated = ""
        _again(host, Step.UNDO_BOOT if host.back else Step.BOOT, "it was validated in another boot than it came up in")


def _again(host: HostState, step: Step, why: str) -> None:
    host.refusals += 1
    if host.refusals <= MAX_REFUSALS:
        go(host, step)
        return
    host.failed_at = host.failed_at or Step.RETURN
    finish(host, Outcome.KEPT, why)


def _over(host: HostState, returned: Facts | None = None) -> None:
    """Everything is done with the host; ``returned``: how its return ended."""
    stays = returned is not None and returned.returned is False
    where = f"others keep it out of work: {(returned and returned.reason) or 'no reason is given'}" if stays else ""
    if host.back:
        finish(host, Outcome.ROLLED_BACK, "; ".join(filter(None, (host.reason, where))))
    elif host.recalled:
        _from_work(host)
    else:
        finish(host, Outcome.DONE, "; ".join(filter(None, ("every check passed in its boot", where))))
