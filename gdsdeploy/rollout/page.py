"""A rollout as one self-contained HTML file, and as one JSON object: outcome, waves, hosts, times, reasons.  Pure."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from gdsdeploy.host.io.wording import count, span
from gdsdeploy.model.hostnames import words
from gdsdeploy.model.rollout import FAILURES, Outcome
from gdsdeploy.report import html
from gdsdeploy.report.html import Texts
from gdsdeploy.rollout import machine as states, progress
from gdsdeploy.rollout.hoststate import HostState, StepAttempt
from gdsdeploy.rollout.machine import Status, WaveState
from gdsdeploy.rollout.progress import ENDED, VERSION, stamp

#: Failures with a card of their own, and columns for the names of a failure's hosts.
PROBLEMS: Final = 100
NAMES: Final = 400
#: Outcome or state → the style of its badge.
CLASSES: Final[Mapping[str, str]] = {
    "done": "pass", "satisfied": "pass", "rolled-back": "unknown", "refused": "unknown", "kept": "fail",
    "lost": "unreachable", "skipped": "waived", "waiting": "waived", "under way": "waived",
}  # fmt: skip
_PHASES: Final = {states.HALTED: "fail", states.ABORTED: "fail", states.ROLLBACK: "fail", states.PAUSED: "unknown"}
#: Facts that the page shows elsewhere, or that only the program uses.
_ELSEWHERE: Final = frozenset({"snapshot", "findings", "report"})


def stream(status: Status, *, live: bool = True) -> Iterator[str]:
    """The page in parts: a large rollout's is never held whole.  live: whether a process works on it."""
    rows = [_row(status, host) for host in status.everyone().values()]
    problems = list(_problems(rows, status.plan.fleet))
    causes = {host: number for number, problem in enumerate(problems) for host in problem["hosts"]}
    symbols, texts = {**progress.SYMBOLS, "under way": "▸"}, Texts()
    return html.page(
        "rollout",
        [
            ("words", [[symbols, CLASSES]]),
            ("hosts", (_record(row, causes, status.lapse, texts) for row in rows)),
            ("texts", texts),
        ],
        page=_page(status, rows, live=live),
        problems=problems[:PROBLEMS],
        more=problems[PROBLEMS:],
        names=lambda hosts: words(hosts, NAMES),
        symbols=symbols,
        classes=CLASSES,
        meanings={outcome: ENDED[outcome] for outcome in Outcome},
    )


def sentence(status: Status) -> str:
    """The outcome in one line."""
    hosts = list(status.hosts.values())
    good = sum(host.outcome in (Outcome.DONE, Outcome.SATISFIED) for host in hosts)
    numbers = status.outcomes()
    others = [f"{numbers[outcome]} {outcome}" for outcome in Outcome if outcome in FAILURES and numbers[outcome]]
    waiting = sum(host.outcome is None for host in hosts)
    others += [f"{waiting} not finished"] if waiting else []
    return ", ".join(
        [f"{good} of {count(len(hosts), 'host')} {'has' if len(hosts) == 1 else 'have'} the lock", *others]
    )


def to_json(status: Status, *, live: bool = True) -> str:
    """The rollout as it is, for machines; docs/rollout.md describes it."""
    left = status.left() if live else None
    value = {
        "version": VERSION,
        "rollout": status.plan.id,
        "fleet": status.plan.fleet,
        "lock": status.plan.lock_digest,
        "phase": status.phase,
        "finished": status.finished,
        "live": live,
        "reason": status.reason,
        "began": stamp(status.began),
        "seconds": round(status.lapse, 3),
        "seconds_left": None if left is None else round(left),
        "events": status.last.number if status.last else 0,
        "counts": dict(sorted(status.outcomes().items())),
        "away": sorted(status.away()),
        "max_unavailable": status.plan.max_unavailable,
        "waves": [_wave(status, part) for part in status.waves],
        "hosts": {name: _host(status, host) for name, host in status.everyone().items()},
    }
    return json.dumps(value, indent=2, ensure_ascii=False)


def _wave(status: Status, part: WaveState) -> dict[str, Any]:
    hosts = [status.hosts[name] for name in part.wave.hosts]
    return {
        "name": part.wave.name,
        "canary": part.wave.canary,
        "state": part.state,
        "hosts": list(part.wave.hosts),
        "soak": part.wave.soak,
        "halt_at": part.wave.halt_at,
        "until": stamp(part.until) if part.until else None,
        "ended": sum(bool(host.outcome) for host in hosts),
        "failed": sum(host.outcome in FAILURES for host in hosts),
    }


def _host(status: Status, host: HostState) -> dict[str, Any]:
    return {
        "wave": None if host.wave < 0 else status.waves[host.wave].wave.name,
        "state": host.state,
        "outcome": host.outcome,
        "reason": host.reason,
        "accepted": host.accepted,
        "away": host.out or host.name in status.slots.down,
        "seconds": round(host.seconds, 3),
        "steps": [
            {
                "step": work.step,
                "attempt": work.attempt,
                "seconds": None if work.end is None else round(work.end - work.begin, 3),
                "error": None if work.error is None else dict(sorted(asdict(work.error).items())),
            }
            for work in host.works
        ],
    }


def _page(status: Status, rows: Sequence[Mapping[str, Any]], *, live: bool) -> dict[str, Any]:
    """What the template shows."""
    states = Counter(row["state"] for row in rows)
    number = {name: states[name] for name in CLASSES}
    clean = status.finished and all(row["state"] in ("done", "satisfied", "skipped") for row in rows)
    over = "fail" if number["kept"] or number["lost"] else "unknown"
    running = "pass" if clean else over if status.finished else "waived"
    return {
        "status": status,
        "plan": status.plan,
        "sentence": sentence(status),
        "phase": progress.phase(status, live=live),
        "badge": _PHASES.get(status.phase, running),
        "began": stamp(status.began)[:19] + "Z",
        "took": span(status.lapse),
        "counts": [(name, n) for name, n in number.items() if n or name in ("done", "kept", "lost")],
        "waves": list(_waves(status)),
        "outages": _outages(rows),
    }


