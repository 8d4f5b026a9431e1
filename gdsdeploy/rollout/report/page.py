"""A rollout as one self-contained HTML file, and as one JSON object: outcome, timeline, hosts, reasons.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from gdsdeploy import __version__
from gdsdeploy.host.io.phrases import count, span
from gdsdeploy.model.rollout import FAILURES, Outcome
from gdsdeploy.report import html
from gdsdeploy.rollout import status as states
from gdsdeploy.rollout.report import progress, timeline
from gdsdeploy.rollout.report.events import ENDED, VERSION, stamp
from gdsdeploy.rollout.report.flow import HEIGHT
from gdsdeploy.rollout.status import HostStatus, Status, WaveStatus

#: Above so many hosts, only failed hosts have their steps in the page; JSON always has all.
DETAILS: Final = 500
#: Outcome or state → the style of its badge.
CLASSES: Final[Mapping[str, str]] = {
    "done": "pass", "satisfied": "pass", "rolled-back": "unknown", "refused": "unknown", "kept": "fail",
    "lost": "unreachable", "skipped": "waived", "waiting": "waived", "under way": "waived",
}  # fmt: skip
_PHASES: Final = {states.HALTED: "fail", states.ABORTED: "fail", states.ROLLBACK: "fail", states.PAUSED: "unknown"}
#: Facts that the page shows elsewhere, or that only the program uses.
_ELSEWHERE: Final = frozenset({"snapshot", "findings", "report"})


def render(status: Status, *, live: bool = True) -> str:
    """The whole page.  live: whether a process works on it."""
    return html.template("rollout.html.j2").render(
        page=_page(status, live=live),
        tool=f"gdsdeploy {__version__}",
        symbols={**progress.SYMBOLS, "under way": "▸"},
        classes=CLASSES,
        meanings={outcome: ENDED[outcome] for outcome in Outcome},
        span=span,
    )


def sentence(status: Status) -> str:
    """The outcome in one line."""
    hosts = status.taking_part()
    good = sum(host.outcome in (Outcome.DONE, Outcome.SATISFIED) for host in hosts)
    numbers = status.counts()
    others = [f"{numbers[outcome]} {outcome}" for outcome in Outcome if outcome in FAILURES and numbers[outcome]]
    waiting = sum(not host.outcome for host in hosts)
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
        "counts": dict(sorted(status.counts().items())),
        "away": sorted(status.away()),
        "max_unavailable": status.plan.max_unavailable,
        "waves": [_wave(status, part) for part in status.parts],
        "hosts": {name: _host(status, host) for name, host in status.hosts.items()},
    }
    return json.dumps(value, indent=2, ensure_ascii=False)


def _wave(status: Status, part: WaveStatus) -> dict[str, Any]:
    hosts = [status.hosts[name] for name in part.wave.hosts]
    return {
        "name": part.wave.name,
        "canary": part.wave.canary,
        "state": part.state,
        "hosts": list(part.wave.hosts),
        "soak": part.wave.soak,
        "halt_at": part.wave.halt_at,
        "until": None if part.until is None else stamp(part.until),
        "ended": sum(bool(host.outcome) for host in hosts),
        "failed": sum(host.outcome in FAILURES for host in hosts),
    }


def _host(status: Status, host: HostStatus) -> dict[str, Any]:
    return {
        "wave": None if host.wave is None else status.parts[host.wave].wave.name,
        "state": host.state,
        "outcome": host.outcome or None,
        "reason": host.reason,
        "accepted": host.accepted,
        "away": host.away or host.name in status.down,
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


def _page(status: Status, *, live: bool) -> dict[str, Any]:
    """What the template shows."""
    rows = [_row(status, number, host) for number, host in enumerate(status.hosts.values())]
    number: dict[str, int] = dict.fromkeys(CLASSES, 0)
    for row in rows:
        number[row["state"]] += 1
    hosts = len(status.taking_part())
    drawn = timeline.draw(status, f"Timeline of rollout {status.plan.id}: {sentence(status)}; the table below has all")
    clean = status.finished and all(row["state"] in ("done", "satisfied", "skipped") for row in rows)
    running = "pass" if clean else "fail" if status.finished else "waived"
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
        "rows": rows,
        "problems": list(_problems(rows, status.plan.fleet)),
        "timeline": drawn,
        # Whether the drawing may be cut between pages.
        "tall": hosts > timeline.HOSTS // 2 or len(status.parts) * HEIGHT > 800,
        "short": len(rows) > DETAILS,
    }


def _waves(status: Status) -> Iterator[Mapping[str, Any]]:
    for part in status.parts:
        hosts = [status.hosts[name] for name in part.wave.hosts]
        end = status.lapse if part.closed is None else part.closed
        yield {
            "name": part.wave.name,
            "state": part.state,
            "hosts": len(hosts),
            "done": sum(host.outcome in (Outcome.DONE, Outcome.SATISFIED) for host in hosts),
            "failed": sum(host.outcome in FAILURES for host in hosts),
            "halt_at": part.wave.halt_at,
            "took": "–" if part.opened is None else span(end - part.opened),
        }


def _row(status: Status, number: int, host: HostStatus) -> dict[str, Any]:
    state = host.outcome or ("under way" if host.works else "waiting")
    failed = host.outcome in FAILURES or (not host.outcome and bool(host.errors))
    expected = status.plan.expected.get(host.name)
    labels = status.plan.labels.get(host.name, {})
    facts = host.facts
    return {
        "number": number,
        "host": host,
        "state": state if state in CLASSES else "waiting",
        "failed": failed,
        "wave": "–" if host.wave is None else status.parts[host.wave].wave.name,
        "took": span(host.seconds) if host.works else "–",
        "expected": "–" if expected is None else span(expected),
        "disruption": facts.disruption or "–",
        "kernel": facts.kernel or "–",
        "validated": facts.verdict or "–",
        "labels": sorted(labels.items()),
        "known": list(_facts(host.data)),
        # Whether its steps are in the page.
        "shown": bool(host.works or host.reason) and (failed or len(status.hosts) <= DETAILS),
    }


def _facts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if key not in _ELSEWHERE and isinstance(value, (str, int, float, bool)) and value != "":
            words = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            yield key.replace("_", " "), words


def _problems(rows: Sequence[Mapping[str, Any]], fleet: str) -> Iterator[dict[str, Any]]:
    """Each failure once, with its hosts and their fragments of the page; hosts that are out of work come first."""
    problems: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for row in rows:
        if not row["failed"]:
            continue
        failures = progress.reasons(row["host"]) or [("", row["host"].reason or "no reason was given")]
        words = [message.replace(row["host"].name, "HOST") for _, message in failures]
        message = "\n".join([words[0], *(f"then, at {failures[1][0]}: {text}" for text in words[1:])])
        hint = row["host"].errors[0][1].hint or "" if row["host"].errors else ""
        key = (row["state"], failures[0][0], message, hint)
        problems.setdefault(key, []).append((row["host"].name, f"h{row['number']}"))
    order = (Outcome.LOST, Outcome.KEPT, "under way", Outcome.ROLLED_BACK, Outcome.REFUSED)
    for (state, step, message, hint), hosts in sorted(problems.items(), key=lambda problem: order.index(problem[0][0])):
        shown = message.replace("HOST", hosts[0][0]) if len(hosts) == 1 else message
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
