"""Disposable hosts to rehearse on: VM hosts that boot a kernel of their own, and light hosts to build in."""

from __future__ import annotations

from gdsdeploy.lab.cloning import clone
from gdsdeploy.lab.host import Host
from gdsdeploy.lab.lifecycle import down, up
from gdsdeploy.lab.standin import plug
from gdsdeploy.lab.state import Lab

__all__ = ["Host", "Lab", "clone", "down", "plug", "up"]
