"""The packages of one choice: its own, further ones of the stack, and their dependencies.

The answer's packages of the stack are locked.  A dependency outside the stack (libc6, gcc) must be on offer in a
version that fits, but the host's package manager installs it and its dependencies.  Only Depends and Pre-Depends
count; Conflicts and Breaks are respected, those of system packages where they are about the stack; Recommends are
never followed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdsdeploy.host.model.compat import Verdict
from gdsdeploy.lock.resolve.options import Choice, Task
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Package, Part
from gdsdeploy.platform.base import NVLSM, Packaging, StackPackage, StackPlatform
from gdsdeploy.repo.packages import Candidate, Group, Key, Relation, Universe

#: Alternatives after which a search gives up; Debian's stack takes about a hundred.
MOST_TRIED = 50_000


@dataclass(frozen=True)
class Need:
    """A package, in one of the versions of ``allowed``."""

    package: str
    allowed: frozenset[Key]
    words: str


@dataclass(frozen=True)
class Never:
    """A package, if it is there at all, in none of the versions of ``banned``; ``rule`` says so, or a package does."""

    package: str
    banned: frozenset[Key]
    words: str
    rule: Verdict | None = None


@dataclass(frozen=True)
class Either:
    """One of several packages, or the absence of one."""

    options: tuple[Need | Never, ...]
    words: str


Requirement = Need | Never | Either


class Unsolvable(Exception):
    """The packages cannot be installed together; ``reasons`` says why, one line each.

    verdicts: of the rules that have a part in it.
    """

    def __init__(self, reasons: list[str], verdicts: Sequence[Verdict] = ()) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.verdicts = verdicts


@dataclass(frozen=True)
class Solution:
    """Every package by name, and for each the names of those that it depends on."""

    packages: dict[str, Candidate]
    edges: dict[str, tuple[str, ...]]

    def reachable(self, roots: Iterable[str]) -> set[str]:
        """``roots`` and everything that they depend on."""
        reach: set[str] = set()
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name not in reach:
                reach.add(name)
                stack.extend(self.edges.get(name, ()))
        return reach


@dataclass(eq=False)
class Provider:
    """Tells the search what the universe offers."""

    universe: Universe
    stack: StackPlatform
    #: the package whose maker and upstream version all packages of the driver must have
    driver: Candidate
    #: version that is preferred where several fit
    kernel_package: str
    excluded: Sequence[re.Pattern[str]]
    #: names that win among alternatives
    preferred: frozenset[str]
    #: files that win over newer ones
    locked: frozenset[Key] = frozenset()
    #: repositories of which everything needed is locked
    whole: frozenset[str] = frozenset()
    _candidates: dict[str, list[Candidate]] = field(default_factory=dict, init=False)
    _needed: dict[Key, list[Requirement]] = field(default_factory=dict, init=False)

    def in_stack(self, candidate: Candidate) -> bool:
        """Whether a candidate is locked, and its dependencies with it."""
        return candidate.repository in self.whole or self.stack.in_stack(candidate)

    def usable(self, candidate: Candidate) -> bool:
        """Whether a candidate may be chosen at all."""
        if any(pattern.fullmatch(candidate.package) for pattern in self.excluded):
            return False
        if self.stack.of_driver(candidate) and candidate.origin != self.driver.origin:
            return False
        if self.stack.follows_driver(candidate):
            return self.stack.upstream_version(candidate.version) == self.stack.upstream_version(self.driver.version)
        return True

    def need(self, package: str) -> Need:
        """The requirement of any usable version of a package."""
        return Need(package, frozenset(c.key for c in self.universe.named(package) if self.usable(c)), package)

    def candidates(self, package: str) -> list[Candidate]:
        """The usable files of a package, the preferred one first."""
        if package not in self._candidates:
            usable = [candidate for candidate in self.universe.named(package) if self.usable(candidate)]
            self._candidates[package] = sorted(usable, key=self._rank, reverse=True)
        return self._candidates[package]

    def requirements(self, candidate: Candidate) -> list[Requirement]:
        """What a package asks for."""
        if candidate.key not in self._needed:
            conflicts = self._conflicts(candidate)
            if self.in_stack(candidate):
                groups = (*candidate.pre_depends, *candidate.depends)
                needs = [requirement for group in groups for requirement in self._requirements(group)]
                self._needed[candidate.key] = [*needs, *conflicts]
            else:
                self._needed[candidate.key] = [n for n in conflicts if any(map(self.in_stack, self._named(n)))]
        return self._needed[candidate.key]

    def _named(self, never: Never) -> list[Candidate]:
        return [candidate for candidate in self.universe.named(never.package) if candidate.key in never.banned]

    def _rank(self, candidate: Candidate) -> tuple[bool, bool, int, Any]:
        """A kernel's build tools come from the kernel's own build where that is on offer; else repositories' order."""
        precedence = -self.universe.precedence(candidate.origin)
        own_build = candidate.version == self.kernel_package
        return candidate.key in self.locked, own_build, precedence, self.stack.order.key(candidate.version)

    def _requirements(self, group: Group) -> list[Requirement]:
        """What a group of alternatives asks for: one requirement, or more where it has negated ones."""
        words = " | ".join(map(str, group))
        allowed: dict[str, set[Key]] = {}
        for relation in group:
            for candidate in () if relation.negated else self.universe.answering(relation):
                if self.usable(candidate):
                    allowed.setdefault(candidate.package, set()).add(candidate.key)
        needs = [Need(package, frozenset(keys), words) for package, keys in allowed.items()]
        needs.sort(key=lambda need: need.package not in self.preferred)
        absences = [[*self._banned(relation, words)] for relation in group if relation.negated]
        if not absences:
            return [_one_of(needs, words)] if needs else [Need(group[0].package, frozenset(), words)]
        # "Not b" means the absence of every package that answers b, and each absence is an alternative of its own;
        # where nothing on offer answers b, it holds anyway.
        choices = list(itertools.product(*absences))
        names = [f"{words} [{', '.join(n.package for n in never)}]" if len(choices) > 1 else words for never in choices]
        return [_one_of([*never, *needs], name) for never, name in zip(choices, names, strict=True)]

    def _conflicts(self, owner: Candidate) -> Iterator[Never]:
        for relation in owner.conflicts:
            yield from (n for n in self._banned(relation, f"not {relation}") if n.package != owner.package)
        for relation in owner.obsoletes:
            obsolete = frozenset(c.key for c in self.universe.named(relation.package) if relation.admits(c.version))
            if obsolete and relation.package != owner.package:
                yield Never(relation.package, obsolete, f"not {relation}")

    def _banned(self, relation: Relation, words: str) -> Iterator[Never]:
        """For each package that answers ``relation``, its absence in the versions that do."""
        banned: dict[str, set[Key]] = {}
        for candidate in self.universe.answering(relation):
            banned.setdefault(candidate.package, set()).add(candidate.key)
        yield from (Never(package, frozenset(keys), words) for package, keys in banned.items())

    def offers(self, words: str) -> str:
        """What the repositories have for the first name in a requirement's words."""
        candidates = self.universe.answering(Relation(words.split(" ", 1)[0].split("|")[0]))
        usable = sorted({str(c) for c in candidates if self.usable(c)})
        others = sorted({f"{c} of {c.origin}" for c in candidates})
        if others and not usable:
            return f"nothing that goes with this driver (but {', '.join(others[:6])})"
        return ", ".join(usable) or "nothing"


