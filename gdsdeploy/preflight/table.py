"""A table of stacks, and the record of each: an earlier run's, or that of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gdsdeploy import console
from gdsdeploy.errors import GdsError
from gdsdeploy.fleetfile.rules import rules_of
from gdsdeploy.lock import repo_settings
from gdsdeploy.lock.resolve.options import is_packaged
from gdsdeploy.lock.resolve_fleet import read_repositories
from gdsdeploy.lock.sources import PackageReader
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.platform import StackPlatform, stack_platform_for
from gdsdeploy.preflight import record, trial
from gdsdeploy.preflight.record import Answer, PreflightRecord
from gdsdeploy.preflight.trial import StackCandidate, StackChoices, candidates
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe


@dataclass(frozen=True)
class Cell:
    """One stack of the table and its record; None: its packages cannot be installed together."""

    candidate: StackCandidate
    record: PreflightRecord | None
    #: whether the record is an earlier run's
    is_earlier: bool


def preflight(
    fleet: Fleet,
    lock: Lock | None,
    profiles: Sequence[str],
    choices: StackChoices,
    *,
    again: bool,
    fetcher: Fetcher,
    now: datetime | None = None,
) -> list[Cell]:
    """Try every stack in ``choices`` for every profile.

    again: ignore the records of earlier runs.  now: as for read_repositories.
    Raises NoSolution for versions that the repositories don't have, MissingProgram, GdsError for a profile that
    this machine can't try, and what reading repositories raises.
    """
    cells: list[Cell] = []
    rules = rules_of(fleet)
    for name in profiles:
        profile = fleet.profiles[name]
        if is_packaged(profile):
            raise GdsError(
                f"profile {name} takes its modules from packages: there is nothing to build",
                hint="`gdsdeploy lock` has read kernel, versions, flavour and signer in the packages. Hosts audit"
                " symbol versions and signatures before they boot the kernel; only that boot proves that they load",
            )
        platform = stack_platform_for(profile.os)
        trial.require(platform.kind)
        repositories = repo_settings.repositories(fleet, name, platform)
        with console.step(f"Reading {', '.join(map(str, repositories))}"):
            universe, indices = read_repositories(fetcher, repositories, platform.architecture(profile.arch), now=now)
        locked = lock.targets.get(name) if lock else None
        sources = PackageReader(fetcher, indices, console.step).source_tree
        cells += (
            _cell(candidate, platform, universe, again=again, fetcher=fetcher)
            for candidate in candidates(name, profile, platform, universe, indices, sources, locked, choices, rules)
        )
    return cells


def _cell(
    candidate: StackCandidate,
    platform: StackPlatform,
    universe: Universe,
    *,
    again: bool,
    fetcher: Fetcher,
) -> Cell:
    target = candidate.target
    if target is None:
        return Cell(candidate, None, is_earlier=False)
    trial.require_machine(target)
    earlier = None if again else record.find(target)
    if earlier is not None:
        return Cell(candidate, earlier, is_earlier=True)
    layers = trial.layers(target, platform, universe, fetcher)
    with console.step(f"Trying {candidate.label}") as step:
        new = trial.trial(candidate, layers, step)
        step.failure = "" if new.ok else "failed" if new.failed else "undecided"
    if new.builds is not Answer.UNKNOWN:
        record.keep(new)
    return Cell(candidate, new, is_earlier=False)
