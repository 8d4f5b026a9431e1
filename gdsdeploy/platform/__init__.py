"""What differs by operating system, and only that: one file per system, found here by a profile's ``os``."""

from __future__ import annotations

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.platform import debian, rhel, ubuntu
from gdsdeploy.platform.base import Preset, StackPlatform, Wanted
from gdsdeploy.repo.order import DEB, Order

__all__ = ["Preset", "StackPlatform", "Wanted", "known", "stack_platform_for", "version_order"]

_PLATFORMS: dict[str, StackPlatform] = {p.os: p for p in (*debian.PLATFORMS, *ubuntu.PLATFORMS, *rhel.PLATFORMS)}


def known() -> tuple[str, ...]:
    """Every ``os`` that a profile may name."""
    return tuple(_PLATFORMS)


def stack_platform_for(os: str) -> StackPlatform:
    """The platform of an ``os`` such as ``debian-13``; raises FleetInvalid listing the known ones."""
    try:
        return _PLATFORMS[os]
    except KeyError:
        raise FleetInvalid(f"the operating system {os!r} is not known", hint=f"Known: {', '.join(known())}") from None


def version_order(os: str) -> Order:
    """How the packages of ``os`` are ordered by version; dpkg's order for a system that is not known."""
    platform = _PLATFORMS.get(os)
    return platform.order if platform is not None else DEB
