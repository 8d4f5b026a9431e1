"""One event of a rollout in words, and as the JSON object for streams, webhooks and commands."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, Final

from gdsdeploy.host.io.wording import HIDDEN, count
from gdsdeploy.model import events
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import Plan, Step

#: Raised when a field of the stream changes its meaning or goes away.
VERSION: Final = 1

#: What is being done while a step runs.
DOING: Final[Mapping[str, str]] = {
    Step.PREFLIGHT: "is checked",
    Step.DRAIN: "is taken out of work",
    Step.ENROL: "waits for a person at its console, who enrols the key of its modules",
    Step.SNAPSHOT: "gets a snapshot",
    Step.APPLY: "gets packages and configuration",
    Step.MODULES: "builds or receives its modules",
    Step.AUDIT: "has its modules audited",
    Step.REBOOT: "reboots, or reloads its modules",
    Step.BOOT: "comes back",
    Step.VALIDATE: "is validated",
    Step.RETURN: "returns to work",
    Step.SOAK: "is validated again after the soak",
    Step.POWER: "is switched off and on",
    Step.UNDO: "is restored to its snapshot",
    Step.UNDO_REBOOT: "reboots after its rollback",
    Step.UNDO_BOOT: "comes back after its rollback",
    Step.UNDO_VALIDATE: "is validated after its rollback",
}
#: What an outcome means, behind the host's name.
ENDED: Final[Mapping[str, str]] = {
    "done": "has the new lock, validated, and is back in work",
    "satisfied": "had the new lock already",
    "rolled-back": "is what it was before, validated, and back in work",
    "refused": "was left unchanged",
    "kept": "stays out of work, for inspection",
    "lost": "does not answer and stays out of work",
    "skipped": "takes no part",
}


def sentence(event: Event) -> str:
    """The event in one line, with the host's name; no control characters."""
    words = _words(event)
    named = isinstance(event.payload, _OF_HOST) or (event.host and isinstance(event.payload, events.Note))
    return plain(f"{event.host}: {words}" if named else words)


def plain(text: str) -> str:
    """``text`` in one line without control characters."""
    first, *more = text.splitlines() or [""]
    return HIDDEN.sub("\ufffd", " ".join([first, *(line.strip() for line in more)]))


def to_json(event: Event, rollout: str, fleet: str) -> dict[str, Any]:
    """The event for machines; docs/rollout.md describes it.  rollout: id of its plan.  fleet: path of the file."""
    return {
        "version": VERSION,
        "rollout": rollout,
        "fleet": fleet,
        "number": event.number,
        "time": stamp(event.time),
        "kind": str(event.kind),
        "host": event.host,
        "data": dict(event.data),
        "text": sentence(event),
    }


def line(event: Event, rollout: str, fleet: str) -> str:
    """The same as one line of text."""
    return json.dumps(to_json(event, rollout, fleet), ensure_ascii=False)


def stamp(time: float) -> str:
    """Seconds since the epoch → RFC 3339, UTC, milliseconds."""
    return dt.datetime.fromtimestamp(time, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(time: float) -> str:
    """Seconds since the epoch → ``HH:MM:SS``, UTC."""
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%H:%M:%S")


#: Events about one host; a note may be, too.
_OF_HOST: Final = (events.StepPayload, events.HostEnded, events.HostRecalled)
#: Kind → words before the reason.
_BECAUSE: Final = {
    Kind.RECALL: "is rolled back",
    Kind.PAUSED: "paused: no host is begun",
    Kind.RESUMED: "resumed",
    Kind.HALTED: "halted: no other host is begun, those under way finish",
    Kind.ABORTED: "aborted: hosts under way are rolled back",
    Kind.ROLLBACK: "rollback: every changed host is rolled back",
}


def _words(event: Event) -> str:
    match event.payload:
        case events.StepBegun(step, attempt):
            again = f" (attempt {attempt})" if attempt > 1 else ""
            return f"{step or '?'} begins{again}: it {DOING.get(step, 'is worked on')}"
        case events.StepDone(step):
            return f"{step or '?'} is done"
        case events.StepFailed(step, error):
            return f"{step or '?'} failed: {error.message if error is not None else 'no reason was given'}"
        case events.HostEnded(outcome, reason):
            return f"{outcome or '?'}: it {ENDED.get(outcome, 'has ended')}" + (f" ({reason})" if reason else "")
        case events.RolloutPlanned(plan):
            return _planned(plan)
        case events.WaveOpened(wave):
            return f"wave {wave or '?'} begins"
        case events.WaveSoaking(wave, until):
            return f"wave {wave or '?'} soaks" + (f" until {clock(until)} UTC" if until is not None else "")
        case events.WaveClosed(wave):
            return f"wave {wave or '?'} is done"
        case events.RolloutFinished(outcomes):
            words = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items() if number)
            return f"the rollout is finished: {words or 'no host took part'}"
        case events.Note(text):
            return text
        case events.ReasonPayload(reason):
            return _BECAUSE[event.kind] + (f": {reason}" if reason else "")
        case _:
            raise NotImplementedError(event.kind)


def _planned(plan: Mapping[str, Any]) -> str:
    try:
        parsed = Plan.from_json(plan)
    except ValueError:
        return "a rollout is planned, by another gdsdeploy"
    hosts = sum(len(wave.hosts) for wave in parsed.waves)
    return f"rollout {parsed.id} is planned: {count(hosts, 'host')} in {count(len(parsed.waves), 'wave')}"
