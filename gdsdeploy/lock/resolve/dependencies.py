"""The packages of one choice: its own, further ones of the stack, and their dependencies, solved by resolvelib.

The answer's packages of the stack are locked.  A dependency outside the stack (libc6, gcc) must be on offer in a
version that fits, but the host's package manager installs it and its dependencies.  Only Depends and Pre-Depends
count; Conflicts and Breaks are respected; Recommends are never followed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import resolvelib

from gdsdeploy.lock.resolve.options import Choice, Task
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Package, Part
from gdsdeploy.platform.base import NVLSM, Packaging, StackPackage, StackPlatform
from gdsdeploy.repo.packages import Candidate, Group, Key, Order, Relation, Universe

#: Rounds after which a search gives up; Debian's stack takes about a hundred.
MAX_ROUNDS = 5000


class Stack(Protocol):
    """The platform's methods that the solver uses."""

    @property
    def order(self) -> Order: ...
    def in_stack(self, candidate: Candidate) -> bool: ...
    def follows_driver(self, candidate: Candidate) -> bool: ...
    def of_driver(self, candidate: Candidate) -> bool: ...
    def upstream_version(self, version: str) -> str: ...


@dataclass(frozen=True)
class Need:
    """A package, in one of the versions of ``allowed``."""

    package: str
    allowed: frozenset[Key]
    words: str


@dataclass(frozen=True)
class Never:
    """A package, if it is there at all, in none of the versions of ``banned``."""

    package: str
    banned: frozenset[Key]
    words: str


@dataclass(frozen=True)
class Either:
    """One of several packages, or the absence of one."""

    options: tuple[Need | Never, ...]
    words: str


@dataclass(frozen=True)
class Absent:
    """The answer "not installed"."""

    package: str


@dataclass(frozen=True)
class Picked:
    """The answer to an Either."""

    words: str
    option: Need | Never


Requirement = Need | Never | Either
Answer = Candidate | Absent | Picked


