"""What can be chosen of a stack, newest first, and the search for the best combination that the rules admit.  Pure.

An option is one version of one subject with the packages that it stands for.  Where a distribution has built the
modules, a package has those of one driver for one kernel, so a kernel's option knows the drivers that it goes with.
Metapackages that pull a driver of whichever version are refused.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from gdsdeploy.errors import NoSolution
from gdsdeploy.host.kmod.flavour import has_nvme_hooks
from gdsdeploy.host.model.compat import REFUSED, Combination, Rule, Verdict, judge, parse_versions
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Part, RefusedChoice
from gdsdeploy.platform.base import NVLSM, BuiltModules, KernelImage, StackPlatform
from gdsdeploy.repo.packages import Candidate, Universe

Subject = Literal["driver", "kernel", "nvidia-fs", "libcufile", "doca"]


class Task(NamedTuple):
    """A profile to resolve, its platform, and what its repositories offer."""

    profile: Profile
    platform: StackPlatform
    universe: Universe


@dataclass(frozen=True)
class Option:
    """One version of one subject."""

    subject: Subject
    #: e.g. ``kernel 6.12.94+deb13-amd64``
    label: str
    #: what the compatibility rules may ask about it
    facts: Combination
    #: the exact packages that it stands for
    packages: Mapping[Part, Candidate]
    #: of the package that the option is named after
    version: str = "0"
    #: what a pin may call it
    names: tuple[str, ...] = ("0",)
    #: for a kernel: as ``uname -r`` prints it
    release: str = ""
    #: for a driver: the companions of its version that the profile asks for
    companions: tuple[Candidate, ...] = ()
    #: for a kernel whose modules come from packages: label of a driver → its package, in each version; None: are built
    modules: Mapping[str, tuple[Candidate, ...]] | None = None

    @property
    def holder(self) -> Candidate:
        """The package that the option is named after; of a driver, the one that tells its maker and version."""
        return next(iter(self.packages.values()))

    def without(self, before: Iterable[Option]) -> Verdict | None:
        """The verdict against a kernel whose packages have no modules of the driver in ``before``; None: they have."""
        driver = next((option for option in before if option.subject == "driver"), None)
        if self.modules is None or driver is None or driver.label in self.modules:
            return None
        words = (
            f"For {self.label} the repositories have no modules of {driver.label}, but of {', '.join(self.modules)}."
        )
        return Verdict("packaged-modules", REFUSED, words)

    def members(self) -> Iterator[tuple[Part, Candidate]]:
        """Every package that it stands for, with what that is in the stack."""
        yield from self.packages.items()
        yield from (("companion", candidate) for candidate in self.companions)


@dataclass(frozen=True)
class Incomplete:
    """A version on offer without a package that it needs."""

    subject: Subject
    #: of the package on offer
    version: str
    refused: RefusedChoice
    #: what a pin may call it
    names: tuple[str, ...] = ()


@dataclass
class Options:
    """The options of all subjects, and versions that could have been one."""

    levels: list[list[Option]] = field(default_factory=list)
    incomplete: list[Incomplete] = field(default_factory=list)
    #: subjects without an option, in words
    missing: list[str] = field(default_factory=list)

    def add(
        self, subject: str, pin: str, versions: Iterable[Option | Incomplete], otherwise: str, instead: str = ""
    ) -> None:
        """Add the versions that the pin admits.

        otherwise: the problem if no version is complete.  instead: what else is on offer, for either problem.
        """
        expression = parse_versions(pin)
        offered: list[Option] = []
        for version in versions:
            if isinstance(version, Option):
                offered.append(version)
            elif expression.admits(*version.names):
                self.incomplete.append(version)
        admitted = [option for option in offered if expression.admits(*option.names)]
        self.levels.append(admitted)
        if not offered:
            self.missing.append(f"[{subject}] {otherwise}{instead}")
        elif not admitted:
            written = (o.release or (o.version if "-" in pin else o.names[0]) for o in offered[:12])
            names = ", ".join(written) + (", …" if len(offered) > 12 else "")
            self.missing.append(f"[pin] the pin {subject}: {pin!r} admits nothing that is on offer: {names}{instead}")


#: Packages that are a driver or bring one, in both package families.
_DRIVER = re.compile(
    r"cuda-drivers.*|nvidia-open(?:-[0-9]{3}.*)?|nvidia-driver(?:-[0-9]{3}(?:-server)?)?(?:-open)?|nvidia-headless-.*"
    r"|nvidia-dkms.*|nvidia-kernel-(?:open-)?dkms|nvidia-open-kernel-dkms|(?:kmod|akmod|dkms)-nvidia.*"
)


def pulling_drivers(universe: Universe, platform: StackPlatform, names: Sequence[str]) -> list[str]:
    """For each of the ``wanted`` packages that would pull a driver: by which way, and what to ask for instead."""
    reasons = []
    for name in names:
        way = _pulls(universe, platform, name, {})
        if _DRIVER.fullmatch(name):
            reasons.append(f"[cuda] {name} is a driver, and the driver is locked by itself: take it out of `cuda`")
        elif way:
            reasons.append(
                f"[cuda] {name} would pull the driver {way[-1]}: {' → '.join(way)}; "
                "the driver is locked by itself, so ask for what of the toolkit is needed (cuda-toolkit-X-Y)"
            )
        elif not universe.named(name):
            reasons.append(f"[cuda] the repositories have no {name}")
    return reasons


def _pulls(universe: Universe, platform: StackPlatform, name: str, memo: dict[str, list[str]]) -> list[str]:
    """The names from ``name`` down to a driver that it cannot be installed without; empty: none."""
    if name in memo:
        return memo[name]
    if _DRIVER.fullmatch(name):
        return [name]
    memo[name] = []  # what depends on itself pulls nothing by that
    newest = max(universe.named(name), key=lambda c: platform.order.key(c.version), default=None)
    # Outside the stack nothing depends on a driver, and a distribution's whole archive need not be walked to see it.
    if newest is None or not platform.in_stack(newest):
        return []
    for group in (*newest.pre_depends, *newest.depends):
        names = {c.package for relation in group if not relation.negated for c in universe.answering(relation)}
        ways = [_pulls(universe, platform, each, memo) for each in sorted(names)]
        if ways and all(ways):
            memo[name] = [name, *ways[0]]
            break
    return memo[name]


#: What a user may do where a kernel has no such packages.
INSTEAD = "or have a host build the modules: `modules: build`, or `receive`"
#: Versions that are named.
_NAMED = 6


def is_packaged(profile: Profile) -> bool:
    """Whether the hosts of a profile take their modules from packages."""
    return profile.modules == "packaged"


def require_packaged(where: str, profile: Profile, platform: StackPlatform) -> None:
    """Raise NoSolution where no package of the system has modules that a host can be held to."""
    if reason := platform.no_packaged_modules(profile.driver.flavour) if is_packaged(profile) else "":
        raise NoSolution(f"{where}: modules: packaged isn't possible: {reason}", hint=f"Change that, {INSTEAD}")


def built_modules(profile: Profile, platform: StackPlatform, universe: Universe) -> dict[str, list[BuiltModules]]:
    """Release → the modules on offer for it, of kernels of the profile's flavour."""
    flavour = profile.kernel.flavour or platform.kernel_flavours(profile.arch)[0]
    images = platform.kernel_images(universe, profile.arch)
    releases = {kernel.release for kernel in images if kernel.flavour == flavour}
    modules = platform.built_modules(universe, profile.driver.flavour)
    return {release: packages for release, packages in modules.items() if release in releases}


