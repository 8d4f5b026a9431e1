"""Packages in exactly the locked versions, held where the package manager has holds; and a record of what is ours."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence

from ...errors import ApplyError, CannotTellError
from ...paths import IMAGE
from .. import unload
from ..host import ManagedHost
from ..model import INSTALLS, Change, Refusal, Resource, Words
from . import left, transaction
from .managers import HOLDS, INSTALLED, Installed, Manager, check_names, host_manager, manager, read_names, write_names
from .transaction import Desired, Observed, Plan

#: The resources of the same document that decide what the package manager would take.
DECIDING = ("repositories", "pins")


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
        "mark": "mark {} as a dependency",
        "unload": "unload {}",
    }
    reasons: ClassVar[Words] = {
        "not-held": "not held",
        "not-marked": "marked as installed on purpose",
        "not-locked": "held, and the lock no longer has it",
        "unfinished": "its installation was interrupted",
        "half-installed": "it is half-installed",
        "in-place": "loaded, and its packages change",
        transaction.REPLACED: "{}, which {by} replaces",
        transaction.CONFLICTS: "{}, which {by} excludes",
        transaction.NEEDS: "{}, which needs another version of {by}",
        transaction.ALLOWED: "{}, which its profile lists in `removes`",
        left.REASON: "nothing: it left for the lock",
    }

    def __init__(self) -> None:
        self._before: Mapping[str, Installed] = {}

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        for name in ("packages", "dependents", "superseded"):
            check_names([package.package for package in getattr(desired, name)], f"packages.{name}")
        chosen = manager(desired.manager)
        self._before = chosen.installed(host)
        ours = read_names(host, HOLDS) if chosen.holds else []
        return Observed(
            self._before,
            ours,
            partial(chosen.simulate, host),
            _packages_named(chosen, host, chosen.unfinished(host)),
            _packages_named(chosen, host, chosen.broken(host)),
            read_names(host, INSTALLED),
            unload.loaded(host),
            partial(unload.users, host),
            host.check,
            [change for change in host.pending if change.resource.partition(".")[0] == self.name],
            any(change.resource in DECIDING for change in host.pending),
            host.judged if host.check else set(),
        )

    def report(self, desired: Desired, observed: Any) -> Mapping[str, Any]:
        """Of a look that has something to install: ``removals``, whether it is known what leaves, and if not, why."""
        chosen = manager(desired.manager)
        plan = observed.plan(chosen, desired)
        if not observed.predicts or not plan.missing:
            return {}
        why = "packages are half-installed"
        if observed.awaits:
            why = "the host has no repositories and pins of this lock yet"
        try:
            is_known = observed.moves(plan) is not None
        except CannotTellError as error:
            is_known, why = False, str(error)
        return {"removals": {"known": is_known, "why": "" if is_known else why}}

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        """Packages that gdsdeploy didn't install never leave as a side effect: a driver loses pieces by that."""
        chosen = manager(desired.manager)
        plan = observed.plan(chosen, desired)
        moves: Sequence[Change] = ()
        # A transaction without a solution says so in its turn.
        with contextlib.suppress(CannotTellError):
            moves = (observed.moves(plan) if plan.missing else None) or ()
        fresh = [move for move in moves if move.subject not in observed.judged]
        observed.judged.update(move.subject for move in fresh)
        handled = {*observed.ours, *(package.package for package in plan.missing)}
        holds = {name for name, package in observed.installed.items() if package.is_held} - handled
        stuck = transaction.hold_refusals([move for move in fresh if move.subject in holds], desired.allows)
        return [*stuck, *_removals_refused(chosen, desired, plan, fresh, observed.recorded)]

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """Everything that the transaction changes, dependencies included, and the holds."""
        chosen = manager(desired.manager)
        installed = observed.later()
        plan = observed.plan(chosen, desired)
        moved = transaction.lock_changes(chosen, plan, installed, observed.unfinished)
        if plan.missing:
            moved = transaction.simulated_changes(desired, plan, moved, observed) or moved
        unheld = [Change("unhold", name, "held", "", "not-locked") for name in plan.obsolete]
        present = {**observed.lost, **observed.unfinished, **installed}
        return [
            *unheld,
            *unload.changes(observed.loaded, moved, observed.users),
            *transaction.completions(plan, observed),
            *moved,
            *(transaction.hold_changes(desired, present) if chosen.holds else []),
        ]

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """Release obsolete holds, install and remove in one transaction, and hold what is installed."""
        chosen = manager(desired.manager)
        unfinished = _packages_named(chosen, host, chosen.unfinished(host))
        plan = transaction.plan(chosen, desired, self._before, read_names(host, HOLDS), unfinished)
        # A transaction that couldn't be simulated changes at least what the lock says.
        names = [*(package.package for package in plan.missing), *plan.going]
        unload.before(host, [*names, *(change.subject for change in changes if change.kind in (*INSTALLS, "remove"))])
        obsolete = [change.subject for change in changes if change.kind == "unhold"]
        if obsolete:
            chosen.hold(host, obsolete, held=False)
            write_names(host, HOLDS, [name for name in read_names(host, HOLDS) if name not in obsolete])
        if plan.missing:
            leaving = [change.subject for change in changes if change.kind == "remove"]
            self._transact(host, chosen, desired, plan, [name for name in leaving if name not in plan.going])
        chosen.settle(host)
        if chosen.holds:
            self._hold(host, chosen, desired, plan)

    def _transact(self, host: ManagedHost, chosen: Manager, desired: Desired, plan: Plan, along: Sequence[str]) -> None:
        recorded = read_names(host, INSTALLED)
        was_interrupted = bool(chosen.unfinished(host) or chosen.broken(host))
        chosen.reinstall(host)
        try:
            chosen.finish(host)
        except ApplyError as error:
            if error.kind != "half-installed" or not transaction.replaces(plan, chosen, host):
                raise
            host.say(f"{error.message}; the locked packages replace it")
        if was_interrupted:
            # Before, nothing could be simulated.
            moves = chosen.simulate(host, plan.missing, plan.going)
            refused = _removals_refused(chosen, desired, plan, moves, recorded)
            if refused:
                raise ApplyError(refused[0].message, refused[0].hint, "refused")
        present = chosen.present(host, configured=False)
        new = [package.package for package in plan.missing if package.package not in present]
        watch = left.Watch(host, chosen, self._before, recorded, [package.package for package in plan.missing])
        # The record comes first, so that every package that gdsdeploy installs has one.
        write_names(host, INSTALLED, [*recorded, *new])
        watch.expect([*plan.going, *along])

        def correct() -> None:
            watch.record()
            present = chosen.present(host, configured=False)
            write_names(host, INSTALLED, [*recorded, *(name for name in new if name in present)])

        host.undo_by("the records of packages", correct)
        chosen.install(host, plan.missing, plan.going, along)
        watch.record()
        installed = chosen.installed(host)
        missing = [package for package in plan.missing if not transaction.is_installed(chosen, installed, package)]
        if missing:
            words = f"{chosen.name} ended without an error and did not install: {', '.join(map(str, missing))}"
            raise ApplyError(words, kind="verify")

    def _hold(self, host: ManagedHost, chosen: Manager, desired: Desired, plan: Plan) -> None:
        """Hold the locked packages.  A moved package loses its hold; if another program held it, it is held again."""
        installed = chosen.installed(host)
        before = {name for name, package in self._before.items() if package.is_held}
        names = [package.package for package in desired.packages]
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
        installed = chosen.installed(host)
        free = [name for name in holds if name in installed and installed[name].is_held] if chosen.holds else []
        stays, going = staying(host), leaving(host)
        unheld = [Change("unhold", name, "held", "", "remove") for name in free]
        changes = [*unheld, *_purge_changes(chosen, host, installed, going)]
        if not host.check:
            if free:
                chosen.hold(host, free, held=False)
            write_names(host, HOLDS, [])
            if going:
                unload.before(host, going)
                chosen.purge(host, going)
            write_names(host, INSTALLED, stays)
        return changes


