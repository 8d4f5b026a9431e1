"""Everything that locked packages may need of their operating system, so that a host can install them from a mirror.

Not an installation: which of these a host takes is decided there, by its own package manager and what it has already.
So of alternatives the first one on offer is carried, and where two packages want different versions, both are.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from gdsdeploy.repo.candidate import Candidate, Group
from gdsdeploy.repo.order import Order
from gdsdeploy.repo.packages import Universe

#: What tells two package files apart: package, version, architecture.
Key = tuple[str, str, str]


def closure(roots: Iterable[Candidate], universe: Universe, order: Order) -> tuple[list[Candidate], list[str]]:
    """What ``roots`` depend on, themselves not included, and each dependency that nothing on offer satisfies, in words.

    Depends and Pre-Depends are followed, as the roles install without Recommends.  What is needed only beside another
    package, rpm's ``(a if b)``, is carried where it is on offer, and lacking only if that one is locked.
    """
    locked = {key(candidate): candidate for candidate in roots}
    chosen: dict[Key, Candidate] = {}
    lacking: list[str] = []
    waiting = list(locked.values())
    seen: set[Group] = set()
    while waiting:
        owner = waiting.pop()
        for group in (*owner.pre_depends, *owner.depends):
            if group in seen:
                continue
            seen.add(group)
            answer = _answer(group, locked, chosen, universe, order)
            if answer is None:
                if not _absent(group, locked, universe):
                    lacking.append(f"{owner} needs {' | '.join(map(str, group))}")
            elif key(answer) not in locked and key(answer) not in chosen:
                chosen[key(answer)] = answer
                waiting.append(answer)
    return sorted(chosen.values(), key=lambda c: key(c)), lacking


def key(candidate: Candidate) -> Key:
    """The key of a package file."""
    return candidate.package, candidate.version, candidate.architecture


def _answer(
    group: Group, locked: dict[Key, Candidate], chosen: dict[Key, Candidate], universe: Universe, order: Order
) -> Candidate | None:
    """What satisfies a group: a locked package, else one that is carried already, else the newest of the first name."""
    group = tuple(relation for relation in group if not relation.negated)
    fitting = [universe.answering(relation) for relation in group]
    for there in (locked, chosen):
        for candidates in fitting:
            for candidate in candidates:
                if key(candidate) in there:
                    return candidate
    for relation, candidates in zip(group, fitting, strict=True):
        own = [candidate for candidate in candidates if candidate.package == relation.package]
        if own or candidates:
            return max(own or candidates, key=lambda candidate: order.key(candidate.version))
    return None


def _absent(group: Group, locked: dict[Key, Candidate], universe: Universe) -> bool:
    """Whether nothing is locked that answers one of the relations that want something to be absent."""
    unwanted = (universe.answering(relation) for relation in group if relation.negated)
    return any(not any(key(candidate) in locked for candidate in candidates) for candidates in unwanted)
