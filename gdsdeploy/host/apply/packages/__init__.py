"""Packages in exactly the locked versions, held where the package manager has holds; and a record of what is ours."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence

from ...errors import ApplyError
from ..host import Host
from ..model import INSTALLS, Change, Resource, Words
from .managers import (
    HELD,
    INSTALLED,
    Installed,
    Manager,
    Package,
    check_names,
    here,
    manager,
    read_names,
    write_names,
)

#: Kernels keep their holds when the lock moves: one of them runs.
_KERNELS = "linux-"
#: Resources of the same document that decide what the package manager would offer.
_OFFERING = ("repositories", "pins")

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
    """

    installed: Mapping[str, Installed]
    ours: Sequence[str]
    simulate: Simulate
    unfinished: Mapping[str, Installed]


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
    }
    reasons: ClassVar[Words] = {
        "not-held": "not held",
        "not-locked": "held, and the lock no longer has it",
        "unfinished": "its installation was interrupted",
    }

    def __init__(self) -> None:
        self._before: Mapping[str, Installed] = {}

    def observe(self, host: Host, desired: Desired) -> Any:
        for name in ("wanted", "along", "leaving"):
            check_names([item.package for item in getattr(desired, name)], f"packages.{name}")
        chosen = manager(desired.manager)
        self._before = chosen.installed(host)
        return Observed(
            self._before,
            read_names(host, HELD) if chosen.holds else [],
            lambda install, remove, loose: chosen.simulate(host, install, remove, loose),
            _unfinished(chosen, host),
        )

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """Everything that the transaction changes, dependencies included, and the holds."""
        chosen = manager(desired.manager)
        earlier = [change for change in pending if change.resource.partition(".")[0] == self.name]
        installed = _after(observed.installed, earlier)
        plan = _plan(chosen, desired, installed, observed.ours)
        moved = _moved(chosen, plan, installed)
        if plan.missing and not any(change.resource in _OFFERING for change in pending):
            moved = _simulated(plan, moved, earlier, observed) or moved
        unheld = [Change("unhold", name, "held", "", "not-locked") for name in plan.obsolete]
        there = {**observed.unfinished, **installed}
        return [*unheld, *_finished(plan, observed, earlier), *moved, *(_holds(desired, there) if chosen.holds else [])]

    def settle(self, host: Host, desired: Desired, changes: Sequence[Change]) -> None:
        """Let go of obsolete holds, install and remove in one transaction, and hold what is installed."""
        chosen = manager(desired.manager)
        plan = _plan(chosen, desired, self._before, read_names(host, HELD))
        obsolete = [change.subject for change in changes if change.kind == "unhold"]
        if obsolete:
            chosen.unhold(host, obsolete)
            write_names(host, HELD, [name for name in read_names(host, HELD) if name not in obsolete])
        if plan.missing:
            self._transact(host, chosen, plan)
        if chosen.holds:
            self._hold(host, chosen, desired, plan)

    def _transact(self, host: Host, chosen: Manager, plan: _Plan) -> None:
        chosen.finish(host)
        recorded = read_names(host, INSTALLED)
        there = chosen.present(host, configured=False)
        new = [item.package for item in plan.missing if item.package not in there]
        # First, so that nothing of ours is ever left behind without a record.
        write_names(host, INSTALLED, [*recorded, *new])
        try:
            chosen.install(host, plan.missing, plan.going)
        except ApplyError:
            there = chosen.present(host, configured=False)
            write_names(host, INSTALLED, [*recorded, *(name for name in new if name in there)])
            raise
        installed = chosen.installed(host)
        lacking = [item for item in plan.missing if not _has(chosen, installed, item)]
        if lacking:
            names = ", ".join(f"{item.package}={item.version}" for item in lacking)
            raise ApplyError(f"{chosen.name} ended well and did not install: {names}", kind="verify")

    def _hold(self, host: Host, chosen: Manager, desired: Desired, plan: _Plan) -> None:
        """What is moved loses its hold; packages that others held are held again, and are no business of ours."""
        installed = chosen.installed(host)
        held = {name for name, item in self._before.items() if item.held}
        wanted = [item.package for item in desired.wanted]
        again = [item.package for item in plan.missing if item.package in held and item.package not in plan.obsolete]
        loose = [name for name in dict.fromkeys([*wanted, *again]) if name in installed and not installed[name].held]
        new = [name for name in loose if name not in held]
        if new:
            write_names(host, HELD, [*read_names(host, HELD), *new])
        if loose:
            chosen.hold(host, loose)

    def revert(self, host: Host) -> List[Change]:
        """Let go of what is held, and remove what was installed; packages of the running kernel stay."""
        held, recorded = read_names(host, HELD), read_names(host, INSTALLED)
        if not held and not recorded:
            return []
        chosen = here(host)
        installed, there = chosen.installed(host), chosen.present(host)
        free = [name for name in held if name in installed and installed[name].held] if chosen.holds else []
        stays = staying(host)
        going = [name for name in recorded if name in there and name not in stays]
        changes = [
            *(Change("unhold", name, "held", "", "remove") for name in free),
            *_gone(chosen, host, installed, going),
        ]
        if not host.check:
            if free:
                chosen.unhold(host, free)
            write_names(host, HELD, [])
            if going:
                chosen.purge(host, going)
            write_names(host, INSTALLED, stays)
        return changes