def packaged_drivers(modules: Mapping[str, Sequence[BuiltModules]]) -> list[Candidate]:
    """The package that tells each driver of which there are modules."""
    by_key = {one.driver.key: one.driver for packages in modules.values() for one in packages if one.driver is not None}
    # Of the same version the data-centre build, whose name is the longer one.
    return sorted(by_key.values(), key=lambda candidate: candidate.package, reverse=True)


def without_userland(modules: Mapping[str, Sequence[BuiltModules]]) -> Iterator[Incomplete]:
    """Drivers of which there are modules and no userland: the archive keeps modules for longer."""
    for release, packages in modules.items():
        for one in (one for one in packages if one.driver is None):
            offered = ", ".join(one.others[:_NAMED]) or "nothing of that name from this maker"
            words = (
                f"{one.package.package} {one.package.version} has modules of driver {one.version}, and the repositories"
                f" have no userland of that version: {offered}."
            )
            refused = RefusedChoice(what=f"driver {one.version}", rule="packaged-userland", words=words)
            yield Incomplete("driver", one.version, refused, (one.version, release))


def packaged_kernel(
    kernel: KernelImage,
    task: Task,
    modules: Mapping[str, Sequence[BuiltModules]],
    labels: Mapping[tuple[str, str, str], str],
) -> Option | Incomplete:
    """A kernel with the packages of everything that the profile's mode loads.

    labels: key of a package that tells a driver → label of the driver's option.
    """
    profile, platform, universe = task
    by_driver: dict[str, tuple[Candidate, ...]] = {}
    for one in modules.get(kernel.release, ()):
        if label := labels.get(one.driver.key) if one.driver is not None else None:
            by_driver[label] = (*by_driver.get(label, ()), one.package)
    name = platform.built_nvidia_fs(kernel.release)
    versions = universe.named(name) if profile.mode == "nvidia-fs" else []
    # It is built with its kernel, in the same version.
    own = [candidate for candidate in versions if candidate.version == kernel.image.version] or versions
    lack = ""
    if not modules.get(kernel.release):
        lack = f"The repositories have no package with modules of the driver ({profile.driver.flavour}) for it."
    elif not by_driver:
        lack = "The repositories have modules for it only of drivers whose userland they don't have."
    elif profile.mode == "nvidia-fs" and not own:
        lack = f"The repositories have no {name}."
    if lack:
        return _without_package(kernel, "packaged-modules", lack)
    nvidia_fs = max(own, key=lambda candidate: platform.order.key(candidate.version), default=None)
    return _kernel(kernel, task, {"nvidia-fs-modules": nvidia_fs} if nvidia_fs is not None else {}, by_driver)


