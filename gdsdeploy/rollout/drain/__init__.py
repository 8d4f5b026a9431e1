"""Taking hosts out of work before they are changed, and bringing them back: by Slurm, Kubernetes or commands.

Whoever drained a host brings it back: every drain is signed with its reason, and a drain of anybody else stays as it
is, reason and all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout.drain import command, kubernetes, none, slurm
from gdsdeploy.rollout.drain.drainer import Drainer, State, reason_of, rollout_of, signature

__all__ = ["Drainer", "State", "drainer", "reason_of", "rollout_of", "signature"]

_WAYS: Mapping[str, Callable[[Drain, Path], Drainer]] = {
    "none": none.drainer,
    "slurm": slurm.drainer,
    "kubernetes": kubernetes.drainer,
    "command": command.drainer,
}


def drainer(settings: Drain, fleet_dir: Path) -> Drainer:
    """The way that ``settings`` name; programs start in ``fleet_dir``, the folder of the fleet file.

    Raises FleetInvalid where ``settings.program`` is not one of it.
    """
    return _WAYS[settings.by](settings, fleet_dir)
