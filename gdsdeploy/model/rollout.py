"""Steps, outcomes, waves and the plan of a rollout; all of them have a form as JSON.

The state of a rollout is a fold over the events in its journal, so that every reader sees the same.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import ConfigDict, ValidationError

from gdsdeploy.model.text import adapter, first_error

#: Version of a plan and its journal; no other one is read.
VERSION = 1
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Step(enum.StrEnum):
    """Steps of one host, in this order; each can be repeated without harm."""

    #: checks the host; changes nothing
    PREFLIGHT = "preflight"
    #: takes it out of work and waits until no work is left on it
    DRAIN = "drain"
    #: has its firmware take the key of its modules, by a person at the console; in waves for that only
    ENROL = "enrol"
    #: records its state, and makes sure that it can be rolled back
    SNAPSHOT = "snapshot"
    #: repositories, pins, packages, kernel, cufile.json; the boot default stays
    APPLY = "apply"
    #: builds or receives the kernel modules
    MODULES = "modules"
    #: audits them for the kernel that will run
    AUDIT = "audit"
    #: exchanges the modules, or reboots (once into the new kernel; the default stays), or neither
    REBOOT = "reboot"
    #: waits until it answers, and checks its boot and its kernel
    BOOT = "boot"
    #: every check, in this boot; then makes the new kernel the boot default
    VALIDATE = "validate"
    #: returns it to work
    RETURN = "return"

    #: validates it again at the end of its wave's soak, while it works
    SOAK = "soak"

    #: switches it off and on, because it did not come back; then BOOT is repeated
    POWER = "power"
    #: restores packages, pins, kernel, modules, cufile.json and boot default from the snapshot
    UNDO = "undo"
    UNDO_REBOOT = "undo-reboot"
    UNDO_BOOT = "undo-boot"
    #: every check with the earlier lock, and a comparison with the snapshot
    UNDO_VALIDATE = "undo-validate"


#: Of a host that goes well, and of the way back; ENROL comes before SNAPSHOT in waves for that.
FORWARD = (
    Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT, Step.APPLY, Step.MODULES, Step.AUDIT, Step.REBOOT, Step.BOOT,
    Step.VALIDATE, Step.RETURN,
)  # fmt: skip
BACK = (Step.UNDO, Step.UNDO_REBOOT, Step.UNDO_BOOT, Step.UNDO_VALIDATE, Step.RETURN)


class Standing(enum.StrEnum):
    """What keeps a host out of work, as its scheduler has it now."""

    #: this rollout's drain, and no work is left on it
    OURS = "ours"
    #: another drain, and no work is left on it
    THEIRS = "theirs"
    #: it is in work, or work is left on it
    WORKS = "works"
    #: the scheduler doesn't answer
    UNKNOWN = "unknown"


class Outcome(enum.StrEnum):
    """How a rollout ended for one host."""

    #: has the new lock, validated, back in work
    DONE = "done"
    #: had the new lock already
    SATISFIED = "satisfied"
    #: was changed, and is what it was before, validated, back in work
    ROLLED_BACK = "rolled-back"
    #: its preflight refused it, so it stayed in work
    REFUSED = "refused"
    #: out of work, for inspection
    KEPT = "kept"
    #: does not answer; out of work
    LOST = "lost"
    #: left out by its label, or recalled or removed from the fleet before any change
    SKIPPED = "skipped"


#: Outcomes that count against the threshold.
FAILURES = frozenset({Outcome.ROLLED_BACK, Outcome.REFUSED, Outcome.KEPT, Outcome.LOST})


class JsonForm:
    """A dataclass with a form as JSON: each key with its type, and no other key."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """Objects, lists, text, numbers and booleans only."""
        written: dict[str, Any] = adapter(type(self)).dump_python(self, mode="json")
        return written

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read what ``as_json`` returned; raises ValueError with the wrong place."""
        try:
            instance: Self = adapter(cls).validate_json(json.dumps(value))
        except (ValidationError, TypeError) as error:
            why = first_error(error) if isinstance(error, ValidationError) else error
            raise ValueError(f"{cls.__name__.lower()}: {why}") from None
        return instance


@dataclass(frozen=True)
class Wave(JsonForm):
    """Hosts that finish before the next wave begins."""

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
    #: whether a person has to enrol a key at the console of each host
    console: bool = False


@dataclass(frozen=True)
class Plan(JsonForm):
    """Everything that was decided before a rollout began; its journal has it, for a later resume."""

    __pydantic_config__ = STRICT

    #: such as ``20261121T1054-7f3a``; signs the rollout's drains
    id: str
    #: absolute path of the fleet file
    fleet: str
    #: digests of the lock to bring hosts to, and of the fleet file, as they were
    lock_digest: str
    fleet_digest: str
    waves: tuple[Wave, ...]
    #: model.rollout_settings.Rollout as JSON
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
    #: whether hosts take a lock that is older than theirs
    any_serial: bool = False

    def as_json(self) -> dict[str, Any]:
        """With ``version``, which is that of everything in its journal."""
        return {"version": VERSION, **JsonForm.as_json(self)}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read what ``as_json`` returned; raises ValueError: another version, or the wrong place."""
        if not isinstance(value, Mapping):
            raise ValueError("plan: no object")
        if value.get("version") != VERSION:
            raise ValueError(f"plan: version {value.get('version')!r}, but this gdsdeploy reads {VERSION}")
        return super().from_json({key: part for key, part in value.items() if key != "version"})


@dataclass(frozen=True, slots=True)
class Task:
    """One step to be done with one host."""

    host: str
    step: Step
    #: from 1; above 1: an earlier attempt may have done it, wholly or in part
    attempt: int = 1
    #: facts from earlier steps, as in their END events, merged
    data: Mapping[str, Any] = field(default_factory=dict)