def _without_package(kernel: KernelImage, rule: str, words: str) -> Incomplete:
    refused = RefusedChoice(what=f"kernel {kernel.release}", rule=rule, words=words)
    return Incomplete("kernel", kernel.image.version, refused, kernel.names)


def _kernel(
    kernel: KernelImage,
    task: Task,
    others: Mapping[Part, Candidate],
    modules: Mapping[str, tuple[Candidate, ...]] | None = None,
) -> Option:
    """The option of a kernel with its image and ``others``; modules: as in Option."""
    # DOCA's nvme takes the place of the kernel's own.
    own_hooks = has_nvme_hooks(kernel.release) and not any("nvme" in package for package in task.profile.doca)
    return Option(
        "kernel",
        f"kernel {kernel.release}",
        facts={
            "kernel": kernel.names,
            "kernel_package": kernel.image.version,
            "kernel_flavour": kernel.flavour,
            "nvme_hooks": "kernel" if own_hooks else "ofed",
        },
        packages={"kernel-image": kernel.image, **others},
        version=kernel.image.version,
        names=kernel.names,
        release=kernel.release,
        modules=modules,
    )


def packages_without_nvidia_fs(profile: Profile, platform: StackPlatform, universe: Universe) -> str:
    """What to do where no kernel of the profile's flavour has a package with nvidia-fs: an end of a sentence."""
    if profile.mode != "nvidia-fs":
        return ""
    prefix = platform.built_nvidia_fs("")
    offered: dict[str, str] = {}
    images = sorted(
        platform.kernel_images(universe, profile.arch),
        key=lambda kernel: platform.order.key(kernel.image.version),
        reverse=True,
    )
    for kernel in images:
        if universe.named(prefix + kernel.release):
            offered.setdefault(kernel.flavour, kernel.release)
    if (profile.kernel.flavour or platform.kernel_flavours(profile.arch)[0]) in offered:
        return ""
    listed = ", ".join(f"{name} ({release})" for name, release in sorted(offered.items())) or "none"
    return (
        f". Mode nvidia-fs needs a package with nvidia-fs for the kernel; kernel flavours that have one: {listed}."
        f" Choose one of them (`kernel: {{flavour: …}}`), or `mode: p2pdma`, which needs no nvidia-fs, {INSTEAD}"
    )


