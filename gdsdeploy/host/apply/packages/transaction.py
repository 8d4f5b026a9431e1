"""What a transaction needs and what it changes, before it is made."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field, replace
from typing import Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from ...kmod.packaged import PREFIX
from ..host import ManagedHost
from ..model import INSTALLS, Change, Refusal
from .managers import Installed, Manager, Package

#: The ids of refusals.
REFUSAL, ON_HOLD = "removals", "held"
#: Why a package leaves, as package managers tell: one that comes replaces it, or excludes it, or it needs another
#: version of one that moves or leaves.  ``Change.by`` is that package.
REPLACED, CONFLICTS, NEEDS = "replaced-by", "conflicts", "needs"
#: Its profile lists it in ``removes``.
ALLOWED = "allowed"
#: Packages of kernels.
_KERNELS = "linux-"

Simulate = Callable[[Sequence[Package], Sequence[str]], Optional[List[Change]]]


@dataclass(frozen=True)
class Desired:
    """The packages of one set."""

    #: The host's package manager.
    manager: str
    #: Packages to install, in exact versions.
    packages: List[Package] = field(default_factory=list)
    #: Packages that depend on those and change to these versions with them if installed; apt only.
    dependents: List[Package] = field(default_factory=list)
    #: Packages that depend on those in their versions before.  Installed in other versions than these, they are removed
    #: first; where the version is empty, in any version; apt only.
    superseded: List[Package] = field(default_factory=list)
    #: Names of all locked packages.  Holds of other packages are released; empty releases none.
    locked: List[str] = field(default_factory=list)
    #: Names or shell patterns of packages that may leave although nothing replaces them.
    removes: List[str] = field(default_factory=list)

    def allows(self, name: str) -> bool:
        """Whether this package may leave although nothing replaces it."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.removes)


class Observed(NamedTuple):
    """``ours``: what gdsdeploy holds.  ``simulate``: asks the package manager what a transaction would change.

    ``unfinished``: what was interrupted, and what any transaction finishes first.  ``lost``: what is installed again
    first.  ``recorded``: what gdsdeploy installed.
    ``loaded``: modules that leave before their packages change.  ``users``: asks what uses one of them.
    ``predicts``: this is a look; nothing follows it.  ``earlier``: what other transactions change before this one.
    ``awaits``: repositories or pins are written before, so that the package manager can't be asked yet.
    ``judged``: names of which refusals were asked before in this look.
    """

    installed: Mapping[str, Installed]
    ours: Sequence[str]
    simulate: Simulate
    unfinished: Mapping[str, Installed]
    lost: Mapping[str, Installed]
    recorded: Sequence[str]
    loaded: Sequence[str]
    users: Callable[[str], Sequence[str]]
    predicts: bool
    earlier: Sequence[Change]
    awaits: bool
    judged: Set[str]

    def later(self) -> Dict[str, Installed]:
        """What is installed when this transaction begins."""
        later = dict(self.installed)
        for change in self.earlier:
            name, is_held = change.subject, change.subject in later and later[change.subject].is_held
            if change.kind in INSTALLS:
                later[name] = Installed((change.after,), is_held)
            elif change.kind == "remove":
                versions = later[name].versions if name in later else ()
                rest = tuple(version for version in versions if version != change.before)
                # Of kernels, one version leaves and the others stay.
                later.pop(name, None)
                later.update({name: Installed(rest, is_held)} if rest and change.before else {})
            elif name in later:
                later[name] = later[name]._replace(is_held=change.kind == "hold")
        return later

    def plan(self, chosen: Manager, desired: Desired) -> Plan:
        """The transaction that brings the host to ``desired``."""
        return plan(chosen, desired, self.later(), self.ours, self.unfinished)

    def moves(self, transaction: Plan) -> Optional[List[Change]]:
        """What the earlier transactions and this one change together, dependencies included; None: it can't be asked.

        Raises CannotTellError.
        """
        if self.awaits:
            return None
        before = [change for change in self.earlier if change.kind in (*INSTALLS, "remove")]
        install = {c.subject: Package(c.subject, c.after) for c in before if c.kind in INSTALLS}
        install.update({package.package: package for package in transaction.missing})
        leaving = [*(change.subject for change in before if change.kind == "remove"), *transaction.going]
        return self.simulate(list(install.values()), [name for name in leaving if name not in install])


class Plan(NamedTuple):
    """A transaction: what has to be installed and to leave, and the holds that go before it."""

    missing: Sequence[Package]
    going: Sequence[str]
    obsolete: Sequence[str]


def plan(
    chosen: Manager,
    desired: Desired,
    installed: Mapping[str, Installed],
    ours: Sequence[str],
    unfinished: Mapping[str, Installed],
) -> Plan:
    """The transaction that brings a host with these packages to ``desired``; without anything missing, none.

    unfinished: packages whose installation was interrupted; a driver whose build failed leaves like any other.
    """
    along = [package for package in desired.dependents if package.package in installed]
    packages = {package.package: package for package in [*along, *desired.packages]}
    missing = [package for package in packages.values() if not is_installed(chosen, installed, package)]
    if not missing:
        return Plan([], [], [])
    present = {**unfinished, **installed}
    others = [
        package for package in desired.superseded if package.package in present and package.package not in packages
    ]
    going = [package.package for package in others if not is_installed(chosen, present, package)]
    # Kernels keep their holds when the lock moves: one of them runs.  Their modules in packages need the userland.
    kernels = [name for name in ours if name.startswith(_KERNELS) and not name.startswith(PREFIX)]
    stale = [name for name in ours if desired.locked and name not in (*desired.locked, *kernels)]
    return Plan(missing, going, [name for name in stale if name in installed and installed[name].is_held])


