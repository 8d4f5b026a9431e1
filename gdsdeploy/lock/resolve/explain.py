"""Why a locked package has its version, which packages need it, and what forbids newer ones.  Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gdsdeploy.errors import NoSolution
from gdsdeploy.host.model.compat import Rule, parse_versions
from gdsdeploy.lock.lockfile import pins
from gdsdeploy.lock.resolve import dependencies, options
from gdsdeploy.lock.resolve.dependencies import Unsolvable
from gdsdeploy.lock.resolve.options import Option, Options, Search, Subject, Task
from gdsdeploy.lock.resolve.target import PARTS, Keep, base, enabled, first, subject_of
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Index, Package, Target
from gdsdeploy.platform.base import NVLSM, StackPlatform
from gdsdeploy.repo.packages import Candidate, Universe

#: Newer versions that are explained, the newest first.
LOOKED_AT = 12

_PINS: dict[Subject, str] = {"nvidia-fs": "nvidia_fs", "libcufile": "libcufile"}
_RULED: dict[Subject, frozenset[str]] = {
    "driver": frozenset({"driver", "driver_package", "driver_origin", "flavour"}),
    "kernel": frozenset({"kernel", "kernel_package", "kernel_flavour", "nvme_hooks"}),
    "nvidia-fs": frozenset({"nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin"}),
    "libcufile": frozenset({"libcufile", "cuda"}),
    "doca": frozenset({"doca"}),
}


@dataclass(frozen=True)
class Newer:
    """A newer version on offer, and everything that forbids it, nearest first; empty: it may be chosen."""

    what: str
    forbidden_by: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """One package of one profile."""

    profile: str
    package: Package
    index: Index
    #: ``driver``, ``kernel`` … if its version decides that subject; else empty
    subject: str
    #: locked packages that depend on it; empty: the profile asks for it
    needed_by: tuple[str, ...]
    #: (id, what it says) of the rules that admitted it, and of those that warn of it
    rules: tuple[tuple[str, str], ...]
    warned: tuple[tuple[str, str], ...]
    newer: tuple[Newer, ...]
    #: what of it the repositories no longer have, or why they can't be read; empty: they have it
    gone: str = ""


def explainable_names(target: Target) -> list[str]:
    """Everything that can be explained: subjects, and names of packages."""
    return [*PARTS, *sorted(package.package for package in target.packages)]


@dataclass(frozen=True)
class _Stack:
    """A locked target, and what it is explained by."""

    task: Task
    target: Target
    rules: Sequence[Rule]

    def key(self, version: str) -> Any:
        return self.task.platform.order.key(version)


def explain(
    name: str,
    profile: Profile,
    platform: StackPlatform,
    offered: Universe | str,
    target: Target,
    what: str,
    rules: Sequence[Rule],
) -> Explanation:
    """Explain ``what``, a subject or a package of ``target``; raises KeyError for anything else.

    offered: what the repositories have, or why they can't be read.  rules: by which options are judged.
    """
    package = _package(target, platform, what)
    subject = subject_of(package.part)
    subjects = _RULED[subject] if subject else frozenset[str]()
    named = [rule for rule in rules if rule.id in target.rules and rule.looks_at & subjects]
    try:
        universe = Universe([]) if isinstance(offered, str) else enabled(f"profile {name}", profile, platform, offered)
        gone = offered if isinstance(offered, str) else ""
    except NoSolution as error:
        universe, gone = Universe([]), error.message
    stack = _Stack(Task(profile, platform, universe), target, rules)
    if not gone and _candidate(universe, package) is None:
        others = ", ".join(sorted(str(c) for c in universe.named(package.package))) or "nothing of this name"
        gone = f"the repositories no longer have it, but {others}: `lock --check` names everything that is gone"
    newer: Sequence[Newer] = ()
    if not isinstance(offered, str) and universe.names():
        newer = _newer_options(stack, subject) if subject else _newer_files(stack, package)
    return Explanation(
        profile=name,
        package=package,
        index=next(i for i in target.indices if (i.repository, i.suite) == (package.repository, package.suite)),
        subject=subject or "",
        needed_by=(
            *_dependents(universe, target, package),
            *(["hosts that had it (lock --adopt)"] if package.package in target.adopted else []),
        ),
        rules=tuple((rule.id, rule.says.strip()) for rule in named if not rule.is_warning),
        warned=tuple((rule.id, rule.says.strip()) for rule in named if rule.is_warning),
        newer=tuple(newer),
        gone=gone,
    )


def _package(target: Target, platform: StackPlatform, what: str) -> Package:
    by_name = {package.package: package for package in target.packages}
    if what == "kernel":
        return by_name[platform.kernel_packages(target.kernel.release)[0]]
    for package in target.packages:
        if subject_of(package.part) == what:
            by_name.setdefault(what, package)
    return by_name[what]


def _dependents(universe: Universe, target: Target, package: Package) -> Iterator[str]:
    candidate = _candidate(universe, package)
    if candidate is None:
        return
    for other in target.packages:
        dependent = _candidate(universe, other)
        groups = (*dependent.pre_depends, *dependent.depends) if dependent else ()
        relations = (relation for group in groups for relation in group if not relation.negated)
        if other.package != package.package and any(map(candidate.answers, relations)):
            yield other.package


def _candidate(universe: Universe, package: Package) -> Candidate | None:
    return next((candidate for candidate in universe.named(package.package) if candidate.key == package.key), None)


def _newer_options(stack: _Stack, subject: Subject) -> list[Newer]:
    """Every newer option of a subject, tried with any combination of the others."""
    profile, platform, universe = stack.task
    offered = options.find(_unpinned(profile, subject), platform, universe)
    level = next((i for i, choices in enumerate(offered.levels) if choices and choices[0].subject == subject), None)
    if level is None:
        return []
    keep = Keep(stack.target, frozenset({subject}))
    locked = next((option for option in offered.levels[level] if keep.has(option)), None)
    since = stack.key(locked.version) if locked else None
    newer: list[tuple[Any, Newer]] = []
    for option in offered.levels[level]:
        if locked is None or stack.key(option.version) > since:
            reasons = _against(stack, offered, level, option, keep)
            newer.append((stack.key(option.version), Newer(option.label, tuple(reasons))))
        if len(newer) == LOOKED_AT:
            break
    for version in offered.incomplete:
        if version.subject == subject and (locked is None or stack.key(version.version) > since):
            why = f"[{version.refused.rule}] {version.refused.words}"
            newer.append((stack.key(version.version), Newer(version.refused.what, (why,))))
    return [each for _, each in sorted(newer, key=lambda pair: pair[0], reverse=True)]


def _unpinned(profile: Profile, subject: Subject) -> Profile:
    """The profile without its pin of a subject, so that versions outside the pin can be named."""
    if subject in ("driver", "kernel"):
        pinned = profile.driver if subject == "driver" else profile.kernel
        return profile.model_copy(update={subject: pinned.model_copy(update={"version": "newest"})})
    return profile.model_copy(update={_PINS[subject]: "newest"}) if subject in _PINS else profile


def _against(stack: _Stack, offered: Options, level: int, option: Option, keep: Keep) -> list[str]:
    """Everything against one option: its pin, or the rules and dependencies of every combination with it."""
    key = _PINS.get(option.subject, option.subject)
    pin = {**pins(stack.task.profile), "doca": "newest"}[key]
    if not parse_versions(pin).admits(*option.names):
        return [f"[pin] the pin {key}: {pin!r} does not admit it"]
    if not all(offered.levels):
        return list(offered.missing)
    against: list[str] = []
    for others in (keep.hold(offered.levels), keep.prefer(offered.levels)):
        others[level] = [option]
        search, broken = Search(base(stack.task.profile, stack.task.platform), others, stack.rules), list[str]()
        chosen = first(stack.task, search, broken, locked=keep.locked())
        if chosen is not None and against:
            with_it = ", ".join(o.label for o in chosen[0] if not keep.has(o) and o is not option)
            return [*against, f"[lock] it would go with {with_it}, which the lock does not have: upgrade them together"]
        if chosen is not None:
            return []
        against = [*broken, *search.reasons()[1]]
    return against


def _newer_files(stack: _Stack, package: Package) -> list[Newer]:
    """Every newer version of a package that follows others, tried beside the locked choice."""
    since = stack.key(package.version)
    candidates = [c for c in stack.task.universe.named(package.package) if stack.key(c.version) > since]
    candidates.sort(key=lambda c: stack.key(c.version), reverse=True)
    return [Newer(str(c), tuple(_against_file(stack, package, c))) for c in candidates[:LOOKED_AT]]


def _against_file(stack: _Stack, package: Package, candidate: Candidate) -> list[str]:
    platform = stack.task.platform
    follows = platform.follows_driver(candidate) or (package.part == "companion" and package.package != NVLSM)
    version = stack.target.driver.version
    if follows and platform.upstream_version(candidate.version) != version:
        must = f"[driver] it has to be of the driver's own version, {version}"
        return [f"{must}: `--explain driver` says what forbids a newer one"]
    keep = Keep(stack.target, frozenset({package.package}))
    try:
        levels = keep.hold(options.find(*stack.task).levels)
        choice = [option for offered in levels for option in itertools.islice(filter(keep.has, offered), 1)]
        if len(choice) < len(levels):
            return ["[lock] the locked stack is no longer on offer: `lock --check` says what is gone"]
        dependencies.packages(stack.task, tuple(choice), locked=keep.locked(), also=[candidate])
    except Unsolvable as error:
        return [f"[dependencies] {reason}" for reason in error.reasons]
    except NoSolution as error:
        return [error.message]
    return []