#: Begins the name of a metapackage of modules that doca-kernel-support built for one kernel.
_DOCA_KERNEL = "doca-kernel-"


#: What rules call nvidia-fs's version, its package's version and its maker.
_NVIDIA_FS = ("nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin")


def find(profile: Profile, platform: StackPlatform, universe: Universe) -> Options:
    """The options for a profile, subject by subject in the order in which they are chosen."""
    options, task = Options(), Task(profile, platform, universe)
    if is_packaged(profile):
        _add_packaged(options, task)
    else:
        _add_drivers(options, task)
        _add_kernels(options, task, buildable_kernel)
    if profile.mode == "nvidia-fs" and is_packaged(profile):
        # Its version is read in the kernel's package: no relation tells it.
        options.levels.append([Option("nvidia-fs", "nvidia-fs of the kernel's package", {}, {})])
    elif profile.mode == "nvidia-fs":
        package = platform.nvidia_fs_package
        otherwise = f"the repositories have no {package}"
        options.add(
            "nvidia_fs",
            profile.nvidia_fs,
            _alone("nvidia-fs", "nvidia-fs-source", package, _NVIDIA_FS, task),
            otherwise,
        )
    else:
        absent: dict[str, str | None] = dict.fromkeys(_NVIDIA_FS)
        options.levels.append([Option("nvidia-fs", f"no nvidia-fs (mode {profile.mode})", absent, {})])
    otherwise = f"the repositories have no {platform.libcufile_package} with its {platform.gds_tools_package}"
    options.add("libcufile", profile.libcufile, _libraries(platform, universe), otherwise)
    if profile.doca:
        # The profile's other packages come in the versions of the first one's repository.
        otherwise = f"the repositories have no {profile.doca[0]}"
        options.add("doca", "newest", _alone("doca", "doca", profile.doca[0], ("doca",), task), otherwise)
    options.missing += pulling_drivers(universe, platform, profile.cuda)
    return options


def _add_drivers(options: Options, task: Task) -> None:
    profile, platform, universe = task
    names = platform.driver_packages(profile.driver.flavour, universe.names())
    holders = [candidate for name in names for candidate in universe.named(name)]
    otherwise = f"the repositories have no {platform.dkms_package[profile.driver.flavour]}"
    if holders:
        otherwise = f"no driver on offer is complete (the repositories have {', '.join(sorted(names))})"
    options.add("driver", profile.driver.version, _drivers(holders, task), otherwise)


def _add_packaged(options: Options, task: Task) -> None:
    """The drivers and kernels of which the distribution has built the modules."""
    profile, platform, universe = task
    modules = built_modules(profile, platform, universe)
    drivers = list(_drivers(packaged_drivers(modules), task, part="driver-userland"))
    labels = {option.holder.key: option.label for option in drivers if isinstance(option, Option)}
    drivers += without_userland(modules)
    flavour = profile.kernel.flavour or platform.kernel_flavours(profile.arch)[0]
    otherwise = (
        f"the repositories have no package with the driver's modules ({profile.driver.flavour}) and its userland for"
        f" a kernel of flavour {flavour}"
    )
    instead = f"; choose another driver or kernel flavour, {INSTEAD}"
    options.add("driver", profile.driver.version, drivers, otherwise, instead)
    choice = partial(packaged_kernel, modules=modules, labels=labels)
    _add_kernels(options, task, choice, packages_without_nvidia_fs(profile, platform, universe))


def _preferred_first(platform: StackPlatform, universe: Universe, candidates: list[Candidate]) -> list[Candidate]:
    """By the profile's order of repositories, of one maker the newest first."""
    newest = sorted(candidates, key=lambda c: platform.order.key(c.version), reverse=True)
    return sorted(newest, key=lambda c: universe.precedence(c.origin))


