"""Packages in exactly the locked versions, held where the package manager has holds; and a record of what is ours."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, ClassVar, Collection, Dict, List, Mapping, Optional, Sequence

from ...errors import ApplyError, CannotTellError
from .. import unload
from ..host import ManagedHost
from ..model import INSTALLS, Change, Refusal, Resource, Words
from . import removals
from .managers import (
    HOLDS,
    INSTALLED,
    Installed,
    Manager,
    Package,
    check_names,
    host_manager,
    manager,
    read_names,
    write_names,
)

#: Kernels keep their holds when the lock moves: one of them runs.
_KERNELS = "linux-"
#: The resource of the same document that decides what the package manager would offer.
_OFFERING = "repositories"
#: The one whose preferences a check predicts.
_PINNING = "pins"

Simulate = Callable[[Sequence[Package], Sequence[str], Sequence[str]], Optional[List[Change]]]


@dataclass(frozen=True)
class Desired:
    """``wanted``: packages to have.

    ``along``: packages that depend on those in their new versions; where they are installed, they move with them.
    ``leaving``: packages that depend on those in the versions before; installed in other versions than these, they
    leave first.  ``locked``: names of all that the lock has; empty: nothing is known of what it had before.
    """

    manager: str
    wanted: List[Package] = field(default_factory=list)
    along: List[Package] = field(default_factory=list)
    leaving: List[Package] = field(default_factory=list)
    locked: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Observed:
    """``ours``: what gdsdeploy holds.  ``simulate``: asks the package manager what a transaction would change.

    ``unfinished``: what was interrupted, and what any transaction finishes first.
    ``recorded``: what gdsdeploy installed.  ``replaced``: which removals packages make room for.
    ``loaded``: modules that leave before their packages change.  ``users``: asks what uses one of them.
    ``predicts``: this is a look; nothing follows it.  ``earlier``: what other transactions change before this one.
    """

    installed: Mapping[str, Installed]
    ours: Sequence[str]
    simulate: Simulate
    unfinished: Mapping[str, Installed]
    recorded: Sequence[str]
    replaced: Callable[[Sequence[Change]], Collection[str]]
    loaded: Sequence[str]
    users: Callable[[str], Sequence[str]]
    predicts: bool
    earlier: Sequence[Change]

    def later(self) -> Dict[str, Installed]:
        """What is installed when this transaction begins."""
        return _predict_installed(self.installed, self.earlier)

    def moves(self, plan: _Plan) -> Optional[List[Change]]:
        """What the earlier transactions and this one change together, dependencies included; as ``simulate``."""
        before = [change for change in self.earlier if change.kind in (*INSTALLS, "remove")]
        install = {c.subject: Package(c.subject, c.after) for c in before if c.kind in INSTALLS}
        install.update({package.package: package for package in plan.missing})
        remove = [change.subject for change in before if change.kind == "remove" and change.subject not in install]
        unheld = [change.subject for change in self.earlier if change.kind == "unhold"]
        return self.simulate(list(install.values()), [*remove, *plan.going], [*unheld, *plan.obsolete])


@dataclass(frozen=True)
class _Plan:
    """A transaction: what has to be installed and to leave, and the holds that go before it."""

    missing: Sequence[Package]
    going: Sequence[str]
    obsolete: Sequence[str]


class Packages(Resource[Desired]):
    """One transaction, then the holds."""

    name = "packages"
    desired_type = Desired
    removal_rank = 60
    kinds: ClassVar[Words] = {
        "install": "install {}",
        "upgrade": "upgrade {}",
        "downgrade": "downgrade {}",
        "remove": "remove {}",
        "hold": "hold {}",
        "unhold": "no longer hold {}",
        "unload": "unload {}",
    }
    reasons: ClassVar[Words] = {
        "not-held": "not held",
        "not-locked": "held, and the lock no longer has it",
        "unfinished": "its installation was interrupted",
        "in-place": "loaded, and its packages change",
    }

    def __init__(self) -> None:
        self._before: Mapping[str, Installed] = {}

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        for name in ("wanted", "along", "leaving"):
            check_names([package.package for package in getattr(desired, name)], f"packages.{name}")
        chosen = manager(desired.manager)
        self._before = chosen.installed(host)
        ours = read_names(host, HOLDS) if chosen.holds else []
        return Observed(
            self._before,
            ours,
            partial(chosen.simulate, host),
            _unfinished_packages(chosen, host),
            read_names(host, INSTALLED),
            partial(chosen.replaced, host),
            unload.loaded(host),
            partial(unload.users, host),
            host.check,
            [change for change in host.prediction.changes if change.resource.partition(".")[0] == self.name],
        )

    def report(self, desired: Desired, observed: Any) -> Mapping[str, Any]:
        """Of a look that has something to install: ``removals``, whether it is known what leaves, and if not, why."""
        chosen = manager(desired.manager)
        plan = _plan(chosen, desired, observed.later(), observed.ours)
        if not observed.predicts or not plan.missing:
            return {}
        why = "packages are half-installed"
        try:
            is_known = observed.moves(plan) is not None
        except CannotTellError as error:
            is_known, why = False, str(error)
        return {"removals": {"known": is_known, "why": "" if is_known else why}}

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        """Packages that gdsdeploy didn't install never leave as a side effect: a driver loses pieces by that."""
        chosen = manager(desired.manager)
        plan = _plan(chosen, desired, observed.later(), observed.ours)
        try:
            moves = observed.moves(plan) if plan.missing else None
        except CannotTellError:
            # Repositories or pins come first; then this is asked again.
            return []
        # What leaves before this transaction was judged then.
        left = [change.subject for change in observed.earlier if change.kind == "remove"]
        return _removals_refused(chosen, plan, moves, [*observed.recorded, *left], observed.replaced)

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """Everything that the transaction changes, dependencies included, and the holds."""
        chosen = manager(desired.manager)
        installed = observed.later()
        plan = _plan(chosen, desired, installed, observed.ours)
        moved = _lock_changes(chosen, plan, installed)
        others = {change.resource for change in pending}
        if plan.missing:
            try:
                moved = _simulated_changes(plan, moved, observed) or moved
            except CannotTellError:
                # The report says that removals aren't known.
                if not others & {_OFFERING, _PINNING}:
                    raise
        unheld = [Change("unhold", name, "held", "", "not-locked") for name in plan.obsolete]
        present = {**observed.unfinished, **installed}
        return [
            *unheld,
            *unload.changes(observed.loaded, moved, observed.users),
            *_completions(plan, observed),
            *moved,
            *(_hold_changes(desired, present) if chosen.holds else []),
        ]

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """Release obsolete holds, install and remove in one transaction, and hold what is installed."""
        chosen = manager(desired.manager)
        plan = _plan(chosen, desired, self._before, read_names(host, HOLDS))
        # A transaction that couldn't be simulated changes at least what the lock says.
        names = [*(package.package for package in plan.missing), *plan.going]
        unload.before(host, [*names, *(change.subject for change in changes if change.kind in (*INSTALLS, "remove"))])
        obsolete = [change.subject for change in changes if change.kind == "unhold"]
        if obsolete:
            chosen.unhold(host, obsolete)
            write_names(host, HOLDS, [name for name in read_names(host, HOLDS) if name not in obsolete])
        if plan.missing:
            leaving = [change.subject for change in changes if change.kind == "remove"]
            self._transact(host, chosen, plan, [name for name in leaving if name not in plan.going])
        if chosen.holds:
            self._hold(host, chosen, desired, plan)

    def _transact(self, host: ManagedHost, chosen: Manager, plan: _Plan, along: Sequence[str]) -> None:
        recorded = read_names(host, INSTALLED)
        if chosen.unfinished(host):
            chosen.finish(host)
            # Before, nothing could be simulated.
            moves = chosen.simulate(host, plan.missing, plan.going, plan.obsolete)
            refused = _removals_refused(chosen, plan, moves, recorded, partial(chosen.replaced, host))
            if refused:
                raise ApplyError(refused[0].message, refused[0].hint, "refused")
        chosen.finish(host)
        present = chosen.present(host, configured=False)
        new = [package.package for package in plan.missing if package.package not in present]
        # The record comes first, so that every package that gdsdeploy installs has one.
        write_names(host, INSTALLED, [*recorded, *new])
        try:
            chosen.install(host, plan.missing, plan.going, along)
        except ApplyError:
            present = chosen.present(host, configured=False)
            removals.record(host, self._before, present, recorded)
            write_names(host, INSTALLED, [*recorded, *(name for name in new if name in present)])
            raise
        removals.record(host, self._before, chosen.present(host, configured=False), recorded)
        installed = chosen.installed(host)
        missing = [package for package in plan.missing if not _is_installed(chosen, installed, package)]
        if missing:
            words = f"{chosen.name} ended without an error and did not install: {', '.join(map(str, missing))}"
            raise ApplyError(words, kind="verify")

    def _hold(self, host: ManagedHost, chosen: Manager, desired: Desired, plan: _Plan) -> None:
        """Hold the locked packages.  A moved package loses its hold; if another program held it, it is held again."""
        installed = chosen.installed(host)
        before = {name for name, package in self._before.items() if package.is_held}
        names = [package.package for package in desired.wanted]
        again = [
            package.package
            for package in plan.missing
            if package.package in before and package.package not in plan.obsolete
        ]
        loose = [name for name in dict.fromkeys([*names, *again]) if name in installed and not installed[name].is_held]
        new = [name for name in loose if name not in before]
        if new:
            write_names(host, HOLDS, [*read_names(host, HOLDS), *new])
        if loose:
            chosen.hold(host, loose)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Release the holds, and remove what was installed; packages of the running kernel stay."""
        holds, recorded = read_names(host, HOLDS), read_names(host, INSTALLED)
        if not holds and not recorded:
            return []
        chosen = host_manager(host)
        installed, present = chosen.installed(host), chosen.present(host)
        free = [name for name in holds if name in installed and installed[name].is_held] if chosen.holds else []
        stays = staying(host)
        going = [name for name in recorded if name in present and name not in stays]
        unheld = [Change("unhold", name, "held", "", "remove") for name in free]
        changes = [*unheld, *_purge_changes(chosen, host, installed, going)]
        if not host.check:
            if free:
                chosen.unhold(host, free)
            write_names(host, HOLDS, [])
            if going:
                unload.before(host, going)
                chosen.purge(host, going)
            removals.remind(host, chosen.installed(host))
            write_names(host, INSTALLED, stays)
        return changes


def _removals_refused(
    chosen: Manager,
    plan: _Plan,
    moves: Optional[Sequence[Change]],
    ours: Sequence[str],
    replaced: Callable[[Sequence[Change]], Collection[str]],
) -> List[Refusal]:
    """The refusal of moves that remove what neither leaves on purpose nor is gdsdeploy's nor is replaced."""
    return removals.refusals(chosen.command, moves or [], {*plan.going, *plan.obsolete, *ours}, replaced)


