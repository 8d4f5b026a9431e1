"""The options: each part's versions on offer that the pins admit, newest first.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gdsdeploy.host.kmod.flavour import has_nvme_hooks
from gdsdeploy.host.model import version_rules
from gdsdeploy.lock.resolve import metapackages, packaged
from gdsdeploy.lock.resolve.offer import Incomplete, Option, Options
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Part, RefusedChoice
from gdsdeploy.platform.base import NVLSM, KernelImage, StackPlatform
from gdsdeploy.repo.packages import Candidate, Universe

#: Begins the name of a metapackage of modules that doca-kernel-support built for one kernel.
_DOCA_KERNEL = "doca-kernel-"


def find(profile: Profile, platform: StackPlatform, universe: Universe) -> Options:
    """The options for a profile, subject by subject in the order in which they are chosen."""
    options = Options()
    if packaged.is_packaged(profile):
        _add_packaged(options, profile, platform, universe)
    else:
        _add_drivers(options, profile, platform, universe)
        _add_kernels(options, profile, platform, universe)
    if profile.mode == "nvidia-fs" and packaged.is_packaged(profile):
        # Its version is read in the kernel's package: no relation tells it.
        options.levels.append([Option("nvidia-fs", "nvidia-fs of the kernel's package", {}, {})])
    elif profile.mode == "nvidia-fs":
        otherwise = f"the repositories have no {platform.nvidia_fs_package}"
        options.add("nvidia_fs", profile.nvidia_fs, _nvidia_fs(platform, universe), otherwise)
    else:
        absent: dict[str, str | None] = dict.fromkeys(("nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin"))
        options.levels.append([Option("nvidia-fs", f"no nvidia-fs (mode {profile.mode})", absent, {})])
    otherwise = f"the repositories have no {platform.libcufile_package} with its {platform.gds_tools_package}"
    options.add("libcufile", profile.libcufile, _libraries(platform, universe), otherwise)
    if profile.doca:
        # The profile's other packages come in the versions of the first one's repository.
        otherwise = f"the repositories have no {profile.doca[0]}"
        options.add("doca", "newest", _docas(profile.doca[0], platform, universe), otherwise)
    options.missing += metapackages.pulling_drivers(universe, platform, profile.cuda)
    return options


def _add_drivers(options: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    names = platform.driver_packages(profile.driver.flavour, universe.names())
    holders = [candidate for name in names for candidate in universe.named(name)]
    otherwise = f"the repositories have no {platform.driver_package(profile.driver.flavour)}"
    if holders:
        otherwise = f"no driver on offer is complete (the repositories have {', '.join(sorted(names))})"
    options.add("driver", profile.driver.version, _drivers(holders, profile, platform, universe), otherwise)


def _add_packaged(options: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    """The drivers and kernels of which the distribution has built the modules."""
    modules = packaged.built(profile, platform, universe)
    drivers = list(_drivers(packaged.drivers(modules), profile, platform, universe, part="driver-userland"))
    labels = {option.holder.key: option.label for option in drivers if isinstance(option, Option)}
    drivers += packaged.without_userland(modules)
    flavour = profile.kernel.flavour or platform.kernel_flavours(profile.arch)[0]
    otherwise = (
        f"the repositories have no package with the driver's modules ({profile.driver.flavour}) and its userland for"
        f" a kernel of flavour {flavour}"
    )
    instead = f"; choose another driver or kernel flavour, {packaged.INSTEAD}"
    options.add("driver", profile.driver.version, drivers, otherwise, instead)
    no_nvidia_fs = packaged.no_nvidia_fs(profile, platform, universe)
    _add_kernels(
        options, profile, platform, universe, partial(packaged.kernels, modules=modules, labels=labels), no_nvidia_fs
    )


def _preferred_first(platform: StackPlatform, universe: Universe, candidates: list[Candidate]) -> list[Candidate]:
    """By the profile's order of repositories, of one maker the newest first."""
    newest = sorted(candidates, key=lambda c: platform.order.key(c.version), reverse=True)
    return sorted(newest, key=lambda c: universe.precedence(c.origin))


def _drivers(
    holders: list[Candidate],
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    part: Part = "driver-source",
) -> Iterator[Option | Incomplete]:
    """The drivers that ``holders`` are the packages of; part: what those are in the stack."""
    flavour, labels = profile.driver.flavour, set[str]()
    for candidate in _preferred_first(platform, universe, holders):
        version = platform.upstream_version(candidate.version)
        names, stub = (version, candidate.version), platform.stands_for(candidate)
        label = f"driver {version} ({flavour})"
        # The same driver from another maker, or under another name, needs its own label.
        if stub or label in labels:
            label = f"driver {version} ({flavour}, {candidate.package} of {candidate.origin})"
        labels.add(label)
        companions, lacks = _companions(label, candidate, profile, platform, universe)
        if stub:
            words = f"{candidate} is an empty package that pulls {stub}: name that branch in the pin if it is wanted."
            lacks = RefusedChoice(what=label, rule="transitional", words=words)
        if lacks:
            yield Incomplete("driver", candidate.version, lacks, names)
            continue
        facts = {"driver": version, "driver_package": candidate.version, "driver_origin": candidate.origin}
        packages: dict[Part, Candidate] = {part: candidate}
        yield Option("driver", label, facts, packages, candidate.version, names, companions=companions)


