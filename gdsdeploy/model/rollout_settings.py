"""The section ``rollout`` of the fleet file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Strict, StringConstraints, field_validator, model_validator

from gdsdeploy.model.events import Kind
from gdsdeploy.model.text import SECRET, Model, matching

#: Keys and values by which hosts are grouped and ordered.
LabelName = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$",
        "a label has up to 63 letters, digits, dots, hyphens, slashes and underscores",
    ),
]
Labels = dict[LabelName, LabelName]
LabelNames = Annotated[tuple[LabelName, ...], Strict(False)]
#: A number of hosts, or ``N%`` of those that take part.
Share = (
    Annotated[int, Field(ge=0)]
    | Annotated[str, matching(r"^(100|[0-9]{1,2})(\.[0-9]+)?%$", "write a number of hosts, or a share such as 25%")]
)
Argument = Annotated[str, StringConstraints(min_length=1)]
Arguments = Annotated[tuple[Argument, ...], Strict(False)]
#: Program and arguments; ``{host}`` and other words in braces are replaced, each within its argument.
Command = Annotated[Arguments, Field(min_length=1)]


def fill(command: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """``command`` with ``{NAME}`` replaced for each name in ``values``; a value may itself hold braces."""
    return [re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), word) for word in command]


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(value: object) -> object:
    """``90``, ``"90s"``, ``"10m"``, ``"2h"`` or ``"1d"`` → seconds."""
    if not isinstance(value, str):
        return value
    if (match := re.fullmatch(r"([0-9]+)([smhd])", value)) is None:
        raise ValueError('a time is a number of seconds, or text such as "90s", "10m", "2h", "1d"')
    return int(match[1]) * _UNITS[match[2]]


Seconds = Annotated[int, BeforeValidator(seconds)]
Soak = Annotated[Seconds, Field(ge=0, le=30 * 86400)]


def _nonzero(words: str) -> AfterValidator:
    """Refuses 0; ``words`` say why."""

    def check(value: int | str) -> int | str:
        if value == 0:
            raise ValueError(words)
        return value

    return AfterValidator(check)


class Canary(Model):
    """The first wave."""

    #: hosts by name or shell pattern
    hosts: Arguments = ()
    #: hosts that have all of these labels
    labels: Labels = Field(default_factory=dict)
    #: one host of each kind (profile, GPU model and running kernel), if neither key above names any
    per_kind: bool = True
    #: seconds before the wave is validated again and the next one begins
    soak: Soak = 600


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
    soak: Soak = 0


class Console(Model):
    """Hosts at whose consoles a person enrols the key of the modules."""

    #: hosts that wait for a person at a time
    hosts: Annotated[int, Field(ge=1, le=64)] = 1
    #: seconds from the order to reboot until a host has to answer with the key enrolled
    timeout: Annotated[Seconds, Field(ge=60, le=86400)] = 1800


class Failures(Model):
    """How many hosts may fail before no other is begun: at this number the rollout halts."""

    canary: Annotated[int, Field(ge=1)] = 1
    #: of the hosts that take part; never less than one host
    later: Annotated[Share, _nonzero("0 would halt before anything failed; 1 halts at the first failure")] = "5%"


class Drain(Model):
    """How hosts are taken out of work, and brought back."""

    by: Literal["none", "slurm", "kubernetes", "command"] = "none"
    #: seconds that running work has to end in
    timeout: Annotated[Seconds, Field(ge=1, le=30 * 86400)] = 4 * 3600
    #: what runs scontrol or kubectl, if that isn't a program in PATH: ``[ssh, head, scontrol]``
    program: Command | None = Field(default=None, json_schema_extra=SECRET)
    #: the node's name with its scheduler, where it is not the host's: ``{host}.cluster.example``
    node: Argument = "{host}"
    #: ``command``: takes a host out, returns it, and says with status 0 that no work is left on it
    out: Command | None = Field(default=None, json_schema_extra=SECRET)
    back: Command | None = Field(default=None, json_schema_extra=SECRET)
    idle: Command | None = Field(default=None, json_schema_extra=SECRET)

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
    """Receivers of a rollout's events; a failure to reach them never stops a rollout."""

    #: JSON is posted there, one event each
    webhook: WebAddress | None = Field(default=None, json_schema_extra=SECRET)
    #: File with a bearer token for it, relative to the fleet file.
    token_file: Argument | None = Field(default=None, json_schema_extra=SECRET)
    #: program that gets the event as JSON on standard input
    command: Command | None = Field(default=None, json_schema_extra=SECRET)
    #: kinds of events; empty: halted, paused, aborted, rollback, finished, and a host that failed or is lost
    events: Arguments = ()

    @field_validator("events")
    @classmethod
    def _events(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in list(Kind):
                raise ValueError(f"{name!r} isn't an event; there are {', '.join(Kind)}")
        return value


_DAY, _TIME = "(Mon|Tue|Wed|Thu|Fri|Sat|Sun)", "([01][0-9]|2[0-3]):[0-5][0-9]"
_WINDOW = re.compile(rf"^({_DAY}(-{_DAY})?(,{_DAY}(-{_DAY})?)* )?{_TIME}-({_TIME}|24:00)$")


class Rollout(Model):
    """Settings of every rollout of the fleet."""

    canary: Canary = Canary()
    batches: Batches = Batches()
    #: hosts out of work at a time, counting those that are down anyway
    max_unavailable: Annotated[Share, _nonzero("with none unavailable no host could be begun")] = "25%"
    #: labels of which no two hosts with equal values are out at a time: ``[rack, replica]``
    apart: LabelNames = ()
    #: labels that order the hosts, by value
    order: LabelNames = ()
    #: hosts with this label, whatever its value, are left out
    skip: LabelName = "gdsdeploy-skip"
    #: when hosts may be begun: ``Mon-Fri 22:00-05:00``; empty: always
    windows: Annotated[tuple[str, ...], Strict(False)] = ()
    #: of the windows, as in the tz database
    timezone: Argument = "UTC"
    console: Console = Console()
    failures: Failures = Failures()
    drain: Drain = Drain()
    #: whether a failed host is rolled back; ``keep`` leaves it drained for inspection
    on_failure: Literal["rollback", "keep"] = "rollback"
    #: seconds that a host has to answer in after its reboot
    reboot_timeout: Annotated[Seconds, Field(ge=30, le=86400)] = 1200
    #: what switches a host off and on that does not come back: ``[ipmi, power, cycle, "{host}"]``
    power_cycle: Command | None = Field(default=None, json_schema_extra=SECRET)
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
                raise ValueError(f'{window!r} is no window; write "22:00-05:00" or "Mon-Fri,Sun 22:00-05:00"')
        return value
