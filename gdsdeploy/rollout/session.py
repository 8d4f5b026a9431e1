"""Runs a rollout for a command: its effects, its windows, its notifications, and its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gdsdeploy import console, paths
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import ControllerUnfit, GdsError, HostUnreachable, Interrupted, RolloutRefused
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.events import Event, RolloutResumed
from gdsdeploy.model.rollout import BACK, FORWARD, Plan, Standing, Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import journal, preconditions, waves
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.drain import SchedulerAway, drainer
from gdsdeploy.rollout.driver import Effects, Hooks, drive
from gdsdeploy.rollout.machine import Status
from gdsdeploy.rollout.notify import Notifier
from gdsdeploy.rollout.steps import rollback, upgrade
from gdsdeploy.rollout.steps.work import TRIES, InWork, Patience, Work, alone, await_status, release_host


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
            look=Lookout(plan),
        )
        with watch.shown():
            drive(writer, plan.id, effects, hooks=hooks)
    assert watch.status is not None
    return watch.status


PATIENCE = Patience()
#: Steps that change the host.
_CHANGING = frozenset({*FORWARD, *BACK, Step.ENROL}) - {Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT}
#: Steps that wait for a silent host by themselves, or have nothing to wait for.
_PATIENT = frozenset({Step.PREFLIGHT, Step.DRAIN, Step.BOOT, Step.UNDO_BOOT, Step.POWER})
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
        facts = _patiently(work)
    except (Interrupted, HostUnreachable, ControllerUnfit):
        raise
    except GdsError:
        if step in _CHANGING:
            release_host(work)
        raise
    if step is Step.RETURN or (work.is_builder and step in (Step.VALIDATE, Step.UNDO_VALIDATE)):
        release_host(work)
    return facts


def _patiently(work: Work) -> dict[str, Any]:
    """Do the step; a host that is silent, because it boots, is waited for as long as a boot may take.

    An interrupted step, and an order whose answer was lost, may have had their effect: the host is waited for, and
    the step looks in which boot it is.
    """
    step, settings = work.task.step, work.settings
    boot = max(settings.reboot_timeout, settings.console.timeout if work.console else 0)
    tries = 0 if step in _PATIENT else TRIES
    if tries and work.task.attempt > 1:
        await_status(work, boot)
    for number in range(tries + 1):
        try:
            return STEPS[step](work)
        except InWork:
            work.say(f"it is in work: {step} waits until it is drained again")
            release_host(work)
            return {"standing": Standing.WORKS, "begun": number > 0}
        except SchedulerAway as error:
            return {"standing": Standing.UNKNOWN, "begun": number > 0, "reason": str(error)}
        except HostUnreachable as error:
            if number == tries:
                raise
            work.say(f"{error.message}; waits for it as long as a boot may take")
            await_status(work, boot)
    raise AssertionError


class RefusingEffects:
    """Effects for a rollout without a running host: refuses every step."""

    def __init__(self, error: RolloutRefused) -> None:
        self._error = error

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:  # noqa: ARG002 - as Effects
        raise self._error

    def stop(self) -> None:
        """There is no step to stop."""


def resumption(current: Status, accept: Collection[str], reason: str) -> RolloutResumed:
    """That the rollout resumes for ``reason``; raises RolloutRefused for a host in ``accept`` that did not fail."""
    failed = {host.name for host in current.failed()}
    for name in accept:
        if name not in failed:
            names = ", ".join(sorted(failed)) or "none did"
            raise RolloutRefused(f"--accept: {name} did not fail in this rollout", hint=f"Hosts that failed: {names}")
    return RolloutResumed(reason, tuple(sorted(accept)))


class Lookout:
    """Who keeps which host of the fleet out of work now; a host that doesn't answer counts as drained by others."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._path = plan, Path(plan.fleet).resolve()
        self._drainer = drainer(Rollout.model_validate(dict(plan.settings)).drain, self._path.parent)
        self._silent: set[str] = set()

    def __call__(self, down: Collection[str], afresh: bool) -> dict[str, Standing]:
        """Host → standing, as far as it's known.  Raises DrainFailed.

        down: hosts that others kept out of work.  afresh: those of them that work, by the scheduler, have to answer.
        """
        hosts = [name for wave in self._plan.waves if wave.drain for name in wave.hosts]
        states = self._drainer.states(list(dict.fromkeys([*hosts, *self._plan.skipped, *down])))
        standings = {name: state.standing(self._plan.id) for name, state in states.items()}
        if afresh:
            doubtful = sorted(name for name in down if standings.get(name) in (None, Standing.WORKS))
            self._silent = set(doubtful) - _answering(self._path, doubtful)
        return standings | dict.fromkeys(self._silent, Standing.THEIRS)


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
