"""The register of operating systems: a file of this package adds one by registering it."""

from __future__ import annotations

from gdsdeploy.platform.base import StackPlatform

_PLATFORMS: dict[str, tuple[int, StackPlatform]] = {}


def register(*platforms: StackPlatform, rank: int = 100) -> None:
    """Make releases of an operating system known; raises ValueError for an ``os`` that is taken.

    rank: place in the list of known systems, the smallest first; ties go by the order of registering.
    """
    for platform in platforms:
        if platform.os in _PLATFORMS:
            raise ValueError(f"two platforms have the name {platform.os}")
        _PLATFORMS[platform.os] = (rank, platform)


def registered() -> dict[str, StackPlatform]:
    """Every platform by its ``os``, in order."""
    return {os: platform for os, (_, platform) in sorted(_PLATFORMS.items(), key=lambda entry: entry[1][0])}
