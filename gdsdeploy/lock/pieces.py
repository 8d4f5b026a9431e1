"""The pieces of a driver that hosts have: what ``gdsdeploy lock --adopt`` adds to a lock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Pieces:
    """Host → package → version, of the packages that by their names are pieces of a driver or of GDS."""

    of_hosts: Mapping[str, Mapping[str, str]]
    #: host → its profile
    profiles: Mapping[str, str]

    def by_profile(self) -> dict[str, dict[str, Collection[str]]]:
        """Profile → package → its versions on hosts of the profile: what any of them has."""
        union: dict[str, dict[str, set[str]]] = {profile: {} for profile in self.profiles.values()}
        for host, packages in self.of_hosts.items():
            for name, version in packages.items():
                union[self.profiles[host]].setdefault(name, set()).update(version.split())
        return {profile: dict(packages) for profile, packages in union.items()}

    def without(self, profile: str, name: str) -> list[str]:
        """The asked hosts of a profile that don't have a package."""
        return [host for host, of in self.profiles.items() if of == profile and name not in self.of_hosts[host]]
