"""The steps of a rollout as they are really done: to each task its function, with all that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from gdsdeploy import paths
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import GdsError, HostUnreachable, Interrupted, RolloutRefused
from gdsdeploy.lock import releases
from gdsdeploy.lock.releases import Release
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import BACK, FORWARD, Plan, Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.drain import Drainer, drainer
from gdsdeploy.rollout.steps import apply, boot, lease, prepare, rollback, validate
from gdsdeploy.rollout.steps.work import Patience, Work, alone

PATIENCE = Patience()
#: Before these steps nothing is changed, and after them nothing that another run could disturb.
_CHANGING = frozenset({*FORWARD, *BACK}) - {Step.PREFLIGHT, Step.DRAIN, Step.SNAPSHOT}
STEPS: Mapping[Step, Callable[[Work], dict[str, Any]]] = {
    **prepare.STEPS,
    **apply.STEPS,
    **boot.STEPS,
    **validate.STEPS,
    **rollback.STEPS,
}


class RealEffects:
    """Performs steps on the hosts of a fleet; see :class:`gdsdeploy.rollout.effects.Effects`."""

    def __init__(
        self,
        fleet: Fleet,
        lock: Lock,
        fleet_path: Path,
        settings: Rollout,
        *,
        rollout: str,
        drains: Drainer | None = None,
        patience: Patience = PATIENCE,
        release: Release | None = None,
    ) -> None:
        """Bring hosts to ``lock``, as ``fleet`` has it.

        fleet_path: where relative names of the fleet start, and under which releases are kept.
        rollout: the plan's id, with which drains are signed.
        drains: takes hosts out of work; by default as ``settings`` say.
        release: of ``fleet`` and ``lock``, in which it is written down who has them.
        """
        self._release = release
        self._fleet, self._lock, self._fleet_path = fleet, lock, fleet_path.resolve()
        self._settings, self._rollout, self._patience = settings, rollout, patience
        self._drainer = drains or drainer(settings.drain, self._fleet_path.parent)
        self._logs = paths.state() / "rollouts" / rollout
        self._stop = Stop()

    @classmethod
    def of_plan(cls, plan: Plan, *, patience: Patience = PATIENCE) -> Self:
        """With the lock and the fleet file that ``plan`` was made with, whatever has become of the files since.

        Raises RolloutRefused where they are not kept (``releases.store`` keeps them).
        """
        path = Path(plan.fleet)
        release = releases.of_plan(path, plan.lock_digest, plan.fleet_digest)
        settings = Rollout.model_validate(dict(plan.settings))
        return cls(release.fleet, release.lock, path, settings, rollout=plan.id, patience=patience, release=release)

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """Do one step; see :meth:`gdsdeploy.rollout.effects.Effects.perform`."""
        if task.host not in self._fleet.everyone():
            raise RolloutRefused(
                f"{task.host}: the fleet that the rollout was planned with has no such machine",
                hint="Begin a new rollout with the fleet as it is now",
            )
        work = Work(
            task=task,
            fleet=alone(self._fleet, task.host),
            lock=self._lock,
            fleet_path=self._fleet_path,
            settings=self._settings,
            rollout=self._rollout,
            drainer=self._drainer,
            logs=self._logs,
            progress=progress,
            everyone=self._fleet,
            patience=self._patience,
            release=self._release,
        )
        with self._stop.scope():
            return _performed(work)

    def stop(self) -> None:
        """End what is under way soon, with Interrupted."""
        self._stop.wish()


def _performed(work: Work) -> dict[str, Any]:
    """Do the step; from its first change until it is back in work, or a step fails, the host is this rollout's own."""
    step = work.task.step
    try:
        found = STEPS[step](work)
    except (Interrupted, HostUnreachable):
        raise
    except GdsError:
        if step in _CHANGING:
            lease.release(work)
        raise
    if step is Step.RETURN or (work.is_builder and step in (Step.VALIDATE, Step.UNDO_VALIDATE)):
        lease.release(work)
    return found