def staying(host: ManagedHost) -> List[str]:
    """What was installed and can't be removed now: packages of the running kernel."""
    recorded = read_names(host, INSTALLED)
    if not recorded:
        return []
    chosen = host_manager(host)
    present = chosen.present(host)
    return [name for name in recorded if name in present and chosen.stays(name, os.uname().release)]


def _plan(chosen: Manager, desired: Desired, installed: Mapping[str, Installed], ours: Sequence[str]) -> _Plan:
    along = [package for package in desired.along if package.package in installed]
    packages = {package.package: package for package in [*along, *desired.wanted]}
    missing = [package for package in packages.values() if not _is_installed(chosen, installed, package)]
    if not missing:
        return _Plan([], [], [])
    others = [
        package for package in desired.leaving if package.package in installed and package.package not in packages
    ]
    going = [package.package for package in others if not _is_installed(chosen, installed, package)]
    stale = [name for name in ours if desired.locked and name not in desired.locked and not name.startswith(_KERNELS)]
    return _Plan(missing, going, [name for name in stale if name in installed and installed[name].is_held])


def _unfinished_packages(chosen: Manager, host: ManagedHost) -> Dict[str, Installed]:
    names = chosen.unfinished(host)
    return {
        package.name: Installed((package.version,), package.is_held)
        for package in chosen.list_packages(host)
        if package.name in names
    }


