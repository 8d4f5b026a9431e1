"""The interface of a platform, what platforms share, and the repositories that a fleet file uses by name alone.

Repositories: NVIDIA's; a system's own, and EPEL's, are with it.  The addresses are the vendors' own, as their setup
guides and .repo files have them.  The fingerprints are from the vendors' pages about their keys, or from several public
installers that pin them; without one, the fleet file names it.

Packages of NVIDIA's CUDA repository for apt have the names of NVIDIA's driver installation guide and release notes;
those of Ubuntu's own archive are the same.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from gdsdeploy.host.kmod.flavour import flavour_of
from gdsdeploy.host.model.compat import Version, kernel_version
from gdsdeploy.model.lock import Part
from gdsdeploy.model.profile_parts import Companion
from gdsdeploy.repo.packages import DEB, NVIDIA, Candidate, Kind, Order, Universe, upstream

Flavour = Literal["open", "proprietary"]
Rdma = Literal["none", "peermem", "dmabuf"]
#: NVIDIA's subnet manager of NVLink, which the fabric manager starts; its versions aren't the driver's.
NVLSM: Final = "nvlsm"


@dataclass(frozen=True)
class Preset:
    """A repository that a fleet file uses by its name; it has to give what is left open here."""

    suites: tuple[str, ...]
    components: tuple[str, ...]
    #: on the controller; on hosts, too, for the system's own
    keyring: Path | None
    #: primary keys that may sign; a test holds Debian's against the distribution's real keyring
    fingerprints: tuple[str, ...]
    #: suites, of any release, by which apt's own configuration names this archive
    known_as: re.Pattern[str] | None = None
    #: the vendor's address, and another one for aarch64
    uri: str = ""
    arm_uri: str = ""
    #: of the repository below its address or below a mirror's; ``{arch}`` as ``uname -m``, ``{sbsa}`` as NVIDIA says it
    path: str = ""
    #: name of several repositories together
    group: str = ""

    def path_for(self, arch: str) -> str:
        """``path`` of an architecture (``uname -m``)."""
        return self.path.format(arch=arch, sbsa="sbsa" if arch == "aarch64" else arch)


@dataclass(frozen=True)
class KernelImage:
    """A stock kernel on offer: the package that brings its image."""

    image: Candidate
    #: as ``uname -r`` prints it
    release: str
    #: one of :meth:`StackPlatform.kernel_flavours`
    flavour: str

    @property
    def names(self) -> Version:
        """What pins and the compatibility rules may call it."""
        return kernel_version(self.release, self.image.version)


@dataclass(frozen=True)
class BuiltModules:
    """A package with a driver's modules for one kernel, built and signed by the distribution."""

    package: Candidate
    #: upstream's version of the driver
    version: str
    #: of the same maker and version: the package by which the userland's others are told; None: none is on offer
    driver: Candidate | None
    #: versions of that package that are on offer, for an error
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackPackage:
    """A package of the stack itself, not only a dependency."""

    package: str
    part: Part
    needed_by: Literal["host", "build"]
    #: used if the repositories have it
    optional: bool = False


@dataclass(frozen=True)
class Packaging:
    """How its maker packages one driver.  Its source tree and DKMS name are in the package: see lock/sources.py."""

    #: name of the module file, without ending
    module: str
    #: the driver's other packages that a host needs
    further: tuple[StackPackage, ...]
    #: packages that must not be chosen beside this driver
    excluded: tuple[re.Pattern[str], ...]
    #: packages that pull a driver of whichever version; only those that hosts have already are chosen
    umbrellas: tuple[re.Pattern[str], ...] = ()


