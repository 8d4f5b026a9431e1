"""One event of a rollout in words, and as the JSON object that streams, webhooks and commands get."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from gdsdeploy.host.io.printable import HIDDEN
from gdsdeploy.model.rollout import Event, Kind, Step

#: Raised when a field of the stream changes its meaning or goes away.
VERSION: Final = 1

#: What is being done while a step runs.
DOING: Final[Mapping[str, str]] = {
    Step.PREFLIGHT: "is asked what it is",
    Step.DRAIN: "is taken out of work",
    Step.SNAPSHOT: "is written down as it is",
    Step.APPLY: "gets packages and configuration",
    Step.MODULES: "builds or receives its modules",
    Step.AUDIT: "has its modules audited",
    Step.REBOOT: "reboots, or reloads its modules",
    Step.BOOT: "comes back",
    Step.VALIDATE: "is validated",
    Step.RETURN: "goes back into work",
    Step.SOAK: "is validated again after the soak",
    Step.POWER: "is switched off and on",
    Step.UNDO: "is made what it was",
    Step.UNDO_REBOOT: "reboots into what it was",
    Step.UNDO_BOOT: "comes back as what it was",
    Step.UNDO_VALIDATE: "is validated as what it was",
}
#: What an outcome means, behind the host's name.
ENDED: Final[Mapping[str, str]] = {
    "done": "has the new lock, validated, and is back in work",
    "satisfied": "had the new lock already",
    "rolled-back": "is what it was before, validated, and back in work",
    "refused": "was left as it is",
    "kept": "stays out of work, for somebody to look at",
    "lost": "does not answer and stays out of work",
    "skipped": "takes no part",
}


def sentence(event: Event) -> str:
    """The event in one line, with the host's name; no control characters."""
    words = _HOST[event.kind](event) if event.kind in _HOST else _WHOLE[event.kind](event)
    return plain(words)


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


def span(seconds: float) -> str:
    """Seconds as a person says them: ``8 s``, ``12 min``, ``1 h 05 min``, ``2 d 3 h``."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _step(event: Event) -> str:
    return str(event.data.get("step", "?"))


def _begin(event: Event) -> str:
    attempt = int(event.data.get("attempt", 1))
    again = f" (attempt {attempt})" if attempt > 1 else ""
    return f"{event.host}: {_step(event)} begins{again}: it {DOING.get(_step(event), 'is worked on')}"


def _fail(event: Event) -> str:
    error = event.data.get("error") or {}
    return f"{event.host}: {_step(event)} failed: {error.get('message', 'no reason was given')}"


def _outcome(event: Event) -> str:
    word = str(event.data.get("outcome", "?"))
    reason = str(event.data.get("reason") or "")
    return f"{event.host}: {word}: it {ENDED.get(word, 'has ended')}" + (f" ({reason})" if reason else "")


def _planned(event: Event) -> str:
    plan = event.data.get("plan") or {}
    waves = plan.get("waves") or ()
    hosts = sum(len(wave.get("hosts", ())) for wave in waves)
    return f"rollout {plan.get('id', '?')} is planned: {count(hosts, 'host')} in {count(len(waves), 'wave')}"


def _soaking(event: Event) -> str:
    until = event.data.get("until")
    when = f" until {clock(float(until))} UTC" if until is not None else ""
    return f"wave {event.data.get('wave', '?')} soaks{when}"


def _finished(event: Event) -> str:
    numbers = event.data.get("outcomes") or {}
    words = ", ".join(f"{number} {outcome}" for outcome, number in numbers.items() if number)
    return f"the rollout is finished: {words or 'no host took part'}"


def _because(words: str) -> Callable[[Event], str]:
    def say(event: Event) -> str:
        reason = str(event.data.get("reason") or "")
        return words + (f": {reason}" if reason else "")

    return say


def count(number: int, noun: str) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_HOST: dict[Kind, Callable[[Event], str]] = {
    Kind.BEGIN: _begin,
    Kind.END: lambda event: f"{event.host}: {_step(event)} is done",
    Kind.FAIL: _fail,
    Kind.OUTCOME: _outcome,
    Kind.RECALL: lambda event: f"{event.host}: {_because('is taken back')(event)}",
}
_WHOLE: dict[Kind, Callable[[Event], str]] = {
    Kind.PLANNED: _planned,
    Kind.OPENED: lambda event: f"wave {event.data.get('wave', '?')} begins",
    Kind.SOAKING: _soaking,
    Kind.CLOSED: lambda event: f"wave {event.data.get('wave', '?')} is done",
    Kind.PAUSED: _because("paused: no host is begun"),
    Kind.RESUMED: _because("goes on"),
    Kind.HALTED: _because("halted: no other host is begun, those under way finish"),
    Kind.ABORTED: _because("aborted: those under way are taken back"),
    Kind.ROLLBACK: _because("everything that was done is taken back"),
    Kind.FINISHED: _finished,
    Kind.NOTE: lambda event: (f"{event.host}: " if event.host else "") + str(event.data.get("text", "")),
}