def _completions(plan: _Plan, observed: Observed) -> List[Change]:
    """Interrupted packages that the transaction finishes as well, unless an earlier one did."""
    if not plan.missing:
        return []
    names = {package.package for package in plan.missing} | {change.subject for change in observed.earlier}
    rest = {name: package for name, package in observed.unfinished.items() if name not in names}
    return [Change("install", name, "", package.versions[-1], "unfinished") for name, package in sorted(rest.items())]


def _is_installed(chosen: Manager, installed: Mapping[str, Installed], package: Package) -> bool:
    return package.package in installed and chosen.same(package.version) in installed[package.package].versions


def _predict_installed(installed: Mapping[str, Installed], earlier: Sequence[Change]) -> Dict[str, Installed]:
    """What will be installed when the changes of earlier resources are made."""
    later = dict(installed)
    for change in earlier:
        name, is_held = change.subject, change.subject in later and later[change.subject].is_held
        if change.kind in INSTALLS:
            later[name] = Installed((change.after,), is_held)
        elif change.kind == "remove":
            rest = (
                tuple(version for version in later[name].versions if version != change.before) if name in later else ()
            )
            # Of kernels, one version leaves and the others stay.
            later.pop(name, None)
            later.update({name: Installed(rest, is_held)} if rest and change.before else {})
        elif name in later:
            later[name] = replace(later[name], is_held=change.kind == "hold")
    return later