class Unsolvable(Exception):
    """The packages cannot be installed together; ``reasons`` says why, one line each."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


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
class Provider(resolvelib.AbstractProvider[Requirement, Answer, str]):
    """Tells resolvelib what the universe offers."""

    universe: Universe
    stack: Stack
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
    #: what is chosen so far, by identifier
    chosen: Mapping[str, Answer] = field(default_factory=dict, init=False)

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

    def identify(self, requirement_or_candidate: Requirement | Answer) -> str:
        if isinstance(requirement_or_candidate, (Either, Picked)):
            return _either(requirement_or_candidate.words)
        return requirement_or_candidate.package

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, Answer],  # noqa: ARG002
        candidates: Mapping[str, Iterator[Answer]],  # noqa: ARG002
        information: Mapping[str, Iterator[Any]],
        backtrack_causes: Sequence[Any],  # noqa: ARG002
    ) -> tuple[int, str]:
        """Packages before alternatives before absences, so that an alternative sees what is there already."""
        kinds = {type(entry.requirement) for entry in information[identifier]}
        return (0 if Need in kinds else 1 if Either in kinds else 2, identifier)

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[Requirement]],
        incompatibilities: Mapping[str, Iterator[Answer]],
    ) -> Sequence[Answer]:
        needs = list(requirements[identifier])
        tried = set(incompatibilities[identifier])
        either = next((need for need in needs if isinstance(need, Either)), None)
        if either:
            picks = (Picked(either.words, option) for option in either.options)
            return _Picks(self, [pick for pick in picks if pick not in tried])
        answers: list[Answer] = [Absent(identifier)]
        if any(isinstance(need, Need) for need in needs):
            candidates = (c for c in self.universe.named(identifier) if self.usable(c))
            answers = [*sorted(candidates, key=self._rank, reverse=True)]
        return [a for a in answers if a not in tried and all(self.is_satisfied_by(need, a) for need in needs)]

    def is_satisfied_by(self, requirement: Requirement, candidate: Answer) -> bool:
        if isinstance(requirement, Either):
            return isinstance(candidate, Picked)
        if isinstance(requirement, Need):
            return isinstance(candidate, Candidate) and candidate.key in requirement.allowed
        return not isinstance(candidate, Candidate) or candidate.key not in requirement.banned

    def get_dependencies(self, candidate: Answer) -> list[Requirement]:
        if isinstance(candidate, Picked):
            return [candidate.option]
        if isinstance(candidate, Absent) or not self.in_stack(candidate):
            return []
        groups = (*candidate.pre_depends, *candidate.depends)
        requirements = [requirement for group in groups for requirement in self._requirements(group)]
        return [*requirements, *self._conflicts(candidate)]

    def is_satisfied(self, option: Need | Never) -> bool:
        """Whether the packages chosen so far satisfy an alternative."""
        chosen = self.chosen.get(option.package)
        return chosen is not None and self.is_satisfied_by(option, chosen)

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
        for package, keys in banned.items():
            yield Never(package, frozenset(keys), words)

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


@dataclass(frozen=True)
class _Picks(Sequence[Answer]):
    """The alternatives of an Either, sorted when one is picked: by then, some may be satisfied already."""

    provider: Provider
    picks: list[Picked]

    def __iter__(self) -> Iterator[Answer]:
        return iter(sorted(self.picks, key=lambda picked: not self.provider.is_satisfied(picked.option)))

    def __len__(self) -> int:
        return len(self.picks)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


@dataclass
class _Reporter(resolvelib.BaseReporter[Requirement, Answer, str]):
    """Passes the choice to the provider, and remembers the first requirement that no package answers.

    resolvelib then tries other candidates of other packages, and its error names only the last of those.
    """

    provider: Provider
    causes: list[Any] = field(default_factory=list)

    def rejecting_candidate(self, criterion: Any, candidate: Answer) -> None:  # noqa: ARG002
        if not self.causes:
            needs = (i for i in criterion.information if isinstance(i.requirement, Need))
            self.causes = [i for i in needs if not i.requirement.allowed]

    def ending_round(self, index: int, state: Any) -> None:  # noqa: ARG002 - resolvelib's signature
        self.provider.chosen = state.mapping


def solve(provider: Provider, roots: Sequence[Requirement]) -> Solution:
    """Everything that ``roots`` need; raises Unsolvable."""
    reporter = _Reporter(provider)
    resolver: resolvelib.Resolver[Requirement, Answer, str] = resolvelib.Resolver(provider, reporter)
    try:
        result = resolver.resolve(roots, max_rounds=MAX_ROUNDS)
    except resolvelib.ResolutionImpossible as error:
        raise Unsolvable(_reasons(provider, reporter.causes or error.causes)) from None
    except resolvelib.ResolutionTooDeep:
        raise Unsolvable([f"no answer after {MAX_ROUNDS} rounds of search"]) from None
    packages = {name: answer for name, answer in result.mapping.items() if isinstance(answer, Candidate)}
    edges: dict[str, tuple[str, ...]] = {}
    for name, candidate in packages.items():
        needed = (_target(result.mapping, requirement) for requirement in provider.get_dependencies(candidate))
        edges[name] = tuple(need.package for need in needed if isinstance(need, Need))
    # A package that only a conflict names is not installed.
    installed = Solution(packages, edges).reachable(_target(result.mapping, root).package for root in roots)
    return Solution({name: c for name, c in packages.items() if name in installed}, edges)


def _either(words: str) -> str:
    """An identifier that no package name can be."""
    return f"one of {words}"


def _one_of(options: Sequence[Need | Never], words: str) -> Requirement:
    return options[0] if len(options) == 1 else Either(tuple(options), words)


def _target(mapping: Mapping[str, Answer], requirement: Requirement) -> Need | Never:
    if isinstance(requirement, Either):
        picked = mapping[_either(requirement.words)]
        assert isinstance(picked, Picked)
        return picked.option
    return requirement


def _reasons(provider: Provider, causes: Iterable[Any]) -> list[str]:
    reasons: list[str] = []
    for cause in causes:
        who = "the stack" if cause.parent is None else _who(cause.parent)
        need = cause.requirement
        if isinstance(need, Never):
            text = f"{who} conflicts with {need.words.removeprefix('not ')}"
        elif isinstance(need, Need) and not need.allowed:
            text = f"{who} needs {need.words}, of which the repositories have {provider.offers(need.words)}"
        else:
            text = f"{who} needs {need.words}"
        if text not in reasons:
            reasons.append(text)
    return reasons


def _who(answer: Answer) -> str:
    return str(answer) if isinstance(answer, Candidate) else getattr(answer, "words", "an alternative")


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
    with_umbrellas: bool = False,
) -> tuple[Package, ...]:
    """Everything that is locked for a choice, by name; raises Unsolvable.

    locked: files that win over newer ones.  also: files that hosts must have, too.
    with_umbrellas: metapackages of the driver may be among them.
    """
    provider, roots, parts, host, build = _question(task, choice, locked, with_umbrellas=with_umbrellas)
    for candidate in also:
        roots.append(exactly(candidate))
        host.add(candidate.package)
    solution = solve(provider, roots)
    on_host, on_builder = solution.reachable(host), solution.reachable(build)
    return tuple(
        _package(candidate, parts.get(name) or task.platform.part(candidate), name in on_host, name in on_builder)
        for name, candidate in sorted(solution.packages.items())
        if provider.in_stack(candidate)
    )


def usable(task: Task, choice: Choice, name: str) -> list[Candidate]:
    """The files of a package that may be locked beside a choice, metapackages too, the newest first."""
    provider = _question(task, choice, frozenset(), with_umbrellas=True)[0]
    candidates = [candidate for candidate in task.universe.named(name) if provider.usable(candidate)]
    return sorted(candidates, key=lambda c: task.platform.order.key(c.version), reverse=True)


def culprit(task: Task, choice: Choice, reasons: list[str]) -> tuple[Choice, list[str]]:
    """The smallest unsolvable part of ``choice``: its driver, or the driver with one other option; and why."""
    for options in (choice[:1], *((choice[0], other) for other in choice[1:])):
        provider, roots, *_ = _question(task, options, frozenset())
        try:
            solve(provider, roots)
        except Unsolvable as error:
            return options, error.reasons
    return choice, reasons


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
        if option.subject == "kernel":
            further += platform.kernel_extras(option.release)
        elif option.subject == "libcufile":
            further += platform.library_packages(option.packages["libcufile"], profile.rdma)
            further += (StackPackage(name, "cuda", "host") for name in profile.cuda)
        elif option.subject == "doca":
            further += (StackPackage(name, "doca", "host") for name in profile.doca[1:])
    return tuple(further)


def _whole(task: Task) -> frozenset[str]:
    """Repositories of CUDA or DOCA: every package from them is locked."""
    candidates = (c for name in (*task.profile.cuda, *task.profile.doca) for c in task.universe.named(name))
    return frozenset({candidate.repository for candidate in candidates} - task.platform.presets().keys())


def _package(candidate: Candidate, part: Part, host: bool, build: bool) -> Package:
    same = ("package", "version", "architecture", "size", "sha256", "repository", "suite", "component")
    return Package(
        part=part,
        needed_by="both" if host and build else "host" if host else "build",
        file=candidate.filename,
        **{key: getattr(candidate, key) for key in same},
    )
