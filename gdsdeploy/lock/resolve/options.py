"""What there is to choose from: each part's versions on offer that the pins admit, newest first.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gdsdeploy.host.model import version_rules
from gdsdeploy.lock.resolve import metapackages
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Part, Refused
from gdsdeploy.platform.base import StackPlatform
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.packages import Universe

Subject = Literal["driver", "kernel", "nvidia-fs", "libcufile", "doca"]


@dataclass(frozen=True)
class Option:
    """One version of one subject."""

    subject: Subject
    #: e.g. ``kernel 6.12.94+deb13-amd64``
    label: str
    #: what the compatibility rules may ask about it
    facts: Mapping[str, str | None]
    #: the exact packages that it stands for
    packages: Mapping[Part, Candidate]
    #: of the package that the option is named after
    version: str = "0"
    #: what a pin may call it; bounds look at the first
    names: tuple[str, ...] = ("0",)
    #: for a kernel: as ``uname -r`` prints it
    release: str = ""
    #: for a driver: the companions of its version that the profile asks for
    companions: tuple[Candidate, ...] = ()

    def members(self) -> Iterator[tuple[Part, Candidate]]:
        """Every package that it stands for, with what that is in the stack."""
        yield from self.packages.items()
        yield from (("companion", candidate) for candidate in self.companions)


@dataclass(frozen=True)
class Incomplete:
    """A version on offer that lacks a package it cannot be used without."""

    subject: Subject
    #: of the package that is there
    version: str
    refused: Refused


@dataclass
class Options:
    """The options of all subjects, and what could have been one."""

    levels: list[list[Option]] = field(default_factory=list)
    incomplete: list[Incomplete] = field(default_factory=list)
    #: subjects that nothing is left of, in words
    missing: list[str] = field(default_factory=list)

    def add(self, subject: str, pin: str, offered: Sequence[Option], otherwise: str) -> None:
        """Take what the pin admits of the offered options; ``otherwise``: words for when there are none."""
        expression = version_rules.parse(pin)
        admitted = [option for option in offered if expression.admits(*option.names)]
        self.levels.append(admitted)
        if not offered:
            self.missing.append(f"[{subject}] {otherwise}")
        elif not admitted:
            there = ", ".join(option.names[0] for option in offered[:12]) + (", …" if len(offered) > 12 else "")
            self.missing.append(f"[pin] the pin {subject}: {pin!r} admits nothing that is on offer: {there}")


def find(profile: Profile, platform: StackPlatform, universe: Universe) -> Options:
    """The options for a profile, subject by subject in the order in which they are chosen."""
    found = Options()
    _driver(found, profile, platform, universe)
    _kernel(found, profile, platform, universe)
    if profile.mode == "nvidia-fs":
        _nvidia_fs(found, profile, platform, universe)
    else:
        absent: dict[str, str | None] = dict.fromkeys(("nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin"))
        found.levels.append([Option("nvidia-fs", f"no nvidia-fs (mode {profile.mode})", absent, {})])
    _libcufile(found, profile, platform, universe)
    if profile.doca:
        _doca(found, profile, platform, universe)
    found.missing += metapackages.refused(universe, platform, profile.cuda)
    return found


def _preferred_first(platform: StackPlatform, universe: Universe, candidates: list[Candidate]) -> list[Candidate]:
    """By the profile's order of repositories, of one maker the newest first."""
    newest = sorted(candidates, key=lambda c: platform.order.key(c.version), reverse=True)
    return sorted(newest, key=lambda c: universe.precedence(c.origin))