def _lock_changes(chosen: Manager, plan: _Plan, installed: Mapping[str, Installed]) -> List[Change]:
    """What the lock itself says, before a package manager was asked."""
    removals = [Change("remove", name, installed[name].versions[-1], "", "leaving") for name in plan.going]
    return [*removals, *(_move(chosen, package, installed.get(package.package)) for package in plan.missing)]


def _move(chosen: Manager, package: Package, present: Optional[Installed]) -> Change:
    if present is None:
        return Change("install", package.package, "", package.version, "missing")
    before = present.versions[-1]
    kind = "upgrade" if chosen.order(before) < chosen.order(package.version) else "downgrade"
    return Change(kind, package.package, before, package.version, "version")


def _simulated_changes(plan: _Plan, moved: Sequence[Change], observed: Observed) -> Optional[List[Change]]:
    """The changes that the package manager predicts after the earlier changes."""
    simulated = observed.moves(plan)
    if simulated is None:
        return None
    before = [change for change in observed.earlier if change.kind in (*INSTALLS, "remove")]
    expected = {(change.subject, change.after) for change in before}
    # A new kernel may take the place of the oldest one: then a name both comes and leaves.
    ours = {(change.subject, change.kind == "remove") for change in moved}
    others = [
        replace(change, reason="dependency")
        for change in simulated
        if (change.subject, change.after) not in expected and (change.subject, change.kind == "remove") not in ours
    ]
    # The lock's own packages are listed as the lock has them: apt lists none that is half-installed.
    removed, rest = ([one for one in others if (one.kind == "remove") is first] for first in (True, False))
    return [*removed, *moved, *rest]


def _hold_changes(desired: Desired, installed: Mapping[str, Installed]) -> List[Change]:
    names = [package.package for package in desired.wanted]
    loose = [name for name in names if name not in installed or not installed[name].is_held]
    return [Change("hold", name, "", "held", "not-held") for name in loose]


def _purge_changes(
    chosen: Manager, host: ManagedHost, installed: Mapping[str, Installed], names: Sequence[str]
) -> List[Change]:
    """Changes of a purge, dependent packages included."""
    if names:
        names = list(dict.fromkeys([*names, *(chosen.simulate_purge(host, names) or [])]))
    versions = {name: package.versions[-1] for name, package in installed.items()}
    return [Change("remove", name, versions.get(name, ""), "", "remove") for name in names]
