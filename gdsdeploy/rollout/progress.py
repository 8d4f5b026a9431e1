"""A rollout and its events as lines of text.

A terminal gets waves, hosts by state, time left and the last event, and every line fits the width.
"""

from __future__ import annotations

import datetime as dt
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gdsdeploy.host.io.wording import aligned, count, first_few, line as one_line, span
from gdsdeploy.model import events, hostnames
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import FAILURES, Outcome, Plan, Standing, Step
from gdsdeploy.report.model import for_all
from gdsdeploy.rollout import machine as states
from gdsdeploy.rollout.hoststate import HostState
from gdsdeploy.rollout.machine import Status, WaveState

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
    "done": "has the new lock, validated",
    "satisfied": "had the new lock already",
    "rolled-back": "is what it was before, validated",
    "refused": "was left unchanged",
    "kept": "stays as it is, for inspection",
    "lost": "does not answer",
    "skipped": "takes no part",
}


#: Why a step is put off, behind the host's name.
STANDING: Final[Mapping[str, str]] = {
    Standing.WORKS: "is in work, and is drained first",
    Standing.UNKNOWN: "may be in work, and the scheduler doesn't answer",
}


def sentence(event: Event) -> str:
    """The event in one line, with the host's name; no control characters."""
    words = _words(event)
    named = isinstance(event.payload, _OF_HOST) or (event.host and isinstance(event.payload, events.Note))
    return plain(f"{event.host}: {words}" if named else words)


def plain(text: str) -> str:
    """``text`` in one line."""
    return one_line(re.sub(r"\s*\n\s*", " ", text))


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
            if standing := event.payload.data.get("standing"):
                return f"{step or '?'} is put off: it {STANDING.get(standing, 'may be in work')}"
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
        case events.SchedulerLooked(down, back):
            words = f"out of work for other reasons: {first_few(down, SHOWN) or 'no host'}"
            return words + (f"; in work again: {first_few(back, SHOWN)}" if back else "")
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


SYMBOLS: Final[Mapping[str, str]] = {
    "done": "✓", "satisfied": "=", "rolled-back": "↺", "refused": "!", "kept": "✗", "lost": "?", "skipped": "–",
    "waiting": "·", "closed": "✓", "open": "▸", "soaking": "◷",
}  # fmt: skip
#: Columns by default.
WIDTH: Final = 80
#: Lines for hosts that are under way, and for those that failed.
SHOWN: Final = 12
#: Lines for one reason.
WRAPPED: Final = 9
_BAR: Final = 24
#: Hosts under way in a line of a log.
BEATS: Final = 3


def lines(
    status: Status,
    *,
    now: float,
    width: int = WIDTH,
    shown: int = SHOWN,
    live: bool = True,
    latest: Mapping[str, str] = {},
    whole: bool = False,
) -> list[str]:
    """All of it.  now: seconds since the epoch.  live: whether a process works on the rollout, so that time passes.

    shown: lines for hosts under way, and for those that failed.  latest: host → the last line of its step.
    whole: reasons are whole, with their hints.
    """
    since = _since(status, now) if live else 0.0
    text = [
        *_head(status, since, live=live),
        *_waves(status, width),
        *_hosts(status, since, shown, latest),
        *_failures(status, shown, width if whole else 0),
    ]
    if status.last is not None:
        text.append(f"  last, {clock(status.last.time)} UTC: {sentence(status.last)}")
    return [line if len(line) <= width else line[: width - 1] + "…" for line in text]


def heartbeat(status: Status, *, now: float, latest: Mapping[str, str]) -> str:
    """The same in one line, for a log.  now: seconds since the epoch."""
    since = _since(status, now)
    hosts = [line.strip() for line in _hosts(status, since, BEATS, latest)]
    return f"  still at work: {'; '.join([_summary(status, since, live=True), *hosts[1:]])}"


def _since(status: Status, now: float) -> float:
    """Seconds since the last event; the clock may have been set back."""
    return max(0.0, now - status.last.time) if status.last is not None else 0.0


def phase(status: Status, *, live: bool = True) -> str:
    """What the rollout is doing, in words."""
    if live or status.finished or status.phase in (states.PAUSED, states.HALTED):
        return status.phase
    return f"{status.phase}, but no process works on it"


def outcomes(status: Status) -> str:
    """``8 done, 1 rolled-back, 2 under way, 3 waiting``."""
    numbers = status.outcomes()
    words = [f"{numbers[outcome]} {outcome}" for outcome in Outcome if numbers[outcome]]
    begun = len(status.under_way())
    waiting = sum(not host.works and not host.outcome for host in status.hosts.values())
    words += [f"{number} {word}" for number, word in ((begun, "under way"), (waiting, "waiting")) if number]
    return ", ".join(words) or "no host takes part"


