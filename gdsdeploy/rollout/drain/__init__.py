"""Takes hosts out of work before they're changed, and brings them back: by Slurm, Kubernetes or a site's commands.

Every drain is signed with its reason, and only the rollout that signed it ends it.
"""

from __future__ import annotations

from pathlib import Path

from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout.drain.base import Drainer, Nothing, State, reason_of, rollout_of, signature
from gdsdeploy.rollout.drain.command import Commands
from gdsdeploy.rollout.drain.kubernetes import Kubernetes
from gdsdeploy.rollout.drain.slurm import Slurm

__all__ = ["Drainer", "State", "drainer", "reason_of", "rollout_of", "signature"]


def drainer(settings: Drain, fleet_dir: Path) -> Drainer:
    """The way that ``settings`` name; programs start in ``fleet_dir``, the folder of the fleet file.

    Raises FleetInvalid where ``settings.program`` isn't the client of that scheduler.
    """
    match settings.by:
        case "slurm":
            return Slurm(settings.program or ("scontrol",), settings.node, fleet_dir)
        case "kubernetes":
            return Kubernetes(settings.program or ("kubectl",), settings.node, fleet_dir)
        case "command":
            return Commands(settings, fleet_dir)
        case "none":
            return Nothing()
