"""What differs by operating system, and only that: one file per family of systems, found here by a profile's ``os``.

To add a system, add a file: see docs/guides/extend.md.
"""

from __future__ import annotations

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.model.discovery import import_modules
from gdsdeploy.platform.base import PLATFORMS, REFUSED, Preset, StackPackage, StackPlatform
from gdsdeploy.repo.packages import DEB, Order

__all__ = ["Preset", "StackPackage", "StackPlatform", "stack_platform_for", "supported_systems", "version_order"]

import_modules(__name__)
_PLATFORMS = {os: platform for os, (_, platform) in sorted(PLATFORMS.items(), key=lambda entry: entry[1][0])}


def supported_systems() -> tuple[str, ...]:
    """Every ``os`` that a profile may name."""
    return tuple(_PLATFORMS)


def stack_platform_for(os: str) -> StackPlatform:
    """The platform of an ``os`` such as ``debian-13``; raises FleetInvalid listing the known ones."""
    if os in REFUSED:
        reason, hint = REFUSED[os]
        raise FleetInvalid(f"{os} {reason}", hint=hint)
    try:
        return _PLATFORMS[os]
    except KeyError:
        raise FleetInvalid(
            f"the operating system {os!r} is not known", hint=f"Known: {', '.join(supported_systems())}"
        ) from None


def version_order(os: str) -> Order:
    """How the packages of ``os`` are ordered by version; dpkg's order for a system that is not known."""
    return _PLATFORMS[os].order if os in _PLATFORMS else DEB
