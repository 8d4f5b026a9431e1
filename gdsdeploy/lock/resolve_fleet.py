"""Resolve a whole fleet against its repositories, and compare an existing lock with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gdsdeploy.errors import LockInvalid, NoSolution, RepositoryUntrusted, RepositoryUnusable, nearest
from gdsdeploy.fleetfile.rules import rules_of
from gdsdeploy.host.model.compat import WARNED, Verdict, without_builds
from gdsdeploy.lock import compat, lockfile, repo_settings
from gdsdeploy.lock.lockfile import Difference, Reason, pins
from gdsdeploy.lock.resolve import Resolution, resolve
from gdsdeploy.lock.resolve.explain import Explanation, explain as why, explainable_names
from gdsdeploy.lock.resolve.target import Keep, LeftOut, leaves
from gdsdeploy.lock.sources import PackageReader, uri_of
from gdsdeploy.model.fleet import Fleet, Profile, Repository as RepositoryEntry
from gdsdeploy.model.lock import Index, Lock, Target
from gdsdeploy.platform import StackPlatform, stack_platform_for
from gdsdeploy.repo import apt, rpm
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.repository import Repository

#: Announces a long step while it runs.
Step = Callable[[str], AbstractContextManager[object]]

_ASKED_AT_ONCE: Final = 8


@dataclass(frozen=True)
class Resolved:
    """A lock, and what was found about it: (profile, verdict)."""

    lock: Lock
    found: tuple[tuple[str, Verdict], ...]
    left_out: tuple[NotAdopted, ...] = ()

    @property
    def warnings(self) -> list[tuple[str, Verdict]]:
        """Those of ``found`` that the user has to know: a proof decides whether modules build."""
        proven = {name for name, target in self.lock.targets.items() if compat.is_proven(target)}
        return [(name, each) for name, each in self.found if name not in proven or without_builds([each])]


#: Profile → package → its versions on hosts.
Installed = Mapping[str, Mapping[str, Collection[str]]]


@dataclass(frozen=True)
class NotAdopted:
    """A package of hosts that isn't adopted.

    ``leaves``: whether it can't stay beside the lock; None: the repositories don't have its version to tell.
    """

    profile: str
    name: str
    reason: str
    leaves: bool | None

    @property
    def consequence(self) -> str:
        """What becomes of it, in words."""
        if self.leaves is None:
            return "`gdsdeploy plan` tells whether it stays"
        return "provision refuses to remove it unless its profile lists it in `removes`" if self.leaves else "it stays"


def read_repositories(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[Universe, tuple[Index, ...]]:
    """Fetch and verify everything that ``repositories``, all of one family, offer for ``architecture``.

    architecture: the package manager's name.  now: aware; the time that dates are compared with.
    Raises RepositoryUnusable naming the address, RepositoryUntrusted naming the file.
    """
    for repository in repositories:
        _require_folder(repository)
    if any(repository.suites for repository in repositories):
        return apt.read(fetcher, repositories, architecture, now=now)
    return rpm.read(fetcher, repositories, architecture, now=now)


def _require_folder(repository: Repository) -> None:
    """Raise RepositoryUnusable for a folder (``file://``) that this machine doesn't have."""
    parts = urlsplit(repository.uri)
    folder = Path(unquote(parts.path))
    if parts.scheme == "file" and not folder.is_dir():
        raise RepositoryUnusable(
            f"repository {repository.name}: this machine has no folder {folder}",
            hint="Its index is read here, as hosts read it there: unpack its package into the same folder, or set `uri`"
            " to a server that has it, such as NVIDIA's network repository (docs/repositories.md)",
        )


@dataclass
class _Reader:
    """Reads each set of repositories once, however many profiles share it."""

    fleet: Fleet
    fetcher: Fetcher
    now: datetime | None
    step: Step
    _last: tuple[object, tuple[Universe, tuple[Index, ...]]] | None = None

    def read(self, profile: str, platform: StackPlatform) -> tuple[Universe, tuple[Index, ...]]:
        """What the repositories of ``profile`` offer."""
        repositories = repo_settings.repositories(self.fleet, profile, platform)
        architecture = platform.architecture(self.fleet.profiles[profile].arch)
        key = (tuple(repositories), architecture)
        # Only the last one is kept: a distribution's lists take some hundred megabytes.
        if self._last is None or self._last[0] != key:
            self._last = None
            names = ", ".join(map(str, repositories))
            with self.step(f"Reading {names}"):
                self._last = (key, read_repositories(self.fetcher, repositories, architecture, now=self.now))
        return self._last[1]

    def check_packages(self, profile: str, platform: StackPlatform, target: Target) -> None:
        """Check the signature of each locked package that no signed index vouches for."""
        repositories = repo_settings.repositories(self.fleet, profile, platform)
        if unsigned := [repository for repository in repositories if repository.unsigned]:
            with self.step(f"Checking the signatures of packages of {', '.join(map(str, unsigned))}"):
                rpm.check_packages(self.fetcher, unsigned, target.packages)


@dataclass(frozen=True)
class Upgrade:
    """The parts of a lock that may move: everything, or the named subjects and packages."""

    everything: bool = False
    what: frozenset[str] = frozenset()


def resolve_fleet(
    fleet: Fleet,
    fetcher: Fetcher,
    *,
    old: Lock | None = None,
    upgrade: Upgrade = Upgrade(),
    now: datetime | None = None,
    step: Step = nullcontext,
    installed: Installed = {},  # noqa: B006 - nothing changes it
) -> Resolved:
    """Resolve every profile; raises NoSolution with the reasons of all that have none.

    old: stays except for what ``upgrade`` names, and what the fleet or the repositories force to move.
    installed: of these profiles, what hosts have takes the place of what ``old`` has adopted.
    Raises also what reading repositories (see read_repositories) and source packages (see lock.sources) raises,
    RepositoryUntrusted for a package that no signature vouches for and for an index that is older than the one in
    ``old`` or than its ``max_age``, and FleetInvalid for an unknown system.
    """
    reader = _Reader(fleet, fetcher, now, step)
    platforms = {name: stack_platform_for(profile.os) for name, profile in fleet.profiles.items()}
    targets: dict[str, Target] = {}
    found: list[tuple[str, Verdict]] = []
    failures: list[NoSolution] = []
    left_out: list[NotAdopted] = []
    # Profiles of one system after another, so that its lists are read once.
    for name in sorted(fleet.profiles, key=lambda name: (fleet.profiles[name].os, name)):
        universe, indices = reader.read(name, platforms[name])
        before = _before(fleet, old, name)
        _refuse_replay(name, before, indices)
        entries = _entries(fleet, name, platforms[name])
        found += [(name, verdict) for verdict in compat.judge_ages(indices, entries, now)]
        keep = Keep(before, upgrade.what | _loose(before, fleet.profiles[name])) if before else None
        packages = PackageReader(fetcher, indices, step)
        try:
            chosen = None if upgrade.everything else keep
            wishes = tuple(installed[name]) if name in installed else before.adopted if before else ()
            profile = fleet.profiles[name]
            resolution = resolve(
                name,
                profile,
                platforms[name],
                universe,
                indices,
                packages.source_tree,
                rules=rules_of(fleet),
                keep=chosen,
                wishes=wishes,
                modules=packages.modules,
            )
        except NoSolution as error:
            failures.append(error)
            continue
        reader.check_packages(name, platforms[name], resolution.target)
        resolution = replace(resolution, target=compat.keep_proof(resolution.target, before))
        targets[name] = resolution.target
        if name in installed:
            left_out += _not_adopted(name, platforms[name], universe, resolution, installed[name])
        elif resolution.left_out:
            # A later driver may have those packages again.
            names = {*resolution.target.adopted, *(one.name for one in resolution.left_out)}
            targets[name] = resolution.target.model_copy(update={"adopted": tuple(sorted(names))})
            found += [(name, Verdict("adopted", WARNED, _lost_words(one))) for one in resolution.left_out]
        found += [(name, verdict) for verdict in resolution.warnings]
    if failures:
        raise NoSolution("\n".join(failure.message for failure in failures), hint=failures[0].hint)
    return Resolved(lockfile.build(targets), tuple(found), tuple(left_out))


def _not_adopted(
    profile: str,
    platform: StackPlatform,
    universe: Universe,
    resolution: Resolution,
    installed: Mapping[str, Collection[str]],
) -> Iterator[NotAdopted]:
    """What hosts have and the lock doesn't, but for what is no driver's and stays."""
    packages = resolution.target.packages
    for one in resolution.left_out:
        ends = {leaves(platform, universe, packages, one.name, version) for version in installed[one.name]}
        end = True if True in ends else None if None in ends else False
        if end is not False or any(map(platform.follows_driver, universe.named(one.name))):
            yield NotAdopted(profile, one.name, one.reason, end)


def _lost_words(one: LeftOut) -> str:
    return (
        f"{one.name} was adopted and isn't in this lock: {one.reason}. Hosts that have it are refused, unless their"
        " profile lists it in `removes`; `gdsdeploy lock --adopt` takes its name out of the lock."
    )


def _entries(fleet: Fleet, profile: str, platform: StackPlatform) -> dict[str, RepositoryEntry]:
    """The fleet file's entry of each repository of a profile, for members of a group the group's."""
    arch = fleet.profiles[profile].arch
    listed = repo_settings.names(fleet, profile, platform)
    return {name: repo_settings.setting(fleet, name, platform, arch).entry for name in listed}


def _before(fleet: Fleet, old: Lock | None, name: str) -> Target | None:
    """The old lock's target of a profile, if it is for the same system."""
    target = old.targets.get(name) if old else None
    profile = fleet.profiles[name]
    return target if target and (target.os, target.arch) == (profile.os, profile.arch) else None


def _loose(before: Target, profile: Profile) -> frozenset[str]:
    """The subjects that a new order of repositories lets move, because the order decides their maker."""
    same = before.pins.get("repositories") == pins(profile).get("repositories")
    return frozenset() if same else frozenset({"driver", "nvidia-fs", "libcufile"})


def _older(before: Target | None, indices: Sequence[Index]) -> Iterator[tuple[Index, Index]]:
    """Every index that is dated before the one that was locked: (locked, found)."""
    locked = {(i.repository, i.suite): i for i in before.indices} if before else {}
    for index in indices:
        before_index = locked.get((index.repository, index.suite))
        # RFC 3339 in UTC sorts as text.
        if before_index is not None and index.date < before_index.date:
            yield before_index, index


def _refuse_replay(name: str, before: Target | None, indices: Sequence[Index]) -> None:
    older = [
        f"{index.uri}: the index of {index.repository} {index.suite} is dated {index.date}, "
        f"but profile {name} was locked from that of {locked.date}"
        for locked, index in _older(before, indices)
    ]
    if older:
        raise RepositoryUntrusted(
            "\n".join(older),
            hint="The mirror is behind, or an attacker replays an old state: use another mirror, or wait until it is "
            "up to date. To go back on purpose, remove the lock",
        )


def explain(
    fleet: Fleet,
    lock: Lock,
    what: str,
    fetcher: Fetcher,
    *,
    now: datetime | None = None,
    step: Step = nullcontext,
) -> list[Explanation]:
    """Explain a subject or package for each profile whose lock has it; raises LockInvalid if none has."""
    reader = _Reader(fleet, fetcher, now, step)
    explanations = []
    for name in sorted(fleet.profiles.keys() & lock.targets.keys()):
        target, platform = lock.targets[name], stack_platform_for(fleet.profiles[name].os)
        if what in explainable_names(target):
            universe: Universe | str
            try:
                universe, _ = reader.read(name, platform)
            except RepositoryUnusable as error:
                universe = error.message
            with contextlib.suppress(KeyError):
                explanations.append(why(name, fleet.profiles[name], platform, universe, target, what, rules_of(fleet)))
    if not explanations:
        names = {each for target in lock.targets.values() for each in explainable_names(target)}
        hint = f"Try: {nearest(what, sorted(names)) or 'driver, kernel, nvidia-fs, libcufile'}"
        raise LockInvalid(f"{what} is neither a part of the stack nor a package of the lock", hint=hint)
    return explanations


def check(
    fleet: Fleet, lock: Lock, fetcher: Fetcher, *, now: datetime | None = None, step: Step = nullcontext
) -> list[Reason]:
    """Every reason against ``lock``: another fleet, lost files, and indices that are expired, changed or older."""
    reasons = lockfile.status(fleet, lock)
    moved = {reason.profile for reason in reasons if reason.difference is Difference.REPOSITORIES_CHANGED}
    reader = _Reader(fleet, fetcher, now, step)
    for name in sorted(fleet.profiles.keys() & lock.targets.keys() - moved):
        if _before(fleet, lock, name) is None:
            continue
        try:
            reasons += _repositories_of(reader, name, lock.targets[name])
        except RepositoryUntrusted as error:
            reasons.append(Reason(Difference.INDEX_REFUSED, name, "", "", error.message))
        except RepositoryUnusable as error:
            reasons.append(Reason(Difference.REPOSITORY_GONE, name, "", "", error.message))
    return reasons


def _repositories_of(reader: _Reader, name: str, target: Target) -> Iterator[Reason]:
    """Every reason that the repositories of a profile have against its target; raises what reading them raises."""
    platform = stack_platform_for(target.os)
    universe, indices = reader.read(name, platform)
    compat.judge_ages(indices, _entries(reader.fleet, name, platform), reader.now)
    for locked, current in _older(target, indices):
        subject = f"{current.repository} {current.suite}".strip()
        yield Reason(Difference.INDEX_OLDER, name, subject, locked.date, current.date)
    streams: dict[str, str] = {}
    for module, stream in (each.split(":", 1) for each in target.modules):
        try:
            found = "" if universe.with_streams({module: stream}).streams() else "the repositories have no such module"
        except NoSolution as error:
            found = error.message
        if found:
            yield Reason(Difference.STREAM_GONE, name, f"{module}:{stream}", "", found)
        else:
            streams[module] = stream
    lost = list(_lost(name, target, universe.with_streams(streams)))
    yield from lost
    yield from _absent(name, target, {reason.subject for reason in lost}, reader.fetcher)


def _lost(name: str, target: Target, universe: Universe) -> Iterator[Reason]:
    """Packages that the indices no longer list, or list with another content."""
    for package in target.packages:
        candidates = universe.named(package.package)
        same = [c for c in candidates if (c.version, c.architecture) == (package.version, package.architecture)]
        if not same:
            offered = ", ".join(sorted(c.version for c in candidates)) or "nothing of this name"
            yield Reason(Difference.PACKAGE_GONE, name, package.package, package.version, offered)
        elif all(c.sha256 != package.sha256 for c in same):
            yield Reason(Difference.PACKAGE_REPLACED, name, package.package, package.sha256, same[0].sha256)


def _absent(name: str, target: Target, lost: set[str], fetcher: Fetcher) -> list[Reason]:
    """Files that the indices list and the repository does not have."""
    listed = [package for package in target.packages if package.package not in lost]
    uris = [uri_of(target.indices, package) for package in listed]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        present = list(pool.map(fetcher.has, uris))
    return [
        Reason(Difference.FILE_GONE, name, package.package, "", uri)
        for package, uri, is_present in zip(listed, uris, present, strict=True)
        if not is_present
    ]
