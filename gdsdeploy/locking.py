"""Resolve a whole fleet against its repositories, and hold an existing lock against them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime

from gdsdeploy import lockfile
from gdsdeploy.compat import Verdict
from gdsdeploy.errors import NoSolution
from gdsdeploy.lockfile import Difference, Reason
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Index, Lock, Target
from gdsdeploy.platform import StackPlatform, stack_platform_for
from gdsdeploy.repo import settings
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.read import read
from gdsdeploy.resolve import resolve

#: Announces a long step while it runs.
Step = Callable[[str], AbstractContextManager[None]]


def _silently(title: str) -> AbstractContextManager[None]:  # noqa: ARG001
    return nullcontext()


@dataclass(frozen=True)
class Resolved:
    """A lock, and what the user has to know about it: (profile, verdict)."""

    lock: Lock
    warnings: tuple[tuple[str, Verdict], ...]


class _Reader:
    """Reads each set of repositories once, however many profiles share it."""

    def __init__(self, fleet: Fleet, fetcher: Fetcher, now: datetime | None, step: Step) -> None:
        self._fleet = fleet
        self._fetcher = fetcher
        self._now = now
        self._step = step
        self._last: tuple[object, tuple[Universe, tuple[Index, ...]]] | None = None

    def read(self, profile: str, platform: StackPlatform) -> tuple[Universe, tuple[Index, ...]]:
        """What the repositories of ``profile`` offer."""
        repositories = settings.repositories(self._fleet, profile, platform)
        architecture = platform.architecture(self._fleet.profiles[profile].arch)
        wanted = (tuple(repositories), architecture)
        # Only the last one is kept: a distribution's lists take some hundred megabytes.
        if self._last is None or self._last[0] != wanted:
            self._last = None
            names = ", ".join(map(str, repositories))
            with self._step(f"Reading {names}"):
                self._last = (wanted, read(self._fetcher, repositories, architecture, now=self._now))
        return self._last[1]


def resolve_fleet(fleet: Fleet, fetcher: Fetcher, *, now: datetime | None = None, step: Step = _silently) -> Resolved:
    """Resolve every profile; raises NoSolution with the reasons of all that have none.

    Raises also what reading repositories raises (see repo.read), and FleetInvalid for an unknown system.
    """
    reader = _Reader(fleet, fetcher, now, step)
    platforms = {name: stack_platform_for(profile.os) for name, profile in fleet.profiles.items()}
    targets: dict[str, Target] = {}
    warnings: list[tuple[str, Verdict]] = []
    failures: list[NoSolution] = []
    # Profiles of one system after another, so that its lists are read once.
    for name in sorted(fleet.profiles, key=lambda name: (fleet.profiles[name].os, name)):
        universe, indices = reader.read(name, platforms[name])
        try:
            resolution = resolve(name, fleet.profiles[name], platforms[name], universe, indices)
        except NoSolution as error:
            failures.append(error)
            continue
        targets[name] = resolution.target
        warnings += [(name, verdict) for verdict in resolution.warnings]
    if failures:
        raise NoSolution("\n".join(failure.message for failure in failures), hint=failures[0].hint)
    return Resolved(lockfile.build(targets), tuple(warnings))


def check(
    fleet: Fleet, lock: Lock, fetcher: Fetcher, *, now: datetime | None = None, step: Step = _silently
) -> list[Reason]:
    """Every reason why ``lock`` cannot be used as it is: it does not fit the fleet, or a repository lost a file.

    An index past its Valid-Until raises RepositoryUntrusted, as everywhere.
    """
    reasons = lockfile.status(fleet, lock)
    moved = {reason.profile for reason in reasons if reason.difference is Difference.REPOSITORIES_CHANGED}
    reader = _Reader(fleet, fetcher, now, step)
    for name in sorted(fleet.profiles.keys() & lock.targets.keys() - moved):
        target = lock.targets[name]
        if fleet.profiles[name].os != target.os or fleet.profiles[name].arch != target.arch:
            continue
        universe, _ = reader.read(name, stack_platform_for(target.os))
        for package in target.packages:
            there = universe.named(package.package)
            same = [c for c in there if (c.version, c.architecture) == (package.version, package.architecture)]
            if not same:
                offered = ", ".join(sorted(c.version for c in there)) or "nothing of this name"
                gone = Difference.PACKAGE_GONE
                reasons.append(Reason(gone, name, package.package, package.version, offered))
            elif all(c.sha256 != package.sha256 for c in same):
                replaced = Difference.PACKAGE_REPLACED
                reasons.append(Reason(replaced, name, package.package, package.sha256, same[0].sha256))
    return reasons
