"""Where each machine's modules come from when no run of ours is there to choose; pure but for the shelf it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import Cached, Supply
from gdsdeploy.errors import NotProvisioned
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.rollout.carriers.layout import Carrier


def chosen(
    fleet: Fleet,
    lock: Lock,
    carrier: Carrier,
    asked: Mapping[str, Supply],
    look: Cached,
) -> dict[str, Supply]:
    """Machine → supply; ``asked``: of those that were asked what they are; ``look``: for a kept build, by its want.

    In runner and awx who builds is in the same run and hands over; hosts that pull wait for nobody, so a kept build has
    to serve them.  Raises NotProvisioned, naming every machine whose modules nobody would make.
    """
    found: dict[str, Supply] = {}
    lacking: list[str] = []
    for name in fleet.everyone():
        supply = asked.get(name) or assign.by_intent(fleet, lock, name)
        if supply.mode == "receive" and not supply.cached and supply.source != "kept":
            supply = _waiting(fleet, lock, carrier, name, supply, look)
            if supply.mode == "receive" and not supply.cached and not supply.builder:
                lacking.append(name)
        found[name] = supply
    if lacking:
        raise NotProvisioned(
            f"nobody would make the modules of {', '.join(lacking)}: they receive them, and no build is kept here",
            hint="Provision one of them, or its builder, from this machine once (the build is kept), or say "
            "modules: build in the fleet file",
        )
    delivering = {supply.builder for supply in found.values() if not supply.cached} if carrier != "pull" else set()
    return {name: replace(supply, delivers=name in delivering) for name, supply in found.items()}


def _waiting(
    fleet: Fleet,
    lock: Lock,
    carrier: Carrier,
    name: str,
    supply: Supply,
    look: Cached,
) -> Supply:
    """What becomes of a machine that waits for what another one builds; without a builder: nobody would."""
    if carrier != "pull" and supply.builder:
        return supply
    own = assign.by_intent(fleet, lock, name)
    if own.mode == "build":
        return own
    kept = look(supply.want, fleet.suppliers(name))
    if kept is not None:
        return replace(supply, cached=True, origin=kept.builder)
    return replace(supply, builder="")
