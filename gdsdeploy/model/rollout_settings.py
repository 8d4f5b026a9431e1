"""How a fleet is rolled out: the section ``rollout`` of the fleet file."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, Strict, StringConstraints, field_validator, model_validator

from gdsdeploy.model.events import Kind
from gdsdeploy.model.text import Model, matching

#: Keys and values by which hosts are grouped and ordered.
LabelName = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$",
        "a label has up to 63 letters, digits, dots, hyphens, slashes and underscores",
    ),
]
Labels = dict[LabelName, LabelName]
#: A number of hosts, or ``N%`` of those that take part.
Share = (
    Annotated[int, Field(ge=0)]
    | Annotated[str, matching(r"^(100|[0-9]{1,2})(\.[0-9]+)?%$", "write a number of hosts, or a share such as 25%")]
)
Argument = Annotated[str, StringConstraints(min_length=1)]
#: Program and arguments; ``{host}`` and other words in braces are replaced, each within its argument.
Command = Annotated[tuple[Argument, ...], Strict(False), Field(min_length=1)]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MONTH = 30 * 86400


def seconds(value: object) -> object:
    """``90``, ``"90s"``, ``"10m"``, ``"2h"`` or ``"1d"`` → seconds."""
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]+)([smhd])", value)):
        return int(match[1]) * _SECONDS[match[2]]
    if isinstance(value, str):
        raise ValueError('a time is a number of seconds, or text such as "90s", "10m", "2h", "1d"')
    return value


#: Lets a fleet file write seconds with another unit.
UNITS = BeforeValidator(seconds)


class Canary(Model):
    """The first wave: those whose failure costs least."""

    #: hosts by name or shell pattern
    hosts: Annotated[tuple[Argument, ...], Strict(False)] = ()
    #: hosts that have all of these labels
    labels: Labels = Field(default_factory=dict)
    #: one of each kind: hosts of one profile, GPU model and running kernel; what counts if nothing is named above
    per_kind: bool = True
    #: seconds that pass before the wave is judged again and the next one begins
    soak: Annotated[int, Field(ge=0, le=_MONTH), UNITS] = 600


class Batches(Model):
    """How large the waves after the canary are."""

    strategy: Literal["fixed", "linear", "exponential"] = "exponential"
    #: size of the first; ``fixed``: of each; ``linear``: also by how much each is larger than the one before
    size: Share = 1
    #: ``exponential``: by how much each is larger
    factor: Annotated[int, Field(ge=2, le=10)] = 2
    #: size of the largest
    largest: Share = "25%"
    #: seconds between one and the next
    soak: Annotated[int, Field(ge=0, le=_MONTH), UNITS] = 0


class Failures(Model):
    """How many hosts may fail before no other is begun: at this number the rollout halts."""

    canary: Annotated[int, Field(ge=1)] = 1
    #: of the hosts that take part; never less than one host
    later: Share = "5%"

    @field_validator("later")
    @classmethod
    def _finite(cls, value: int | str) -> int | str:
        if value == 0:
            raise ValueError("0 would halt before anything failed; 1 halts at the first failure")
        return value


class Drain(Model):
    """How hosts are taken out of work, and brought back."""

    by: Literal["none", "slurm", "kubernetes", "command"] = "none"
    #: seconds that running work has to end in
    timeout: Annotated[int, Field(ge=1, le=_MONTH), UNITS] = 4 * 3600
    #: what runs scontrol or kubectl, where it is not to be looked for on this machine: ``[ssh, head, scontrol]``
    program: Command | None = None
    #: the node's name with its scheduler, where it is not the host's: ``{host}.cluster.example``
    node: Argument = "{host}"
    #: ``command``: takes a host out, returns it, and says with status 0 that no work is left on it
    out: Command | None = None
    back: Command | None = None
    idle: Command | None = None

    @model_validator(mode="after")
    def _commands(self) -> Self:
        if self.by == "command" and not (self.out and self.back):
            raise ValueError("by: command needs out and back")
        if self.by != "command" and (self.out or self.back or self.idle):
            raise ValueError("out, back and idle are for by: command")
        return self


WebAddress = Annotated[
    str, matching(r"^https?://[^\s\x00-\x1f\x7f]+$", "write an address that begins with https:// or http://")
]


class Notify(Model):
    """What receives notice of events; a failed notice never stops a rollout."""

    #: JSON is posted there, one event each
    webhook: WebAddress | None = None
    #: File with a bearer token for it, relative to the fleet file.
    token_file: Argument | None = None
    #: program that gets the event as JSON on standard input
    command: Command | None = None
    #: kinds of events; empty: what a person is woken for (halted, paused, finished, a host that failed or is lost)
    events: Annotated[tuple[Argument, ...], Strict(False)] = ()

    @field_validator("events")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        kinds = [str(kind) for kind in Kind]
        for event in value:
            if event not in kinds:
                raise ValueError(f"{event!r} isn't an event; there are {', '.join(kinds)}")
        return value


_DAYS = r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)(-(Mon|Tue|Wed|Thu|Fri|Sat|Sun))?"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_WINDOW = re.compile(rf"^({_DAYS}(,{_DAYS})* )?{_TIME}-({_TIME}|24:00)$")


class Rollout(Model):
    """Everything that a rollout of this fleet keeps to."""

    canary: Canary = Canary()
    batches: Batches = Batches()
    #: hosts out of work at a time, counting those that are down anyway
    max_unavailable: Share = "25%"
    #: labels of which no two hosts with equal values are out at a time: ``[rack, replica]``
    apart: Annotated[tuple[LabelName, ...], Strict(False)] = ()
    #: labels whose values decide the order of hosts
    order: Annotated[tuple[LabelName, ...], Strict(False)] = ()
    #: hosts with this label, whatever its value, are left out
    skip: LabelName = "gdsdeploy-skip"
    #: when hosts may be begun: ``Mon-Fri 22:00-05:00``; empty: always
    windows: Annotated[tuple[str, ...], Strict(False)] = ()
    #: of the windows, as in the tz database
    timezone: Argument = "UTC"
    failures: Failures = Failures()
    drain: Drain = Drain()
    #: whether a failed host is brought back to what it was; ``keep`` leaves it drained for a person to look at
    on_failure: Literal["rollback", "keep"] = "rollback"
    #: seconds that a host has to answer in after its reboot
    reboot_timeout: Annotated[int, Field(ge=30, le=86400), UNITS] = 1200
    #: what switches a host off and on that does not come back: ``[ipmi, power, cycle, "{host}"]``
    power_cycle: Command | None = None
    #: whether loaded modules may be exchanged without a reboot where nothing uses them and the kernel stays
    reload: bool = True
    #: hosts that are worked on at a time, whatever the budget allows
    parallel: Annotated[int, Field(ge=1, le=256)] = 16
    notify: Notify = Notify()

    @field_validator("windows")
    @classmethod
    def _windows(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for window in value:
            if not _WINDOW.match(window):
                raise ValueError(f'{window!r} isn\'t a window; write "22:00-05:00" or "Mon-Fri,Sun 22:00-05:00"')
        return value

    @field_validator("max_unavailable")
    @classmethod
    def _some(cls, value: int | str) -> int | str:
        if value == 0:
            raise ValueError("with none unavailable no host could be begun")
        return value
