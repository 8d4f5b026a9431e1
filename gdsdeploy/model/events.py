"""Events of a rollout: a class for each kind, which pydantic reads from the journal's JSON.

An event has its content twice: ``payload`` for the program, and ``data`` as in the journal's JSON, with the order of
its keys and with unknown keys.  A missing key has its field's default; a value of another type is refused.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Self

from pydantic import AfterValidator, StrictBool, StrictFloat, StrictInt

from gdsdeploy.model.rollout import STRICT, JsonForm, Plan
from gdsdeploy.model.text import read


class Kind(enum.StrEnum):
    """Kinds of events, as the journal names them; each payload class has its own."""

    BEGIN = "begin"
    END = "end"
    FAIL = "fail"
    OUTCOME = "outcome"
    RECALL = "recall"

    PLANNED = "planned"
    OPENED = "opened"
    SOAKING = "soaking"
    CLOSED = "closed"
    PAUSED = "paused"
    RESUMED = "resumed"
    HALTED = "halted"
    ABORTED = "aborted"
    ROLLBACK = "rollback"
    FINISHED = "finished"
    LOOKED = "looked"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Payload:
    """The content of an event."""

    @property
    def kind(self) -> Kind:
        return _KINDS[type(self)]


@dataclass(frozen=True, slots=True)
class StepPayload(Payload):
    """Of one step of one host."""

    #: name of a Step; a name from another gdsdeploy can still be shown
    step: str = ""


@dataclass(frozen=True, slots=True)
class WavePayload(Payload):
    """Of one wave."""

    #: its name
    wave: str = ""


@dataclass(frozen=True, slots=True)
class ReasonPayload(Payload):
    """With a reason, which may be empty."""

    reason: str = ""


# -- facts from steps


@dataclass(frozen=True, slots=True)
class ReleaseDigests:
    """The release that a host had: digests of its lock and of its fleet file."""

    lock: str
    fleet: str


@dataclass(frozen=True, slots=True)
class ModulesBefore:
    """Where a host's modules came from."""

    #: ``build``, ``receive`` or ``packaged``
    mode: str = "build"
    want: str = ""
    #: key of the builder of a cached build
    origin: str = ""
    #: path on the host of the archive with received modules; empty: there is none
    archive: str = ""


@dataclass(slots=True)
class Facts:
    """Facts of a host on which decisions depend; others are only shown."""

    #: digest of the lock that it had, and that lock's release
    current: str | None = None
    release: ReleaseDigests | None = None
    #: its last known boot, and the boot in which every check passed
    boot_id: str | None = None
    validated_boot: str | None = None
    kernel: str | None = None
    satisfied: StrictBool = False
    disruption: str = ""
    #: how the installed modules were loaded: none, reload or reboot
    how: str | None = None
    #: see rollout.steps.answers.Snapshot
    snapshot: Mapping[str, Any] | None = None
    modules_before: ModulesBefore | None = None
    #: whether it's in work again; why not, or with what reason it was drained
    returned: StrictBool | None = None
    reason: str = ""
    #: the Standing, ``works`` or ``unknown``, for which a step was put off; whether it may have done something before
    standing: str | None = None
    begun: StrictBool = False
    verdict: str = ""


