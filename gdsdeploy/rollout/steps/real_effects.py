"""Performs the steps of a rollout on real hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import GdsError, HostUnreachable, Interrupted, RolloutRefused
from gdsdeploy.lock import releases
from gdsdeploy.model.rollout import BACK, FORWARD, Plan, Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.drain import drainer
from gdsdeploy.rollout.steps import apply, boot, enrol, prepare, rollback, validate
from gdsdeploy.rollout.steps.work import Patience, Work, alone, release_host

PATIENCE = Patience()
#: Steps that change the host.
_CHANGING = frozenset({*FORWARD, *BACK, Step.ENROL}) - {Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT}
STEPS: Mapping[Step, Callable[[Work], dict[str, Any]]] = (
    prepare.STEPS | enrol.STEPS | apply.STEPS | boot.STEPS | validate.STEPS | rollback.STEPS
)


class RealEffects:
    """Performs steps on the hosts of a fleet; see :class:`gdsdeploy.rollout.effects.Effects`."""

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
        """Do one step; see :meth:`gdsdeploy.rollout.effects.Effects.perform`."""
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
