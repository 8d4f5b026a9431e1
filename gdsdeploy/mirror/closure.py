"""The system packages that locked packages may need, so that a host can install them from a mirror.

A host's package manager decides which of them it installs.  So the mirror carries the first alternative on offer, and
both versions where two packages need different ones.  Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from gdsdeploy.repo.packages import Candidate, Group, Key, Order, Universe


def closure(roots: Iterable[Candidate], universe: Universe, order: Order) -> tuple[list[Candidate], list[str]]:
    """The dependencies of ``roots`` without these themselves, and each dependency that nothing satisfies, in words.

    Depends and Pre-Depends are followed, as the roles install without Recommends.  A dependency beside another package,
    rpm's ``(a if b)``, is carried if it is on offer, and missing only if that package is locked.
    """
    locked = {candidate.key: candidate for candidate in roots}
    chosen: dict[Key, Candidate] = {}
    lacking: list[str] = []
    waiting = list(locked.values())
    visits: set[Group] = set()
    while waiting:
        owner = waiting.pop()
        for group in (*owner.pre_depends, *owner.depends):
            if group in visits:
                continue
            visits.add(group)
            answer = _answer(group, locked, chosen, universe, order)
            if answer is None:
                if not _absent(group, locked, universe):
                    lacking.append(f"{owner} needs {' | '.join(map(str, group))}")
            elif answer.key not in locked and answer.key not in chosen:
                chosen[answer.key] = answer
                waiting.append(answer)
    return sorted(chosen.values(), key=lambda c: c.key), lacking


def _answer(
    group: Group, locked: dict[Key, Candidate], chosen: dict[Key, Candidate], universe: Universe, order: Order
) -> Candidate | None:
    """The package that satisfies a group: a locked one, else a chosen one, else the newest of the first name."""
    group = tuple(relation for relation in group if not relation.negated)
    fitting = [universe.answering(relation) for relation in group]
    for packages in (locked, chosen):
        for candidate in itertools.chain.from_iterable(fitting):
            if candidate.key in packages:
                return candidate
    for relation, candidates in zip(group, fitting, strict=True):
        own = [candidate for candidate in candidates if candidate.package == relation.package]
        if own or candidates:
            return max(own or candidates, key=lambda candidate: order.key(candidate.version))
    return None


def _absent(group: Group, locked: dict[Key, Candidate], universe: Universe) -> bool:
    """Whether no locked package answers one of the negated relations."""
    unwanted = (universe.answering(relation) for relation in group if relation.negated)
    return any(not any(candidate.key in locked for candidate in candidates) for candidates in unwanted)