def exactly(candidate: Candidate) -> Need:
    """The requirement of this one package file."""
    return Need(candidate.package, frozenset({candidate.key}), f"{candidate.package} (= {candidate.version})")


#: Tells what rules refuse beside a choice, or a part of one.
Refusals = Callable[[Choice], Sequence[Never]]
#: A requirement with the number of the step that brought it, and the package that asks for it; None: the stack.
_Entry = tuple[Requirement, int, Candidate | None]


@dataclass
class _Step:
    """One decision: which file of a package, or which alternative of an Either."""

    subject: str
    alternatives: Iterator[Candidate | Need | Never]
    #: numbers of the steps that leave it no other alternatives
    blamed: set[int]
    #: where the trail was before it
    mark: int


@dataclass
class _Walk:
    """What a search has decided: a trail of entries and choices, which is taken back to where a step began."""

    provider: Provider
    chosen: dict[str, tuple[Candidate, int]] = field(default_factory=dict)
    #: words of an Either → the option that was taken
    taken: dict[str, Need | Never] = field(default_factory=dict)
    #: package → what is asked of it
    asked: dict[str, list[_Entry]] = field(default_factory=dict)
    #: words → an Either, each time that it is asked
    eithers: dict[str, list[_Entry]] = field(default_factory=dict)
    trail: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    #: what the last conflict was between, and the first one that no package of the repositories resolves
    conflict: Sequence[_Entry] = ()
    impossible: Sequence[_Entry] = ()

    def add(self, requirement: Requirement, step: int, owner: Candidate | None) -> set[int]:
        """Ask for something; returns the steps that are against it, with this one."""
        entries = self.eithers if isinstance(requirement, Either) else self.asked
        key = requirement.words if isinstance(requirement, Either) else requirement.package
        entries.setdefault(key, []).append((requirement, step, owner))
        self.trail.append((entries, key))
        if isinstance(requirement, Either):
            return set()
        mine = self.asked[key]
        if key in self.chosen:
            candidate, since = self.chosen[key]
            if _fits(candidate, [mine[-1]]):
                return set()
            self.conflict = tuple(mine)
            return {since, step}
        is_needed = any(isinstance(each, Need) for each, *_ in mine)
        if not is_needed or any(_fits(candidate, mine) for candidate in self.provider.candidates(key)):
            return set()
        self.conflict = tuple(mine)
        if isinstance(requirement, Need) and not requirement.allowed:
            self.impossible = self.impossible or [mine[-1]]
        return {each for _, each, _ in mine} | {step}

    def take(self, subject: str, alternative: Candidate | Need | Never, step: int) -> set[int]:
        """Decide ``subject``; returns the steps that are against it, empty if none is."""
        if not isinstance(alternative, Candidate):
            self.taken[subject] = alternative
            self.trail.append((self.taken, subject))
            return self.add(alternative, step, self.eithers[subject][0][2])
        self.chosen[subject] = (alternative, step)
        self.trail.append((self.chosen, subject))
        against = (self.add(requirement, step, alternative) for requirement in self.provider.requirements(alternative))
        return next(filter(None, against), set())

    def back_to(self, mark: int) -> None:
        """Take back what came after."""
        while len(self.trail) > mark:
            holder, key = self.trail.pop()
            if holder is self.asked or holder is self.eithers:
                holder[key].pop()
            else:
                del holder[key]

    def next(self) -> _Step | None:
        """A decision that is due; None: everything is decided.

        Packages come before alternatives, so that an alternative sees what is there already.
        """
        due = (
            name
            for name, entries in self.asked.items()
            if name not in self.chosen and any(isinstance(each, Need) for each, *_ in entries)
        )
        name = min(due, default="")
        if name:
            entries = self.asked[name]
            fitting = [candidate for candidate in self.provider.candidates(name) if _fits(candidate, entries)]
            return _Step(name, iter(fitting), {step for _, step, _ in entries}, len(self.trail))
        words = min((words for words, asked in self.eithers.items() if asked and words not in self.taken), default="")
        if not words:
            return None
        either, since, _ = self.eithers[words][0]
        assert isinstance(either, Either)
        options = sorted(either.options, key=lambda option: not self._is_there(option))
        return _Step(words, iter(options), {since}, len(self.trail))

    def _is_there(self, option: Need | Never) -> bool:
        """Whether what is chosen satisfies an alternative already."""
        return option.package in self.chosen and _fits(self.chosen[option.package][0], [(option, 0, None)])

    def target(self, requirement: Requirement) -> Need | Never:
        """What became of a requirement."""
        return self.taken[requirement.words] if isinstance(requirement, Either) else requirement