def _companions(
    label: str, driver: Candidate, profile: Profile, platform: StackPlatform, universe: Universe
) -> tuple[tuple[Candidate, ...], RefusedChoice | None]:
    """The companions that the profile asks for, each of the driver's own version and maker, or which is missing.

    With nvlink5 come the fabric manager, and an NVLSM of any version: the package set chooses that one.
    """
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
    options: Options,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    choices: Callable[..., Iterator[Option | Incomplete]] | None = None,
    instead: str = "",
) -> None:
    """The kernels of the profile's flavour; without any, the problem names the other flavours.

    choices: makes their options; None: of kernels that have headers.  instead: what to do without any.
    """
    flavours = platform.kernel_flavours(profile.arch)
    flavour = profile.kernel.flavour or flavours[0]
    if flavour not in flavours:
        words = f"{platform.os} has no kernel flavour {flavour!r} for {profile.arch}; it has {', '.join(flavours)}"
        options.missing.append(f"[kernel] {words}")
        options.levels.append([])
        return
    kernels = list(platform.kernel_images(universe, profile.arch))
    kernels.sort(key=lambda kernel: platform.order.key(kernel.image.version), reverse=True)
    mine = [kernel for kernel in kernels if kernel.flavour == flavour]
    otherwise = f"the repositories have no kernel image of flavour {flavour} with headers of its version"
    if choices is not None:
        otherwise = f"the repositories have no kernel of flavour {flavour} with packages of all its modules"
    instead = instead or _other_flavours([kernel for kernel in kernels if kernel.flavour != flavour], profile, platform)
    versions = (choices or _kernels)(mine, profile, platform, universe)
    options.add("kernel", profile.kernel.version, versions, otherwise, instead)


def _other_flavours(kernels: Sequence[KernelImage], profile: Profile, platform: StackPlatform) -> str:
    """The flavours of ``kernels``, newest first, each with its newest release, and the line that asks for one."""
    newest: dict[str, KernelImage] = {}
    for kernel in kernels:
        newest.setdefault(kernel.flavour, kernel)
    if not newest:
        return ""
    listed = ", ".join(f"{name} ({newest[name].release})" for name in sorted(newest))
    pin = version_rules.parse(profile.kernel.version)
    admitted = next((k.flavour for k in kernels if pin.admits(*platform.kernel_names(k))), "")
    version = f'version: "{profile.kernel.version}", ' if admitted and pin.terms else ""
    line = f"`kernel: {{{version}flavour: {admitted or min(newest)}}}`"
    return f". Other kernel flavours on offer, with their newest: {listed}; to lock one, write {line} in the profile"


def _kernels(
    kernels: Sequence[KernelImage], profile: Profile, platform: StackPlatform, universe: Universe
) -> Iterator[Option | Incomplete]:
    for kernel in kernels:
        image, release = kernel.image, kernel.release
        names = platform.kernel_names(kernel)
        if other := _other_kernel(release, profile.doca):
            refused = RefusedChoice(what=f"kernel {release}", rule="doca-kernel", words=other)
            yield Incomplete("kernel", image.version, refused, names)
            continue
        label, headers_name = f"kernel {release}", platform.kernel_packages(release)[1]
        headers = [c for c in universe.named(headers_name) if c.version == image.version]
        if not headers:
            words = f"The repositories have the image, but no {headers_name} {image.version} to build modules with."
            refused = RefusedChoice(what=label, rule="kernel-headers", words=words)
            yield Incomplete("kernel", image.version, refused, names)
            continue
        # DOCA's nvme takes the place of the kernel's own.
        own_hooks = has_nvme_hooks(release) and not any("nvme" in package for package in profile.doca)
        facts = {
            "kernel": names[0], "kernel_package": image.version, "kernel_flavour": kernel.flavour,
            "nvme_hooks": "kernel" if own_hooks else "ofed",
        }  # fmt: skip
        packages: dict[Part, Candidate] = {"kernel-image": image, "kernel-headers": headers[0]}
        yield Option("kernel", label, facts, packages, image.version, names, release)


def _other_kernel(release: str, packages: Sequence[str]) -> str:
    """Why DOCA's modules don't fit kernel ``release``, where ``packages`` have those that were built for one kernel.

    ``doca-kernel-6.14.0.37.generic`` is for 6.14.0-37-generic, and no package relation says so.
    """
    kernels = [name for name in packages if name.startswith(_DOCA_KERNEL)]
    fits = not kernels or _DOCA_KERNEL + re.sub("[-_]", ".", release) in kernels
    return "" if fits else f"The profile asks for modules that were built for another kernel: {', '.join(kernels)}."


def _nvidia_fs(platform: StackPlatform, universe: Universe) -> Iterator[Option]:
    for candidate in _preferred_first(platform, universe, universe.named(platform.nvidia_fs_package)):
        version = platform.upstream_version(candidate.version)
        facts = {"nvidia_fs": version, "nvidia_fs_package": candidate.version, "nvidia_fs_origin": candidate.origin}
        packages: dict[Part, Candidate] = {"nvidia-fs-source": candidate}
        names = (version, candidate.version)
        yield Option("nvidia-fs", f"nvidia-fs {version}", facts, packages, candidate.version, names)


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
            continue
        facts = {"libcufile": version, "cuda": platform.cuda_version(candidate)}
        packages: dict[Part, Candidate] = {"libcufile": candidate, "gds-tools": tools[0]}
        yield Option("libcufile", label, facts, packages, candidate.version, names)


def _docas(package: str, platform: StackPlatform, universe: Universe) -> Iterator[Option]:
    for candidate in _preferred_first(platform, universe, universe.named(package)):
        version = platform.upstream_version(candidate.version)
        names = (version, candidate.version)
        yield Option("doca", f"doca {version}", {"doca": version}, {"doca": candidate}, names[1], names)
