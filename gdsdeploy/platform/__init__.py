"""What differs by operating system, and only that: one file per system, found here by a profile's ``os``."""

from __future__ import annotations

from gdsdeploy.errors import FleetInvalid, NoSolution
from gdsdeploy.platform import debian, rhel, sles, ubuntu
from gdsdeploy.platform.base import Platform, Preset, StackPlatform, Wanted
from gdsdeploy.repo.order import DEB, Order

__all__ = [
    "Platform",
    "Preset",
    "StackPlatform",
    "Wanted",
    "known",
    "platform_for",
    "stack_platform_for",
    "version_order",
]

_PLATFORMS: dict[str, Platform] = {
    p.os: p for p in (*debian.PLATFORMS, *ubuntu.PLATFORMS, *rhel.PLATFORMS, *sles.PLATFORMS)
}


def known() -> tuple[str, ...]:
    """Every ``os`` that a profile may name."""
    return tuple(_PLATFORMS)


def platform_for(os: str) -> Platform:
    """The platform of an ``os`` such as ``debian-13``; raises FleetInvalid listing the known ones."""
    try:
        return _PLATFORMS[os]
    except KeyError:
        raise FleetInvalid(f"the operating system {os!r} is not known", hint=f"Known: {', '.join(known())}") from None


def stack_platform_for(os: str) -> StackPlatform:
    """The platform of ``os`` if its packages can be resolved; raises NoSolution if not, FleetInvalid if unknown."""
    platform = platform_for(os)
    if not isinstance(platform, StackPlatform):
        served = [p.os for p in _PLATFORMS.values() if isinstance(p, StackPlatform)]
        raise NoSolution(
            f"{os} cannot be locked yet: this release reads its fleet files, but does not resolve its packages",
            hint=f"Can be locked: {', '.join(served)}",
        )
    return platform


def version_order(os: str) -> Order:
    """How the packages of ``os`` are ordered by version; dpkg's order for a system that is not known."""
    platform = _PLATFORMS.get(os)
    return platform.order if isinstance(platform, StackPlatform) else DEB