def _driver(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    flavour = profile.driver.flavour
    holders = platform.driver_packages(flavour, universe.names())
    pin, labels = version_rules.parse(profile.driver.version), set[str]()
    offered = []
    for candidate in _preferred_first(platform, universe, [c for name in holders for c in universe.named(name)]):
        version = platform.upstream_version(candidate.version)
        names, stub = (version, candidate.version), platform.stands_for(candidate)
        label = f"driver {version} ({flavour})"
        # The same driver from another maker, or under another name, has to be told apart.
        if stub or label in labels:
            label = f"driver {version} ({flavour}, {candidate.package} of {candidate.origin})"
        labels.add(label)
        companions, lacks = _companions(label, candidate, profile, platform, universe)
        if stub:
            words = f"{candidate} is an empty package that pulls {stub}: name that branch in the pin if it is wanted."
            lacks = Refused(what=label, rule="transitional", words=words)
        if lacks:
            if pin.admits(*names):
                found.incomplete.append(Incomplete("driver", candidate.version, lacks))
            continue
        facts = {"driver": version, "driver_package": candidate.version, "driver_origin": candidate.origin}
        packages: dict[Part, Candidate] = {"driver-source": candidate}
        offered.append(Option("driver", label, facts, packages, candidate.version, names, companions=companions))
    otherwise = f"the repositories have no {platform.driver_package(flavour)}"
    if found.incomplete:
        otherwise = f"no driver on offer is complete (the repositories have {', '.join(sorted(holders))})"
    found.add("driver", profile.driver.version, offered, otherwise)


def _companions(
    label: str, driver: Candidate, profile: Profile, platform: StackPlatform, universe: Universe
) -> tuple[tuple[Candidate, ...], Refused | None]:
    """The companions that the profile asks for, each of the driver's own version and maker, or which is lacking."""
    found: list[Candidate] = []
    version = platform.upstream_version(driver.version)
    for companion in profile.companions:
        names = platform.companion_packages(companion, driver)
        there = [c for name in names for c in universe.named(name) if c.origin == driver.origin]
        same = [c for c in there if platform.upstream_version(c.version) == version]
        if not same:
            offered = ", ".join(map(str, there[:6])) or "nothing of the kind from this maker"
            words = f"It needs {companion} of its own version ({names[0]} {version}); there is {offered}."
            return (), Refused(what=label, rule="companion", words=words)
        found.append(_preferred_first(platform, universe, same)[0])
    return tuple(found), None


def _kernel(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    images = list(platform.kernel_images(universe, profile.arch))
    images.sort(key=lambda pair: platform.order.key(pair[0].version), reverse=True)
    offered = []
    pin = version_rules.parse(profile.kernel)
    for image, release in images:
        names = platform.kernel_names(image, release)
        label, headers_name = f"kernel {release}", platform.kernel_packages(release)[1]
        headers = [c for c in universe.named(headers_name) if c.version == image.version]
        if not headers:
            words = f"The repositories have the image, but no {headers_name} {image.version} to build modules with."
            if pin.admits(*names):
                refused = Refused(what=label, rule="kernel-headers", words=words)
                found.incomplete.append(Incomplete("kernel", image.version, refused))
            continue
        facts = {"kernel": names[0], "kernel_package": image.version}
        packages: dict[Part, Candidate] = {"kernel-image": image, "kernel-headers": headers[0]}
        offered.append(Option("kernel", label, facts, packages, image.version, names, release))
    found.add("kernel", profile.kernel, offered, "the repositories have no kernel image with headers of its version")


def _nvidia_fs(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    package = platform.nvidia_fs_package()
    offered = []
    for candidate in _preferred_first(platform, universe, universe.named(package)):
        version = platform.upstream_version(candidate.version)
        facts = {
            "nvidia_fs": version, "nvidia_fs_package": candidate.version, "nvidia_fs_origin": candidate.origin,
        }  # fmt: skip
        packages: dict[Part, Candidate] = {"nvidia-fs-source": candidate}
        names = (version, candidate.version)
        offered.append(Option("nvidia-fs", f"nvidia-fs {version}", facts, packages, candidate.version, names))
    found.add("nvidia_fs", profile.nvidia_fs, offered, f"the repositories have no {package}")


def _libcufile(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    tools_of = dict(platform.libcufile_packages(universe.names()))
    libraries = [c for name in sorted(tools_of) for c in universe.named(name)]
    offered = []
    for candidate in _preferred_first(platform, universe, libraries):
        tools_name = tools_of[candidate.package]
        version = platform.upstream_version(candidate.version)
        label = f"libcufile {version}"
        tools = [c for c in universe.named(tools_name) if c.version == candidate.version]
        if not tools:
            words = f"The repositories have no {tools_name} {candidate.version} that goes with it."
            refused = Refused(what=label, rule="gds-tools", words=words)
            if version_rules.parse(profile.libcufile).admits(version, candidate.version):
                found.incomplete.append(Incomplete("libcufile", candidate.version, refused))
            continue
        facts = {"libcufile": version, "cuda": platform.cuda_version(candidate)}
        packages: dict[Part, Candidate] = {"libcufile": candidate, "gds-tools": tools[0]}
        names = (version, candidate.version)
        offered.append(Option("libcufile", label, facts, packages, candidate.version, names))
    otherwise = f"the repositories have no {platform.libcufile_package()} with its {platform.gds_tools_package()}"
    found.add("libcufile", profile.libcufile, offered, otherwise)


def _doca(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    """The versions of the first package that the profile names; the others come as that one's repository has them."""
    package = profile.doca[0]
    offered = []
    for candidate in _preferred_first(platform, universe, universe.named(package)):
        version = platform.upstream_version(candidate.version)
        names = (version, candidate.version)
        offered.append(Option("doca", f"doca {version}", {"doca": version}, {"doca": candidate}, names[1], names))
    found.add("doca", "newest", offered, f"the repositories have no {package}")
