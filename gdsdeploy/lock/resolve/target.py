"""Choose, solve the dependencies, and write the answer as a target of the lock.  Pure but for ``sources``.

Locked packages stay while others move.  The pieces of a driver that hosts have already are added to a choice that is
made without them: what hosts have never decides which driver is chosen.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gdsdeploy.errors import NoSolution, RepositoryUnusable, translated
from gdsdeploy.host.kmod.driver import OPEN
from gdsdeploy.host.model.compat import (
    REFUSED,
    WARNED,
    Combination,
    Rule,
    Verdict,
    cautions,
    judge,
    parse_versions,
)
from gdsdeploy.lock.lockfile import pins
from gdsdeploy.lock.resolve import dependencies, options
from gdsdeploy.lock.resolve.dependencies import Never, Unsolvable
from gdsdeploy.lock.resolve.options import Choice, Incomplete, Option, Search, Subject, Task
from gdsdeploy.lock.sources import ModuleInPackage, PackagedModules, Sources, unusable_modules
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import (
    Component,
    Index,
    Kernel,
    LockedDriver,
    Package,
    PackagedModule,
    Part,
    RefusedChoice,
    Source,
    Target,
)
from gdsdeploy.platform.base import Flavour, StackPlatform
from gdsdeploy.repo.packages import Candidate, Key, Relation, Universe

_DRIVER, _NVIDIA_FS, _DKMS = "nvidia", "nvidia_fs", "dkms"


def nvidia_fs_facts(kernel: Option, modules: Sequence[ModuleInPackage]) -> dict[str, str | None]:
    """What rules may ask about the nvidia-fs of a kernel's packages; nothing where no package brings it."""
    package = kernel.packages.get("nvidia-fs-modules")
    version = next((module.version for module in modules if module.module == _NVIDIA_FS), "")
    if package is None or not version:
        return {}
    return {"nvidia_fs": version, "nvidia_fs_package": package.version, "nvidia_fs_origin": package.origin}


def unpinned_nvidia_fs(profile: Profile, kernel: Option, facts: Combination) -> Verdict | None:
    """The verdict against a kernel whose packaged nvidia-fs its pin doesn't admit; None: the pin admits it."""
    version = facts.get("nvidia_fs")
    if kernel.modules is None or not version or parse_versions(profile.nvidia_fs).admits(str(version)):
        return None
    package = kernel.packages["nvidia-fs-modules"]
    words = f"The pin nvidia_fs: {profile.nvidia_fs!r} doesn't admit {version}, which {package} has."
    return Verdict("pin", REFUSED, words)


def checked_modules(
    release: str,
    driver: str,
    flavour: Flavour,
    mode: str,
    packages: Sequence[Package],
    modules: Sequence[ModuleInPackage],
) -> tuple[PackagedModule, ...]:
    """The modules of a target; raises RepositoryUnusable for a package that has something else than its relations say.

    release: of the kernel.  driver, flavour: of the driver that its relations name.
    """
    by_name = {package.package: package for package in packages}
    for module in modules:
        if reason := next(_objections(release, driver, flavour, module), ""):
            raise unusable_modules(by_name[module.package], f"/lib/modules/{module.release}/{module.file} {reason}")
    present = {module.module for module in modules}
    for name, part in ((_DRIVER, "driver-modules"), (_NVIDIA_FS, "nvidia-fs-modules")):
        if name not in present and (name == _DRIVER or mode == "nvidia-fs"):
            raise unusable_modules(next(p for p in packages if p.part == part), f"it has no module {name}")
    keys = ("module", "package", "file", "sha256", "version", "signer")
    return tuple(
        PackagedModule(**{key: getattr(module, key) for key in keys})
        for module in sorted(modules, key=lambda module: (module.module, module.file))
    )


