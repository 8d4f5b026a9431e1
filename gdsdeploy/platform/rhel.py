"""Red Hat Enterprise Linux: known by name, so that fleets for it can be written and read; not resolved yet."""

from __future__ import annotations

from typing import Final

from gdsdeploy.platform.base import Platform

PLATFORMS: Final = tuple(Platform(f"rhel-{release}", "rhel", release) for release in ("8", "9", "10"))