@dataclass(frozen=True)
class StackPlatform(ABC):
    """An operating system release, and how its packages are named and laid out."""

    #: the family of package managers that its repositories are for
    kind: ClassVar[Kind] = "apt"
    order: ClassVar[Order] = DEB
    #: the program that installs packages there: a module of gdsdeploy/host/apply/packages
    manager: ClassVar[str] = "apt"
    #: packages that hold nvidia-fs's source tree, libcufile, and gdscheck with gdsio in libcufile's version
    nvidia_fs_package: ClassVar[str] = "nvidia-fs-dkms"
    libcufile_package: ClassVar[str] = "libcufile0"
    gds_tools_package: ClassVar[str] = "gds-tools"
    #: flavour → the package that holds the driver's source tree
    dkms_package: ClassVar[Mapping[Flavour, str]]
    #: flavour → the driver's module file, without ending, for options in modprobe.d
    driver_module: ClassVar[Mapping[Flavour, str]] = {"open": "nvidia", "proprietary": "nvidia"}
    #: globs of packages that could move the stack; every version outside the lock is refused
    kept_out: ClassVar[tuple[str, ...]]
    #: subject → how its versions are written: pins have one of these forms
    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "driver": ("580.95.05", "580.95.05-0ubuntu1"),
        "kernel": ("6.8.0", "6.8.0-90", "6.8.0-90-generic", "6.8.0-90.91"),
        "nvidia_fs": ("2.26.6", "2.26.6-1"),
        "libcufile": ("1.15.1.6", "1.15.1.6-1"),
    }

    #: as a profile names it, e.g. ``debian-13``
    os: str
    #: by which rules of compat.yml speak about it: ``debian``, ``ubuntu``, ``rhel`` …
    family: str
    release: str

    @abstractmethod
    def architecture(self, arch: str) -> str:
        """The package manager's name for ``arch`` (``uname -m``)."""

    @abstractmethod
    def presets(self) -> dict[str, Preset]:
        """Repositories that a profile of this system has without naming them."""

    def cuda_repository(self) -> tuple[str, str]:
        """NVIDIA's name of the system in its CUDA repositories, and their key there.

        Both are empty where NVIDIA has none for it, and the key where only a short id of it is known.
        """
        return "", ""

    def vendor_presets(self) -> dict[str, Preset]:
        """Repositories of others, which a profile names: ``nvidia``, and ``epel`` for RHEL and its equals."""
        name, key = self.cuda_repository()
        if not name:
            return {}
        flat = self.kind == "apt"
        keyring = _CUDA_KEYRING if flat else RPM_KEYS / "RPM-GPG-KEY-NVIDIA"
        keys, suites = (key,) if key else (), ("/",) if flat else ()
        return {"nvidia": Preset(suites, (), keyring if key else None, keys, uri=_CUDA, path=f"{name}/{{sbsa}}")}

    @abstractmethod
    def kernel_flavours(self, arch: str) -> tuple[str, ...]:
        """The builds of its kernel for ``arch``; the first is what a profile gets that names none."""

    @abstractmethod
    def kernel_images(self, universe: Universe, arch: str) -> Iterable[KernelImage]:
        """Every stock kernel on offer, of whichever flavour."""

    @abstractmethod
    def kernel_packages(self, release: str) -> tuple[str, str]:
        """Names of the image and the headers package of a kernel release."""

    def driver_packages(self, flavour: Flavour, names: Iterable[str]) -> list[str]:  # noqa: ARG002 - see ubuntu.py
        """Of ``names``, each package that holds a driver's source tree or, in some repositories, its place."""
        return [self.dkms_package[flavour]]

    def no_packaged_modules(self, flavour: Flavour) -> str:  # noqa: ARG002 - see ubuntu.py
        """Why the driver's modules can't come from packages of this system, in words; empty: they can."""
        return f"no packages with modules of NVIDIA's driver for {self.os}'s own kernels are known"

    def built_modules(
        self,
        universe: Universe,  # noqa: ARG002 - see ubuntu.py
        flavour: Flavour,  # noqa: ARG002
    ) -> dict[str, list[BuiltModules]]:
        """Kernel release → the packages on offer with the driver's modules for it."""
        return {}

    def built_nvidia_fs(self, release: str) -> str:  # noqa: ARG002 - see ubuntu.py
        """Name of the package with nvidia-fs for a kernel."""
        return ""

    def displaced_packages(self, branch: str) -> tuple[str, ...]:  # noqa: ARG002 - see ubuntu.py
        """Names of packages that leave for packaged modules: DKMS would build others, or they have the same files."""
        return ()

    def stands_for(self, driver: Candidate) -> str:  # noqa: ARG002 - see ubuntu.py
        """The package that an empty driver package only depends on, in words; empty for a real driver package."""
        return ""

    @abstractmethod
    def packaging(self, driver: Candidate, flavour: Flavour) -> Packaging:
        """How the maker of the package ``driver`` packages that driver."""

    def companion_packages(self, companion: Companion, driver: Candidate) -> tuple[str, ...]:
        """Names that a companion of ``driver`` may have, the preferred one first.

        The branch is a part of the name in older releases (nvidia-imex-570), and the fabric manager has two names.
        The metapackage for fourth-generation NVSwitches has both (nvlink5-580, nvlink5): Fabric Manager User Guide,
        Systems Using Fourth Generation NVSwitches, and package lists of Amazon Linux 2023.
        """
        branch = self.upstream_version(driver.version).split(".", 1)[0]
        if companion == "nvlink5":
            return f"nvlink5-{branch}", "nvlink5"
        names = ("fabricmanager", "fabric-manager") if companion == "fabricmanager" else (companion,)
        return tuple(f"nvidia-{name}{suffix}" for suffix in (f"-{branch}", "") for name in names)

    def libcufile_packages(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Of ``names``, each package that holds the libcufile of a CUDA release, with that of its gds-tools."""
        matches = filter(None, (_LIBCUFILE.fullmatch(name) for name in names if name.startswith("libcufile-")))
        return sorted((match[0], f"gds-tools-{match[1]}-{match[2]}") for match in matches)

    def kernel_extras(self, release: str) -> tuple[StackPackage, ...]:  # noqa: ARG002 - see ubuntu.py
        """Packages of a kernel that its image doesn't depend on."""
        return ()

    def library_packages(self, library: Candidate, rdma: Rdma) -> tuple[StackPackage, ...]:  # noqa: ARG002 - see dpkg.py
        """Packages that belong to this libcufile, apart from its gds-tools."""
        return ()

    def upstream_version(self, version: str) -> str:
        """Upstream's own version number in a package version."""
        # GDS packages carry the CUDA release behind "~": 2.19.7~12.4.1-2.
        return upstream(version).split("~", 1)[0]

    def cuda_version(self, candidate: Candidate) -> str | None:
        """The CUDA release that a GDS package belongs to, if it says so: 12.4 for libcufile-12-4."""
        match = _LIBCUFILE.fullmatch(candidate.package)
        return f"{match[1]}.{match[2]}" if match else None

    @abstractmethod
    def may_be_adopted(self, name: str) -> bool:
        """Whether a package of a host is by its name a piece of a driver or of GDS that a lock may have, too."""

    def module_streams(self, driver: str, flavour: Flavour) -> dict[str, str]:  # noqa: ARG002 - see rhel.py
        """Module streams to enable for a pin of the driver: module → stream."""
        return {}

    @abstractmethod
    def part(self, candidate: Candidate) -> Part:
        """The part of the stack that a dependency belongs to."""

    @abstractmethod
    def in_stack(self, candidate: Candidate) -> bool:
        """Whether the lock holds this package; otherwise the host's own updates decide."""

    @abstractmethod
    def follows_driver(self, candidate: Candidate) -> bool:
        """Whether this package has to be of the driver's own upstream version."""

    def of_driver(self, candidate: Candidate) -> bool:
        """Whether this package is a piece of a driver, so that it has to come from the driver's own maker."""
        return candidate.package == NVLSM or self.follows_driver(candidate)


#: os → its place in the list of known systems, and the platform
PLATFORMS: dict[str, tuple[int, StackPlatform]] = {}
#: os → why it can't be served, and what to do
REFUSED: dict[str, tuple[str, str]] = {}


def register(platform: StackPlatform, rank: int = 100) -> None:
    """Make a release of an operating system known; raises ValueError for an ``os`` that is taken.

    rank: place in the list of known systems, the smallest first; ties go by the order of registering.
    """
    if platform.os in PLATFORMS:
        raise ValueError(f"two platforms have the name {platform.os}")
    PLATFORMS[platform.os] = (rank, platform)


def refuse(os: str, reason: str, hint: str) -> None:
    """Make a system known as one that can't be served; the reason is a clause after the system's name."""
    REFUSED[os] = (reason, hint)


#: NVIDIA's CUDA repositories: one for each system and architecture.
_CUDA: Final = "https://developer.download.nvidia.com/compute/cuda/repos"
RPM_KEYS: Final = Path("/etc/pki/rpm-gpg")
#: Of the package cuda-keyring.
_CUDA_KEYRING: Final = Path("/usr/share/keyrings/cuda-archive-keyring.gpg")

#: 3bf863cc.pub, 8793F200.pub and D42D0685.pub of the CUDA repositories.
CUDA_DEB: Final = "EB693B3035CD5710E231E123A4B469963BF863CC"
CUDA_DEBIAN_13: Final = "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
CUDA_RPM: Final = "610C7B14E068A878070DA4E99CD0A493D42D0685"
#: Pieces of a driver by name: kernel modules, userland, firmware, and what has to be of the same version.
_DRIVER: Final = re.compile(
    r"(?!nvidia-(?:fs|gds|container|docker|ctk|dcgm|nsight|driver-pinning|cuda-|peer-memory|doca)|libnvidia-container)"
    r"(?:nvidia-.*|libnvidia-.*|libcuda1|libcudadebugger1|libnvsdm.*|nvlink5.*|libnvcuvid1|libnvoptix1|firmware-nvidia-gsp.*"
    r"|xserver-xorg-video-nvidia.*|cuda-drivers.*|lib(?:egl|gl|gles|glx).*-nvidia.*)"
)
#: Debian's and Ubuntu's own helpers, which NVIDIA's packages for them use.
_SHARED_SOURCES: Final = {"nvidia-support", "glx-alternatives"}

#: What pulls a driver of whichever version: never a part of the stack, and ours is complete without.
UMBRELLAS: Final = re.compile(
    r"(?:cuda-drivers|nvidia-open)(?:-[0-9]{3}(?:\.[0-9.]+)?)?"
    r"|nvidia-driver(?:-[0-9]{3}(?:-server)?)?(?:-open)?|nvidia-headless-.*|nvidia-driver-pinning.*"
)
#: Metapackages of GDS.
GDS_UMBRELLAS: Final = re.compile(r"nvidia-fs|nvidia-gds(?:-[0-9]+-[0-9]+)?")
_LIBCUFILE: Final = re.compile(r"libcufile-([0-9]+)-([0-9]+)")

#: Globs of what could move a driver or a piece of GDS, whatever repository it comes from.
KEPT_OUT: Final = (
    "cuda-drivers*", "nvidia-open*", "nvidia-driver*", "nvidia-dkms*", "nvidia-kernel-*", "nvidia-headless-*",
    "nvidia-firmware*", "nvidia-utils*", "nvidia-compute-utils*", "nvidia-modprobe*", "nvidia-persistenced*",
    "nvidia-fabricmanager*", "nvidia-fabric-manager*", "nvidia-imex*", "xserver-xorg-video-nvidia*",
    "nvlink5*", "nvlsm",
    # Every libnvidia-* but libnvidia-container*, the container toolkit's, which is the user's to choose.
    "libnvidia-[!c]*", "libnvidia-c[!o]*", "libnvidia-co[!n]*",
    "nvidia-fs*", "nvidia-gds*", "libcufile*", "gds-tools*",
)  # fmt: skip


def of_driver(candidate: Candidate) -> bool:
    """Whether a package is a piece of some driver."""
    return bool(_DRIVER.fullmatch(candidate.package)) and candidate.source not in _SHARED_SOURCES


def part(candidate: Candidate) -> Part | None:
    """What a package of NVIDIA's or Ubuntu's driver is that came in as a dependency; None for another one."""
    name = candidate.package
    if name == NVLSM:
        return "companion"
    if not of_driver(candidate):
        return "cuda" if candidate.origin == NVIDIA and name.startswith("cuda-") else None
    if name.startswith(("nvidia-kernel-source", "nvidia-dkms")):
        return "driver-source"
    gsp = name.startswith(("nvidia-firmware", "firmware-"))
    beside = re.match(r"nvidia-(?:persistenced|fabric-?manager|imex)|nvlink5", name)
    return "companion" if gsp or beside else "driver-userland"


#: as ``uname -m`` says it → as dpkg says it
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class DpkgPlatform(StackPlatform):
    #: source packages of the stack: only packages built from them are locked, and NVIDIA's
    stack_sources: tuple[re.Pattern[str], ...]
    #: of these, the ones whose packages have to be of the driver's own version
    driver_sources: tuple[re.Pattern[str], ...]
    codename: str

    def architecture(self, arch: str) -> str:
        return ARCHITECTURES[arch]

    def kernel_release(self, package: str, arch: str) -> str | None:
        """What ``uname -r`` prints under an image package of a known flavour; None for any other package."""
        release = package.removeprefix("linux-image-")
        own = flavour_of(release) if release != package else None
        return release if own and own.name in self.kernel_flavours(arch) else None

    def kernel_images(self, universe: Universe, arch: str) -> Iterable[KernelImage]:
        for name in sorted(universe.names()):
            release = self.kernel_release(name, arch)
            own = flavour_of(release) if release else None
            if release and own:
                yield from (KernelImage(candidate, release, own.name) for candidate in universe.named(name))

    def kernel_packages(self, release: str) -> tuple[str, str]:
        return f"linux-image-{release}", f"linux-headers-{release}"

    def libcufile_packages(self, names: Iterable[str]) -> list[tuple[str, str]]:
        return [(self.libcufile_package, self.gds_tools_package), *super().libcufile_packages(names)]

    def library_packages(self, library: Candidate, rdma: Rdma) -> tuple[StackPackage, ...]:
        # NVIDIA's package holds both libraries.
        own = library.package == self.libcufile_package and rdma != "none"
        return (StackPackage("libcufile-rdma1", "libcufile", "host"),) if own else ()

    def cuda_version(self, candidate: Candidate) -> str | None:
        own = upstream(candidate.source_version) if candidate.source == "nvidia-cuda-toolkit" else None
        return own or super().cuda_version(candidate)

    def in_stack(self, candidate: Candidate) -> bool:
        own = any(pattern.fullmatch(candidate.source) for pattern in self.stack_sources)
        return own or candidate.origin == NVIDIA

    def follows_driver(self, candidate: Candidate) -> bool:
        own = any(pattern.fullmatch(candidate.source) for pattern in self.driver_sources)
        return of_driver(candidate) if candidate.origin == NVIDIA else own

    def may_be_adopted(self, name: str) -> bool:
        return bool(_DRIVER.fullmatch(name) or GDS_UMBRELLAS.fullmatch(name))

    def of_driver(self, candidate: Candidate) -> bool:
        return candidate.package == NVLSM or of_driver(candidate)
