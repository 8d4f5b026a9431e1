"""What goes into a mirror of either family: the locked files as they are on offer, and what they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy.errors import LockStale, NoSolution, RepositoryUnusable
from gdsdeploy.mirror import openpgp
from gdsdeploy.mirror.closure import closure, key
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.platform import StackPlatform
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.index import Repository
from gdsdeploy.repo.packages import IndexedList, Universe


@dataclass(frozen=True)
class File:
    """A file to have: where it comes from, what it has to be, where it lies below the mirror."""

    uri: str
    sha256: str
    size: int
    place: str


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
        fingerprints=(index.signed_by,),
        host_keyring=index.host_keyring,
        suites=(index.suite,) if index.suite else (),
        components=index.components,
    )


def keyring(index: Index, keyrings: Sequence[Path]) -> Path:
    """The file on this machine to check ``index`` with: the host's own, or one of ``keyrings`` that has its key.

    Raises RepositoryUnusable where there is none.
    """
    there = [path for path in (Path(index.host_keyring), *keyrings) if path.is_file()]
    if len(there) == 1:
        return there[0]
    for path in there:
        if openpgp.holds(path, index.signed_by):
            return path
    raise RepositoryUnusable(
        f"{index.host_keyring}: this machine has no such keyring to check repository {index.repository} with",
        hint=f"Give the file that has the key {index.signed_by}: --keyring FILE",
    )


def locked(packages: Iterable[Package], lists: Sequence[IndexedList]) -> list[Candidate]:
    """The locked packages as the repositories list them now; raises LockStale naming each that is gone or replaced."""
    universe = Universe(lists)
    found: list[Candidate] = []
    gone: list[str] = []
    for package in packages:
        there = [c for c in universe.named(package.package) if c.sha256 == package.sha256]
        # One version may be listed by two suites, and Universe has it once.
        same = [c for each in lists for c in each.named(package.package) if c.sha256 == package.sha256]
        if not there and not same:
            where = ", ".join(filter(None, (package.repository, package.suite)))
            gone.append(f"  - {package.package} {package.version} ({where})")
        else:
            found.append((there or same)[0])
    if gone:
        raise LockStale(
            "\n".join(["the repositories no longer list these locked files:", *sorted(gone)]),
            hint="Run `gdsdeploy lock` on the fleet file, review the change list, and mirror the new lock",
        )
    return sorted({key(c): c for c in found}.values(), key=key)


def dependencies(stack: Sequence[Candidate], universe: Universe, platform: StackPlatform, name: str) -> list[Candidate]:
    """What ``stack`` needs of the system ``name``; raises NoSolution with who needs what is not on offer."""
    found, lacking = closure(stack, universe, platform.order)
    if lacking:
        raise NoSolution(
            "\n".join([f"{name}: the repositories lack what locked packages need:", *(f"  - {w}" for w in lacking)]),
            hint="Add the operating system's own repositories to the profile, or mirror with --no-dependencies",
        )
    return found