def _objections(release: str, driver: str, flavour: Flavour, module: ModuleInPackage) -> Iterator[str]:
    built_for = (module.vermagic.split() or [""])[0]
    if module.release != release or built_for != release:
        yield f"is for kernel {built_for or module.release}, and the package is for {release}"
    if module.module == _NVIDIA_FS:
        if not module.version:
            yield "doesn't say its version"
        if module.driver not in ("", driver):
            yield f"was built against driver {module.driver}, and the modules on offer are of {driver}"
        return
    if module.version and module.version != driver:
        yield f"is of driver {module.version}, and the package's relations say {driver}"
    if module.module == _DRIVER and (module.license in OPEN) != (flavour == "open"):
        yield f"has the license {module.license!r}, which the {flavour} flavour doesn't have"


def packaged_warnings(modules: Sequence[ModuleInPackage]) -> list[Verdict]:
    """What can't be known of a packaged nvidia-fs before it runs."""
    nvidia_fs = next((module for module in modules if module.module == _NVIDIA_FS), None)
    if nvidia_fs is None or nvidia_fs.driver:
        return []
    words = (
        f"The packaged nvidia-fs {nvidia_fs.version} doesn't record the driver that it was built against, and symbol"
        " versions don't tell it: only a real transfer proves that they fit (`gdsdeploy validate` makes one)."
    )
    return [Verdict("packaged-nvidia-fs", WARNED, words)]


#: What an adopted package may bring along.  Everything else is chosen before.
_PIECES: frozenset[Part] = frozenset({"driver-userland", "companion", "support"})
#: Versions of a metapackage of GDS that are tried, the newest first.
_TRIED = 12
#: The branch in a name: libnvidia-decode-580, nvidia-driver-580-open.
_BRANCH = re.compile(r"-[0-9]{3}(?=-|$)")


@dataclass(frozen=True)
class Pieces:
    """Host → package → version, of the packages that by their names are pieces of a driver or of GDS."""

    of_hosts: Mapping[str, Mapping[str, str]]
    #: host → its profile
    profiles: Mapping[str, str]

    def by_profile(self) -> dict[str, dict[str, Collection[str]]]:
        """Profile → package → its versions on hosts of the profile: what any of them has."""
        union: dict[str, dict[str, set[str]]] = {profile: {} for profile in self.profiles.values()}
        for host, packages in self.of_hosts.items():
            for name, version in packages.items():
                union[self.profiles[host]].setdefault(name, set()).update(version.split())
        return {profile: dict(packages) for profile, packages in union.items()}

    def without(self, profile: str, name: str) -> list[str]:
        """The asked hosts of a profile that don't have a package."""
        return [host for host, of in self.profiles.items() if of == profile and name not in self.of_hosts[host]]


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
    task: Task,
    choice: Choice,
    packages: tuple[Package, ...],
    wishes: Iterable[str],
    locked: frozenset[Key] = frozenset(),
) -> Adoption:
    """``packages`` of a choice, and of ``wishes`` all that go with them.

    wishes: names of packages that hosts have.  locked: files that win over newer ones.
    """
    profile, platform, universe = task
    own = {package.package for package in packages}
    branch = platform.upstream_version(choice[0].holder.version).split(".", 1)[0]
    names = {wish: names_in_branch(wish, branch) for wish in sorted(set(wishes))}
    umbrellas = dependencies.packaging(profile, platform, choice).umbrellas
    keys = locked | {package.key for package in packages}
    libraries = {name for pair in platform.libcufile_packages(universe.names()) for name in pair}
    chosen: dict[str, Candidate] = {}
    left_out: list[LeftOut] = []
    result = packages
    for wish, others in names.items():
        reasons: list[str] = []
        for candidate in _candidates(task, choice, others):
            if candidate.package in own or candidate.package in chosen:
                break
            also = [*chosen.values(), candidate]
            pulls = any(one.fullmatch(c.package) for one in umbrellas for c in also)
            try:
                whole = dependencies.packages(task, choice, locked=keys, also=also, with_umbrellas=pulls)
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


