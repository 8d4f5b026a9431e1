"""Runs a rollout from a command: its effects, its windows, who is told, and how it ends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gdsdeploy import console
from gdsdeploy.errors import DrainFailed, GdsError, Interrupted, RolloutFailed, RolloutRefused
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.events import Event, RolloutResumed
from gdsdeploy.model.rollout import Outcome, Plan, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import journal, preconditions, status, windows, writerlock
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.drain import drainer, rollout_of
from gdsdeploy.rollout.driver import Hooks, drive
from gdsdeploy.rollout.effects import Effects
from gdsdeploy.rollout.notify import Notifier
from gdsdeploy.rollout.report.page import sentence
from gdsdeploy.rollout.status import Status
from gdsdeploy.rollout.steps.perform import RealEffects

#: Makes what performs the steps of a plan; raises RolloutRefused where its lock and fleet file are not kept.
Make = Callable[[Plan], Effects]


def run(writer: journal.Writer, plan: Plan, watch: Watch, effects: Effects) -> Status:
    """Go on with the rollout of ``plan`` until nothing is left to do that needs no person.

    Raises Interrupted after Ctrl-C, JournalUnusable, FleetInvalid: who is to be told cannot be.
    """
    path = Path(plan.fleet)
    settings = Rollout.model_validate(dict(plan.settings))
    seen = watch.status.last.number if watch.status is not None and watch.status.last is not None else 0
    watch.known(writer.events(plan.id, after=seen))
    with Notifier(settings.notify, rollout=plan.id, fleet=path, warn=console.warn) as tell:

        def observe(event: Event) -> None:
            tell(event)
            watch.observe(event)

        hooks = Hooks(
            observe=observe,
            progress=watch.report_progress,
            open_window=lambda now: windows.is_open(settings, now),
            removed=lambda: _removed(plan, path),
            notices=lambda: _notices(plan, path),
        )
        with watch.shown():
            drive(writer, plan.id, effects, hooks=hooks)
    assert watch.status is not None
    return watch.status


def real(plan: Plan) -> Effects:
    """The steps as they are really done, with the lock and the fleet file that were planned with."""
    return RealEffects.of_plan(plan)


class Nobody:
    """Effects for a rollout of which no host is under way: refuses every step."""

    def __init__(self, error: RolloutRefused) -> None:
        self._error = error

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:  # noqa: ARG002 - as Effects
        """Raise why it cannot be done."""
        raise self._error

    def stop(self) -> None:
        """Nothing is under way."""


def outcome(found: Status) -> GdsError | None:
    """The error that a command with this end ends in; None: what was wanted is reached."""
    fleet = found.plan.fleet
    if not found.finished:
        resume = f"Go on with: gdsdeploy rollout resume {fleet}"
        if found.phase == status.PAUSED:
            return Interrupted(f"paused: {found.reason or 'somebody wanted it so'}", hint=resume)
        return RolloutFailed(
            f"{found.phase}: {found.reason}\n{sentence(found)}",
            hint=f"Look at the hosts above; then: gdsdeploy rollout resume {fleet}, or rollback, or abort",
        )
    hosts = found.taking_part()
    stuck = [host.name for host in hosts if host.outcome in (Outcome.KEPT, Outcome.LOST)]
    failed = [host.name for host in hosts if host.outcome in (Outcome.ROLLED_BACK, Outcome.REFUSED)]
    if found.phase == status.ROLLED_BACK:
        failed = [host.name for host in hosts if host.outcome == Outcome.DONE]
    elif found.phase == status.CUT:
        return RolloutFailed(f"aborted: {found.reason}\n{sentence(found)}", hint=_see(fleet))
    if stuck or failed:
        names = ", ".join([*stuck, *failed][:10]) + (" and others" if len(stuck) + len(failed) > 10 else "")
        return RolloutFailed(f"{sentence(found)}: {names}", hint=_see(fleet))
    return None


def _see(fleet: str) -> str:
    return f"See: gdsdeploy rollout status {fleet} --html rollout.html"


def require_journal(fleet: Path) -> Path:
    """The fleet's journal; raises FleetInvalid: no such fleet file, RolloutRefused: no rollout of it."""
    path = journal.path_of(fleet)
    if not path.exists():
        load_fleet(fleet)
        raise RolloutRefused(
            f"there is no rollout of {fleet}", hint=f"Begin one: gdsdeploy rollout start {fleet}; its journal is {path}"
        )
    return path