def _drivers(holders: list[Candidate], task: Task, part: Part = "driver-source") -> Iterator[Option | Incomplete]:
    """The drivers that ``holders`` are the packages of; part: what those are in the stack."""
    profile, platform, universe = task
    flavour, labels = profile.driver.flavour, set[str]()
    for candidate in _preferred_first(platform, universe, holders):
        version = platform.upstream_version(candidate.version)
        names, stub = (version, candidate.version), platform.stands_for(candidate)
        label = f"driver {version} ({flavour})"
        # The same driver from another maker, or under another name, needs its own label.
        if stub or label in labels:
            label = f"driver {version} ({flavour}, {candidate.package} of {candidate.origin})"
        labels.add(label)
        companions, lacks = _companions(label, candidate, task)
        if stub:
            words = f"{candidate} is an empty package that pulls {stub}: name that branch in the pin if it is wanted."
            lacks = RefusedChoice(what=label, rule="transitional", words=words)
        if lacks:
            yield Incomplete("driver", candidate.version, lacks, names)
        else:
            facts = {"driver": version, "driver_package": candidate.version, "driver_origin": candidate.origin}
            yield Option("driver", label, facts, {part: candidate}, candidate.version, names, companions=companions)


def _companions(label: str, driver: Candidate, task: Task) -> tuple[tuple[Candidate, ...], RefusedChoice | None]:
    """The companions that the profile asks for, each of the driver's own version and maker, or which is missing.

    With nvlink5 come the fabric manager, and an NVLSM of any version: the package set chooses that one.
    """
    profile, platform, universe = task
    chosen: list[Candidate] = []
    version = platform.upstream_version(driver.version)
    needs: dict[str, tuple[str, ...]] = {c: platform.companion_packages(c, driver) for c in profile.companions}
    if "nvlink5" in needs:
        needs |= {"fabricmanager": platform.companion_packages("fabricmanager", driver), NVLSM: (NVLSM,)}
    for companion, names in needs.items():
        candidates = [c for name in names for c in universe.named(name) if c.origin == driver.origin]
        own = "" if companion == NVLSM else version
        same = [c for c in candidates if own in ("", platform.upstream_version(c.version))]
        if not same:
            offered = ", ".join(map(str, candidates[:6])) or "nothing of the kind from this maker"
            words = f"It needs {companion} of its own version ({names[0]} {version}); there is {offered}."
            words = words if own else f"Its companion nvlink5 needs {NVLSM}; there is {offered}."
            return (), RefusedChoice(what=label, rule="companion", words=words)
        chosen += _preferred_first(platform, universe, same)[:1] if own else []
    return tuple(chosen), None


def _add_kernels(
    options: Options, task: Task, choice: Callable[[KernelImage, Task], Option | Incomplete], instead: str = ""
) -> None:
    """The kernels of the profile's flavour; without any, the problem names the other flavours.

    choice: makes the option of one.  instead: what to do without any.
    """
    profile, platform, universe = task
    flavour = profile.kernel.flavour or platform.kernel_flavours(profile.arch)[0]
    kernels = list(platform.kernel_images(universe, profile.arch))
    kernels.sort(key=lambda kernel: platform.order.key(kernel.image.version), reverse=True)
    mine = [kernel for kernel in kernels if kernel.flavour == flavour]
    otherwise = f"the repositories have no kernel image of flavour {flavour} with headers of its version"
    if is_packaged(profile):
        otherwise = f"the repositories have no kernel of flavour {flavour} with packages of all its modules"
    instead = instead or _other_flavours([kernel for kernel in kernels if kernel.flavour != flavour], profile, platform)
    options.add("kernel", profile.kernel.version, (choice(kernel, task) for kernel in mine), otherwise, instead)


def _other_flavours(kernels: Sequence[KernelImage], profile: Profile, platform: StackPlatform) -> str:
    """The flavours of ``kernels``, newest first, each with its newest release, and the line that asks for one."""
    newest: dict[str, KernelImage] = {}
    for kernel in kernels:
        newest.setdefault(kernel.flavour, kernel)
    if not newest:
        return ""
    listed = ", ".join(f"{name} ({newest[name].release})" for name in sorted(newest))
    pin = parse_versions(profile.kernel.version)
    admitted = {kernel.flavour for kernel in kernels if pin.admits(*kernel.names)}
    version = f'version: "{profile.kernel.version}", ' if admitted and pin.terms else ""
    # The system's own order: a real-time kernel comes late in it.
    flavour = next(name for name in platform.kernel_flavours(profile.arch) if name in (admitted or newest))
    line = f"`kernel: {{{version}flavour: {flavour}}}`"
    return f". Other kernel flavours on offer, with their newest: {listed}; to lock one, write {line} in the profile"