def bar(done: int, total: int, width: int = _BAR) -> str:
    """``[####....]``; full only when all are done."""
    filled = width if total == 0 else done * width // total
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def _head(status: Status, since: float, *, live: bool) -> Iterator[str]:
    yield f"rollout {status.plan.id}: {phase(status, live=live)}"
    if status.reason and status.phase != states.RUNNING:
        yield f"  because: {plain(status.reason)}"
    hosts = status.hosts
    yield f"  {bar(_ended(status), len(hosts))} {_summary(status, since, live=live)}"
    yield f"  {outcomes(status)}"
    yield f"  out of work: {len(status.away())} of at most {status.plan.max_unavailable}"


def _ended(status: Status) -> int:
    return sum(bool(host.outcome) for host in status.hosts.values())


def _summary(status: Status, since: float, *, live: bool) -> str:
    """``8 of 11 hosts, 20 min so far, about 5 min left``."""
    left = status.left()
    # The end of the last event's wait is part of what was left then.
    words = [f"{_ended(status)} of {count(len(status.hosts.values()), 'host')}", f"{span(status.lapse + since)} so far"]
    if left is not None and live:
        words.append(f"about {span(max(0.0, left - since))} left")
    return ", ".join(words)


def _waves(status: Status, width: int) -> Iterator[str]:
    """As many waves to a line as fit."""
    row = "  waves:"
    for word in (_wave(status, part) for part in status.waves):
        if len(row) + 2 + len(word) > width and row.strip() != "waves:":
            yield row
            row = "        "
        row += f"  {word}"
    if status.waves:
        yield row


def _wave(status: Status, part: WaveState) -> str:
    ended = sum(bool(status.hosts[name].outcome) for name in part.wave.hosts)
    until = f" until {clock(part.until)}" if part.state == "soaking" else ""
    failed = part.state == "closed" and any(status.hosts[name].outcome in FAILURES for name in part.wave.hosts)
    mark = "✗" if failed else SYMBOLS.get(part.state, "▸")
    return f"{mark} {part.wave.name} {ended}/{len(part.wave.hosts)}{until}"


def _hosts(status: Status, since: float, shown: int, latest: Mapping[str, str]) -> Iterator[str]:
    begun = status.under_way()
    if not begun:
        return
    yield "  under way:"
    rows = []
    for host in begun[:shown]:
        work = host.works[-1]
        again = f", attempt {work.attempt}" if work.attempt > 1 else ""
        lasts = span(status.lapse - (work.begin if work.end is None else work.end) + since)
        text = f": {plain(latest[host.name])}" if host.running and host.name in latest else ""
        rows.append([host.name, f"{host.state} for {lasts}{again}{text}"])
    yield from aligned(rows, "    ")
    if len(begun) > shown:
        groups = Counter(host.state for host in begun[shown:])
        yield f"    and {len(begun) - shown} more: {', '.join(f'{n} {state}' for state, n in groups.most_common())}"


def _failures(status: Status, shown: int, wrapped: int) -> Iterator[str]:
    """wrapped: columns; 0: a line each, which is cut."""
    failed = status.failed()
    if not failed:
        return
    yield "  failed:"
    alike = list(hostnames.grouped((host.name, failure(host, "")) for host in failed).items())
    for _, names in alike[:shown]:
        host = status.hosts[names[0]]
        if not wrapped:
            yield f"    {failure(host, hostnames.words(names))}"
            continue
        hints = [error.hint or "" for _, error in host.errors[:1]]
        todo = ((plain(for_all(hint, names)), "      what to do: ") for hint in hints if hint)
        for text, indent in ((failure(host, hostnames.words(names)), "    "), *todo):
            yield from textwrap.wrap(
                text, wrapped, initial_indent=indent, subsequent_indent="      ", break_on_hyphens=False,
                max_lines=WRAPPED, placeholder=" … (all of it: --html, --json)",
            )  # fmt: skip
    if len(alike) > shown:
        rest = sum(len(names) for _, names in alike[shown:])
        yield f"    and {rest} more; the report (--html, --json) has all of them"


def failure(host: HostState, names: str) -> str:
    """A host that failed in one line: symbol, ``names`` of all that are like it, state and the first reason."""
    state = host.state if host.outcome in FAILURES else f"failed, {host.state}"
    reason = "; then ".join(f"{step}: {message}" for step, message in reasons(host)) or host.reason
    return plain(f"{SYMBOLS.get(host.outcome or '', '▸')} {names}: {state}: {reason}")


def reasons(host: HostState) -> list[tuple[str, str]]:
    """(step, message) of the first failure and of the last one, without the host's name."""
    errors = host.errors[:1] + host.errors[1:][-1:]
    return [(step, (error.message or "no reason was given").removeprefix(f"{host.name}: ")) for step, error in errors]
