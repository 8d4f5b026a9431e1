"""What there is to choose from: each part's versions on offer that the pins admit, newest first.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gdsdeploy import versions
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Part, Refused
from gdsdeploy.platform.base import StackPlatform
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.packages import Universe

Subject = Literal["driver", "kernel", "nvidia-fs", "libcufile"]


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
    #: for a kernel: as ``uname -r`` prints it
    release: str = ""


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

    def add(self, subject: str, pin: str, offered: Sequence[tuple[Option, tuple[str, ...]]], otherwise: str) -> None:
        """Take what the pin admits of the offered options with their version names; ``otherwise``: none was offered."""
        expression = versions.parse(pin)
        admitted = [option for option, names in offered if expression.admits(*names)]
        self.levels.append(admitted)
        if not offered:
            self.missing.append(f"[{subject}] {otherwise}")
        elif not admitted:
            there = ", ".join(names[0] for _, names in offered[:12]) + (", …" if len(offered) > 12 else "")
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
    return found


def _newest_first(platform: StackPlatform, candidates: list[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda c: platform.order.key(c.version), reverse=True)


def _driver(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    package, flavour = platform.driver_package(profile.driver.flavour), profile.driver.flavour
    offered = []
    for candidate in _newest_first(platform, universe.named(package)):
        version = platform.upstream_version(candidate.version)
        facts = {"driver": version, "driver_package": candidate.version, "driver_origin": candidate.origin}
        option = Option(
            "driver", f"driver {version} ({flavour})", facts, {"driver-source": candidate}, candidate.version
        )
        offered.append((option, (version, candidate.version)))
    found.add("driver", profile.driver.version, offered, f"the repositories have no {package}")


def _kernel(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    images = list(platform.kernel_images(universe, profile.arch))
    images.sort(key=lambda pair: platform.order.key(pair[0].version), reverse=True)
    offered = []
    pin = versions.parse(profile.kernel)
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
        offered.append((Option("kernel", label, facts, packages, image.version, release), names))
    found.add("kernel", profile.kernel, offered, "the repositories have no kernel image with headers of its version")


def _nvidia_fs(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    package = platform.nvidia_fs_package()
    offered = []
    for candidate in _newest_first(platform, universe.named(package)):
        version = platform.upstream_version(candidate.version)
        facts = {
            "nvidia_fs": version, "nvidia_fs_package": candidate.version, "nvidia_fs_origin": candidate.origin,
        }  # fmt: skip
        option = Option("nvidia-fs", f"nvidia-fs {version}", facts, {"nvidia-fs-source": candidate}, candidate.version)
        offered.append((option, (version, candidate.version)))
    found.add("nvidia_fs", profile.nvidia_fs, offered, f"the repositories have no {package}")


def _libcufile(found: Options, profile: Profile, platform: StackPlatform, universe: Universe) -> None:
    tools_of = dict(platform.libcufile_packages(universe.names()))
    offered = []
    for candidate in _newest_first(platform, [c for name in sorted(tools_of) for c in universe.named(name)]):
        tools_name = tools_of[candidate.package]
        version = platform.upstream_version(candidate.version)
        label = f"libcufile {version}"
        tools = [c for c in universe.named(tools_name) if c.version == candidate.version]
        if not tools:
            words = f"The repositories have no {tools_name} {candidate.version} that goes with it."
            refused = Refused(what=label, rule="gds-tools", words=words)
            found.incomplete.append(Incomplete("libcufile", candidate.version, refused))
            continue
        facts = {"libcufile": version, "cuda": platform.cuda_version(candidate)}
        packages: dict[Part, Candidate] = {"libcufile": candidate, "gds-tools": tools[0]}
        offered.append((Option("libcufile", label, facts, packages, candidate.version), (version, candidate.version)))
    otherwise = f"the repositories have no {platform.libcufile_package()} with its {platform.gds_tools_package()}"
    found.add("libcufile", profile.libcufile, offered, otherwise)
