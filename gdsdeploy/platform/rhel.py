"""Red Hat Enterprise Linux, the systems that equal it, and Oracle and Amazon Linux, which have kernels of their own.

The driver and GDS are of NVIDIA's CUDA repository, the names those of its rpm packages; the distribution provides the
kernels.  Red Hat's own repositories have no presets: they need an account and their index isn't signed, so a site names
its mirrors.

Oracle's flavour ``kernel`` is the Red Hat compatible kernel, ``uek`` the Unbreakable Enterprise Kernel.  Amazon Linux
has the driver from NVIDIA's repository for it or from AWS'; a kernel of each series has packages of its own, which stay
in that series: ``kernel`` is 6.1, ``kernel6.18`` is 6.18.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from gdsdeploy.host.kmod.flavour import flavour_of
from gdsdeploy.host.model.compat import parse_versions
from gdsdeploy.model.lock import Part
from gdsdeploy.platform import base
from gdsdeploy.platform.base import (
    NVLSM,
    Flavour,
    KernelImage,
    Packaging,
    Preset,
    StackPackage,
    StackPlatform,
    refuse,
    register,
)
from gdsdeploy.repo.packages import RPM, Candidate, Kind, Order, Universe

_EPEL: Final = "https://dl.fedoraproject.org/pub/epel"
_EPEL_KEYS: Final = {
    "9": "FF8AD1344597106ECE813B918A3872BF3228467C",
    "10": "7D8D15CBFC4E62688591FB2633D98517E37ED158",
}
#: Of NVIDIA's repositories by release; of the one for 10 only a short id is known, CDF6BA43.
_CUDA_KEYS: Final = {"9": base.CUDA_RPM}
#: Amazon Linux 2023; its index is signed since 2023.11.20260406.
_AMAZON_KEY: Final = "B21C50FA44A99720EAA72F7FE951904AD832C631"
#: A kernel's packages, whatever its flavour; Oracle's UEK 8 has its modules in a dozen packages.
_KERNEL: Final = re.compile(
    r"kernel(?:-64k|-rt|[0-9]+\.[0-9]+)?(?:-core|-modules(?:-core)?|-devel(?:-matched)?)?|"
    r"kernel-uek(?:-core|-modules(?:-[a-z0-9-]+)?|-devel)?"
)
#: What ``uname -r`` has behind the architecture.
_SUFFIX: Final = {"64k": "+64k", "rt": "+rt"}
_DRIVER: Final = re.compile(
    r"kmod-nvidia-(?:open|latest)-dkms|nvidia-kmod-common|nvidia-driver(?:-(?!assistant|selinux).+)?|nvidia-open(?:-[0-9]+)?|"
    r"nvidia-(?:persistenced|modprobe|settings|xconfig)|nvidia-libXNVCtrl(?:-devel)?|libnvidia-(?!container).+|"
    r"nvidia-fabric-?manager(?:-.+)?|nvidia-imex(?:-[0-9]+)?|cuda-drivers(?:-.+)?|"
    r"libnvsdm(?:-.+)?|nvlink5(?:-.+)?|xorg-x11-nvidia"
)
_GDS: Final = re.compile(r"nvidia-fs(?:-dkms)?|libcufile-[0-9-]+|gds-tools-[0-9-]+|nvidia-gds(?:-[0-9-]+)?")
#: The toolkit's pieces, whose names end in the CUDA release, and the metapackages over them.
_CUDA: Final = re.compile(r"cuda(?:-(?!drivers).+)?|lib(?:cu|np|nv).+-[0-9]+-[0-9]+")
#: What pulls a driver of whichever version.
_UMBRELLAS: Final = re.compile(r"cuda-drivers.*")
#: The driver's SELinux policy, which has a version of its own.
_POLICY: Final = "nvidia-driver-selinux"
_FIRST_WITH_POLICY: Final = "610"
_RELEASES: Final[Mapping[str, Mapping[str, str]]] = {"9": {}, "10": {}}
_COMPANIONS: Final = re.compile(r"nvidia-(?:kmod-common|persistenced|modprobe|fabric.*|imex.*)|nvlink5.*|nvlsm")


@dataclass(frozen=True)
class Rhel(StackPlatform):
    """One major release of one of the systems."""

    kind: ClassVar[Kind] = "rpm"
    order: ClassVar[Order] = RPM
    manager: ClassVar[str] = "dnf"
    libcufile_package: ClassVar[str] = "libcufile-X-Y"
    gds_tools_package: ClassVar[str] = "gds-tools-X-Y"
    dkms_package: ClassVar[Mapping[Flavour, str]] = {
        "open": "kmod-nvidia-open-dkms",
        "proprietary": "kmod-nvidia-latest-dkms",
    }
    # Not nvidia-*: the container toolkit and CUDA's own packages are the user's to choose.
    kept_out: ClassVar[tuple[str, ...]] = (
        "kmod-nvidia-*", "akmod-nvidia*", "nvidia-driver*", "nvidia-kmod-common", "nvidia-open*", "cuda-drivers*",
        "nvidia-persistenced", "nvidia-modprobe", "nvidia-settings", "nvidia-fabric*manager*", "nvidia-imex*",
        "nvlink5*", NVLSM,
        "libnvidia-ml*", "libnvidia-cfg*", "libnvidia-fbc*", "libnvidia-gpucomp*",
        "nvidia-fs*", "nvidia-gds*", "libcufile-*", "gds-tools-*",
    )  # fmt: skip
    #: flavour → its metapackage, on which the names of its other packages are built
    kernels: ClassVar[Mapping[str, str]] = {"kernel": "kernel", "64k": "kernel-64k", "rt": "kernel-rt"}
    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "driver": ("580.95.05", "580.95.05-1.el9", "3:580.95.05-1.el9"),
        "kernel": ("5.14.0", "5.14.0-570.12.1", "5.14.0-570.12.1.el9_6", "5.14.0-570.12.1.el9_6.x86_64"),
        "nvidia_fs": ("2.26.6", "2.26.6-1"),
        "libcufile": ("1.15.1.6", "1.15.1.6-1"),
    }

    def architecture(self, arch: str) -> str:
        return arch

    def presets(self) -> dict[str, Preset]:
        """None: the index needs an account (RHEL), or isn't here (Oracle)."""
        return {}

    def cuda_repository(self) -> tuple[str, str]:
        return f"rhel{self.release}", _CUDA_KEYS.get(self.release, "")

    def vendor_presets(self) -> dict[str, Preset]:
        presets = super().vendor_presets()
        if self.release in _EPEL_KEYS:
            keyring = base.RPM_KEYS / f"RPM-GPG-KEY-EPEL-{self.release}"
            path = f"{self.release}/Everything/{{arch}}"
            presets["epel"] = Preset((), (), keyring, (_EPEL_KEYS[self.release],), uri=_EPEL, path=path)
        return presets

    def kernel_flavours(self, arch: str) -> tuple[str, ...]:
        return tuple(name for name in self.kernels if arch == "aarch64" or name != "64k")

    def kernel_images(self, universe: Universe, arch: str) -> Iterable[KernelImage]:
        """A flavour's metapackage, which depends on core and modules of its own version."""
        for flavour in self.kernel_flavours(arch):
            for candidate in universe.named(self.kernels[flavour]):
                release = f"{candidate.version.split(':', 1)[-1]}.{arch}"
                own = flavour_of(release + _SUFFIX.get(flavour, ""))
                # The host program tells flavours by the release alone.
                if own and own.name == flavour:
                    yield KernelImage(candidate, release + _SUFFIX.get(flavour, ""), flavour)

    def kernel_packages(self, release: str) -> tuple[str, str]:
        own = flavour_of(release)
        stem = self.kernels.get(own.name, "kernel") if own else "kernel"
        return stem, f"{stem}-devel"

    def no_packaged_modules(self, flavour: Flavour) -> str:  # noqa: ARG002 - true of both
        return (
            "NVIDIA's precompiled kmods (streams NNN and latest) are proprietary and linked on each host when they are"
            " installed, so no record says what the modules have to be; and no repository has nvidia-fs for a kernel"
        )

    def packaging(self, driver: Candidate, flavour: Flavour) -> Packaging:
        other = "latest" if flavour == "open" else "open"
        # The other flavour's packages, and other drivers': kmod-nvidia-580.95.05-… are built for one kernel each; cuda
        # pulls whatever driver is newest.
        excluded = (
            re.compile(rf"kmod-nvidia-(?:{other}-dkms|[0-9].*)|akmod-nvidia.*"),
            re.compile(r"cuda|cuda-[0-9]+-[0-9]+|cuda-runtime-.*|cuda-demo-suite.*"),
            re.compile(r"nvidia-open.*" if flavour == "proprietary" else r"nvidia-latest.*"),
        )
        has_policy = RPM.holds(self.upstream_version(driver.version), ">=", _FIRST_WITH_POLICY)
        further = (
            StackPackage("nvidia-driver-cuda", "driver-userland", "host"),
            *(
                StackPackage(f"nvidia-{name}", "companion", "host")
                for name in ("kmod-common", "modprobe", "persistenced")
            ),
            # nvidia-kmod-common needs it on hosts with SELinux, of which the repositories tell nothing.
            *([StackPackage(_POLICY, "driver-userland", "host", optional=True)] if has_policy else []),
            StackPackage("dkms", "dkms", "build"),
        )
        return Packaging(self.driver_module[flavour], further, excluded, (_UMBRELLAS,))

    def may_be_adopted(self, name: str) -> bool:
        return bool(_DRIVER.fullmatch(name) or base.GDS_UMBRELLAS.fullmatch(name))

    def module_streams(self, driver: str, flavour: Flavour) -> dict[str, str]:
        """NVIDIA's streams: ``580-open`` for a pin within one branch, ``open-dkms`` for any other; 10 has none."""
        if self.release == "10":
            return {}
        branch = _branch(driver)
        if branch is None:
            return {"nvidia-driver": "open-dkms" if flavour == "open" else "latest-dkms"}
        return {"nvidia-driver": f"{branch}-{'open' if flavour == 'open' else 'dkms'}"}

    def part(self, candidate: Candidate) -> Part:
        name = candidate.package
        if _KERNEL.fullmatch(name):
            return "kernel-headers" if "-devel" in name else "kernel-image"
        if _COMPANIONS.fullmatch(name):
            return "companion"
        if _DRIVER.fullmatch(name):
            return "driver-userland"
        return "cuda" if name.startswith("cuda-") else "support"

    def in_stack(self, candidate: Candidate) -> bool:
        """By name, because the source packages of NVIDIA's rpms follow no known rule."""
        name = candidate.package
        patterns = (_KERNEL, _GDS, _CUDA, _DRIVER)
        return name in ("dkms", NVLSM, _POLICY) or any(pattern.fullmatch(name) for pattern in patterns)

    def follows_driver(self, candidate: Candidate) -> bool:
        return bool(_DRIVER.fullmatch(candidate.package))


