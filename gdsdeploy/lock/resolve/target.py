"""Choose, solve the dependencies, and write the answer as a target of the lock.  Pure but for ``sources``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdsdeploy.errors import NoSolution, RepositoryUnusable
from gdsdeploy.lock.compat import Rule, Verdict, judge, shipped
from gdsdeploy.lock.packaged_modules import PackagedModules
from gdsdeploy.lock.pins import pins
from gdsdeploy.lock.resolve import options, package_set, packaged, packaged_parts
from gdsdeploy.lock.resolve.adoption import Adoption, LeftOut, adopt
from gdsdeploy.lock.resolve.dependencies import Unsolvable
from gdsdeploy.lock.resolve.keep import Keep
from gdsdeploy.lock.resolve.offer import Incomplete, Option
from gdsdeploy.lock.resolve.search import Choice, Search
from gdsdeploy.lock.sources import Sources
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import (
    Component,
    Index,
    Kernel,
    LockedDriver,
    Package,
    PackagedModule,
    RefusedChoice,
    Source,
    Target,
)
from gdsdeploy.platform.base import Flavour, StackPlatform
from gdsdeploy.repo.packages import Key, Universe

#: Combinations whose dependencies are tried before giving up.
ATTEMPTS = 25


@dataclass(frozen=True)
class Resolution:
    """A target, and the warnings about it."""

    target: Target
    warnings: tuple[Verdict, ...]
    #: of the packages that hosts have, those that were not adopted
    left_out: tuple[LeftOut, ...] = ()

    def with_adoption(self, adoption: Adoption) -> Resolution:
        """The same, saying which of its packages were adopted."""
        return Resolution(self.target.model_copy(update={"adopted": adoption.names}), self.warnings, adoption.left_out)


def resolve(
    name: str,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    indices: Sequence[Index],
    sources: Sources,
    rules: Sequence[Rule] | None = None,
    keep: Keep | None = None,
    wishes: Sequence[str] = (),
    modules: PackagedModules = lambda _: (),
) -> Resolution:
    """Resolve the profile called ``name``; raises NoSolution listing every reason, nearest first.

    sources: tells the source trees of the chosen packages; what it raises ends the resolution.
    keep: the locked packages, which stay unless they may move or have to.
    wishes: packages that hosts have of their driver, which are adopted where that goes.
    modules: tells the modules in the chosen packages, as ``sources`` does.
    """
    where = f"profile {name} ({profile.os}, {profile.arch})"
    packaged.require(where, profile, platform)
    universe = enabled(where, profile, platform, universe)
    offer = options.find(profile, platform, universe)
    if offer.missing:
        passed = [f"[{i.refused.rule}] {i.refused.what}: {i.refused.words}" for i in offer.incomplete]
        raise _none(where, "", [*offer.missing, *passed])
    rule_set = shipped() if rules is None else rules
    facts = base(profile, platform)
    locked = keep.locked() if keep else frozenset[Key]()
    locked_levels = keep.hold(offer.levels) if keep else offer.levels
    tries = [locked_levels, keep.prefer(offer.levels)] if keep and locked_levels != offer.levels else [offer.levels]
    for levels in tries:
        search, broken = Search(facts, levels, rule_set), list[str]()
        chosen = first(profile, platform, universe, search, broken, locked=locked, modules=modules)
        if chosen is not None:
            adoption = adopt(profile, platform, universe, *chosen, wishes, locked)
            chosen = chosen[0], adoption.packages
            resolution = _resolution(
                profile, platform, search, chosen, offer.incomplete, indices, universe.streams(), sources, modules
            )
            resolution = resolution.with_adoption(adoption)
            return resolution if levels is not locked_levels or keep is None else _with_old_reasons(resolution, keep)
    nearest, reasons = search.reasons()
    raise _none(where, nearest, [*broken, *reasons])


def enabled(where: str, profile: Profile, platform: StackPlatform, universe: Universe) -> Universe:
    """The universe with the module streams of the profile; raises NoSolution saying ``where`` there are none."""
    try:
        return universe.with_streams(platform.module_streams(profile.driver.version, profile.driver.flavour))
    except NoSolution as error:
        raise NoSolution(f"{where}: {error.message}", hint=error.hint) from None


def base(profile: Profile, platform: StackPlatform) -> dict[str, str | None]:
    """The facts for the rules that the profile fixes."""
    facts: dict[str, str | None] = {
        "flavour": profile.driver.flavour, "mode": profile.mode, "rdma": profile.rdma, "gpu": profile.gpu,
        "arch": profile.arch, "os": profile.os, "family": platform.family,
    }  # fmt: skip
    return facts if profile.doca else {**facts, "doca": None}


def first(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    search: Search,
    broken: list[str],
    *,
    locked: frozenset[Key] = frozenset(),
    modules: PackagedModules = lambda _: (),
) -> tuple[Choice, tuple[Package, ...]] | None:
    """The most preferred solvable choice, with its packages; ``broken`` collects the reasons against others.

    modules: tells the modules in the packages, of which rules and a pin judge nvidia-fs; of none, they say nothing.
    """
    for choice in itertools.islice(search.choices(), ATTEMPTS):
        try:
            packages = package_set.packages(profile, platform, universe, choice, locked=locked)
        except Unsolvable as error:
            culprit, reasons = package_set.culprit(profile, platform, universe, choice, error.reasons)
            search.dead.append(culprit)
            label = ", ".join(option.label for option in culprit)
            broken.append(f"[dependencies] {label}: " + "; ".join(reasons))
            search.against.append((choice, Verdict("dependencies", False, "; ".join(reasons))))
            continue
        facts = _facts(search, choice, packages, platform, modules)
        against = [verdict for verdict in judge(facts, search.rules) if not verdict.allowed]
        if unpinned := packaged_parts.unpinned(profile, choice, facts):
            search.dead.append((unpinned[0],))
            against.append(unpinned[1])
        if not against:
            return choice, packages
        broken += (f"[{verdict.rule}] {verdict.words}" for verdict in against)
        search.against += ((choice, verdict) for verdict in against)
    return None


def _facts(
    search: Search, choice: Choice, packages: Sequence[Package], platform: StackPlatform, modules: PackagedModules
) -> dict[str, str | None]:
    """Everything that the rules may test in a choice with its packages, which say which DKMS builds its modules."""
    nvidia_fs = packaged_parts.facts(choice, modules(packages))
    version = next((package.version for package in packages if package.package == "dkms"), None)
    return {**search.facts(choice), **nvidia_fs, "dkms": platform.upstream_version(version) if version else None}


def _with_old_reasons(resolution: Resolution, keep: Keep) -> Resolution:
    """Add the lock's reasons against newer versions of subjects that stayed, because these were not judged again."""
    old = [r for r in keep.refused() if r not in resolution.target.refused]
    target = resolution.target.model_copy(update={"refused": (*resolution.target.refused, *old)})
    return replace(resolution, target=target)


