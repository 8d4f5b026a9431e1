"""Disposable hosts for rehearsals: VM hosts boot their own kernel, light hosts build modules."""

from __future__ import annotations

from gdslab.cloning import clone
from gdslab.firmware import Firmware
from gdslab.host import LabHost
from gdslab.lifecycle import down, up
from gdslab.standin import plug
from gdslab.state import Lab

__all__ = ["Firmware", "Lab", "LabHost", "clone", "down", "plug", "up"]
