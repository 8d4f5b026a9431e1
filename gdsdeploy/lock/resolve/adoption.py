"""The pieces of a driver that hosts have already: those on offer in the locked driver's version are locked, too.

They are added to a choice that is made without them: what hosts have never decides which driver is chosen.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdsdeploy.lock.resolve import package_set
from gdsdeploy.lock.resolve.dependencies import Unsolvable
from gdsdeploy.lock.resolve.search import Choice
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Package, Part
from gdsdeploy.platform.base import StackPlatform
from gdsdeploy.repo.packages import Candidate, Key, Relation, Universe

#: What an adopted package may bring along.  Everything else is chosen before.
_PIECES: frozenset[Part] = frozenset({"driver-userland", "companion", "support"})
#: Versions of a metapackage of GDS that are tried, the newest first.
_TRIED = 12
#: The branch in a name: libnvidia-decode-580, nvidia-driver-580-open.
_BRANCH = re.compile(r"-[0-9]{3}(?=-|$)")


@dataclass(frozen=True)
class LeftOut:
    """A package of hosts that isn't adopted; ``reason`` is a clause about it."""

    name: str
    reason: str


@dataclass(frozen=True)
class Adoption:
    """``packages``: of the whole lock.  ``names``: those of them that were adopted, as the repositories name them."""

    packages: tuple[Package, ...]
    names: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def adopt(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    choice: Choice,
    packages: tuple[Package, ...],
    wishes: Iterable[str],
    locked: frozenset[Key] = frozenset(),
) -> Adoption:
    """``packages`` of a choice, and of ``wishes`` all that go with them.

    wishes: names of packages that hosts have.  locked: files that win over newer ones.
    """
    own = {package.package for package in packages}
    branch = platform.upstream_version(choice[0].holder.version).split(".", 1)[0]
    names = {wish: names_in_branch(wish, branch) for wish in sorted(set(wishes))}
    umbrellas = package_set.packaging(profile, platform, choice).umbrellas
    keys = locked | {(package.package, package.version, package.architecture) for package in packages}
    libraries = {name for pair in platform.libcufile_packages(universe.names()) for name in pair}
    chosen: dict[str, Candidate] = {}
    left_out: list[LeftOut] = []
    result = packages
    for wish, others in names.items():
        reasons: list[str] = []
        for candidate in _candidates(profile, platform, universe, choice, others):
            if candidate.package in own or candidate.package in chosen:
                break
            also = [*chosen.values(), candidate]
            try:
                whole = package_set.packages(
                    profile,
                    platform,
                    universe,
                    choice,
                    locked=keys,
                    also=also,
                    with_umbrellas=any(one.fullmatch(c.package) for one in umbrellas for c in also),
                )
            except Unsolvable as error:
                reasons.append("; ".join(error.reasons))
                continue
            against = _against(profile, packages, whole, libraries)
            if not against:
                result, chosen[candidate.package] = whole, candidate
                break
            reasons.append(against)
        else:
            left_out.append(LeftOut(wish, reasons[0] if reasons else _absence(platform, universe, choice, others)))
    return Adoption(result, tuple(sorted(chosen)), tuple(left_out))


def names_in_branch(name: str, branch: str) -> list[str]:
    """The names that a package of another branch may have in this one, and its own name otherwise.

    Up to 580, NVIDIA's packages for apt have their branch in their names, and from 590 on they don't.
    """
    match = _BRANCH.search(name)
    if match is None or match[0] == f"-{branch}":
        return [name]
    return [_BRANCH.sub(f"-{branch}", name), _BRANCH.sub("", name)]


def _candidates(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    choice: Choice,
    names: Sequence[str],
) -> Iterator[Candidate]:
    """The files that may be adopted under one of ``names``, the preferred one first."""
    for name in names:
        if platform.may_be_adopted(name):
            files = package_set.usable(profile, platform, universe, choice, name)
            # A package with versions of its own, which isn't a metapackage of GDS, belongs to no driver.
            yield from [c for c in files if platform.follows_driver(c) or _is_gds(c.package)][:_TRIED]


def _is_gds(name: str) -> bool:
    return name.startswith(("nvidia-gds", "nvidia-fs"))


def _against(profile: Profile, before: Sequence[Package], after: Sequence[Package], libraries: Collection[str]) -> str:
    """Why a set with an adopted package can't be locked; empty: it can.

    libraries: names of libcufile and of gds-tools, of whichever CUDA release.
    """
    earlier = {package.package: package for package in before}
    later = {package.package: package for package in after}
    moved = [name for name, package in earlier.items() if name not in later or later[name].sha256 != package.sha256]
    if moved:
        return f"with it, other versions of {', '.join(moved)} would be locked"
    new = [package for package in after if package.package not in earlier]
    others = [package.package for package in new if package.part not in _PIECES or package.package in libraries]
    if others:
        return f"it brings along {', '.join(others)}, which the lock has in another way"
    built = [n for n, package in earlier.items() if (package.needed_by, later[n].needed_by) == ("build", "both")]
    if built and profile.modules != "build":
        why = "which hosts have only where they build their modules; with `modules: build` it is adopted"
        return f"it needs {', '.join(built)}, {why}"
    return ""


def _absence(platform: StackPlatform, universe: Universe, choice: Choice, names: Sequence[str]) -> str:
    """Why there is no candidate of these names."""
    driver = choice[0].holder
    version = platform.upstream_version(driver.version)
    offered = [candidate for name in names for candidate in universe.named(name)]
    if not offered:
        return "the profile's repositories don't have it"
    same = [c for c in offered if platform.upstream_version(c.version) == version]
    if same and all(c.origin != driver.origin for c in same):
        return f"only {same[0].origin} has it in version {version}, and the driver is made by {driver.origin}"
    if same:
        return "it belongs to the other flavour of the driver, or to another driver"
    others = ", ".join(sorted({platform.upstream_version(c.version) for c in offered})[-4:])
    return f"the profile's repositories don't have it in version {version}, but in {others}"


def leaves(
    platform: StackPlatform, universe: Universe, packages: Sequence[Package], name: str, version: str
) -> bool | None:
    """Whether the locked packages can't be installed beside this one; None: the repositories don't have it to tell."""
    key = platform.order.key
    same = [candidate for candidate in universe.named(name) if key(candidate.version) == key(version)]
    if not same:
        return None
    installed, locked = same[0], _locked(universe, packages)
    if any(installed.answers(relation) for other in locked.values() for relation in _excluded(other)):
        return True
    if any(other.answers(relation) for other in locked.values() for relation in installed.conflicts):
        return True
    groups = (*installed.pre_depends, *installed.depends)
    return not all(any(_holds(universe, locked, relation) for relation in group) for group in groups)


def _excluded(candidate: Candidate) -> tuple[Relation, ...]:
    return (*candidate.conflicts, *candidate.obsoletes)


def _locked(universe: Universe, packages: Sequence[Package]) -> Mapping[str, Candidate]:
    keys = {(package.package, package.version, package.architecture) for package in packages}
    return {c.package: c for package in packages for c in universe.named(package.package) if c.key in keys}


def _holds(universe: Universe, locked: Mapping[str, Candidate], relation: Relation) -> bool:
    """Whether a requirement can be met beside the lock: by what it has, or by a package that it has nothing of."""
    candidates = universe.answering(relation)
    return relation.negated or any(c.package not in locked or locked[c.package].key == c.key for c in candidates)