def _none(where: str, nearest: str, reasons: Sequence[str]) -> NoSolution:
    lines = [f"{where}: no set of packages satisfies the pins and the rules"]
    if nearest:
        lines.append(f"  nearest: {nearest}")
    lines += [f"  - {reason}" for reason in reasons]
    return NoSolution(
        "\n".join(lines),
        hint="Change what the profile asks for, or add a repository that offers other versions",
    )


def _resolution(
    profile: Profile,
    platform: StackPlatform,
    search: Search,
    chosen: tuple[Choice, tuple[Package, ...]],
    incomplete: Sequence[Incomplete],
    indices: Sequence[Index],
    streams: tuple[str, ...],
    sources: Sources,
    modules: PackagedModules,
) -> Resolution:
    choice, packages = chosen
    driver, kernel, nvidia_fs, libcufile, *_ = choice
    verdicts = judge(_facts(search, choice, packages, platform, modules), search.rules)
    maker = package_set.packaging(profile, platform, choice)
    version, flavour = str(driver.facts["driver"]), profile.driver.flavour
    in_packages: tuple[PackagedModule, ...] = ()
    if kernel.modules is None:
        locked_driver = _driver(driver, flavour, packages, sources, maker.module)
        locked_nvidia_fs = _source(nvidia_fs, packages, sources)
    else:
        in_packages = packaged_parts.require(
            kernel.release, version, flavour, profile.mode, packages, modules(packages)
        )
        locked_driver = LockedDriver(
            version=version, flavour=flavour, source_tree="", dkms_name="", module=maker.module
        )
        locked_nvidia_fs = packaged_parts.nvidia_fs(in_packages)
    target = Target(
        os=profile.os,
        arch=profile.arch,
        kernel=Kernel(release=kernel.release, version=str(kernel.facts["kernel_package"])),
        driver=locked_driver,
        nvidia_fs=locked_nvidia_fs,
        libcufile=Component(version=str(libcufile.facts["libcufile"])),
        gds_tools=Component(version=platform.upstream_version(libcufile.packages["gds-tools"].version)),
        rules=tuple(sorted({verdict.rule for verdict in verdicts})),
        pins=pins(profile),
        refused=(*search.refused(choice), *_newer(platform, incomplete, choice)),
        modules=streams,
        packaged=in_packages,
        indices=tuple(sorted(indices, key=lambda index: (index.repository, index.suite))),
        packages=packages,
    )
    unproven = packaged_parts.warnings(modules(packages)) if in_packages else []
    return Resolution(target, (*(verdict for verdict in verdicts if verdict.warning), *unproven))


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


def _newer(platform: StackPlatform, incomplete: Sequence[Incomplete], choice: Choice) -> list[RefusedChoice]:
    """The incomplete versions that would have been preferred over the chosen ones."""
    chosen = {option.subject: platform.order.key(option.version) for option in choice}
    return [each.refused for each in incomplete if platform.order.key(each.version) > chosen[each.subject]]
