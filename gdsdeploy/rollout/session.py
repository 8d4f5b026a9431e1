"""Runs a rollout for a command: its effects, its windows, its notifications, and its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gdsdeploy import console, paths
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import DrainFailed, GdsError, HostUnreachable, Interrupted, RolloutRefused
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.events import Event, RolloutResumed
from gdsdeploy.model.rollout import BACK, FORWARD, Outcome, Plan, Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import journal, preconditions, waves
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.drain import drainer, rollout_of
from gdsdeploy.rollout.driver import Effects, Hooks, drive
from gdsdeploy.rollout.machine import Status
from gdsdeploy.rollout.notify import Notifier
from gdsdeploy.rollout.steps import rollback, upgrade
from gdsdeploy.rollout.steps.work import Patience, Work, alone, release_host


def run(writer: journal.Writer, plan: Plan, watch: Watch, effects: Effects) -> Status:
    """Continue the rollout of ``plan`` until it ends or waits for a person.

    Raises Interrupted after Ctrl-C, JournalUnusable, FleetInvalid: notifications can't be sent.
    """
    path = Path(plan.fleet)
    settings = Rollout.model_validate(dict(plan.settings))
    last_number = watch.status.number if watch.status is not None else 0
    watch.replay(writer.events(plan.id, after=last_number))
    with Notifier(settings.notify, rollout=plan.id, fleet=path, warn=console.warn) as notify:

        def observe(event: Event) -> None:
            notify(event)
            watch.observe(event)

        hooks = Hooks(
            observe=observe,
            progress=watch.report_progress,
            open_window=lambda now: waves.window_is_open(settings, now),
            removed=lambda: _removed(plan, path),
            notices=lambda: _notices(plan, path),
        )
        with watch.shown():
            drive(writer, plan.id, effects, hooks=hooks)
    assert watch.status is not None
    return watch.status


PATIENCE = Patience()
#: Steps that change the host.
_CHANGING = frozenset({*FORWARD, *BACK, Step.ENROL}) - {Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT}
STEPS: Mapping[Step, Callable[[Work], dict[str, Any]]] = upgrade.STEPS | rollback.STEPS


class RealEffects:
    """Performs steps on the hosts of a fleet."""

    def __init__(self, plan: Plan, *, patience: Patience = PATIENCE) -> None:
        """With the lock and the fleet file of ``plan``, also where the files have changed since.

        Raises RolloutRefused where ``releases.store`` hasn't kept them.
        """
        path, settings = Path(plan.fleet).resolve(), Rollout.model_validate(dict(plan.settings))
        release = releases.of_plan(Path(plan.fleet), plan.lock_digest, plan.fleet_digest)
        self._fleet = release.fleet.with_any_serial() if plan.any_serial else release.fleet
        self._work = partial(
            Work,
            lock=release.lock,
            fleet_path=path,
            settings=settings,
            rollout=plan.id,
            drainer=drainer(settings.drain, path.parent),
            logs=paths.state() / "rollouts" / plan.id,
            everyone=self._fleet,
            patience=patience,
            consoles=frozenset(name for wave in plan.waves if wave.console for name in wave.hosts),
            release=release,
        )
        self._stop = Stop()

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """As Effects.perform."""
        if task.host not in self._fleet.everyone():
            raise RolloutRefused(
                f"{task.host}: the fleet that the rollout was planned with has no such machine",
                hint="Begin a new rollout with the fleet as it is now",
            )
        work = self._work(task=task, fleet=alone(self._fleet, task.host), say=progress)
        with self._stop.scope():
            return _perform(work)

    def stop(self) -> None:
        """End what is under way soon, with Interrupted."""
        self._stop.request()


def _perform(work: Work) -> dict[str, Any]:
    """Do the step; the rollout keeps the host's lease until the host is back in work, or a step fails."""
    step = work.task.step
    try:
        facts = STEPS[step](work)
    except (Interrupted, HostUnreachable):
        raise
    except GdsError:
        if step in _CHANGING:
            release_host(work)
        raise
    if step is Step.RETURN or (work.is_builder and step in (Step.VALIDATE, Step.UNDO_VALIDATE)):
        release_host(work)
    return facts


class RefusingEffects:
    """Effects for a rollout without a running host: refuses every step."""

    def __init__(self, error: RolloutRefused) -> None:
        self._error = error

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:  # noqa: ARG002 - as Effects
        raise self._error

    def stop(self) -> None:
        """There is no step to stop."""


def resumption(current: Status, path: Path, accept: Collection[str], reason: str) -> RolloutResumed:
    """That the rollout resumes for ``reason``, with ``accept`` and the hosts that are back in work or out of it now.

    Raises RolloutRefused for a host in ``accept`` that did not fail.
    """
    failed = {host.name for host in current.failed()}
    for name in accept:
        if name not in failed:
            names = ", ".join(sorted(failed)) or "none did"
            raise RolloutRefused(f"--accept: {name} did not fail in this rollout", hint=f"Hosts that failed: {names}")
    plan, settings = current.plan, Rollout.model_validate(dict(current.plan.settings))
    every = list(dict.fromkeys([*(host.name for host in current.hosts.values()), *sorted(current.slots.down)]))
    try:
        states = drainer(settings.drain, path.resolve().parent).states(every)
    except DrainFailed as error:
        console.warn(f"hosts count as out of work as they did when this rollout was planned: {error.message}")
        states = {}
    out = {name for name, state in states.items() if state.out and rollout_of(state.reason) != plan.id}
    in_work = {name for name, state in states.items() if not state.out}
    stuck = {host.name for host in current.hosts.values() if host.outcome in (Outcome.KEPT, Outcome.LOST) and host.out}
    # Without a scheduler only a person knows whether a failed host works.
    silent = set(every) - states.keys()
    working = set(accept) if settings.drain.by == "none" else in_work | (silent & set(accept))
    back = (stuck & working) | _answering(path, sorted(current.slots.down & (in_work | silent)))
    # A drain by others, of a host that this rollout has finished, counts already.
    down = {name for name in out - current.slots.down if not (name in current.hosts and current.hosts[name].out)}
    return RolloutResumed(reason, tuple(sorted(accept)), tuple(sorted(back)), tuple(sorted(down)))


def _answering(path: Path, names: list[str]) -> set[str]:
    """Those of ``names`` that are in the fleet and answer; empty where the fleet file can't be read."""
    if not names:
        return set()
    try:
        fleet = load_fleet(path, TRUSTED)
        names = [name for name in names if name in fleet.hosts]
        return set(names) - preconditions.silent(fleet, path, names).keys()
    except GdsError as error:
        console.warn(f"hosts that answer again are unknown: {error.message}")
        return set()


def _removed(plan: Plan, path: Path) -> Collection[str]:
    fleet = load_fleet(path, TRUSTED)
    return {name for wave in plan.waves for name in wave.hosts if name not in fleet.everyone()}


def _notices(plan: Plan, path: Path) -> Iterator[str]:
    consequence = "the rollout continues with the one that it was planned with"
    with suppress(GdsError):
        if releases.digest_of(path) != plan.fleet_digest:
            yield f"{path} was edited since; {consequence}"
    with suppress(GdsError):
        if lockfile.read(lockfile.beside(path)).digest != plan.lock_digest:
            yield f"{lockfile.beside(path)} is another lock than before; {consequence}"