def _fits(candidate: Candidate, entries: Iterable[_Entry]) -> bool:
    return all(
        candidate.key in each.allowed if isinstance(each, Need) else candidate.key not in each.banned
        for each, *_ in entries
        if not isinstance(each, Either)
    )


def solve(provider: Provider, roots: Sequence[Requirement]) -> Solution:
    """Everything that ``roots`` need, preferred files first; raises Unsolvable.

    Each step remembers which earlier ones are against its alternatives.  If none is left, the search goes on at the
    latest of those, because the steps in between change nothing about it (conflict-directed backjumping).
    """
    walk, steps = _Walk(provider), list[_Step]()
    if any(walk.add(root, 0, None) for root in roots):
        raise _unsolvable(walk)
    tried = 0
    while step := walk.next():
        steps.append(step)
        while True:
            step, number = steps[-1], len(steps)
            walk.back_to(step.mark)
            alternative = next(step.alternatives, None)
            if alternative is None:
                blamed = step.blamed - {0, number}
                if not blamed:
                    raise _unsolvable(walk)
                del steps[max(blamed) :]
                steps[-1].blamed |= blamed
                continue
            tried += 1
            if tried > MOST_TRIED:
                raise Unsolvable([f"no answer after {MOST_TRIED} alternatives; the last was of {step.subject}"])
            against = walk.take(step.subject, alternative, number)
            if not against:
                break
            step.blamed |= against
    packages = {name: candidate for name, (candidate, _) in walk.chosen.items()}
    edges: dict[str, tuple[str, ...]] = {}
    for name, candidate in packages.items():
        needed = map(walk.target, provider.requirements(candidate))
        edges[name] = tuple(need.package for need in needed if isinstance(need, Need))
    return Solution(packages, edges)