def staying(host: Host) -> List[str]:
    """What was installed and can't be removed now: packages of the running kernel."""
    recorded = read_names(host, INSTALLED)
    if not recorded:
        return []
    chosen = here(host)
    there = chosen.present(host)
    return [name for name in recorded if name in there and chosen.stays(name, os.uname().release)]


def _plan(chosen: Manager, desired: Desired, installed: Mapping[str, Installed], ours: Sequence[str]) -> _Plan:
    along = [item for item in desired.along if item.package in installed]
    asked = {item.package: item for item in [*along, *desired.wanted]}
    missing = [item for item in asked.values() if not _has(chosen, installed, item)]
    if not missing:
        return _Plan([], [], [])
    going = [
        item.package
        for item in desired.leaving
        if item.package in installed and item.package not in asked and not _has(chosen, installed, item)
    ]
    obsolete = [
        name
        for name in ours
        if desired.locked and name not in desired.locked and name in installed and installed[name].held
    ]
    return _Plan(missing, going, [name for name in obsolete if not name.startswith(_KERNELS)])


def _unfinished(chosen: Manager, host: Host) -> Dict[str, Installed]:
    names = chosen.unfinished(host)
    return {item.name: Installed((item.version,), item.held) for item in chosen.listed(host) if item.name in names}


def _finished(plan: _Plan, observed: Observed, earlier: Sequence[Change]) -> List[Change]:
    """What a transaction finishes that nobody asks for; an earlier one has finished it."""
    if not plan.missing:
        return []
    asked = {item.package for item in plan.missing} | {change.subject for change in earlier}
    left = {name: item for name, item in observed.unfinished.items() if name not in asked}
    return [Change("install", name, "", item.versions[-1], "unfinished") for name, item in sorted(left.items())]


def _has(chosen: Manager, installed: Mapping[str, Installed], item: Package) -> bool:
    return item.package in installed and chosen.same(item.version) in installed[item.package].versions


def _after(installed: Mapping[str, Installed], earlier: Sequence[Change]) -> Dict[str, Installed]:
    """What will be installed when the changes of earlier resources are made."""
    later = dict(installed)
    for change in earlier:
        name, held = change.subject, change.subject in later and later[change.subject].held
        if change.kind in INSTALLS:
            later[name] = Installed((change.after,), held)
        elif change.kind == "remove":
            later.pop(name, None)
        elif name in later:
            later[name] = replace(later[name], held=change.kind == "hold")
    return later


def _moved(chosen: Manager, plan: _Plan, installed: Mapping[str, Installed]) -> List[Change]:
    """What the lock itself says, before a package manager was asked."""
    gone = [Change("remove", name, installed[name].versions[-1], "", "leaving") for name in plan.going]
    return [*gone, *(_move(chosen, item, installed.get(item.package)) for item in plan.missing)]


def _move(chosen: Manager, item: Package, found: Optional[Installed]) -> Change:
    if found is None:
        return Change("install", item.package, "", item.version, "missing")
    before = found.versions[-1]
    kind = "upgrade" if chosen.order(before) < chosen.order(item.version) else "downgrade"
    return Change(kind, item.package, before, item.version, "version")


def _simulated(
    plan: _Plan, moved: Sequence[Change], earlier: Sequence[Change], observed: Observed
) -> Optional[List[Change]]:
    """What the package manager says it would change, given that the earlier changes are made."""
    before = {change.subject: change for change in earlier if change.kind in (*INSTALLS, "remove")}
    install = {name: Package(name, item.after) for name, item in before.items() if item.kind in INSTALLS}
    install.update({item.package: item for item in plan.missing})
    remove = [name for name, item in before.items() if item.kind == "remove" and name not in install]
    unheld = [change.subject for change in earlier if change.kind == "unhold"]
    found = observed.simulate(list(install.values()), [*remove, *plan.going], [*unheld, *plan.obsolete])
    if found is None:
        return None
    ours = {change.subject: change for change in moved}
    others = [
        replace(item, reason="dependency") for item in found if not _known(item, before) and item.subject not in ours
    ]
    # What the lock asks for is said as the lock has it: a half-installed package is none that apt would list.
    return [*(item for item in others if item.kind == "remove"), *moved, *(i for i in others if i.kind != "remove")]


def _known(change: Change, before: Mapping[str, Change]) -> bool:
    earlier = before.get(change.subject)
    return earlier is not None and earlier.after == change.after


def _holds(desired: Desired, installed: Mapping[str, Installed]) -> List[Change]:
    names = [item.package for item in desired.wanted]
    loose = [name for name in names if name not in installed or not installed[name].held]
    return [Change("hold", name, "", "held", "not-held") for name in loose]


def _gone(chosen: Manager, host: Host, installed: Mapping[str, Installed], going: Sequence[str]) -> List[Change]:
    """Changes of a purge, with what goes along."""
    names: Sequence[str] = going
    if going:
        names = list(dict.fromkeys([*going, *(chosen.simulate_purge(host, going) or [])]))
    return [Change("remove", name, _version(installed.get(name)), "", "remove") for name in names]


def _version(found: Optional[Installed]) -> str:
    return found.versions[-1] if found is not None else ""
