"""What goes into a mirror of either family: the locked files as they are on offer, and what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy.errors import LockStale, NoSolution, RepositoryUnusable
from gdsdeploy.mirror import openpgp
from gdsdeploy.mirror.closure import closure
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.platform import StackPlatform
from gdsdeploy.repo.packages import Candidate, IndexedList, Key, Universe
from gdsdeploy.repo.repository import Repository


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