def _outages(rows: Sequence[Mapping[str, Any]]) -> str:
    """How long hosts were out of work, in one sentence; empty: none was."""
    times = sorted((row["away"], row["host"].name) for row in rows if row["away"])
    if not times:
        return ""
    longest, name = times[-1]
    whole = span(sum(away for away, _ in times))
    typical = span(statistics.median(away for away, _ in times))
    hosts = count(len(times), "host")
    return f"{hosts} out of work for {whole} in all; median {typical}, longest {span(longest)} ({name})"


def _waves(status: Status) -> Iterator[Mapping[str, Any]]:
    for part in status.waves:
        hosts = [status.hosts[name] for name in part.wave.hosts]
        end = status.lapse if part.closed is None else part.closed
        yield {
            "name": part.wave.name,
            "state": part.state,
            "hosts": len(hosts),
            "done": sum(host.outcome in (Outcome.DONE, Outcome.SATISFIED) for host in hosts),
            "failed": sum(host.outcome in FAILURES for host in hosts),
            "halts at": part.wave.halt_at,
            "took": "–" if part.opened is None else span(end - part.opened),
        }


def _row(status: Status, host: HostState) -> dict[str, Any]:
    state = host.outcome or ("under way" if host.works else "waiting")
    expected = status.plan.expected.get(host.name)
    away = host.out_of_work(status.lapse)
    facts = host.facts
    return {
        "host": host,
        "state": state if state in CLASSES else "waiting",
        "failed": host.outcome in FAILURES or (not host.outcome and bool(host.errors)),
        "away": away,
        # As the table has them: outcome, wave, took, expected, out of work, disruption, kernel, validated.
        "cells": (
            state if state in CLASSES else "waiting",
            "–" if host.wave < 0 else status.waves[host.wave].wave.name,
            span(host.seconds) if host.works else "–",
            "–" if expected is None else span(expected),
            span(away) if away else "–",
            facts.disruption or "–",
            facts.kernel or "–",
            facts.verdict or "–",
        ),
        "labels": [f"{key} {value}" for key, value in sorted(status.plan.labels.get(host.name, {}).items())],
        "known": [text for pair in _facts(host.data) for text in pair],
    }


def _record(row: Mapping[str, Any], causes: Mapping[str, int], now: float, texts: Texts) -> tuple[object, ...]:
    """A host as templates/rollout.js reads it."""
    host = row["host"]
    return (
        host.name,
        texts.each(*row["cells"]),
        int(row["failed"]),
        causes.get(host.name, -1),
        round(row["away"]),
        *texts.each(host.reason),
        texts.each(*row["labels"]),
        texts.each(*row["known"]),
        [texts.each(*_step(work, now)) for work in host.works],
    )


def _step(work: StepAttempt, now: float) -> tuple[str, str, str, str]:
    """(step, time, error, hint); no error: ``✓`` or that it is under way."""
    step = f"{work.step} (attempt {work.attempt})" if work.attempt > 1 else work.step
    took = span((now if work.end is None else work.end) - work.begin)
    if work.error is not None:
        return step, took, f"✗ {work.error.message or 'no reason was given'}", work.error.hint or ""
    return step, took, "under way" if work.end is None else "put off" if work.put_off else "✓", ""


def _facts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if key not in _ELSEWHERE and isinstance(value, (str, int, float, bool)) and value != "":
            words = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            yield key.replace("_", " "), words


def _problems(rows: Sequence[Mapping[str, Any]], fleet: str) -> Iterator[dict[str, Any]]:
    """Each failure once, with its hosts; hosts that are out of work come first, then failures of the most hosts."""
    problems: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        if not row["failed"]:
            continue
        failures = progress.reasons(row["host"]) or [("", row["host"].reason or "no reason was given")]
        words = [message.replace(row["host"].name, "HOST") for _, message in failures]
        message = "\n".join([words[0], *(f"then, at {failures[1][0]}: {text}" for text in words[1:])])
        hint = row["host"].errors[0][1].hint or "" if row["host"].errors else ""
        key = (row["state"], failures[0][0], message, hint)
        problems.setdefault(key, []).append(row["host"].name)
    order = (Outcome.LOST, Outcome.KEPT, "under way", Outcome.ROLLED_BACK, Outcome.REFUSED)
    worst = sorted(problems.items(), key=lambda problem: (order.index(problem[0][0]), -len(problem[1])))
    for (state, step, message, hint), hosts in worst:
        shown = message.replace("HOST", hosts[0]) if len(hosts) == 1 else message
        # The error's hint is about the cause, not about how the host gets work again.
        hints = [
            hint,
            _WHAT[state].replace("FLEET", fleet) if not hint or state in (Outcome.KEPT, Outcome.LOST) else "",
        ]
        text = "\n".join(filter(None, hints))
        yield {"state": state, "step": step, "message": shown, "hint": text, "hosts": hosts}


#: What a person does about a host in that state, where its error does not say.
_WHAT: Final = {
    "lost": "Look at its console or power it off and on; then: `gdsdeploy rollout resume FLEET`",
    "kept": "Look at it and bring it back yourself; then: `gdsdeploy rollout resume FLEET --accept HOST`",
    "under way": "It is being rolled back; watch it with `gdsdeploy rollout status FLEET --watch`",
    "rolled-back": "It works as before; find the cause, then start the next rollout",
    "refused": "It was not touched; see to the reason, then start the next rollout",
}