def _one_of(options: Sequence[Need | Never], words: str) -> Requirement:
    return options[0] if len(options) == 1 else Either(tuple(options), words)


def _unsolvable(walk: _Walk) -> Unsolvable:
    reasons: list[str] = []
    for need, _, owner in walk.impossible or walk.conflict:
        who = "the stack" if owner is None else str(owner)
        if isinstance(need, Never):
            text = need.rule.words if need.rule else f"{who} conflicts with {need.words.removeprefix('not ')}"
        elif isinstance(need, Need) and not need.allowed:
            offered = walk.provider.offers(need.words)
            text = f"{who} needs {need.words}, of which the repositories have {offered}"
        else:
            text = f"{who} needs {need.words}"
        reasons.append(text)
    rules = (need.rule for need, *_ in walk.conflict if isinstance(need, Never) and need.rule)
    return Unsolvable(list(dict.fromkeys(reasons)), () if walk.impossible else list(dict.fromkeys(rules)))


#: Parts that machines need to build modules; on Debian the kernel image comes with the headers, which depend on it.
_BUILD_PARTS = {"kernel-headers", "driver-source", "nvidia-fs-source"}


def packaging(profile: Profile, platform: StackPlatform, choice: Choice) -> Packaging:
    """How the chosen driver is packaged."""
    return platform.packaging(choice[0].holder, profile.driver.flavour)


def packages(
    task: Task,
    choice: Choice,
    *,
    locked: frozenset[Key] = frozenset(),
    also: Sequence[Candidate] = (),
    never: Sequence[Never] = (),
    with_umbrellas: bool = False,
) -> tuple[Package, ...]:
    """Everything that is locked for a choice, by name; raises Unsolvable.

    locked: files that win over newer ones.  also: files that hosts must have, too.  never: what rules refuse.
    with_umbrellas: metapackages of the driver may be among them.
    """
    provider, roots, parts, host, build = _question(task, choice, locked, with_umbrellas=with_umbrellas)
    roots += never
    for candidate in also:
        roots.append(exactly(candidate))
        host.add(candidate.package)
    solution = solve(provider, roots)
    on_host, on_builder = solution.reachable(host), solution.reachable(build)
    return tuple(
        package_of(candidate, parts.get(name) or task.platform.part(candidate), name in on_host, name in on_builder)
        for name, candidate in sorted(solution.packages.items())
        if provider.in_stack(candidate)
    )


def usable(task: Task, choice: Choice, name: str) -> list[Candidate]:
    """The files of a package that may be locked beside a choice, metapackages too, the newest first."""
    provider = _question(task, choice, frozenset(), with_umbrellas=True)[0]
    candidates = [candidate for candidate in task.universe.named(name) if provider.usable(candidate)]
    return sorted(candidates, key=lambda c: task.platform.order.key(c.version), reverse=True)


