"""Removals that a transaction brings with it: refused unless the lock replaces the package, and recorded."""

from __future__ import annotations

from typing import Callable, Collection, List, Mapping, Sequence

from ..host import ManagedHost
from ..model import Change, Refusal
from .managers import Installed, read_names, write_names

#: The id of a refusal.
REFUSAL = "removals"
#: Packages that left for the lock and that gdsdeploy hadn't installed: NAME=VERSION, one a line.
REMOVED = "/var/lib/gdsdeploy/removed"


def refusals(
    command: str,
    moves: Sequence[Change],
    expected: Collection[str],
    replaced: Callable[[Sequence[Change]], Collection[str]],
) -> List[Refusal]:
    """The refusal of ``moves`` that remove packages which nothing replaces.

    command: with which people call the package manager.  expected: names that leave on purpose.
    replaced: asks which of the removed packages others replace.
    """
    removed = [move for move in moves if move.kind == "remove" and move.subject not in expected]
    names = replaced(moves) if removed else ()
    lost = [f"{move.subject} {move.before}".strip() for move in removed if move.subject not in names]
    if not lost:
        return []
    message = f"the locked packages would remove installed ones that the lock doesn't replace: {', '.join(lost)}"
    words = " ".join(move.subject for move in removed if move.subject not in names)
    hint = (
        f"If this host doesn't need them, run on it: {command} remove {words};"
        " otherwise lock the driver version of these"
    )
    return [Refusal(REFUSAL, message, hint)]


def record(host: ManagedHost, before: Mapping[str, Installed], present: Collection[str], ours: Collection[str]) -> None:
    """Note what has left for the lock and wasn't gdsdeploy's; what is here again needs no note."""
    earlier = [line for line in read_names(host, REMOVED) if line.partition("=")[0] not in present]
    left = [f"{name}={package.versions[-1]}" for name, package in before.items() if name not in {*present, *ours}]
    if left or read_names(host, REMOVED):
        write_names(host, REMOVED, [*earlier, *left])


def remind(host: ManagedHost, installed: Mapping[str, Installed]) -> None:
    """Say after a removal what had left for the lock; gdsdeploy doesn't choose a driver for the host."""
    names = [line for line in read_names(host, REMOVED) if line.partition("=")[0] not in installed]
    if names:
        host.notes.append(f"these packages left for the lock; to have them again, install: {' '.join(names)}")
