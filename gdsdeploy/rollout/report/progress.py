"""A rollout for a terminal: waves, hosts by state, time left, the last event.  Every line fits the width."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from gdsdeploy.host.io.wording import aligned, count, span
from gdsdeploy.model import hostnames
from gdsdeploy.model.rollout import FAILURES, Outcome
from gdsdeploy.report.alike import for_all
from gdsdeploy.rollout import status as states
from gdsdeploy.rollout.report.events import clock, plain, sentence
from gdsdeploy.rollout.status import HostStatus, Status, WaveStatus

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
    numbers: Counter[str] = status.counts()
    words = [f"{numbers[outcome]} {outcome}" for outcome in Outcome if numbers[outcome]]
    begun = len(status.under_way())
    waiting = sum(not host.works and not host.outcome for host in status.taking_part())
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
    hosts = status.taking_part()
    yield f"  {bar(_ended(status), len(hosts))} {_summary(status, since, live=live)}"
    yield f"  {outcomes(status)}"
    yield f"  out of work: {len(status.away())} of at most {status.plan.max_unavailable}"


def _ended(status: Status) -> int:
    return sum(bool(host.outcome) for host in status.taking_part())


def _summary(status: Status, since: float, *, live: bool) -> str:
    """``8 of 11 hosts, 20 min so far, about 5 min left``."""
    left = status.left()
    # The end of the last event's wait is part of what was left then.
    words = [f"{_ended(status)} of {count(len(status.taking_part()), 'host')}", f"{span(status.lapse + since)} so far"]
    if left is not None and live:
        words.append(f"about {span(max(0.0, left - since))} left")
    return ", ".join(words)


def _waves(status: Status, width: int) -> Iterator[str]:
    """As many waves to a line as fit."""
    row = "  waves:"
    for word in (_wave(status, part) for part in status.parts):
        if len(row) + 2 + len(word) > width and row.strip() != "waves:":
            yield row
            row = "        "
        row += f"  {word}"
    if status.parts:
        yield row


def _wave(status: Status, part: WaveStatus) -> str:
    ended = sum(bool(status.hosts[name].outcome) for name in part.wave.hosts)
    until = f" until {clock(part.until)}" if part.state == "soaking" and part.until is not None else ""
    return f"{SYMBOLS.get(part.state, '▸')} {part.wave.name} {ended}/{len(part.wave.hosts)}{until}"


def _hosts(status: Status, since: float, shown: int, latest: Mapping[str, str]) -> Iterator[str]:
    begun = status.under_way()
    if not begun:
        return
    yield "  under way:"
    rows = []
    for host in begun[:shown]:
        work = host.running or host.works[-1]
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


def failure(host: HostStatus, names: str) -> str:
    """A host that failed in one line: symbol, ``names`` of all that are like it, state and the first reason."""
    state = host.state if host.outcome in FAILURES else f"failed, {host.state}"
    reason = "; then ".join(f"{step}: {message}" for step, message in reasons(host)) or host.reason
    return plain(f"{SYMBOLS.get(host.outcome, '▸')} {names}: {state}: {reason}")


def reasons(host: HostStatus) -> list[tuple[str, str]]:
    """(step, message) of the first failure and of the last one, without the host's name."""
    errors = host.errors[:1] + host.errors[1:][-1:]
    return [(step, (error.message or "no reason was given").removeprefix(f"{host.name}: ")) for step, error in errors]
