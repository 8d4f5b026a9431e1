"""What keeps the stack in the locked versions: apt's preferences, or dnf's locks and module streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, List, Sequence

from . import files, repositories
from .files import File
from .host import ManagedHost
from .model import Change, Refusal, Resource, Words
from .packages.managers import Index, Pin, check_names, every, manager


@dataclass(frozen=True)
class Desired:
    """The versions that the package manager may install."""

    #: The host's package manager.
    manager: str
    #: The locked, signed package indices.  Those that are exclusive offer nothing but the pins.
    indices: List[Index] = field(default_factory=list)
    #: Exact versions of all locked packages of this host.
    pins: List[Pin] = field(default_factory=list)
    #: Names and globs of packages that may be installed only in a pinned version.
    deny: List[str] = field(default_factory=list)
    #: Module streams to enable, as ``NAME:STREAM``; dnf only.
    modules: List[str] = field(default_factory=list)


class Pins(Resource[Desired]):
    """The package manager takes the locked versions and no others."""

    name = "pins"
    desired_type = Desired
    removal_rank = 70
    kinds: ClassVar[Words] = {"stream": "enable the module stream {}"}
    reasons: ClassVar[Words] = {"not-enabled": "not enabled"}

    def __init__(self) -> None:
        self._file: List[File] = []
        self._pinned = False

    def desired_files(self, desired: Desired) -> List[File]:
        """The file of the latest look at a host: apt's names the repositories as their lists do."""
        return self._file

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        check_names([pin.package for pin in desired.pins], "pins")
        observed = manager(desired.manager).observe_pins(host, desired)
        self._file = [observed["file"], *(file for file, _ in observed.get("others", ()))]
        self._pinned = observed["pinned"]
        return observed

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        return files.refusals([(observed["file"], observed["entry"]), *observed.get("others", ())])

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        return manager(desired.manager).pin_changes(desired, observed, pending)

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        manager(desired.manager).pin(host, desired, change)

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """The package manager would take the locked versions; a host that had no pins loses its new sources, too."""
        if not self._pinned:
            host.undo_by("the lock's repositories", lambda: repositories.take_back(host))
        manager(desired.manager).verify_pins(host, desired)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Remove gdsdeploy's pins; others stay."""
        return [change for one in every() for change in one.unpin(host)]
