"""Why a locked package has its version, who needs it, and what forbids the newer ones.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gdsdeploy.errors import NoSolution
from gdsdeploy.host.model import version_rules
from gdsdeploy.lock.compat import Rule, shipped
from gdsdeploy.lock.resolve import options, package_set
from gdsdeploy.lock.resolve.dependencies import Unsolvable
from gdsdeploy.lock.resolve.keep import PARTS, Keep, subject_of
from gdsdeploy.lock.resolve.options import Option, Subject
from gdsdeploy.lock.resolve.search import Search
from gdsdeploy.lock.resolve.target import base, enabled, first, pins
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Index, Package, Target
from gdsdeploy.platform.base import StackPlatform
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.packages import Universe

#: Newer ones that are gone into, the newest first.
LOOKED_AT = 12

_PINS: dict[Subject, str] = {"kernel": "kernel", "nvidia-fs": "nvidia_fs", "libcufile": "libcufile"}
_RULED: dict[Subject, frozenset[str]] = {
    "driver": frozenset({"driver", "driver_package", "driver_origin", "flavour"}),
    "kernel": frozenset({"kernel", "kernel_package"}),
    "nvidia-fs": frozenset({"nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin"}),
    "libcufile": frozenset({"libcufile", "cuda"}),
    "doca": frozenset({"doca"}),
}


@dataclass(frozen=True)
class Newer:
    """A newer one on offer, and everything that forbids it, nearest first; nothing: it may be taken."""

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


def known(target: Target) -> list[str]:
    """What can be asked about: subjects, and names of packages."""
    return [*PARTS, *sorted(package.package for package in target.packages)]


def explain(
    name: str, profile: Profile, platform: StackPlatform, universe: Universe, target: Target, what: str
) -> Explanation:
    """Explain ``what``, a subject or a package of ``target``; raises KeyError for anything else."""
    universe = enabled(f"profile {name}", profile, platform, universe)
    found = _package(target, platform, what)
    subject = subject_of(found.part)
    index = next(i for i in target.indices if (i.repository, i.suite) == (found.repository, found.suite))
    newer = (
        _newer_options(profile, platform, universe, target, subject)
        if subject
        else _newer_files(profile, platform, universe, target, found)
    )
    return Explanation(
        profile=name,
        package=found,
        index=index,
        subject=subject or "",
        needed_by=tuple(_dependents(universe, target, found)),
        rules=tuple((r.id, r.says.strip()) for r in _rules(target, subject) if not r.warns),
        warned=tuple((r.id, r.says.strip()) for r in _rules(target, subject) if r.warns),
        newer=tuple(newer),
    )


def _package(target: Target, platform: StackPlatform, what: str) -> Package:
    by_name = {package.package: package for package in target.packages}
    if what == "kernel":
        return by_name[platform.kernel_packages(target.kernel.release)[0]]
    for package in target.packages:
        if subject_of(package.part) == what:
            by_name.setdefault(what, package)
    return by_name[what]


def _rules(target: Target, subject: Subject | None) -> list[Rule]:
    asked = _RULED[subject] if subject else frozenset[str]()
    return [rule for rule in shipped() if rule.id in target.rules and rule.looks_at & asked]


def _dependents(universe: Universe, target: Target, package: Package) -> list[str]:
    candidate = _candidate(universe, package)
    return [
        other.package
        for other in target.packages
        if candidate is not None and other.package != package.package and _depends(universe, other, candidate)
    ]


def _depends(universe: Universe, other: Package, candidate: Candidate) -> bool:
    there = _candidate(universe, other)
    groups = (*there.pre_depends, *there.depends) if there else ()
    return any(candidate.answers(relation) for group in groups for relation in group if not relation.negated)


def _candidate(universe: Universe, package: Package) -> Candidate | None:
    same = (
        c
        for c in universe.named(package.package)
        if (c.version, c.architecture) == (package.version, package.architecture)
    )
    return next(same, None)


def _newer_options(
    profile: Profile, platform: StackPlatform, universe: Universe, target: Target, subject: Subject
) -> list[Newer]:
    """Every newer option of a subject, tried with whatever else goes with it."""
    found = options.find(_unpinned(profile, subject), platform, universe)
    level = next(i for i, offered in enumerate(found.levels) if offered and offered[0].subject == subject)
    keep = Keep(target, frozenset({subject}))
    locked = next((o for o in found.levels[level] if keep.has(o)), None)
    since = platform.order.key(locked.version) if locked else None
    newer: list[tuple[Any, Newer]] = []
    for option in found.levels[level]:
        if locked is None or platform.order.key(option.version) > since:
            reasons = _against(profile, platform, universe, found.levels, level, option, keep)
            newer.append((platform.order.key(option.version), Newer(option.label, tuple(reasons))))
        if len(newer) == LOOKED_AT:
            break
    for item in found.incomplete:
        if item.subject == subject and (locked is None or platform.order.key(item.version) > since):
            why = f"[{item.refused.rule}] {item.refused.words}"
            newer.append((platform.order.key(item.version), Newer(item.refused.what, (why,))))
    return [each for _, each in sorted(newer, key=lambda pair: pair[0], reverse=True)]


def _unpinned(profile: Profile, subject: Subject) -> Profile:
    """The profile without its pin of a subject, so that what the pin shuts out can be named."""
    if subject == "driver":
        return profile.model_copy(update={"driver": profile.driver.model_copy(update={"version": "newest"})})
    return profile.model_copy(update={_PINS[subject]: "newest"}) if subject in _PINS else profile


def _against(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    levels: Sequence[Sequence[Option]],
    level: int,
    option: Option,
    keep: Keep,
) -> list[str]:
    """Everything against one option: its pin, or the rules and dependencies of every combination with it."""
    key = _PINS.get(option.subject, option.subject)
    pin = {**pins(profile), "doca": "newest"}[key]
    if not version_rules.parse(pin).admits(*option.names):
        return [f"[pin] the pin {key}: {pin!r} does not admit it"]
    against: list[str] = []
    for others in (keep.hold(levels), keep.prefer(levels)):
        others[level] = [option]
        search, broken = Search(base(profile, platform), others, shipped()), list[str]()
        chosen = first(profile, platform, universe, search, broken, locked=keep.locked())
        if chosen is not None and against:
            with_it = ", ".join(o.label for o in chosen[0] if not keep.has(o) and o is not option)
            return [*against, f"[lock] it would go with {with_it}, which the lock does not have: upgrade them together"]
        if chosen is not None:
            return []
        against = [*broken, *search.reasons()[1]]
    return against


def _newer_files(
    profile: Profile, platform: StackPlatform, universe: Universe, target: Target, package: Package
) -> list[Newer]:
    """Every newer version of a package that follows others, tried beside the locked choice."""
    since = platform.order.key(package.version)
    there = [c for c in universe.named(package.package) if platform.order.key(c.version) > since]
    there.sort(key=lambda c: platform.order.key(c.version), reverse=True)
    return [
        Newer(str(c), tuple(_against_file(profile, platform, universe, target, package, c))) for c in there[:LOOKED_AT]
    ]


def _against_file(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    target: Target,
    package: Package,
    candidate: Candidate,
) -> list[str]:
    follows = platform.follows_driver(candidate) or package.part == "companion"
    if follows and platform.upstream_version(candidate.version) != target.driver.version:
        must = f"[driver] it has to be of the driver's own version, {target.driver.version}"
        return [f"{must}: `--explain driver` says what forbids a newer one"]
    keep = Keep(target, frozenset({package.package}))
    try:
        levels = keep.hold(options.find(profile, platform, universe).levels)
        choice = tuple(next(o for o in offered if keep.has(o)) for offered in levels)
        package_set.packages(profile, platform, universe, choice, locked=keep.locked(), also=candidate)
    except StopIteration:
        return ["[lock] the locked stack is no longer on offer: `lock --check` says what is gone"]
    except Unsolvable as error:
        return [f"[dependencies] {reason}" for reason in error.reasons]
    except NoSolution as error:
        return [error.message]
    return []
