"""Removals that a transaction brings with it: refused unless another package replaces it or the profile allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Collection, List, Sequence

from ..model import Change, Refusal

#: The ids of refusals.
REFUSAL, ON_HOLD = "removals", "held"
#: Why a package leaves, as package managers tell: one that comes replaces it, or excludes it, or it needs another
#: version of one that moves or leaves.  ``Change.by`` is that package.
REPLACED, CONFLICTS, NEEDS = "replaced-by", "conflicts", "needs"
#: Its profile lists it in ``removes``.
ALLOWED = "allowed"


def with_reason(move: Change, allows: Callable[[str], bool]) -> Change:
    """A removal with the reason that a plan shows: one that is only allowed by its name says that."""
    if move.reason != REPLACED and allows(move.subject):
        return replace(move, reason=ALLOWED)
    return replace(move, reason=move.reason or "dependency")


def refusals(
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


def holds(moves: Sequence[Change], allows: Callable[[str], bool]) -> List[Refusal]:
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
