"""Drivers and kernels of which the distribution has built the modules: which packages there are, and which fit.  Pure.

A package has the modules of one driver for one kernel, so a kernel's option knows the drivers that it goes with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gdsdeploy.errors import NoSolution
from gdsdeploy.host.kmod.flavour import has_nvme_hooks
from gdsdeploy.lock.resolve.offer import Incomplete, Option
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Part, RefusedChoice
from gdsdeploy.platform.base import BuiltModules, KernelImage, StackPlatform
from gdsdeploy.repo.packages import Candidate, Universe

#: What a user may do where a kernel has no such packages.
INSTEAD = "or have a host build the modules: `modules: build`, or `receive`"
#: Versions that are named.
_NAMED = 6


def is_packaged(profile: Profile) -> bool:
    """Whether the hosts of a profile take their modules from packages."""
    return profile.modules == "packaged"


def require(where: str, profile: Profile, platform: StackPlatform) -> None:
    """Raise NoSolution where no package of the system has modules that a host can be held to."""
    reason = platform.no_packaged_modules(profile.driver.flavour) if is_packaged(profile) else ""
    if reason:
        raise NoSolution(f"{where}: modules: packaged isn't possible: {reason}", hint=f"Change that, {INSTEAD}")


def built(profile: Profile, platform: StackPlatform, universe: Universe) -> dict[str, list[BuiltModules]]:
    """Release → the modules on offer for it, of kernels of the profile's flavour."""
    flavour = profile.kernel.flavour or platform.kernel_flavours(profile.arch)[0]
    images = platform.kernel_images(universe, profile.arch)
    releases = {kernel.release for kernel in images if kernel.flavour == flavour}
    modules = platform.built_modules(universe, profile.driver.flavour)
    return {release: packages for release, packages in modules.items() if release in releases}


def drivers(modules: Mapping[str, Sequence[BuiltModules]]) -> list[Candidate]:
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


def kernels(
    images: Sequence[KernelImage],
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    modules: Mapping[str, Sequence[BuiltModules]],
    labels: Mapping[tuple[str, str, str], str],
) -> Iterator[Option | Incomplete]:
    """The kernels for which there are packages with everything that the profile's mode loads.

    labels: key of a package that tells a driver → label of the driver's option.
    """
    for kernel in images:
        image, release, names = kernel.image, kernel.release, platform.kernel_names(kernel)
        by_driver: dict[str, tuple[Candidate, ...]] = {}
        for one in modules.get(release, ()):
            label = labels.get(one.driver.key) if one.driver is not None else None
            if label:
                by_driver[label] = (*by_driver.get(label, ()), one.package)
        lack = _lack(release, profile, platform, universe, modules, by_driver)
        if lack:
            refused = RefusedChoice(what=f"kernel {release}", rule="packaged-modules", words=lack)
            yield Incomplete("kernel", image.version, refused, names)
            continue
        facts = {
            "kernel": names[0], "kernel_package": image.version, "kernel_flavour": kernel.flavour,
            "nvme_hooks": "kernel" if has_nvme_hooks(release) else "ofed",
        }  # fmt: skip
        packages: dict[Part, Candidate] = {"kernel-image": image}
        if profile.mode == "nvidia-fs":
            versions = universe.named(platform.built_nvidia_fs(release))
            # It is built with its kernel, in the same version.
            own = [candidate for candidate in versions if candidate.version == image.version]
            packages["nvidia-fs-modules"] = _newest(platform, own or versions)
        label = f"kernel {release}"
        yield Option("kernel", label, facts, packages, image.version, names, release, modules=by_driver)


def _lack(
    release: str,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    modules: Mapping[str, Sequence[BuiltModules]],
    by_driver: Mapping[str, Sequence[Candidate]],
) -> str:
    """What a kernel has no packages for, in words; empty: it has all of them."""
    if not modules.get(release):
        return f"The repositories have no package with modules of the driver ({profile.driver.flavour}) for it."
    if not by_driver:
        return "The repositories have modules for it only of drivers whose userland they don't have."
    name = platform.built_nvidia_fs(release)
    if profile.mode == "nvidia-fs" and not universe.named(name):
        return f"The repositories have no {name}."
    return ""


def no_nvidia_fs(profile: Profile, platform: StackPlatform, universe: Universe) -> str:
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


def _newest(platform: StackPlatform, candidates: Sequence[Candidate]) -> Candidate:
    return max(candidates, key=lambda candidate: platform.order.key(candidate.version))