def buildable_kernel(kernel: KernelImage, task: Task) -> Option | Incomplete:
    """A kernel with the headers that modules are built with."""
    if other := _other_kernel(kernel.release, task.profile.doca):
        return _without_package(kernel, "doca-kernel", other)
    version, name = kernel.image.version, task.platform.kernel_packages(kernel.release)[1]
    headers = [candidate for candidate in task.universe.named(name) if candidate.version == version]
    if not headers:
        words = f"The repositories have the image, but no {name} {version} to build modules with."
        return _without_package(kernel, "kernel-headers", words)
    return _kernel(kernel, task, {"kernel-headers": headers[0]})


def _other_kernel(release: str, packages: Sequence[str]) -> str:
    """Why DOCA's modules don't fit kernel ``release``, where ``packages`` have those that were built for one kernel.

    ``doca-kernel-6.14.0.37.generic`` is for 6.14.0-37-generic, and no package relation says so.
    """
    kernels = [name for name in packages if name.startswith(_DOCA_KERNEL)]
    fits = not kernels or _DOCA_KERNEL + re.sub("[-_]", ".", release) in kernels
    return "" if fits else f"The profile asks for modules that were built for another kernel: {', '.join(kernels)}."


def _alone(subject: Subject, part: Part, package: str, facts: Sequence[str], task: Task) -> Iterator[Option]:
    """The versions of a subject that is one package.

    facts: what rules call its version, its package's version and its maker, without what they don't ask about.
    """
    for candidate in _preferred_first(task.platform, task.universe, task.universe.named(package)):
        names = (task.platform.upstream_version(candidate.version), candidate.version)
        told = dict(zip(facts, (*names, candidate.origin), strict=False))
        yield Option(subject, f"{subject} {names[0]}", told, {part: candidate}, candidate.version, names)


def _libraries(platform: StackPlatform, universe: Universe) -> Iterator[Option | Incomplete]:
    tools_of = dict(platform.libcufile_packages(universe.names()))
    libraries = [c for name in sorted(tools_of) for c in universe.named(name)]
    for candidate in _preferred_first(platform, universe, libraries):
        tools_name = tools_of[candidate.package]
        version = platform.upstream_version(candidate.version)
        label, names = f"libcufile {version}", (version, candidate.version)
        tools = [c for c in universe.named(tools_name) if c.version == candidate.version]
        if not tools:
            words = f"The repositories have no {tools_name} {candidate.version} that goes with it."
            refused = RefusedChoice(what=label, rule="gds-tools", words=words)
            yield Incomplete("libcufile", candidate.version, refused, names)
        else:
            facts = {"libcufile": version, "cuda": platform.cuda_version(candidate)}
            packages: dict[Part, Candidate] = {"libcufile": candidate, "gds-tools": tools[0]}
            yield Option("libcufile", label, facts, packages, candidate.version, names)


#: Combinations that are looked at to explain a failure; the nearest are among the first.
EXPLAINED = 5000

Choice = tuple[Option, ...]


