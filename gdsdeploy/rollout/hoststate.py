"""One host in a rollout: what each step's end or failure leads to.  Pure.

A host is a fold over its own events.  ``step`` is the step under way (``running``) or the one that comes next; where
none comes next, ``due`` is the outcome that has to be written down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gdsdeploy.model.events import StepDone, StepError
from gdsdeploy.model.rollout import Outcome, Step

#: Times that a host is judged again because it was not in the boot that had been judged, or could not be returned.
MAX_REFUSALS = 3
#: Class of the error that says that a host does not answer at all.
UNREACHABLE = "HostUnreachable"

#: What has to let a host go on: ``wave``: it was not begun; ``gate``: begun, and nothing was done to it yet;
#: ``soak``: in work again, to be judged once more; ``back``: in work, to be taken back.
Waits = Literal["", "wave", "gate", "soak", "back"]

_NEXT = {
    Step.SNAPSHOT: Step.APPLY,
    Step.APPLY: Step.MODULES,
    Step.MODULES: Step.AUDIT,
    Step.AUDIT: Step.REBOOT,
    Step.REBOOT: Step.BOOT,
    Step.BOOT: Step.VALIDATE,
    Step.UNDO_REBOOT: Step.UNDO_BOOT,
    Step.UNDO_BOOT: Step.UNDO_VALIDATE,
}
#: After these the host may be in another boot than the one that was proven and judged.
_LEAVES_BOOT = (Step.REBOOT, Step.UNDO_REBOOT, Step.POWER)
_UNTOUCHED = (Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT)


@dataclass(frozen=True)
class Ways:
    """What of the settings and of its wave decides a host's way."""

    drain: bool = True
    power: bool = False
    keep: bool = False


class Counted(NamedTuple):
    """What the machine's numbers are made of."""

    state: str
    #: has no outcome
    remains: bool
    active: bool
    #: in work with the new lock, and not judged again
    unjudged: bool
    #: failed, and counts
    failed: bool


@dataclass(slots=True)
class HostState:
    """To be read by anybody, and written only by the functions of this module and by the machine."""

    name: str
    #: number of its wave from 0, and its place in it
    wave: int
    place: int
    ways: Ways
    step: Step | None = Step.PREFLIGHT
    running: bool = False
    #: of ``step``: how often it was begun
    attempt: int = 0
    waits: Waits = "wave"
    #: what its steps found, merged
    known: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    #: the outcome that is not written down yet
    due: Outcome | None = None
    #: why it ended as it did, or why it is taken back
    reason: str = ""
    #: of the last failure
    error: StepError | None = None
    #: where it failed first; None: it did not
    failed_at: Step | None = None
    #: a person said that this failure no longer counts
    accepted: bool = False
    #: on the way back to what it was
    back: bool = False
    #: to be taken back as soon as its step is over
    recalled: bool = False
    #: out of work: from when its drain began until it was returned
    out: bool = False
    #: something may have been changed on it
    touched: bool = False
    #: it may be in work again although its return did not end
    returning: bool = False
    powered: bool = False
    #: passed the judgement at the end of its wave's soak
    judged: bool = False
    refusals: int = 0
    #: boot it is in, as far as is known, and boot in which every check passed; empty: neither
    boot: str = ""
    validated: str = ""
    #: seconds since the epoch; 0: not yet
    began: float = 0.0
    ended: float = 0.0
    #: of its last event
    since: float = 0.0
    #: number of the last event that concerned it
    moved: int = 0
    #: as which the machine counted it last
    counted: Counted | None = None

    @property
    def active(self) -> bool:
        """Begun, and not over; one that is in work and waits to be taken back is not yet."""
        return self.outcome is None and self.waits not in ("wave", "back")

    @property
    def holds(self) -> bool:
        """Whether it has a claim to be out of work; at the gate, where it may wait for days, it has none."""
        stuck = self.outcome in (Outcome.KEPT, Outcome.LOST) and self.out
        return self.ways.drain and ((self.active and self.waits != "gate") or stuck)

    @property
    def state(self) -> str:
        """One word for people: its outcome, the step it is in or waits for, or ``waiting``."""
        if self.outcome is not None and not self.running:
            return self.outcome.value
        return "waiting" if self.waits == "wave" or self.step is None else self.step.value

    @property
    def may_return(self) -> bool:
        """Whether every check passed in the boot that it is in."""
        return bool(self.validated) and self.validated == self.boot


def go(host: HostState, step: Step, waits: Waits = "") -> None:
    """Its next step."""
    host.step, host.attempt, host.running, host.waits, host.due = step, 0, False, waits, None


def finish(host: HostState, outcome: Outcome, reason: str = "") -> None:
    """Nothing comes next; the outcome has to be written down."""
    host.due, host.running, host.waits = outcome, False, ""
    host.reason = reason or host.reason
    if outcome is not Outcome.LOST:  # which is asked again by the step that did not reach it
        host.step, host.attempt = None, 0


def begin(host: HostState, step: Step, attempt: int) -> None:
    """A step begins."""
    host.step, host.attempt, host.running, host.waits = step, attempt, True, ""
    if step not in (Step.RETURN, Step.SOAK):
        host.validated = ""
    if step is Step.DRAIN:
        host.out, host.returning = True, False
    elif step in _LEAVES_BOOT:
        host.boot = ""
        host.powered = host.powered or step is Step.POWER
    elif step is Step.RETURN:
        host.returning = True
    if step not in _UNTOUCHED and not host.back:
        host.touched = True


