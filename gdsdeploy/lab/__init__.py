"""Disposable hosts for rehearsals: VM hosts boot their own kernel, light hosts build modules."""

from __future__ import annotations

from gdsdeploy.lab.cloning import clone
from gdsdeploy.lab.firmware import Firmware
from gdsdeploy.lab.host import LabHost
from gdsdeploy.lab.lifecycle import down, up
from gdsdeploy.lab.standin import plug
from gdsdeploy.lab.state import Lab

__all__ = ["Firmware", "Lab", "LabHost", "clone", "down", "plug", "up"]