@dataclass
class Search:
    """Walks the options of all subjects, newest first, and prunes what a rule refuses as soon as it can be judged."""

    base: Combination
    levels: Sequence[Sequence[Option]]
    rules: Sequence[Rule]
    #: combinations, complete or not, that were passed over before the last choice that was yielded
    against: list[tuple[Choice, Verdict]] = field(default_factory=list)
    #: options that were found not to go together, whatever else is chosen
    dead: list[Choice] = field(default_factory=list)
    #: choices whose packages were looked for
    solved: list[Choice] = field(default_factory=list)
    #: id of an option → facts about it that its packages told once they were known
    learned: dict[int, Combination] = field(default_factory=dict)

    def choices(self) -> Iterator[Choice]:
        """Every admitted combination, most preferred first."""
        yield from self._descend((), frozenset())

    def _descend(self, chosen: Choice, subjects: frozenset[str]) -> Generator[Choice, None, frozenset[int] | None]:
        """Yields the admitted completions of ``chosen``; returns which levels are to blame if there are none.

        A level that is not to blame need not be tried with its other options: NVIDIA's repository keeps every version
        that there ever was, and the product of all of them would take hours (conflict-directed backjumping).
        """
        level, success, blamed = len(chosen), False, frozenset[int]()
        if level == len(self.levels):
            yield chosen
            return None
        for option in self.levels[level]:
            picked = (*chosen, option)
            dead = self._dead(picked)
            if dead is not None:
                blamed |= dead - {level}
                continue
            if lack := option.without(chosen):
                self.against.append((picked, lack))
                blamed |= {0}
                continue
            all_facts = self.facts(picked)
            # Rules that could be judged before this option was chosen have admitted the choice already.
            new = [rule for rule in self.rules if rule.looks_at <= all_facts.keys() and not rule.looks_at <= subjects]
            if against := [verdict for verdict in judge(all_facts, new) if not verdict.allowed]:
                self.against += ((picked, verdict) for verdict in against)
                blamed |= min((self._levels_of(verdict, picked) for verdict in against), key=sorted) - {level}
                continue
            below = yield from self._descend(picked, frozenset(all_facts))
            if below is None:
                success = True
            elif level not in below:
                return below
            else:
                blamed |= below - {level}
        return None if success else blamed

    def _levels_of(self, verdict: Verdict, chosen: Choice) -> frozenset[int]:
        """The levels whose options a rule looked at."""
        (subjects,) = (rule.looks_at for rule in self.rules if rule.id == verdict.rule)
        return frozenset(level for level, option in enumerate(chosen) if subjects & self._told(option).keys())

    def _told(self, option: Option) -> Combination:
        return {**option.facts, **self.learned.get(id(option), {})}

    def _dead(self, chosen: Choice) -> frozenset[int] | None:
        """The levels of options that were found not to go together, if these are among ``chosen``."""
        level_of = {id(option): level for level, option in enumerate(chosen)}
        dead = next((options for options in self.dead if all(id(option) in level_of for option in options)), None)
        return None if dead is None else frozenset(level_of[id(option)] for option in dead)

    def refused(self, final: Choice) -> list[RefusedChoice]:
        """What would have been preferred over ``final``, named by the first option in which it differs."""
        refused: dict[tuple[str, str], RefusedChoice] = {}
        for choice, verdict in self.against:
            what = next((a.label for a, b in zip(choice, final, strict=False) if a is not b), choice[-1].label)
            refused.setdefault((what, verdict.rule), RefusedChoice(what=what, rule=verdict.rule, words=verdict.words))
        return list(refused.values())

    def facts(self, choice: Choice) -> Combination:
        """Everything that the rules may test in a combination."""
        return {**self.base, **{key: value for option in choice for key, value in self._told(option).items()}}

    def reasons(self) -> tuple[str, list[str]]:
        """The nearest combination in words, and every rule against the combinations, nearest first.

        A combination is nearer the fewer rules are against it; among equals the preferred one is.
        """
        ranking = []
        for number, choice in enumerate(itertools.product(*_at_most(self.levels, EXPLAINED))):
            lacks = [lack for place, option in enumerate(choice) if (lack := option.without(choice[:place]))]
            against = lacks + [verdict for verdict in judge(self.facts(choice), self.rules) if not verdict.allowed]
            ranking.append((len(against), number, choice, against))
        ranking.sort(key=lambda combination: combination[:2])
        verdicts = [verdict for *_, against in ranking for verdict in against]
        words = {verdict.rule: verdict.words for verdict in reversed(verdicts)}
        times = Counter(verdict.rule for verdict in verdicts)
        nearest = ", ".join(option.label for option in ranking[0][2]) if ranking else ""
        more = {rule: f" ({n} of {len(ranking)} combinations)" if len(ranking) > 1 else "" for rule, n in times.items()}
        for rule in self.rules:
            if rule.fixed and rule.id in more:
                more[rule.id] += f" Fixed in {rule.fixed}."
        return nearest, [f"[{rule}] {words[rule]}{more[rule]}" for rule in times]


def _at_most(levels: Sequence[Sequence[Option]], number: int) -> list[list[Option]]:
    """The most preferred options of each level, so that there are no more than ``number`` combinations."""
    shortlist = [list(options) for options in levels]
    while math.prod(map(len, shortlist)) > number:
        longest = max(shortlist, key=len)
        del longest[(len(longest) + 1) // 2 :]
    return shortlist