def _removals_refused(
    chosen: Manager, desired: Desired, plan: Plan, moves: Optional[Sequence[Change]], ours: Sequence[str]
) -> List[Refusal]:
    """The refusal of moves that remove what neither leaves on purpose nor is gdsdeploy's nor replaced nor allowed."""
    expected = {*plan.going, *plan.obsolete, *ours}
    return transaction.removal_refusals(chosen.command, moves or [], expected, desired.allows)


def staying(host: ManagedHost) -> List[str]:
    """What was installed and can't be removed now: packages of the running kernel.  Of an image, none runs."""
    recorded = read_names(host, INSTALLED)
    if not recorded or host.exists(IMAGE):
        return []
    chosen = host_manager(host)
    present = chosen.present(host)
    return [name for name in recorded if name in present and chosen.stays(name, os.uname().release)]


def leaving(host: ManagedHost) -> List[str]:
    """What was installed and can be removed now."""
    recorded = read_names(host, INSTALLED)
    if not recorded:
        return []
    present, stays = host_manager(host).present(host), staying(host)
    return [name for name in recorded if name in present and name not in stays]


def purged(host: ManagedHost) -> List[str]:
    """What a removal takes away, dependent packages included."""
    names = leaving(host)
    return _with_dependents(host_manager(host), host, names) if names else []


def _with_dependents(chosen: Manager, host: ManagedHost, names: Sequence[str]) -> List[str]:
    return list(dict.fromkeys([*names, *(chosen.simulate_purge(host, names) or [])]))


def _packages_named(chosen: Manager, host: ManagedHost, names: Sequence[str]) -> Dict[str, Installed]:
    """The packages of these names, whatever their state is."""
    return {
        package.name: Installed((package.version,), package.is_held)
        for package in chosen.list_packages(host)
        if package.name in names
    }


def _purge_changes(
    chosen: Manager, host: ManagedHost, installed: Mapping[str, Installed], names: Sequence[str]
) -> List[Change]:
    """Changes of a purge, dependent packages included."""
    if names:
        names = _with_dependents(chosen, host, names)
    versions = {name: package.versions[-1] for name, package in installed.items()}
    return [Change("remove", name, versions.get(name, ""), "", "remove") for name in names]
