"""The shape of a platform: names and layouts that the rest of the program asks for instead of knowing."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from gdsdeploy.model.lock import Part
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.order import DEB, Kind, Order, upstream
from gdsdeploy.repo.packages import Universe

Flavour = Literal["open", "proprietary"]
Rdma = Literal["none", "peermem", "dmabuf"]
Companion = Literal["persistenced", "fabricmanager", "imex"]


@dataclass(frozen=True)
class Preset:
    """A repository of the distribution itself, so that a fleet file need not spell it out."""

    suites: tuple[str, ...]
    components: tuple[str, ...]
    #: on the controller and on the host
    keyring: Path
    #: primary keys that may sign; a test holds them against the distribution's real keyring
    fingerprints: tuple[str, ...]
    #: suites, of any release, by which apt's own configuration names this archive
    known_as: re.Pattern[str]


@dataclass(frozen=True)
class Wanted:
    """A package that the stack consists of, apart from what it depends on."""

    package: str
    part: Part
    needed_by: Literal["host", "build"]
    #: taken where the repositories have it
    optional: bool = False


@dataclass(frozen=True)
class Packaging:
    """How its maker packages one driver: names and places."""

    #: directory of the source tree on the host, and its DKMS name
    tree: str
    dkms_name: str
    #: name of the module file, without ending
    module: str
    #: what else of the driver a host needs
    further: tuple[Wanted, ...]
    #: packages that must not be chosen beside this driver
    excluded: tuple[re.Pattern[str], ...]


@dataclass(frozen=True)
class StackPlatform(ABC):
    """An operating system release, and how its packages are named and laid out."""

    #: the family of package managers that its repositories are for
    kind: ClassVar[Kind] = "apt"
    order: ClassVar[Order] = DEB
    #: the program that installs packages there: a module of gdsdeploy/host/apply/packages
    manager: ClassVar[str] = "apt"

    #: as a profile names it, e.g. ``debian-13``
    os: str
    #: ``debian``, ``ubuntu`` or ``rhel``
    family: str
    release: str
    #: source packages that make up the stack: what is built from them is locked, and nothing else is
    stack_sources: tuple[re.Pattern[str], ...]
    #: of these, the ones whose packages have to be of the driver's own version
    driver_sources: tuple[re.Pattern[str], ...]

    @abstractmethod
    def architecture(self, arch: str) -> str:
        """The package manager's name for ``arch`` (``uname -m``)."""

    @abstractmethod
    def presets(self) -> dict[str, Preset]:
        """Repositories that a profile of this system has without naming them."""

    @abstractmethod
    def kernel_release(self, package: str, arch: str) -> str | None:
        """What ``uname -r`` prints under a kernel image package; None for a package that is no stock kernel."""

    def kernel_images(self, universe: Universe, arch: str) -> Iterable[tuple[Candidate, str]]:
        """Every stock kernel image on offer, with what ``uname -r`` prints under it."""
        for name in universe.names():
            release = self.kernel_release(name, arch)
            if release is not None:
                yield from ((candidate, release) for candidate in universe.named(name))

    def kernel_names(self, image: Candidate, release: str) -> tuple[str, ...]:
        """What a pin may call this kernel; bounds look at the first, and the compatibility rules see it."""
        return upstream(image.version), release, release.rsplit("-", 1)[0], image.version

    @abstractmethod
    def kernel_packages(self, release: str) -> tuple[str, str]:
        """Names of the image and the headers package of a kernel release."""

    @abstractmethod
    def driver_package(self, flavour: Flavour) -> str:
        """Name of the package that holds the driver's source tree."""

    def driver_packages(self, flavour: Flavour, names: Iterable[str]) -> list[str]:  # noqa: ARG002 - see ubuntu.py
        """Of ``names``, each package that holds a driver's source tree or, in some repositories, its place."""
        return [self.driver_package(flavour)]

    def stands_for(self, driver: Candidate) -> str:  # noqa: ARG002 - see ubuntu.py
        """What an empty driver package only passes on to, in words; empty for a package with a driver in it."""
        return ""

    def packaging(self, driver: Candidate, flavour: Flavour, rdma: Rdma) -> Packaging:
        """How the maker of the package ``driver`` packages that driver."""
        tree, name = self.driver_tree(flavour, self.upstream_version(driver.version))
        excluded = self.excluded(flavour)
        return Packaging(tree, name, self.driver_module(flavour), self.further_packages(flavour, rdma), excluded)

    def companion_packages(self, companion: Companion, driver: Candidate) -> tuple[str, ...]:
        """Names under which a companion of ``driver`` may come, first wanted first.

        The branch is a part of the name in older releases (nvidia-imex-570), and the fabric manager has two names.
        """
        branch = self.upstream_version(driver.version).split(".", 1)[0]
        names = ("fabricmanager", "fabric-manager") if companion == "fabricmanager" else (companion,)
        return tuple(f"nvidia-{name}{suffix}" for suffix in (f"-{branch}", "") for name in names)

    @abstractmethod
    def nvidia_fs_package(self) -> str:
        """Name of the package that holds nvidia-fs's source tree."""

    @abstractmethod
    def libcufile_package(self) -> str:
        """Name of the package that holds libcufile."""

    @abstractmethod
    def gds_tools_package(self) -> str:
        """Name of the package that holds gdscheck and gdsio; its version equals libcufile's."""

    def libcufile_packages(self, names: Iterable[str]) -> list[tuple[str, str]]:  # noqa: ARG002 - see rhel.py
        """Of ``names``, each package that holds a libcufile, with that of its gds-tools."""
        return [(self.libcufile_package(), self.gds_tools_package())]

    @abstractmethod
    def further_packages(self, flavour: Flavour, rdma: Rdma) -> tuple[Wanted, ...]:
        """What else the stack has, beside kernel, driver source, nvidia-fs, libcufile and gds-tools."""

    def kernel_extras(self, release: str) -> tuple[Wanted, ...]:  # noqa: ARG002 - see ubuntu.py
        """What a kernel's image leaves to packages that it does not depend on."""
        return ()

    def library_packages(self, library: Candidate, rdma: Rdma) -> tuple[Wanted, ...]:  # noqa: ARG002 - see debian.py
        """What belongs to this libcufile, apart from its gds-tools."""
        return ()

    @abstractmethod
    def excluded(self, flavour: Flavour) -> tuple[re.Pattern[str], ...]:
        """Packages that must not be chosen: the other flavour's, and other driver series'."""

    @abstractmethod
    def upstream_version(self, version: str) -> str:
        """Upstream's own version number in a package version."""

    @abstractmethod
    def cuda_version(self, candidate: Candidate) -> str | None:
        """The CUDA release that a GDS package belongs to, if it says so."""

    @abstractmethod
    def driver_tree(self, flavour: Flavour, version: str) -> tuple[str, str]:
        """Directory of the driver's source on the host, and its DKMS name."""

    @abstractmethod
    def nvidia_fs_tree(self, version: str) -> tuple[str, str]:
        """Directory of nvidia-fs's source on the host, and its DKMS name."""

    def nvidia_fs_source(self, package: Candidate) -> tuple[str, str]:
        """Where ``package`` puts nvidia-fs's source on the host, and its DKMS name."""
        return self.nvidia_fs_tree(self.upstream_version(package.version))

    @abstractmethod
    def kept_out(self) -> tuple[str, ...]:
        """Globs of packages that could move the stack, and are refused in every version that the lock does not name."""

    @abstractmethod
    def driver_module(self, flavour: Flavour) -> str:
        """Name of the driver's module file, without ending: what modprobe.d options have to be given for."""

    def module_streams(self, driver: str, flavour: Flavour) -> dict[str, str]:  # noqa: ARG002 - see rhel.py
        """Module streams to enable for a pin of the driver: module → stream."""
        return {}

    @abstractmethod
    def part(self, candidate: Candidate) -> Part:
        """What a package is that came in as a dependency."""

    def in_stack(self, candidate: Candidate) -> bool:
        """Whether the lock has to hold this package, rather than leave it to the host's own updates."""
        return any(pattern.fullmatch(candidate.source) for pattern in self.stack_sources)

    def follows_driver(self, candidate: Candidate) -> bool:
        """Whether this package has to be of the driver's own upstream version."""
        return any(pattern.fullmatch(candidate.source) for pattern in self.driver_sources)

    def of_driver(self, candidate: Candidate) -> bool:
        """Whether this package is a piece of a driver, so that it has to come from the driver's own maker."""
        return self.follows_driver(candidate)
