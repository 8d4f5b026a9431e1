"""The packages of one choice: its own, further ones of the stack, and their dependencies.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gdsdeploy.lock.resolve.dependencies import Need, Provider, Requirement, Unsolvable, exactly, solve
from gdsdeploy.lock.resolve.search import Choice
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Package, Part
from gdsdeploy.platform.base import NVLSM, Packaging, StackPackage, StackPlatform
from gdsdeploy.repo.packages import Candidate, Key, Universe

#: Parts that machines need to build modules; on Debian the kernel image comes with the headers, which depend on it.
_BUILD_PARTS = {"kernel-headers", "driver-source", "nvidia-fs-source"}


def packaging(profile: Profile, platform: StackPlatform, choice: Choice) -> Packaging:
    """How the chosen driver is packaged."""
    return platform.packaging(choice[0].holder, profile.driver.flavour)


def packages(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
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
    provider, roots, parts, host, build = _question(
        profile, platform, universe, choice, locked, with_umbrellas=with_umbrellas
    )
    for candidate in also:
        roots.append(exactly(candidate))
        host.add(candidate.package)
    solution = solve(provider, roots)
    on_host, on_builder = solution.reachable(host), solution.reachable(build)
    return tuple(
        _package(candidate, parts.get(name) or platform.part(candidate), name in on_host, name in on_builder)
        for name, candidate in sorted(solution.packages.items())
        if provider.in_stack(candidate)
    )


def usable(profile: Profile, platform: StackPlatform, universe: Universe, choice: Choice, name: str) -> list[Candidate]:
    """The files of a package that may be locked beside a choice, metapackages too, the newest first."""
    provider = _question(profile, platform, universe, choice, frozenset(), with_umbrellas=True)[0]
    candidates = [candidate for candidate in universe.named(name) if provider.usable(candidate)]
    return sorted(candidates, key=lambda c: platform.order.key(c.version), reverse=True)


def culprit(
    profile: Profile, platform: StackPlatform, universe: Universe, choice: Choice, reasons: list[str]
) -> tuple[Choice, list[str]]:
    """The smallest unsolvable part of ``choice``: its driver, or the driver with one other option; and why."""
    for options in (choice[:1], *((choice[0], other) for other in choice[1:])):
        provider, roots, *_ = _question(profile, platform, universe, options, frozenset())
        try:
            solve(provider, roots)
        except Unsolvable as error:
            return options, error.reasons
    return choice, reasons


def _question(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    choice: Choice,
    locked: frozenset[Key],
    *,
    with_umbrellas: bool = False,
) -> tuple[Provider, list[Requirement], dict[str, Part], set[str], set[str]]:
    """The solver's input for a choice or a part of it: provider, roots, parts by name, the host's and the builder's."""
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
        whole=_whole(profile, platform, universe),
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


def _whole(profile: Profile, platform: StackPlatform, universe: Universe) -> frozenset[str]:
    """Repositories of CUDA or DOCA: every package from them is locked."""
    candidates = (c for name in (*profile.cuda, *profile.doca) for c in universe.named(name))
    return frozenset({candidate.repository for candidate in candidates} - platform.presets().keys())


def _package(candidate: Candidate, part: Part, host: bool, build: bool) -> Package:
    same = ("package", "version", "architecture", "size", "sha256", "repository", "suite", "component")
    return Package(
        part=part,
        needed_by="both" if host and build else "host" if host else "build",
        file=candidate.filename,
        **{key: getattr(candidate, key) for key in same},
    )