def worked_on(path: Path) -> bool:
    """Whether a process works on the journal ``path``; without taking its lock, not even for a moment."""
    place = writerlock.place(path)
    try:
        found, text = place.stat(), place.read_text()
    except OSError:
        return False
    # The device there is not that of stat on every file system.
    with suppress(OSError):
        if re.search(rf"^\S+ FLOCK .*:{found.st_ino} ", Path("/proc/locks").read_text(), re.MULTILINE):
            return True
    # Over NFS only the machine that has the lock knows of it; what it wrote down stays when it crashes.
    with suppress(ValueError, TypeError, KeyError):
        return bool(json.loads(text)["host"] != socket.gethostname())
    return False


def reconsidered(found: Status, path: Path, accept: Collection[str], reason: str) -> RolloutResumed:
    """That the rollout goes on for ``reason``, with ``accept`` and who is back in work or out of it meanwhile.

    Raises RolloutRefused for a host in ``accept`` that did not fail.
    """
    failed = {host.name for host in found.failed()}
    for name in accept:
        if name not in failed:
            there = ", ".join(sorted(failed)) or "none did"
            raise RolloutRefused(f"--accept: {name} did not fail in this rollout", hint=f"Hosts that failed: {there}")
    plan, settings = found.plan, Rollout.model_validate(dict(found.plan.settings))
    names = list(dict.fromkeys([*(host.name for host in found.taking_part()), *sorted(found.down)]))
    try:
        states = drainer(settings.drain, path.resolve().parent).states(names)
    except DrainFailed as error:
        console.warn(f"who is out of work is as it was when this rollout was planned: {error.message}")
        states = {}
    out = {name for name, state in states.items() if state.out and rollout_of(state.reason) != plan.id}
    in_work = {name for name, state in states.items() if not state.out}
    stuck = {host.name for host in found.taking_part() if host.outcome in (Outcome.KEPT, Outcome.LOST) and host.away}
    # Where no scheduler says it, nobody but a person knows whether a host that failed works.
    silent = set(names) - states.keys()
    known = set(accept) if settings.drain.by == "none" else in_work | (silent & set(accept))
    back = (stuck & known) | _answering(path, sorted(found.down & (in_work | silent)))
    # A drain of somebody else's on a host that this rollout is through with is known already.
    down = {name for name in out - found.down if not (name in found.hosts and found.hosts[name].away)}
    return RolloutResumed(reason, tuple(sorted(accept)), tuple(sorted(back)), tuple(sorted(down)))


def _answering(path: Path, names: list[str]) -> set[str]:
    """Those of ``names`` that are in the fleet and answer; none where the fleet file cannot be read any more."""
    if not names:
        return set()
    try:
        fleet = load_fleet(path)
        there = [name for name in names if name in fleet.hosts]
        return set(there) - preconditions.silent(fleet, path, there).keys()
    except GdsError as error:
        console.warn(f"who answers again is not known: {error.message}")
        return set()


def _removed(plan: Plan, path: Path) -> Collection[str]:
    fleet = load_fleet(path)
    return {name for wave in plan.waves for name in wave.hosts if name not in fleet.everyone()}


def _notices(plan: Plan, path: Path) -> Iterator[str]:
    """What has been edited since the rollout was planned; it goes on with what it was planned with."""
    kept = "the rollout goes on with the one that it was planned with"
    with suppress(GdsError):
        if releases.digest_of(path) != plan.fleet_digest:
            yield f"{path} was edited since; {kept}"
    with suppress(GdsError):
        if lockfile.read(lockfile.beside(path)).digest != plan.lock_digest:
            yield f"{lockfile.beside(path)} is another lock than before; {kept}"


def chosen(path: Path, rollout: str | None) -> tuple[journal.Summary, list[Event]]:
    """The rollout of that id, or the newest one, with its events; raises RolloutRefused where there is none."""
    with journal.reading(path) as book:
        there = book.rollouts()
        found: Mapping[str, journal.Summary] = {summary.id: summary for summary in there}
        name = rollout or (there[-1].id if there else "")
        if name not in found:
            raise RolloutRefused(
                f"there is no rollout {rollout}" if rollout else "there is no rollout of this fleet",
                hint="List those that are there: gdsdeploy rollout history FLEET",
            )
        return found[name], list(book.events(name))
