"""Will this stack build and load on that kernel?  Answered before any host reboots, in a root that is thrown away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from gdsdeploy.errors import GdsError
from gdsdeploy.lock import repo_settings
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.platform import StackPlatform, stack_platform_for
from gdsdeploy.preflight import ingredients, record, root, trial
from gdsdeploy.preflight.choice import Asked, Candidate, candidates
from gdsdeploy.preflight.record import Mode, Record
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.read import read

__all__ = ["Asked", "Candidate", "Cell", "Mode", "Record", "preflight"]

#: Announces a long step while it runs.
Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Cell:
    """One stack of the table and its answer; no record: its packages cannot be installed together."""

    candidate: Candidate
    record: Record | None
    #: answered by what an earlier run found
    kept: bool


def preflight(
    fleet: Fleet,
    lock: Lock | None,
    profiles: Sequence[str],
    asked: Asked,
    *,
    mode: Mode,
    again: bool,
    fetcher: Fetcher,
    step: Step,
) -> list[Cell]:
    """Try every stack that is asked for, of every profile, one after another.

    again: build also what an earlier run has the answer for.
    Raises NoSolution for versions that the repositories do not offer, MissingProgram, GdsError for a profile that
    cannot be tried here, and what reading repositories raises.
    """
    root.require()
    cells: list[Cell] = []
    for name in profiles:
        profile = fleet.profiles[name]
        platform = stack_platform_for(profile.os)
        if platform.kind != "apt":
            raise GdsError(
                f"profile {name}: preflights of {profile.os} are not served yet: only of systems with apt",
                hint="Name the profiles to try with --profile",
            )
        repositories = repo_settings.repositories(fleet, name, platform)
        with step(f"Reading {', '.join(map(str, repositories))}"):
            universe, indices = read(fetcher, repositories, platform.architecture(profile.arch))
        locked = lock.targets.get(name) if lock else None
        found = candidates(name, profile, platform, universe, indices, locked, asked)
        cells += (_cell(each, platform, universe, mode, again=again, fetcher=fetcher, step=step) for each in found)
    return cells


def _cell(
    candidate: Candidate,
    platform: StackPlatform,
    universe: Universe,
    mode: Mode,
    *,
    again: bool,
    fetcher: Fetcher,
    step: Step,
) -> Cell:
    target = candidate.target
    if target is None:
        return Cell(candidate, None, kept=False)
    trial.require_machine(target)
    mode = trial.effective(mode, target)
    known = None if again else record.find(target)
    if known is not None and (known.mode == "full" or mode == "quick"):
        return Cell(candidate, known, kept=True)
    layers = ingredients.layers(target, platform, universe, fetcher, step)
    with step(f"Trying {candidate.label} ({mode})"):
        found = trial.trial(candidate, layers, mode)
    record.keep(found)
    return Cell(candidate, found, kept=False)
