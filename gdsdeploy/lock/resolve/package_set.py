"""The packages of one choice: its own, what a host needs beside them, and what they depend on.  Pure."""

from __future__ import annotations

from gdsdeploy.lock.resolve.dependencies import Key, Need, Provider, Requirement, Unsolvable, exactly, solve
from gdsdeploy.lock.resolve.search import Choice
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Package, Part
from gdsdeploy.platform.base import Packaging, StackPlatform, Wanted
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.packages import Universe

#: What machines need that build modules; on Debian the kernel image comes with the headers that depend on it.
_BUILD_PARTS = {"kernel-headers", "driver-source", "nvidia-fs-source"}


def packaging(profile: Profile, platform: StackPlatform, choice: Choice) -> Packaging:
    """How the chosen driver is packaged."""
    return platform.packaging(choice[0].packages["driver-source"], profile.driver.flavour, profile.rdma)


def packages(
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    choice: Choice,
    *,
    locked: frozenset[Key] = frozenset(),
    also: Candidate | None = None,
) -> tuple[Package, ...]:
    """Everything that is locked for a choice, by name; raises Unsolvable.

    locked: files that win over newer ones.  also: a file that has to be among them, if its package is.
    """
    provider, roots, parts, host, build = _question(profile, platform, universe, choice, locked)
    if also is not None:
        roots.append(exactly(also))
        host.add(also.package)
    solution = solve(provider, roots)
    on_host, on_builder = solution.reachable(host), solution.reachable(build)
    return tuple(
        _package(candidate, parts.get(name) or platform.part(candidate), name in on_host, name in on_builder)
        for name, candidate in sorted(solution.packages.items())
        if provider.in_stack(candidate)
    )


def culprit(
    profile: Profile, platform: StackPlatform, universe: Universe, choice: Choice, reasons: list[str]
) -> tuple[Choice, list[str]]:
    """The least of an unsolvable ``choice`` that cannot be had: its driver, or that with one other; and why."""
    for options in (choice[:1], *((choice[0], other) for other in choice[1:])):
        provider, roots, *_ = _question(profile, platform, universe, options, frozenset())
        try:
            solve(provider, roots)
        except Unsolvable as error:
            return options, error.reasons
    return choice, reasons


def _question(
    profile: Profile, platform: StackPlatform, universe: Universe, choice: Choice, locked: frozenset[Key]
) -> tuple[Provider, list[Requirement], dict[str, Part], set[str], set[str]]:
    """What is asked of the solver for a choice or a part of it: parts by name, and who needs what of the roots."""
    parts: dict[str, Part] = {}
    roots: list[Requirement] = []
    host: set[str] = set()
    build: set[str] = set()
    for option in choice:
        for part, candidate in option.members():
            parts[candidate.package] = part
            roots.append(exactly(candidate))
            (build if part in _BUILD_PARTS else host).add(candidate.package)
            if part == "kernel-image":
                # By one of the kernel's own modules a host without headers knows that it has the builder's kernel.
                build.add(candidate.package)
    wanted = _wanted(profile, platform, choice)
    parts.update({each.package: each.part for each in wanted})
    provider = Provider(
        universe,
        platform,
        driver=choice[0].packages["driver-source"],
        kernel_package=next((str(o.facts["kernel_package"]) for o in choice if o.subject == "kernel"), ""),
        excluded=packaging(profile, platform, choice).excluded,
        preferred=frozenset(parts),
        locked=locked,
        whole=_whole(profile, platform, universe),
    )
    for each in wanted:
        need: Need = provider.need(each.package)
        if need.allowed or not each.optional:
            roots.append(need)
            (build if each.needed_by == "build" else host).add(each.package)
    # Modules of the driver are built against those of OFED, so that a builder needs them too.
    build |= {name for name in profile.doca if name in parts}
    return provider, roots, parts, host, build


def _wanted(profile: Profile, platform: StackPlatform, choice: Choice) -> tuple[Wanted, ...]:
    """What the stack has beside the choice itself."""
    wanted = [*packaging(profile, platform, choice).further]
    for option in choice:
        if option.subject == "kernel":
            wanted += platform.kernel_extras(option.release)
        elif option.subject == "libcufile":
            wanted += platform.library_packages(option.packages["libcufile"], profile.rdma)
            wanted += (Wanted(name, "cuda", "host") for name in profile.cuda)
        elif option.subject == "doca":
            wanted += (Wanted(name, "doca", "host") for name in profile.doca[1:])
    return tuple(wanted)


def _whole(profile: Profile, platform: StackPlatform, universe: Universe) -> frozenset[str]:
    """Repositories that are there for CUDA or DOCA: what comes from them is locked, whatever it is."""
    asked = (c for name in (*profile.cuda, *profile.doca) for c in universe.named(name))
    return frozenset({candidate.repository for candidate in asked} - platform.presets().keys())


def _package(candidate: Candidate, part: Part, host: bool, build: bool) -> Package:
    return Package(
        package=candidate.package,
        version=candidate.version,
        architecture=candidate.architecture,
        part=part,
        needed_by="both" if host and build else "host" if host else "build",
        file=candidate.filename,
        size=candidate.size,
        sha256=candidate.sha256,
        repository=candidate.repository,
        suite=candidate.suite,
        component=candidate.component,
    )
