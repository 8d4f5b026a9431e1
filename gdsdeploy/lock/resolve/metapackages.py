"""Packages that pull a driver of whichever version, and by which way.  Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gdsdeploy.platform.base import StackPlatform
from gdsdeploy.repo.packages import Universe

#: Packages that are a driver or bring one, in both package families.
_DRIVER = re.compile(
    r"cuda-drivers.*|nvidia-open(?:-[0-9]{3}.*)?|nvidia-driver(?:-[0-9]{3}(?:-server)?)?(?:-open)?|nvidia-headless-.*"
    r"|nvidia-dkms.*|nvidia-kernel-(?:open-)?dkms|nvidia-open-kernel-dkms|(?:kmod|akmod|dkms)-nvidia.*"
)


def pulling_drivers(universe: Universe, platform: StackPlatform, names: Sequence[str]) -> list[str]:
    """For each of the ``wanted`` packages that would pull a driver: by which way, and what to ask for instead."""
    reasons = []
    for name in names:
        way = _pulls(universe, platform, name, {})
        if _DRIVER.fullmatch(name):
            reasons.append(f"[cuda] {name} is a driver, and the driver is locked by itself: take it out of `cuda`")
        elif way:
            reasons.append(
                f"[cuda] {name} would pull the driver {way[-1]}: {' → '.join([name, *way])}; "
                "the driver is locked by itself, so ask for what of the toolkit is needed (cuda-toolkit-X-Y)"
            )
        elif not universe.named(name):
            reasons.append(f"[cuda] the repositories have no {name}")
    return reasons


def _pulls(universe: Universe, platform: StackPlatform, name: str, memo: dict[str, list[str]]) -> list[str]:
    """The names from what ``name`` depends on down to a driver that it cannot be installed without; empty: none."""
    if name in memo:
        return memo[name]
    memo[name] = []  # what depends on itself pulls nothing by that
    newest = max(universe.named(name), key=lambda c: platform.order.key(c.version), default=None)
    # Outside the stack nothing depends on a driver, and a distribution's whole archive need not be walked to see it.
    if newest is None or not platform.in_stack(newest):
        return []
    for group in (*newest.pre_depends, *newest.depends):
        names = {c.package for relation in group if not relation.negated for c in universe.answering(relation)}
        ways = [_way(universe, platform, each, memo) for each in sorted(names)]
        if ways and all(ways):
            memo[name] = ways[0]
            break
    return memo[name]


def _way(universe: Universe, platform: StackPlatform, name: str, memo: dict[str, list[str]]) -> list[str]:
    if _DRIVER.fullmatch(name):
        return [name]
    further = _pulls(universe, platform, name, memo)
    return [name, *further] if further else []