def culprit(task: Task, choice: Choice, error: Unsolvable, never: Refusals) -> tuple[Choice, Unsolvable]:
    """The part of ``choice`` that can't be solved, of which each option has a share in it; and why.

    error: against the whole choice.  never: what rules refuse beside a part of a choice.
    """
    core = choice
    for option in reversed(choice[1:]):
        smaller = tuple(other for other in core if other is not option)
        provider, roots, *_ = _question(task, smaller, frozenset())
        try:
            solve(provider, [*roots, *never(smaller)])
        except Unsolvable as smallers:
            core, error = smaller, smallers
    return core, error


def _question(
    task: Task, choice: Choice, locked: frozenset[Key], *, with_umbrellas: bool = False
) -> tuple[Provider, list[Requirement], dict[str, Part], set[str], set[str]]:
    """The solver's input for a choice or a part of it: provider, roots, parts by name, the host's and the builder's."""
    profile, platform, universe = task
    parts: dict[str, Part] = {}
    roots: list[Requirement] = []
    host: set[str] = set()
    build: set[str] = set()
    for option in choice:
        for part, candidate in option.members():
            parts[candidate.package] = part
            roots.append(exactly(candidate))
            (build if part in _BUILD_PARTS else host).add(candidate.package)
            if part == "kernel-image" and option.modules is None:
                # A host without headers recognizes the builder's kernel by one of the kernel's own modules.
                build.add(candidate.package)
        if option.modules is not None:
            # Of several versions the locked one, or the newest.
            versions = option.modules[choice[0].label]
            name = versions[0].package
            parts[name] = "driver-modules"
            roots.append(Need(name, frozenset(candidate.key for candidate in versions), name))
            host.add(name)
    further = _further(profile, platform, choice)
    parts.update({each.package: each.part for each in further})
    maker = packaging(profile, platform, choice)
    provider = Provider(
        universe,
        platform,
        driver=choice[0].holder,
        kernel_package=next((str(o.facts["kernel_package"]) for o in choice if o.subject == "kernel"), ""),
        excluded=maker.excluded if with_umbrellas else (*maker.excluded, *maker.umbrellas),
        preferred=frozenset(parts),
        locked=locked,
        whole=_whole(task),
    )
    for each in further:
        need: Need = provider.need(each.package)
        if need.allowed or not each.optional:
            roots.append(need)
            (build if each.needed_by == "build" else host).add(each.package)
    # The driver's modules are built against those of OFED, so a builder needs them too.
    build |= {name for name in profile.doca if name in parts}
    return provider, roots, parts, host, build


def _further(profile: Profile, platform: StackPlatform, choice: Choice) -> tuple[StackPackage, ...]:
    """The stack's packages beside the choice itself."""
    further = [*packaging(profile, platform, choice).further]
    further += [StackPackage(NVLSM, "companion", "host")] if "nvlink5" in profile.companions else []
    for option in choice:
        match option.subject:
            case "kernel":
                further += platform.kernel_extras(option.release)
            case "libcufile":
                further += platform.library_packages(option.packages["libcufile"], profile.rdma)
                further += (StackPackage(name, "cuda", "host") for name in profile.cuda)
            case "doca":
                further += (StackPackage(name, "doca", "host") for name in profile.doca[1:])
    return tuple(further)


def _whole(task: Task) -> frozenset[str]:
    """Repositories of CUDA or DOCA: every package from them is locked."""
    candidates = (c for name in (*task.profile.cuda, *task.profile.doca) for c in task.universe.named(name))
    return frozenset({candidate.repository for candidate in candidates} - task.platform.presets().keys())


def package_of(candidate: Candidate, part: Part, host: bool, build: bool) -> Package:
    """A package on offer as a lock has it; ``host``, ``build``: who needs it."""
    same = ("package", "version", "architecture", "size", "sha256", "repository", "suite", "component")
    return Package(
        part=part,
        needed_by="both" if host and build else "host" if host else "build",
        file=candidate.filename,
        **{key: getattr(candidate, key) for key in same},
    )
