"""Whether the lock's packages would take others away: that is refused before any of them is installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List

from .host import ManagedHost
from .model import Refusal, Resource
from .packages import Packages, transaction
from .packages.managers import Package, Pin


@dataclass(frozen=True)
class Desired:
    """All packages of this host, which other resources install one set after the other."""

    #: The host's package manager.
    manager: str
    #: Exact versions of all locked packages of this host.
    pins: List[Pin] = field(default_factory=list)
    #: Packages that are removed first, as for ``packages``; apt only.
    superseded: List[Package] = field(default_factory=list)
    #: Names of all locked packages, as for ``packages``.
    locked: List[str] = field(default_factory=list)
    #: Names or shell patterns of packages that may leave although nothing replaces them.
    removes: List[str] = field(default_factory=list)

    def whole(self) -> transaction.Desired:
        """One transaction of everything."""
        return transaction.Desired(
            self.manager, [*self.pins], superseded=self.superseded, locked=self.locked, removes=self.removes
        )


class Removals(Resource[Desired]):
    """Asks apt or dnf what would leave, and changes nothing."""

    name = "removals"
    desired_type = Desired

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        return Packages().observe(host, desired.whole())

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        return Packages().refusals(desired.whole(), observed)