def _branch(pin: str) -> int | None:
    """The branch that a pin of the driver stays within; None: it does not name one."""
    lowest, highest = set[int](), set[int]()
    for operator, version in parse_versions(pin).terms:
        # 3:580.95.05 is of branch 580.
        branch, _, rest = version.rpartition(":")[2].partition(".")
        number = int(re.match("[0-9]*", branch)[0] or 0)  # type: ignore[index]
        if operator in ("", "=", "==", ">", ">="):
            lowest.add(number)
        if operator in ("", "=", "==", "<", "<="):
            # "<581" ends with branch 580, "<580.95" within it.
            highest.add(number - (operator == "<" and not rest))
    return max(lowest) if lowest and highest and max(lowest) == min(highest) else None


@dataclass(frozen=True)
class Rebuild(Rhel):
    """A system that is built from Red Hat's sources, with repositories of its own whose index is signed."""

    #: name of its repositories together
    group: str
    uri: str
    #: file of the key, and its fingerprint
    key_file: str
    key: str

    def presets(self) -> dict[str, Preset]:
        paths = {part: f"{self.release}/{part}/{{arch}}/os" for part in ("BaseOS", "AppStream")}
        keyring = base.RPM_KEYS / self.key_file
        return {
            f"{self.group}-{part.lower()}": Preset(
                (), (), keyring, (self.key,), uri=self.uri, path=path, group=self.group
            )
            for part, path in paths.items()
        }


