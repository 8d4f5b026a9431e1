"""Ubuntu: known by name, so that fleets for it can be written and read; its packages are not resolved yet."""

from __future__ import annotations

from typing import Final

from gdsdeploy.platform.base import Platform

PLATFORMS: Final = tuple(Platform(f"ubuntu-{release}", "ubuntu", release) for release in ("22.04", "24.04", "26.04"))
