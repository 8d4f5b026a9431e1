"""What goes into a mirror of either family: the locked files as they are on offer, and what they need of the system.

A host's package manager decides which system packages it installs.  So the mirror carries the first alternative on
offer, and both versions where two packages need different ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy.errors import LockStale, NoSolution, RepositoryUnusable
from gdsdeploy.mirror import openpgp
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.platform import StackPlatform
from gdsdeploy.repo.packages import Candidate, Group, IndexedList, Key, Order, Universe
from gdsdeploy.repo.repository import Repository


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


@dataclass(frozen=True)
class File:
    """A file of the mirror: its source, its expected content, its path below the mirror."""

    uri: str
    sha256: str
    size: int
    place: str
    #: checks the file's own signature where no signed index vouches for it; raises RepositoryUntrusted
    check: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class Suite:
    """What the mirror offers for one operating system."""

    os: str
    architecture: str
    stack: int
    system: int


def repository(index: Index, keyrings: Sequence[Path]) -> Repository:
    """The repository of a locked index, limited to that suite; raises as :func:`keyring`."""
    return Repository(
        name=index.repository,
        uri=index.uri,
        keyring=keyring(index, keyrings),
        fingerprints=(index.signed_by,) if index.signed_by else (),
        host_keyring=index.host_keyring,
        suites=(index.suite,) if index.suite else (),
        components=index.components,
        unsigned=index.why if index.metadata == "unsigned" else "",
        package_keys=index.package_keys,
    )


def keyring(index: Index, keyrings: Sequence[Path]) -> Path:
    """The file on this machine to check ``index`` with: the host's own, or one of ``keyrings`` that has its key.

    Raises RepositoryUnusable where there is none.
    """
    paths = [path for path in (Path(index.host_keyring), *keyrings) if path.is_file()]
    if len(paths) == 1:
        return paths[0]
    needed = [index.signed_by] if index.signed_by else list(index.package_keys)
    for path in paths:
        if all(openpgp.holds(path, key) for key in needed):
            return path
    raise RepositoryUnusable(
        f"{index.host_keyring}: this machine has no such keyring to check repository {index.repository} with",
        hint=f"Name the file that has the key {' and '.join(needed)}: --keyring FILE",
    )


def locked(packages: Iterable[Package], lists: Sequence[IndexedList]) -> list[Candidate]:
    """The locked packages as the repositories list them now; raises LockStale naming each that is gone or replaced."""
    listed: dict[Key, Candidate] = {}
    missing: list[str] = []
    for package in packages:
        # Two suites may list the same version with different content.
        candidates = (c for each in lists for c in each.named(package.package))
        same = next((c for c in candidates if c.sha256 == package.sha256), None)
        if same is None:
            where = ", ".join(filter(None, (package.repository, package.suite)))
            missing.append(f"  - {package.package} {package.version} ({where})")
        else:
            listed[same.key] = same
    if missing:
        raise LockStale(
            "\n".join(["the repositories no longer list these locked files:", *sorted(missing)]),
            hint="Run `gdsdeploy lock` on the fleet file, review the change list, and mirror the new lock",
        )
    return [listed[key] for key in sorted(listed)]


def dependencies(stack: Sequence[Candidate], universe: Universe, platform: StackPlatform, name: str) -> list[Candidate]:
    """The packages of the system ``name`` that ``stack`` needs; raises NoSolution naming missing ones."""
    packages, missing = closure(stack, universe, platform.order)
    if missing:
        raise NoSolution(
            "\n".join([f"{name}: the repositories lack what locked packages need:", *(f"  - {w}" for w in missing)]),
            hint="Add the operating system's own repositories to the profile, or mirror with --no-dependencies",
        )
    return packages