def is_installed(chosen: Manager, installed: Mapping[str, Installed], package: Package) -> bool:
    """Whether a package is there in this version."""
    return package.package in installed and chosen.same(package.version) in installed[package.package].versions


def completions(transaction: Plan, observed: Observed) -> List[Change]:
    """Interrupted packages that the transaction finishes as well, unless an earlier one did."""
    if not transaction.missing:
        return []
    names = {*transaction.going, *(package.package for package in transaction.missing)}
    names |= {change.subject for change in observed.earlier}
    return [
        Change("install", name, "", package.versions[-1], reason)
        for reason, packages in (("half-installed", observed.lost), ("unfinished", observed.unfinished))
        for name, package in sorted(packages.items())
        if name not in names
    ]


def replaces(transaction: Plan, chosen: Manager, host: ManagedHost) -> bool:
    """Whether everything that was interrupted leaves or comes in another version, so that it needn't be finished."""
    versions = {package.package: package.version for package in transaction.missing}
    return all(
        package.name in transaction.going or versions.get(package.name, package.version) != package.version
        for package in chosen.list_packages(host)
        if package.name in chosen.unfinished(host)
    )


def lock_changes(
    chosen: Manager, transaction: Plan, installed: Mapping[str, Installed], unfinished: Mapping[str, Installed]
) -> List[Change]:
    """What the lock itself says, before a package manager was asked."""
    present = {**unfinished, **installed}
    leaving = [Change("remove", name, present[name].versions[-1], "", "leaving") for name in transaction.going]
    return [*leaving, *(move(chosen, package, installed.get(package.package)) for package in transaction.missing)]


def move(chosen: Manager, package: Package, present: Optional[Installed]) -> Change:
    """The change that brings a package to this version."""
    if present is None:
        return Change("install", package.package, "", package.version, "missing")
    before = present.versions[-1]
    kind = "upgrade" if chosen.order(before) < chosen.order(package.version) else "downgrade"
    return Change(kind, package.package, before, package.version, "version")


def simulated_changes(
    desired: Desired, transaction: Plan, moved: Sequence[Change], observed: Observed
) -> Optional[List[Change]]:
    """The changes that the package manager predicts after the earlier changes."""
    simulated = observed.moves(transaction)
    if simulated is None:
        return None
    before = [change for change in observed.earlier if change.kind in (*INSTALLS, "remove")]
    expected = {(change.subject, change.after) for change in before}
    # A new kernel may take the place of the oldest one: then a name both comes and leaves.
    ours = {(change.subject, change.kind == "remove") for change in moved}
    others = [
        with_reason(change, desired.allows) if change.kind == "remove" else replace(change, reason="dependency")
        for change in simulated
        if (change.subject, change.after) not in expected and (change.subject, change.kind == "remove") not in ours
    ]
    # The lock's own packages are listed as the lock has them: apt lists none that is half-installed.
    removed, rest = ([one for one in others if (one.kind == "remove") is first] for first in (True, False))
    return [*removed, *moved, *rest]


def hold_changes(desired: Desired, installed: Mapping[str, Installed]) -> List[Change]:
    """Wanted packages that aren't held."""
    names = [package.package for package in desired.packages]
    loose = [name for name in names if name not in installed or not installed[name].is_held]
    return [Change("hold", name, "", "held", "not-held") for name in loose]


def with_reason(move: Change, allows: Callable[[str], bool]) -> Change:
    """A removal with the reason that a plan shows: one that is only allowed by its name says that."""
    if move.reason != REPLACED and allows(move.subject):
        return replace(move, reason=ALLOWED)
    return replace(move, reason=move.reason or "dependency")


def removal_refusals(
    command: str, moves: Sequence[Change], expected: Collection[str], allows: Callable[[str], bool]
) -> List[Refusal]:
    """The refusal of ``moves`` that remove packages which nothing replaces.

    command: with which people call the package manager.  expected: names that leave on purpose.
    allows: whether the profile lets a package leave.
    """
    lost = [
        move
        for move in moves
        if move.kind == "remove"
        and move.subject not in expected
        and move.reason != REPLACED
        and not allows(move.subject)
    ]
    if not lost:
        return []
    listed = ", ".join(f"{move.subject} {move.before}".strip() for move in lost)
    names = [move.subject for move in lost]
    hint = (
        "To keep them, lock the driver's version of these: gdsdeploy lock FLEET --adopt HOST. If hosts of this profile"
        f" don't need them, allow it in the profile: removes: [{', '.join(names)}]; or remove them on this host:"
        f" {command} remove {' '.join(names)}"
    )
    message = f"the locked packages would remove installed ones that the lock doesn't replace: {listed}"
    return [Refusal(REFUSAL, message, hint)]


def hold_refusals(moves: Sequence[Change], allows: Callable[[str], bool]) -> List[Refusal]:
    """The refusal of ``moves`` of packages that others hold; those that the profile lets leave do so all the same.

    allows: whether the profile lets a package leave.
    """
    stuck = {move.subject: move.before for move in moves if move.kind != "remove" or not allows(move.subject)}
    if not stuck:
        return []
    listed = ", ".join(f"{name} {version}".strip() for name, version in stuck.items())
    message = f"packages that are held on this host would have to change or leave: {listed}"
    hint = f"Run on this host: apt-mark unhold {' '.join(stuck)}; then run this again"
    return [Refusal(ON_HOLD, message, hint)]