def _with_facts(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a step has found, if the facts in it can be read."""
    read(Facts, data)
    return data


# -- of one host


@dataclass(frozen=True, slots=True)
class StepBegun(StepPayload):
    """A step begins."""

    #: from 1; above 1: an earlier attempt may have done it, wholly or in part
    attempt: StrictInt = 1


@dataclass(frozen=True, slots=True)
class StepDone(StepPayload):
    """A step ended well."""

    #: facts from the step
    data: Annotated[Mapping[str, Any], AfterValidator(_with_facts)] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        return read(Facts, self.data)


@dataclass(frozen=True, slots=True)
class StepError:
    """Why a step failed."""

    #: name of the error's class; "HostUnreachable": the host doesn't answer
    kind: str = ""
    message: str = ""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class StepFailed(StepPayload):
    """A step failed."""

    error: StepError | None = None


@dataclass(frozen=True, slots=True)
class HostEnded(Payload):
    """Nothing more is done with the host."""

    #: name of an Outcome
    outcome: str = ""
    reason: str = ""


class HostRecalled(ReasonPayload):
    """The host is to be rolled back, or asked again."""


# -- of the whole rollout


@dataclass(frozen=True, slots=True)
class RolloutPlanned(Payload):
    """The first event of every journal."""

    #: a Plan as JSON
    plan: Mapping[str, Any] = field(default_factory=dict)


class WaveOpened(WavePayload):
    """Hosts of the wave may be begun."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement for the rest of a soak."""

    #: remaining seconds of the soak
    left: StrictFloat
    #: boot of the driver's machine, and seconds since that boot
    boot: str
    steady: StrictFloat


@dataclass(frozen=True, slots=True)
class WaveSoaking(WavePayload):
    """Hosts of the wave are in work, and are validated again at the end of the soak."""

    #: seconds since the epoch
    until: StrictFloat | None = None
    measured: Measurement | None = None


class WaveClosed(WavePayload):
    """The wave is over."""


class RolloutPaused(ReasonPayload):
    """No host is begun, those under way finish their step."""


@dataclass(frozen=True, slots=True)
class RolloutResumed(ReasonPayload):
    """The rollout continues, and asks lost hosts again."""

    #: failed hosts that no longer count against the threshold
    accept: tuple[str, ...] = ()


class RolloutHalted(ReasonPayload):
    """No other host is begun, those under way finish."""


class RolloutAborted(ReasonPayload):
    """As halted, and those under way are rolled back."""


class RollbackBegun(ReasonPayload):
    """Every changed host is rolled back."""


@dataclass(frozen=True, slots=True)
class RolloutFinished(Payload):
    """The end."""

    #: outcome → number of hosts
    outcomes: Mapping[str, StrictInt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchedulerLooked(Payload):
    """Who is out of work was asked, and is not what it was."""

    #: every host that others keep out of work, or that takes no part and doesn't answer
    down: tuple[str, ...] = ()
    #: hosts that this rollout thought to be out of work, and that are in work
    back: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Note(Payload):
    """A remark about one host or the whole rollout; it changes nothing."""

    text: str = ""


PAYLOADS: Mapping[Kind, type[Payload]] = {
    Kind.BEGIN: StepBegun, Kind.END: StepDone, Kind.FAIL: StepFailed, Kind.OUTCOME: HostEnded,
    Kind.RECALL: HostRecalled, Kind.PLANNED: RolloutPlanned, Kind.OPENED: WaveOpened, Kind.SOAKING: WaveSoaking,
    Kind.CLOSED: WaveClosed, Kind.PAUSED: RolloutPaused, Kind.RESUMED: RolloutResumed, Kind.HALTED: RolloutHalted,
    Kind.ABORTED: RolloutAborted, Kind.ROLLBACK: RollbackBegun, Kind.FINISHED: RolloutFinished, Kind.NOTE: Note,
    Kind.LOOKED: SchedulerLooked,
}  # fmt: skip
_KINDS: Mapping[type[Payload], Kind] = {shape: kind for kind, shape in PAYLOADS.items()}
#: An event that has no number and no time yet; its host is empty where it is of the whole rollout.
Draft = tuple[str, Payload]


@dataclass(frozen=True, slots=True)
class Event(JsonForm):
    """One line of the journal.  Raises ValueError for ``data`` that this program doesn't write, with the place."""

    __pydantic_config__ = STRICT

    #: from 1, without gaps
    number: int
    #: seconds since the epoch by this machine's clock, which may be set back
    time: float
    kind: Kind
    #: empty: of the whole rollout
    host: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    payload: Payload = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", read(PAYLOADS[self.kind], self.data))

    @classmethod
    def of(cls, number: int, time: float, host: str, payload: Payload) -> Self:
        """The event with this payload; raises TypeError where a value in it has no JSON."""
        return cls(number, time, payload.kind, host, json.loads(json.dumps(as_json(payload))))


def plan_of(first: Event | None) -> Plan:
    """The plan in a journal's first event; raises ValueError."""
    if first is None or not isinstance(first.payload, RolloutPlanned):
        raise ValueError("a journal begins with the plan of its rollout")
    return Plan.from_json(first.payload.plan)


def as_json(payload: Payload) -> dict[str, Any]:
    """The JSON object of a payload, without its fields that are None."""
    return {name: value for name, value in asdict(payload).items() if value is not None}