@dataclass(frozen=True)
class Oracle(Rhel):
    """One major release."""

    kernels: ClassVar[Mapping[str, str]] = {"kernel": "kernel", "uek": "kernel-uek"}


@dataclass(frozen=True)
class Amazon(Rhel):
    """The release of 2023."""

    kernels: ClassVar[Mapping[str, str]] = {name: name for name in ("kernel", "kernel6.12", "kernel6.18")}

    def presets(self) -> dict[str, Preset]:
        # The address has a digest in it, which differs by release: Amazon's mirror.list names the current one.
        return {"amazon": Preset((), (), base.RPM_KEYS / "RPM-GPG-KEY-amazon-linux-2023", (_AMAZON_KEY,))}

    def cuda_repository(self) -> tuple[str, str]:
        return "amzn2023", base.CUDA_RPM


def register_releases(
    name: str, make: Callable[..., Rhel] = Rhel, *, of: Mapping[str, Mapping[str, str]] = _RELEASES, rank: int = 30
) -> None:
    """Register a system of RHEL's family; release 8 is refused: its Python is 3.6, and dnf has modules for that alone.

    of: release → the fields of its class that others don't have.
    """
    for release, fields in of.items():
        system = f"{name}-{release}"
        register(make(os=system, family="rhel", release=release, **fields), rank=rank)
    refuse(
        f"{name}-8",
        "isn't supported: its Python is 3.6, and gdsdeploy's program on the host needs 3.9",
        f"Use {' or '.join(f'{name}-{release}' for release in of)}",
    )