def _candidates(task: Task, choice: Choice, names: Sequence[str]) -> Iterator[Candidate]:
    """The files that may be adopted under one of ``names``, the preferred one first."""
    for name in names:
        if task.platform.may_be_adopted(name):
            files = dependencies.usable(task, choice, name)
            # A package with versions of its own, which isn't a metapackage of GDS, belongs to no driver.
            is_piece = task.platform.follows_driver
            yield from [c for c in files if is_piece(c) or c.package.startswith(("nvidia-gds", "nvidia-fs"))][:_TRIED]


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
    if any(installed.answers(r) for other in locked.values() for r in (*other.conflicts, *other.obsoletes)):
        return True
    if any(other.answers(relation) for other in locked.values() for relation in installed.conflicts):
        return True
    groups = (*installed.pre_depends, *installed.depends)
    return not all(any(_holds(universe, locked, relation) for relation in group) for group in groups)


def _locked(universe: Universe, packages: Sequence[Package]) -> Mapping[str, Candidate]:
    keys = {package.key for package in packages}
    return {c.package: c for package in packages for c in universe.named(package.package) if c.key in keys}


def _holds(universe: Universe, locked: Mapping[str, Candidate], relation: Relation) -> bool:
    """Whether a requirement can be met beside the lock: by what it has, or by a package that it has nothing of."""
    candidates = universe.answering(relation)
    return relation.negated or any(c.package not in locked or locked[c.package].key == c.key for c in candidates)


#: Subject → the parts of a lock that may move with it.
PARTS: dict[Subject, frozenset[Part]] = {
    "driver": frozenset({"driver-source", "driver-modules", "driver-userland", "companion"}),
    "kernel": frozenset({"kernel-image", "kernel-headers", "driver-modules", "nvidia-fs-modules"}),
    "nvidia-fs": frozenset({"nvidia-fs-source"}),
    "libcufile": frozenset({"libcufile", "gds-tools"}),
    "doca": frozenset({"doca"}),
}
#: Parts whose packages decide their subject: naming one of them moves the subject.
_DECIDE: dict[Part, Subject] = {
    "driver-source": "driver", "driver-modules": "driver", "kernel-image": "kernel", "kernel-headers": "kernel",
    "nvidia-fs-modules": "kernel", "nvidia-fs-source": "nvidia-fs",
    "libcufile": "libcufile", "gds-tools": "libcufile", "doca": "doca",
}  # fmt: skip


def subject_of(part: Part) -> Subject | None:
    """The subject that a package of this part decides; None for one that only follows."""
    return _DECIDE.get(part)


