"""What provisioning needs, rendered into a folder that stands alone, for engines that a fleet has already.

    runner   a private data directory of ansible-runner
    awx      a project with its inventory, as AWX takes it from source control
    pull     a project for ansible-pull, which each host runs for itself

The roles, the host program and every variable are those that ``gdsdeploy provision`` would use.  What makes a rollout,
canaries, waves, thresholds, rollback, is not in the folder: that is the engine's, or nobody's.
"""

from __future__ import annotations

from gdsdeploy.rollout.carriers.layout import CARRIERS, Carrier
from gdsdeploy.rollout.carriers.rendering import Rendered, render

__all__ = ["CARRIERS", "Carrier", "Rendered", "render"]