def register_rebuild(name: str, group: str, uri: str, key_file: str, keys: Mapping[str, str]) -> None:
    """Register a rebuild of RHEL by the ``ID`` of its os-release; docs/guides/extend.md has an example.

    group: name of its repositories together, in fleet files.  uri: the folder that has one for each release.
    key_file: of the repositories' keys, with ``{}`` for the release.  keys: release → fingerprint, all 40 digits.
    """
    fields = {
        release: {"group": group, "uri": uri, "key_file": key_file.format(release), "key": key}
        for release, key in keys.items()
    }
    register_releases(name, Rebuild, of=fields)


register_releases("rhel")
register_rebuild(
    "rocky",
    "rocky",
    "https://dl.rockylinux.org/pub/rocky",
    "RPM-GPG-KEY-Rocky-{}",
    {"9": "21CB256AE16FC54C6E652949702D426D350D275D", "10": "FC226859C0860BF0DDB95B085B106C736FEDFC85"},
)
register_rebuild(
    "almalinux",
    "alma",
    "https://repo.almalinux.org/almalinux",
    "RPM-GPG-KEY-AlmaLinux-{}",
    {"9": "BF18AC2876178908D6E71267D36CB86CB86B3716", "10": "EE6DB7B98F5BF5EDD9DA0DE5DEE5C11CC2A1E572"},
)
register_releases("oracle", Oracle, rank=31)
register(Amazon(os="amazon-2023", family="amazon", release="2023"), rank=32)
