"""What a rollout speaks of: steps, outcomes, waves, the plan.  Frozen; everything here can be written down as JSON.

The truth is the journal: a sequence of events.  What a host or the rollout is now is a fold over them, so that
whoever reads the journal, at whatever time, sees the same.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

#: Of what is written down: a journal of another one is not read.
VERSION = 1
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_adapters: dict[type, TypeAdapter[Any]] = {}


class Step(enum.StrEnum):
    """What is done with one host, in this order; each can be done again without harm."""

    #: asks the host what it is; changes nothing
    PREFLIGHT = "preflight"
    #: takes it out of work and waits until none is left
    DRAIN = "drain"
    #: writes down what it is, and makes sure that it can become that again
    SNAPSHOT = "snapshot"
    #: repositories, pins, packages, kernel, cufile.json; the boot default stays
    APPLY = "apply"
    #: builds or receives the kernel modules
    MODULES = "modules"
    #: audits them for the kernel that will run
    AUDIT = "audit"
    #: exchanges the modules, or reboots (once into the new kernel; the default stays), or neither
    REBOOT = "reboot"
    #: waits until it answers, and proves which boot and which kernel that is
    BOOT = "boot"
    #: every check, in this boot; then makes the new kernel the boot default
    VALIDATE = "validate"
    #: brings it back into work
    RETURN = "return"

    #: judges it again at the end of its wave's soak; it stays in work
    SOAK = "soak"

    #: switches it off and on, because it did not come back; after it that is waited for once more
    POWER = "power"
    #: packages, pins, kernel, modules, cufile.json and boot default as the snapshot has them
    UNDO = "undo"
    UNDO_REBOOT = "undo-reboot"
    UNDO_BOOT = "undo-boot"
    #: every check, against what it was before
    UNDO_VALIDATE = "undo-validate"


FORWARD = (
    Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT, Step.APPLY, Step.MODULES, Step.AUDIT, Step.REBOOT, Step.BOOT,
    Step.VALIDATE, Step.RETURN,
)  # fmt: skip
BACK = (Step.UNDO, Step.UNDO_REBOOT, Step.UNDO_BOOT, Step.UNDO_VALIDATE, Step.RETURN)


class Outcome(enum.StrEnum):
    """How it ended for one host."""

    #: has the new lock, validated, back in work
    DONE = "done"
    #: had it already
    SATISFIED = "satisfied"
    #: was touched, is what it was before, validated, back in work
    ROLLED_BACK = "rolled-back"
    #: was never taken out of work: its preflight refused it
    REFUSED = "refused"
    #: out of work, for somebody to look at
    KEPT = "kept"
    #: does not answer; out of work
    LOST = "lost"
    #: left out by its label, or recalled or no longer in the fleet before anything was done to it
    SKIPPED = "skipped"


#: Outcomes that count against the threshold.
FAILURES = frozenset({Outcome.ROLLED_BACK, Outcome.REFUSED, Outcome.KEPT, Outcome.LOST})


def _adapter(shape: type) -> TypeAdapter[Any]:
    if shape not in _adapters:
        _adapters[shape] = TypeAdapter(shape)
    return _adapters[shape]


class Written:
    """What can be written down as JSON and read again, each key with its type and no other key."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """Objects, lists, text, numbers and booleans only."""
        written: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json")
        return written

    @classmethod
    def from_json(cls, value: object) -> Self:
        """What ``as_json`` gave, or its text; raises ValueError: what is wrong, and where in it."""
        try:
            text = value if isinstance(value, str) else json.dumps(value)
            read: Self = _adapter(cls).validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{cls.__name__.lower()}: {place + ': ' if place else ''}{first['msg']}") from None
        except TypeError as error:
            raise ValueError(f"{cls.__name__.lower()}: {error}") from None
        return read


@dataclass(frozen=True)
class Wave(Written):
    """Hosts that go before the next wave does."""

    __pydantic_config__ = STRICT

    name: str
    hosts: tuple[str, ...]
    #: seconds
    soak: int = 0
    #: failed hosts at which the rollout halts, counted over canaries only, or over all waves after them
    halt_at: int = 1
    canary: bool = False
    #: whether its hosts are taken out of work; False: hosts that only build, which have none
    drain: bool = True


@dataclass(frozen=True)
class Plan(Written):
    """Everything that was decided before a rollout began; a journal holds it, so that a resumed one keeps to it."""

    __pydantic_config__ = STRICT

    #: e.g. ``20261121T1054-7f3a``; what drains by this rollout are signed with
    id: str
    #: absolute path of the fleet file
    fleet: str
    #: digests of the lock to bring hosts to, and of the fleet file, as they were
    lock_digest: str
    fleet_digest: str
    waves: tuple[Wave, ...]
    #: model.intended.Rollout as JSON
    settings: Mapping[str, Any]
    #: host → labels
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: host → digest of the lock that it has
    previous: Mapping[str, str] = field(default_factory=dict)
    #: hosts of the fleet that were out of work already; they count as unavailable
    down: tuple[str, ...] = ()
    #: host → why it takes no part
    skipped: Mapping[str, str] = field(default_factory=dict)
    #: hosts out of work at a time
    max_unavailable: int = 1
    #: host → seconds that its work is expected to take
    expected: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """With ``version``, which is that of everything in its journal."""
        return {"version": VERSION, **Written.as_json(self)}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """What ``as_json`` gave, or its text; raises ValueError: of another version, or what is wrong and where."""
        try:
            read = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"plan: {error}") from None
        if not isinstance(read, Mapping):
            raise ValueError("plan: no object")
        if read.get("version") != VERSION:
            raise ValueError(f"plan: version {read.get('version')!r}, but this gdsdeploy reads {VERSION}")
        return super().from_json({key: item for key, item in read.items() if key != "version"})


@dataclass(frozen=True, slots=True)
class Task(Written):
    """One step to be done with one host."""

    __pydantic_config__ = STRICT

    host: str
    step: Step
    #: from 1; above 1: an earlier attempt may have done it, wholly or in part
    attempt: int = 1
    #: what earlier steps found on the host, as their END events had it, merged
    known: Mapping[str, Any] = field(default_factory=dict)
