"""Renders what provisioning needs into a folder for another engine.

    runner   a private data directory of ansible-runner
    awx      a project with its inventory, as AWX takes it from source control
    pull     a project for ansible-pull, which each host runs for itself

The roles, the host program and every variable are those of ``gdsdeploy provision``.  Canaries, waves, thresholds and
rollback are left to the engine.
"""

from __future__ import annotations

from gdsdeploy.rollout.carriers.layout import CARRIERS, Carrier
from gdsdeploy.rollout.carriers.rendering import Rendering, render

__all__ = ["CARRIERS", "Carrier", "Rendering", "render"]
