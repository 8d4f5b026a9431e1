"""The machines that take part in a rollout, and its settings for them."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile import selection
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.rollout_settings import Rollout


@dataclass(frozen=True)
class Participants:
    """The machines that take part."""

    hosts: tuple[str, ...]
    #: machines that build modules for them, and run no jobs
    builders: tuple[str, ...]
    #: hosts of the fleet that take no part, and why
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [*self.builders, *self.hosts]


def choose(fleet: Fleet, fleet_path: Path, limit: str | None, exclude: str | None) -> Participants:
    """The hosts that ``limit`` selects and ``exclude`` doesn't, without the label ``rollout.skip``, and their builders.

    Raises FleetInvalid for an unknown name, and where no host is left.
    """
    chosen = selection.select(limit, list(fleet.hosts), fleet_path)
    out = selection.select(exclude, list(fleet.hosts), fleet_path, option="--exclude") if exclude else []
    others = {name: "not in --limit" for name in fleet.hosts if name not in chosen}
    others.update({name: "in --exclude" for name in out if name in chosen})
    skip = fleet.rollout.skip
    others.update({name: f"it has the label {skip}" for name, host in fleet.hosts.items() if skip in host.labels})
    hosts = tuple(name for name in chosen if name not in others)
    if not hosts:
        raise FleetInvalid(
            "no host is left that takes part",
            hint=f"--limit selects only hosts that --exclude names, or that have the label {skip}",
        )
    profiles = {fleet.hosts[name].profile for name in hosts}
    return Participants(hosts, tuple(name for name, host in fleet.builders.items() if host.profile in profiles), others)


def within(settings: Rollout, fleet: Fleet, participants: Participants) -> Rollout:
    """Without the canaries that ``--limit`` and ``--exclude`` leave out, for which a host of each kind steps in."""
    canary = settings.canary
    hosts = tuple(
        pattern for pattern in canary.hosts
        if fnmatch.filter(participants.hosts, pattern) or not fnmatch.filter(fleet.hosts, pattern)
    )  # fmt: skip
    having = {name for name, host in fleet.hosts.items() if canary.labels.items() <= host.labels.items()}
    labels = canary.labels if having & set(participants.hosts) or not having else {}
    if (hosts, labels) == (canary.hosts, canary.labels):
        return settings
    return settings.model_copy(
        update={"canary": canary.model_copy(update={"hosts": hosts, "labels": labels, "per_kind": True})}
    )
