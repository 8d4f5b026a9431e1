"""The plan of a rollout as text and as one JSON object: waves, changes to each host, expected time.  Pure."""

from __future__ import annotations

import datetime as dt
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

from gdsdeploy.converge import diff
from gdsdeploy.converge.desired import ROLES
from gdsdeploy.host.apply.file_resource import FileResource
from gdsdeploy.host.apply.model import INSTALLS, Change
from gdsdeploy.host.io.wording import count, first_few, joined, span
from gdsdeploy.model import hostnames
from gdsdeploy.model.rollout import Wave
from gdsdeploy.preflight.record import Answer
from gdsdeploy.rollout.preconditions import RolloutPreview, Trial
from gdsdeploy.rollout.progress import plain

#: Actions that are named of each host.
ACTIONS = 4
#: Columns of hosts with their actions.
WIDTH: Final = 110


def text(outlook: RolloutPreview, now: float) -> str:
    """The whole plan for people.  now: seconds since the epoch."""
    blocks = [_head(outlook), *(_wave(outlook, wave) for wave in outlook.plan.waves), _notes(outlook, now)]
    return "\n\n".join(joined(map(plain, block)) for block in map(list, blocks) if block)


def sentence(outlook: RolloutPreview) -> str:
    """A summary in one line."""
    hosts = [name for wave in outlook.plan.waves for name in wave.hosts]
    pending = [name for name in hosts if name in outlook.pending]
    worst = Counter(outlook.hosts[name].disruption for name in pending)
    words = [f"{number} {'without a disruption' if kind == 'none' else f'with a {kind}'}" for kind, number in
             worst.most_common()]  # fmt: skip
    done = sum(name in outlook.satisfied for name in hosts)
    return (
        f"{count(len(pending), 'host')} to change" + (f" ({', '.join(words)})" if words else "")
        + (f", {done} with the lock already" if done else "")
        + f", {count(len(outlook.plan.waves), 'wave')}, about {span(outlook.seconds)}"
    )  # fmt: skip


def to_json(outlook: RolloutPreview) -> str:
    """The plan for machines; docs/rollout.md describes it."""
    value = {
        "plan": outlook.plan.as_json(),
        "hosts": {
            name: {
                "satisfied": plan.satisfied,
                "disruption": plan.disruption,
                "actions": [diff.change_to_json(change) for change in plan.changes],
                "unknown": list(plan.unknown),
                "seconds": outlook.plan.expected.get(name),
                "previous": outlook.plan.previous.get(name),
            }
            for name, plan in outlook.hosts.items()
        },
        "preflights": [_preflight(trial) for trial in outlook.trials],
        "down": dict(outlook.down),
        "seconds": round(outlook.seconds),
        "measured": outlook.measured,
        "opens": outlook.opens,
        "refused": [asdict(reason) for reason in outlook.reasons],
    }
    return json.dumps(value, indent=2, ensure_ascii=False)


def _preflight(trial: Trial) -> dict[str, object]:
    return {
        "profile": trial.profile,
        "kernel": trial.kernel,
        "driver": trial.driver,
        "ok": trial.ok,
        "same": trial.same,
        "builders": list(trial.builders),
        "packaged": trial.packaged,
        "proven": trial.proven,
        "builds": trial.record.builds if trial.record else Answer.NOT_TRIED,
        "loads": trial.record.loads if trial.record else Answer.NOT_TRIED,
        "time": trial.record.time if trial.record else None,
    }


def _head(outlook: RolloutPreview) -> Iterator[str]:
    plan = outlook.plan
    yield f"rollout {plan.id}: {sentence(outlook)}"
    lock = plan.lock_digest.removeprefix("sha256:")[:12]
    yield f"  lock {lock}, at most {plan.max_unavailable} out of work at a time"
    for trial in outlook.trials:
        mark = "✓" if trial.ok else "✗"
        yield f"  {mark} {trial.profile}: kernel {trial.kernel}, driver {trial.driver}: {_result(trial)}"


def _result(trial: Trial) -> str:
    if trial.record is not None and trial.record.ok:
        return f"preflight of {trial.record.time[:10]}: builds and loads"
    if trial.same:
        return "as the hosts have it"
    if trial.proven:
        return "proven by lock --prove: builds and loads"
    if trial.packaged:
        return "packages bring the modules, read at lock; each host audits them before it boots them"
    if trial.builders:
        return f"built and audited by {', '.join(trial.builders)}"
    if trial.record is None:
        return "never tried"
    if trial.record.failed:
        return "its preflight failed"
    return "not every module was tried" if trial.record.untried_modules else "its preflight is undecided"


def _wave(outlook: RolloutPreview, wave: Wave) -> Iterator[str]:
    words = [count(len(wave.hosts), "host" if wave.drain else "builder")]
    if wave.console:
        words.append("a person enrols the key of the modules at each console")
    if wave.soak:
        words.append(f"then {span(wave.soak)} of soak")
    words.append(f"halts at {count(wave.halt_at, 'failure')}")
    yield f"{wave.name}: {', '.join(words)}"
    for (symbol, rest), names in hostnames.grouped((name, _host(outlook, name)) for name in wave.hosts).items():
        first, *more = textwrap.wrap(f"{symbol} {hostnames.words(names)}: {rest}", WIDTH - 4, break_on_hyphens=False)
        yield f"  {first}"
        yield from (f"      {line}" for line in more)


def _host(outlook: RolloutPreview, name: str) -> tuple[str, str]:
    """(symbol, what is done to the host); hosts with equal texts share a line."""
    plan = outlook.hosts.get(name)
    if plan is None:
        return "!", "not asked"
    if plan.satisfied:
        return "=", "has the lock already"
    actions = [diff.action_words(change) for change in sorted(plan.changes, key=_weight) if change.kind != "reboot"]
    took = span(outlook.plan.expected.get(name, 0.0))
    return "~", f"[{plan.disruption}, {took}] {first_few(actions, ACTIONS, '; ')}"


#: Roles whose changes say most, the first of equal kinds.
_TELLING = ("gds_driver", "gds_kernel", "gds_modules", "gds_cufile")


def _weight(change: Change) -> tuple[int, int]:
    """What says most about a change comes first: packages, then the kernel and the modules, then files."""
    role = ROLES.get(change.resource, "")
    kind = 0 if change.kind in (*INSTALLS, "remove") else 2 if change.kind in FileResource.kinds else 1
    return kind, _TELLING.index(role) if role in _TELLING else len(_TELLING)


def _notes(outlook: RolloutPreview, now: float) -> Iterator[str]:
    yield from (f"– left out: {names}: {why}" for names, why in _grouped(outlook.plan.skipped))
    for names, why in _grouped(outlook.down):
        yield f"! out of work already, and counted as unavailable: {names}: {why}"
    if not outlook.measured and outlook.pending:
        yield "  how long hosts take is a guess: no rollout of this fleet has shown it yet"
    if outlook.opens is None:
        yield "! no maintenance window ever opens"
    elif outlook.opens > now:
        when = dt.datetime.fromtimestamp(outlook.opens, dt.UTC).strftime("%a %d %b %H:%M")
        yield f"  hosts are begun from {when} UTC, when the maintenance window opens"


def _grouped(reasons: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(hosts, reason), each reason once."""
    yield from ((hostnames.words(names), why) for why, names in hostnames.grouped(reasons.items()).items())
