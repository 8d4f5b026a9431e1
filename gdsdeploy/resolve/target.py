"""Choose, solve the dependencies, and write the answer as a target of the lock.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdsdeploy.compat import Rule, Verdict, judge, shipped
from gdsdeploy.errors import NoSolution
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Component, Index, Kernel, LockedDriver, Package, Part, Refused, Source, Target
from gdsdeploy.platform.base import StackPlatform, Wanted
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.packages import Universe
from gdsdeploy.resolve import options
from gdsdeploy.resolve.dependencies import Provider, Requirement, Solution, Unsolvable, exactly, solve
from gdsdeploy.resolve.search import Choice, Search

#: Combinations whose dependencies are tried before giving up.
ATTEMPTS = 25

#: What machines need that build modules; the kernel image comes with the headers that depend on it.
_BUILD_PARTS = {"kernel-headers", "driver-source", "nvidia-fs-source"}


@dataclass(frozen=True)
class Resolution:
    """A target, and what a user has to know about it although it is allowed."""

    target: Target
    warnings: tuple[Verdict, ...]


def resolve(
    name: str,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    indices: Sequence[Index],
    rules: Sequence[Rule] | None = None,
) -> Resolution:
    """Resolve the profile called ``name``; raises NoSolution listing every reason, nearest first."""
    where = f"profile {name} ({profile.os}, {profile.arch})"
    try:
        universe = universe.with_streams(platform.module_streams(profile.driver.version, profile.driver.flavour))
    except NoSolution as error:
        raise NoSolution(f"{where}: {error.message}", hint=error.hint) from None
    found = options.find(profile, platform, universe)
    if found.missing:
        passed = [f"[{i.refused.rule}] {i.refused.what}: {i.refused.words}" for i in found.incomplete]
        raise _none(where, "", [*found.missing, *passed])
    base = {
        "flavour": profile.driver.flavour, "mode": profile.mode, "rdma": profile.rdma,
        "arch": profile.arch, "os": profile.os, "family": platform.family,
    }  # fmt: skip
    search = Search(base, found.levels, shipped() if rules is None else rules)
    broken: list[str] = []
    for attempt, choice in enumerate(search.choices()):
        if attempt == ATTEMPTS:
            break
        try:
            packages = _packages(profile, platform, universe, choice)
        except Unsolvable as error:
            label = ", ".join(option.label for option in choice)
            broken.append(f"[dependencies] {label}: " + "; ".join(error.reasons))
            search.against.append((choice, Verdict("dependencies", False, "; ".join(error.reasons))))
            continue
        return _resolution(profile, platform, search, choice, found.incomplete, packages, indices, universe.streams())
    nearest, reasons = search.reasons()
    raise _none(where, nearest, [*broken, *reasons])


def _none(where: str, nearest: str, reasons: Sequence[str]) -> NoSolution:
    lines = [f"{where}: no set of packages satisfies the pins and the rules"]
    if nearest:
        lines.append(f"  nearest: {nearest}")
    lines += [f"  - {reason}" for reason in reasons]
    return NoSolution(
        "\n".join(lines),
        hint="Change what the profile asks for, or add a repository that offers other versions",
    )


def _packages(profile: Profile, platform: StackPlatform, universe: Universe, choice: Choice) -> tuple[Package, ...]:
    parts: dict[str, Part] = {}
    roots: list[Requirement] = []
    host: set[str] = set()
    build: set[str] = set()
    for option in choice:
        for part, candidate in option.packages.items():
            parts[candidate.package] = part
            roots.append(exactly(candidate))
            (build if part in _BUILD_PARTS else host).add(candidate.package)
    further: tuple[Wanted, ...] = platform.further_packages(profile.driver.flavour, profile.rdma)
    parts.update({wanted.package: wanted.part for wanted in further})
    provider = Provider(
        universe,
        platform,
        driver=str(choice[0].facts["driver"]),
        kernel_package=str(choice[1].facts["kernel_package"]),
        excluded=platform.excluded(profile.driver.flavour),
        preferred=frozenset(parts),
    )
    for wanted in further:
        roots.append(provider.need(wanted.package))
        (build if wanted.needed_by == "build" else host).add(wanted.package)
    solution = solve(provider, roots)
    on_host, on_builder = solution.reachable(host), solution.reachable(build)
    return tuple(
        _package(candidate, parts.get(name) or platform.part(candidate), name in on_host, name in on_builder)
        for name, candidate in sorted(_stack(solution, platform).items())
    )


def _stack(solution: Solution, platform: StackPlatform) -> dict[str, Candidate]:
    return {name: candidate for name, candidate in solution.packages.items() if platform.in_stack(candidate)}


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


def _resolution(
    profile: Profile,
    platform: StackPlatform,
    search: Search,
    choice: Choice,
    incomplete: Sequence[options.Incomplete],
    packages: tuple[Package, ...],
    indices: Sequence[Index],
    modules: tuple[str, ...],
) -> Resolution:
    driver, kernel, nvidia_fs, libcufile = choice
    verdicts = judge(search.facts(choice), search.rules)
    flavour = profile.driver.flavour
    driver_version, library_version = str(driver.facts["driver"]), str(libcufile.facts["libcufile"])
    tree, dkms_name = platform.driver_tree(flavour, driver_version)
    source = None
    if nvidia_fs.packages:
        version = str(nvidia_fs.facts["nvidia_fs"])
        fs_tree, fs_name = platform.nvidia_fs_tree(version)
        source = Source(version=version, source_tree=fs_tree, dkms_name=fs_name)
    target = Target(
        os=profile.os,
        arch=profile.arch,
        kernel=Kernel(release=kernel.release, version=str(kernel.facts["kernel_package"])),
        driver=LockedDriver(version=driver_version, flavour=flavour, source_tree=tree, dkms_name=dkms_name),
        nvidia_fs=source,
        libcufile=Component(version=library_version),
        gds_tools=Component(version=platform.upstream_version(libcufile.packages["gds-tools"].version)),
        rules=tuple(sorted({verdict.rule for verdict in verdicts})),
        pins=pins(profile),
        refused=(*search.refused(choice), *_newer(platform, incomplete, choice)),
        modules=modules,
        indices=tuple(sorted(indices, key=lambda index: (index.repository, index.suite))),
        packages=packages,
    )
    return Resolution(target, tuple(verdict for verdict in verdicts if verdict.warning))


def _newer(platform: StackPlatform, incomplete: Sequence[options.Incomplete], choice: Choice) -> list[Refused]:
    """Of the incomplete options, those that would have been preferred over the chosen ones."""
    chosen = {option.subject: platform.order.key(option.version) for option in choice}
    return [item.refused for item in incomplete if platform.order.key(item.version) > chosen[item.subject]]


def pins(profile: Profile) -> dict[str, str]:
    """Everything of a profile that a resolution depends on, apart from system and repositories."""
    return {
        "driver": profile.driver.version,
        "flavour": profile.driver.flavour,
        "kernel": profile.kernel,
        "libcufile": profile.libcufile,
        "mode": profile.mode,
        "nvidia_fs": profile.nvidia_fs,
        "rdma": profile.rdma,
    }