@dataclass(frozen=True)
class Keep:
    """A locked target, and the subjects and packages of it that may move."""

    target: Target
    moving: frozenset[str] = frozenset()

    def _moves(self, subject: Subject) -> bool:
        subjects = {subject_of(p.part) for p in self.target.packages if p.package in self.moving}
        return subject in self.moving or subject in subjects

    def locked(self) -> frozenset[Key]:
        """The files that stay where nothing forces them to move."""
        loose = {part for subject, parts in PARTS.items() if self._moves(subject) for part in parts}
        packages = self.target.packages
        return frozenset(p.key for p in packages if p.part not in loose and p.package not in self.moving)

    def hold(self, levels: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """The options; subjects that don't move have only their locked option, if it is on offer."""
        locked = [[option for option in options if self.has(option)] for options in levels]
        return [
            mine if mine and not self._moves(mine[0].subject) else list(options)
            for mine, options in zip(locked, levels, strict=True)
        ]

    def prefer(self, levels: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """All options, locked ones first, for when :meth:`hold` has no solution."""
        return [sorted(options, key=lambda o: not self.has(o) or self._moves(o.subject)) for options in levels]

    def refused(self) -> list[RefusedChoice]:
        """The lock's reasons against newer versions of subjects that don't move."""
        subjects = [subject for subject in PARTS if not self._moves(subject)]
        return [refused for refused in self.target.refused if refused.subject in subjects]

    def has(self, option: Option) -> bool:
        """Whether an option is what the lock has."""
        if not option.packages:
            # A package of the kernel brings nvidia-fs, or nothing does.
            return option.subject == "nvidia-fs" and not (self.target.nvidia_fs and self.target.nvidia_fs.source_tree)
        keys = {package.key for package in self.target.packages}
        # Without companions: a profile that asks for one more must not move the driver.
        return all(candidate.key in keys for candidate in option.packages.values())


#: Combinations whose dependencies are tried before giving up; each failure rules out all that share its culprit.
ATTEMPTS = 100


@dataclass(frozen=True)
class Resolution:
    """A target, and the warnings about it."""

    target: Target
    warnings: tuple[Verdict, ...]
    #: of the packages that hosts have, those that were not adopted
    left_out: tuple[LeftOut, ...] = ()


def resolve(
    name: str,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    indices: Sequence[Index],
    sources: Sources,
    *,
    rules: Sequence[Rule],
    keep: Keep | None = None,
    wishes: Sequence[str] = (),
    modules: PackagedModules = lambda _: (),
) -> Resolution:
    """Resolve the profile called ``name``; raises NoSolution listing every reason, nearest first.

    sources: tells the source trees of the chosen packages; what it raises ends the resolution.
    rules: by which choices are judged.
    keep: the locked packages, which stay unless they may move or have to.
    wishes: packages that hosts have of their driver, which are adopted where that goes.
    modules: tells the modules in the chosen packages, as ``sources`` does.
    """
    where = f"profile {name} ({profile.os}, {profile.arch})"
    options.require_packaged(where, profile, platform)
    universe = enabled(where, profile, platform, universe)
    offer, task = options.find(profile, platform, universe), Task(profile, platform, universe)
    if offer.missing:
        passed = [f"[{i.refused.rule}] {i.refused.what}: {i.refused.words}" for i in offer.incomplete]
        raise _none(where, "", [*offer.missing, *passed])
    facts = base(profile, platform)
    locked = keep.locked() if keep else frozenset[Key]()
    locked_levels = keep.hold(offer.levels) if keep else offer.levels
    tries = [locked_levels, keep.prefer(offer.levels)] if keep and locked_levels != offer.levels else [offer.levels]
    for levels in tries:
        search, broken = Search(facts, levels, rules), list[str]()
        chosen = first(task, search, broken, locked=locked, modules=modules)
        if chosen is not None:
            adoption = adopt(task, *chosen, wishes, locked)
            resolution = _resolution(task, search, chosen[0], adoption, offer.incomplete, indices, sources, modules)
            return resolution if levels is not locked_levels or keep is None else _with_old_reasons(resolution, keep)
    nearest, reasons = search.reasons()
    raise _none(where, nearest, [*broken, *reasons], search.solved)


def enabled(where: str, profile: Profile, platform: StackPlatform, universe: Universe) -> Universe:
    """The universe with the module streams of the profile; raises NoSolution saying ``where`` there are none."""
    with translated(NoSolution, lambda error: NoSolution(f"{where}: {error.message}", hint=error.hint)):
        return universe.with_streams(platform.module_streams(profile.driver.version, profile.driver.flavour))


def base(profile: Profile, platform: StackPlatform) -> dict[str, str | None]:
    """The facts for the rules that the profile fixes."""
    facts: dict[str, str | None] = {
        "flavour": profile.driver.flavour, "mode": profile.mode, "rdma": profile.rdma, "gpu": profile.gpu,
        "arch": profile.arch, "os": profile.os, "family": platform.family,
    }  # fmt: skip
    return facts if profile.doca else {**facts, "doca": None}


def first(
    task: Task,
    search: Search,
    broken: list[str],
    *,
    locked: frozenset[Key] = frozenset(),
    modules: PackagedModules = lambda _: (),
) -> tuple[Choice, tuple[Package, ...]] | None:
    """The most preferred solvable choice, with its packages; ``broken`` collects the reasons against others.

    modules: tells the modules in the packages, of which rules and a pin judge nvidia-fs; of none, they say nothing.
    """
    refused = partial(_refused_dkms, task, search)
    for choice in itertools.islice(search.choices(), ATTEMPTS):
        search.solved.append(choice)
        try:
            packages = dependencies.packages(task, choice, locked=locked, never=refused(choice))
        except Unsolvable as error:
            culprit, why = dependencies.culprit(task, choice, error, refused)
            search.dead.append(culprit)
            label, reasons = ", ".join(option.label for option in culprit), "; ".join(why.reasons)
            if not why.verdicts:
                broken.append(f"[dependencies] {label}: {reasons}")
            broken += (f"[{verdict.rule}] {verdict.words}" for verdict in why.verdicts)
            against = why.verdicts or [Verdict("dependencies", REFUSED, reasons)]
            search.against += ((choice, verdict) for verdict in against)
            continue
        # Which nvidia-fs a kernel's package has, rules can ask from now on, before other packages are looked for.
        kernel = next(option for option in choice if option.subject == "kernel")
        search.learned[id(kernel)] = nvidia_fs_facts(kernel, modules(packages))
        facts = _facts(search, choice, packages, task.platform)
        late = [verdict for verdict in judge(facts, search.rules) if not verdict.allowed]
        if unpinned := unpinned_nvidia_fs(task.profile, kernel, facts):
            search.dead.append((kernel,))
            late.append(unpinned)
        if not late:
            return choice, packages
        broken += (f"[{verdict.rule}] {verdict.words}" for verdict in late)
        search.against += ((choice, verdict) for verdict in late)
    return None


def _refused_dkms(task: Task, search: Search, choice: Choice) -> list[Never]:
    """The versions of DKMS that rules refuse beside a choice or a part of one: no option of it says which DKMS."""
    facts, refused = search.facts(choice), dict[str, tuple[Verdict, set[Key]]]()
    rules = [rule for rule in search.rules if _DKMS in rule.looks_at]
    newest = sorted(task.universe.named(_DKMS), key=lambda c: task.platform.order.key(c.version), reverse=True)
    for candidate in newest:
        for verdict in judge({**facts, _DKMS: task.platform.upstream_version(candidate.version)}, rules):
            if not verdict.allowed:
                refused.setdefault(verdict.rule, (verdict, set()))[1].add(candidate.key)
    return [Never(_DKMS, frozenset(keys), verdict.words, verdict) for verdict, keys in refused.values()]


def _facts(search: Search, choice: Choice, packages: Sequence[Package], platform: StackPlatform) -> Combination:
    """Everything that the rules may test in a choice with its packages, which say which DKMS builds its modules."""
    version = next((package.version for package in packages if package.package == _DKMS), None)
    return {**search.facts(choice), _DKMS: platform.upstream_version(version) if version else None}


def _with_old_reasons(resolution: Resolution, keep: Keep) -> Resolution:
    """Add the lock's reasons against newer versions of subjects that stayed, because these were not judged again."""
    old = [r for r in keep.refused() if r not in resolution.target.refused]
    target = resolution.target.model_copy(update={"refused": (*resolution.target.refused, *old)})
    return replace(resolution, target=target)


def _none(where: str, nearest: str, reasons: Sequence[str], solved: Sequence[Choice] = ()) -> NoSolution:
    lines = [f"{where}: no set of packages satisfies the pins and the rules"]
    if nearest:
        lines.append(f"  nearest: {nearest}")
    if solved:
        end = "others weren't tried" if len(solved) == ATTEMPTS else "no other is left"
        last = ", ".join(option.label for option in solved[-1])
        lines.append(f"  tried: the packages of {len(solved)} combinations, the last {last}; {end}")
    lines += (f"  - {reason}" for reason in dict.fromkeys(reasons))
    return NoSolution(
        "\n".join(lines),
        hint="Change what the profile asks for, or add a repository that offers other versions",
    )


def _resolution(
    task: Task,
    search: Search,
    choice: Choice,
    adoption: Adoption,
    incomplete: Sequence[Incomplete],
    indices: Sequence[Index],
    sources: Sources,
    modules: PackagedModules,
) -> Resolution:
    profile, platform, universe = task
    packages = adoption.packages
    driver, kernel, nvidia_fs, libcufile, *_ = choice
    facts = _facts(search, choice, packages, platform)
    verdicts = judge(facts, search.rules)
    careful = {rule.id for rule in search.rules if rule.is_warning}
    maker = dependencies.packaging(profile, platform, choice)
    version, flavour = str(driver.facts["driver"]), profile.driver.flavour
    in_packages: tuple[PackagedModule, ...] = ()
    if kernel.modules is None:
        locked_driver = _driver(driver, flavour, packages, sources, maker.module)
        locked_nvidia_fs = _source(nvidia_fs, packages, sources)
    else:
        in_packages = checked_modules(kernel.release, version, flavour, profile.mode, packages, modules(packages))
        locked_driver = LockedDriver(
            version=version, flavour=flavour, source_tree="", dkms_name="", module=maker.module
        )
        own = next((module.version for module in in_packages if module.module == _NVIDIA_FS), "")
        locked_nvidia_fs = Source(version=own, source_tree="", dkms_name="") if own else None
    # Incomplete versions that would have been preferred over the chosen ones.
    since = {option.subject: platform.order.key(option.version) for option in choice}
    newer = (each.refused for each in incomplete if platform.order.key(each.version) > since[each.subject])
    target = Target(
        os=profile.os,
        arch=profile.arch,
        kernel=Kernel(release=kernel.release, version=str(kernel.facts["kernel_package"])),
        driver=locked_driver,
        nvidia_fs=locked_nvidia_fs,
        libcufile=Component(version=str(libcufile.facts["libcufile"])),
        gds_tools=Component(version=platform.upstream_version(libcufile.packages["gds-tools"].version)),
        rules=tuple(sorted({v.rule for v in verdicts if v.warning or v.rule not in careful})),
        # A kernel's names follow from its release and its package.
        judged={subject: value for subject, value in sorted(facts.items()) if isinstance(value, str)},
        pins=pins(profile),
        refused=(*search.refused(choice), *newer),
        modules=universe.streams(),
        packaged=in_packages,
        adopted=adoption.names,
        indices=tuple(sorted(indices, key=lambda index: (index.repository, index.suite))),
        packages=packages,
    )
    warnings = cautions(facts, verdicts, built=bool(in_packages))
    if in_packages:
        warnings += packaged_warnings(modules(packages))
    return Resolution(target, tuple(warnings), adoption.left_out)


def _driver(
    driver: Option, flavour: Flavour, packages: Sequence[Package], sources: Sources, module: str
) -> LockedDriver:
    """The driver with its source tree; raises RepositoryUnusable where that is of another version."""
    version, tree = str(driver.facts["driver"]), sources("driver-source", packages)
    if tree.dkms_version != version:
        # On hosts DKMS is asked for the driver's version.
        raise RepositoryUnusable(
            f"{driver.holder.package}: its dkms.conf is of {tree.dkms_version}, and it is {version}",
            hint="Lock another version of the driver, or use another repository",
        )
    return LockedDriver(
        version=version, flavour=flavour, source_tree=tree.path, dkms_name=tree.dkms_name, module=module
    )


def _source(nvidia_fs: Option, packages: Sequence[Package], sources: Sources) -> Source | None:
    if not nvidia_fs.packages:
        return None
    tree = sources("nvidia-fs-source", packages)
    return Source(version=str(nvidia_fs.facts["nvidia_fs"]), source_tree=tree.path, dkms_name=tree.dkms_name)