def end(host: HostState, done: StepDone) -> None:
    """The step under way is done."""
    step = host.step
    assert step is not None
    host.running = False
    host.known.update(done.data)
    if step in (Step.PREFLIGHT, Step.BOOT, Step.UNDO_BOOT):
        host.boot = done.facts.boot_id or ""
    match step:
        case Step.PREFLIGHT if done.facts.satisfied:
            finish(host, Outcome.SATISFIED, "it has this lock already")
        case Step.PREFLIGHT:
            go(host, Step.DRAIN if host.ways.drain else Step.SNAPSHOT, "gate")
        case Step.DRAIN if host.back:
            _drained(host)
        case Step.DRAIN:
            go(host, Step.SNAPSHOT)
        case Step.VALIDATE | Step.UNDO_VALIDATE:
            _judged(host, done.facts.validated_boot or "")
        case Step.RETURN:
            host.out = host.returning = False
            _over(host)
        case Step.SOAK:
            host.step, host.attempt, host.judged = None, 0, True
            if host.recalled:
                _from_work(host)
        case Step.POWER:
            go(host, Step.UNDO_BOOT if host.back else Step.BOOT)
        case Step.BOOT if host.powered:  # It did not come up by itself, so it is not to stay as it is.
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
        _not_returned(host)
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
        case Step.DRAIN | Step.SNAPSHOT:
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
    """After a failure on the way forward: the way back, or kept as it is where the fleet wants that."""
    if host.touched and host.ways.keep and not host.recalled:
        finish(host, Outcome.KEPT)
    else:
        _start_back(host)


def turn_back(host: HostState) -> None:
    """Take back a host that waits on its way forward, or whose step was interrupted.

    One to which nothing was done yet is left out, and one that reboots is waited for.
    """
    if host.step is Step.PREFLIGHT or host.waits == "gate":
        finish(host, Outcome.SKIPPED)
    elif host.step is Step.BOOT:
        host.recalled = True
    else:
        _start_back(host)


def recall(host: HostState, reason: str) -> None:
    """Somebody wants it taken back, or, if it is lost, asked again.  What is over stays as it is."""
    if host.due in (Outcome.DONE, Outcome.KEPT, Outcome.LOST):  # as if that had been written down
        host.outcome, host.due = host.due, None
    if host.due is not None:
        return
    if host.outcome is Outcome.LOST and host.out:
        host.outcome, host.powered = None, False
        go(host, host.step or (Step.UNDO_BOOT if host.back else Step.BOOT))
    elif host.outcome is Outcome.DONE and host.running:
        host.recalled, host.refusals, host.reason = True, 0, reason
    elif host.outcome in (Outcome.DONE, Outcome.KEPT, Outcome.LOST):
        in_work = host.outcome is Outcome.DONE or (host.ways.drain and not host.out)
        host.outcome, host.recalled, host.refusals, host.reason = None, True, 0, reason
        if in_work:
            _from_work(host)
        else:
            _start_back(host)
    elif host.outcome is None and not host.back:
        host.recalled, host.reason = True, reason
        if not host.running:
            turn_back(host)


def interrupted(host: HostState) -> None:
    """Nobody performs its step any more; whether it was done is not known."""
    host.running = False
    if host.outcome is Outcome.DONE:  # its soak
        if host.recalled:
            _from_work(host)
        else:
            host.waits = "soak"
    elif host.recalled and not host.back:
        turn_back(host)


def _from_work(host: HostState) -> None:
    """Take back one that is in work; what only builds is not drained."""
    host.outcome, host.back = None, True
    if host.ways.drain:
        go(host, Step.DRAIN, "back")
    elif host.ways.keep and not host.recalled:
        finish(host, Outcome.KEPT)
    else:
        go(host, Step.UNDO, "back")


def _start_back(host: HostState) -> None:
    host.back = True
    if host.returning and host.ways.drain:
        go(host, Step.DRAIN)
    else:
        go(host, Step.UNDO if host.touched else Step.UNDO_VALIDATE)


def _drained(host: HostState) -> None:
    """Of a host that was in work, or may have been: changed, and failed or recalled."""
    if host.ways.keep and host.failed_at is not None and not host.recalled:
        finish(host, Outcome.KEPT)
    else:
        go(host, Step.UNDO if host.touched else Step.UNDO_VALIDATE)


def _judged(host: HostState, boot: str) -> None:
    """Every check passed in ``boot``; in another one than the one that was proven, that has to be proven too."""
    if boot and host.boot in ("", boot):
        host.boot = host.validated = boot
        if host.ways.drain:
            go(host, Step.RETURN)
        else:
            _over(host)
    else:
        host.boot = host.validated = ""
        _again(host, Step.UNDO_BOOT if host.back else Step.BOOT, "it was judged in another boot than it came up in")


def _not_returned(host: HostState) -> None:
    host.boot = host.validated = ""
    why = host.error.message if host.error is not None else ""
    _again(host, Step.UNDO_VALIDATE if host.back else Step.VALIDATE, why or "it could not be returned")


def _again(host: HostState, step: Step, why: str) -> None:
    host.refusals += 1
    if host.refusals <= MAX_REFUSALS:
        go(host, step)
        return
    host.failed_at = host.failed_at or Step.RETURN
    finish(host, Outcome.KEPT, why)


def _over(host: HostState) -> None:
    if host.back:
        finish(host, Outcome.ROLLED_BACK)
    elif host.recalled:
        _from_work(host)
    else:
        finish(host, Outcome.DONE, "every check passed in its boot")
