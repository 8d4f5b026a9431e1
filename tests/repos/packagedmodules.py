"""An imitation of Ubuntu's archive with Canonical's packages of built modules: their names, versions and relations.

The stanzas of linux-modules-nvidia-515-server-5.15.0-56-generic and -525-server-5.15.0-69-generic are published; those
of other branches and flavours follow them and the facts about -open packages, which have whole modules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

from gdsdeploy.lock.sources import MODULE_PARTS, ModuleInPackage, PackagedModules
from gdsdeploy.model.lock import Package
from tests.repos.cuda import UBUNTU_SURROUNDINGS, cuda_gds, ubuntu_kernel
from tests.repos.stack import Stanza, package

CANONICAL = "'Canonical Ltd. Kernel Module Signing' (serial 7)"


def userland(driver: str, version: str) -> list[Stanza]:
    """A driver's userland in Ubuntu's archive: driver ``580-server``, version ``580.159.03-0ubuntu0.24.04.1``."""
    number = version.rsplit("-", 1)[0]
    source = f"nvidia-graphics-drivers-{driver}"
    compute = f"libnvidia-compute-{driver} (= {version})"
    return [
        package(f"nvidia-firmware-{driver}-{number}", version, source=source),
        package(
            f"nvidia-kernel-common-{driver}", version, source=source, depends="nvidia-modprobe (>= 515)",
            provides=f"nvidia-kernel-common, nvidia-kernel-common-{driver}-{number}", conflicts="nvidia-kernel-common",
        ),
        package(f"libnvidia-compute-{driver}", version, source=source, depends="libc6", provides="libcuda1"),
        package(f"libnvidia-cfg1-{driver}", version, source=source, depends="libc6"),
        package(f"nvidia-utils-{driver}", version, source=source, depends=compute),
        package(f"nvidia-compute-utils-{driver}", version, source=source, depends=compute),
        *(package(
            f"nvidia-dkms-{driver}{end}", version, source=source, dkms="nvidia",
            depends=f"dkms, nvidia-kernel-common-{driver}",
        ) for end in ("-open", "")),
    ]  # fmt: skip


def modules(
    driver: str, number: str, release: str, version: str, *, flavour: str = "open", bounded: bool = True
) -> Stanza:
    """A package of modules: of ``580-server`` 580.159.03 for a kernel; bounded: it excludes later userlands."""
    end = "-open" if flavour == "open" else ""
    common = f"nvidia-kernel-common-{driver}"
    needs = [f"linux-image-{release} | linux-image-unsigned-{release}"]
    if not end:
        needs += [
            f"linux-signatures-nvidia-{release} (= {version})",
            f"linux-objects-nvidia-{driver}-{release} (= {version})",
        ]
    needs += [f"{common} (<= {number}-1)"] if bounded else []
    needs += [f"{common} (>= {number})"]
    name = f"linux-modules-nvidia-{driver}{end}-{release}"
    return package(name, version, source="linux-restricted-modules", depends=", ".join(needs))


def archive(*stanzas: Iterable[Stanza]) -> list[Stanza]:
    """Ubuntu's archive with these packages, and what every stack leans on."""
    return [
        *(stanza for group in stanzas for stanza in group),
        package("nvidia-modprobe", "580.95.05-1", source="nvidia-modprobe", depends="libc6"),
        *UBUNTU_SURROUNDINGS,
    ]


#: NVIDIA's repository for the libraries alone.
LIBRARIES = [
    *cuda_gds("12-9", "1.14.1.1", toolkit="12.9.1", driver="575.57.08"),
    *cuda_gds("13-0", "1.15.1.6", toolkit="13.0.2", driver="580.95.05"),
]


def kernel_of(flavour: str, release: str, version: str, series: str = "") -> list[Stanza]:
    """A kernel of a flavour, without headers: nothing is built."""
    return ubuntu_kernel(release, version, headers=False, flavour=flavour, series=series)


def in_packages(
    driver: str,
    nvidia_fs: str = "2.26.6",
    *,
    terms: str = "Dual MIT/GPL",
    built_against: str = "",
    built_for: str = "",
    without: str = "",
) -> PackagedModules:
    """What is in the packages: modules of these versions.  built_for: another kernel; without: a module."""

    def read(packages: Sequence[Package]) -> list[ModuleInPackage]:
        return [module for each in packages if each.part in MODULE_PARTS for module in modules_of(each)]

    def modules_of(each: Package) -> Iterator[ModuleInPackage]:
        release = re.sub(r"^.*?-(?=[0-9]+\.[0-9]+\.)", "", each.package)
        own = each.part == "nvidia-fs-modules"
        for name, version in ({"nvidia_fs": nvidia_fs} if own else {"nvidia": driver, "nvidia_uvm": driver}).items():
            if name != without:
                yield ModuleInPackage(
                    package=each.package,
                    module=name,
                    release=release,
                    file=f"kernel/{'drivers' if own else 'nvidia-580-open'}/{name.replace('_', '-')}.ko.zst",
                    sha256=hashlib.sha256(f"{each.sha256} {name}".encode()).hexdigest(),
                    version=version,
                    license=terms,
                    vermagic=f"{built_for or release} SMP preempt mod_unload modversions",
                    signer=CANONICAL,
                    driver=built_against if own else "",
                )

    return read
