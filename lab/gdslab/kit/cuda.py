"""The packages of NVIDIA's CUDA repository for Ubuntu, with what Debian has of them.

Names, relations, layout and scripts are those of NVIDIA's for Ubuntu; a real repository has many more.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import run
from gdslab.kit.content import Content, Original
from gdslab.kit.deb import Deb

#: The driver in Debian's archive: what every driver here contains.
BRANCH, DRIVER, SUITE = "550", "550.163.01", "trixie"
#: NVIDIA's versions of nvidia-fs.  Both have the content of Debian's 2.19.7, which has patches for newer kernels.
NVIDIA_FS, DEBIAN_NVIDIA_FS = ("2.26.6", "2.27.3"), "2.19.7"
#: The CUDA release, and its libcufile's versions → the toolkit's.  Both have the content of Debian's 1.9.1.3.
CUDA, LIBCUFILE, DEBIAN_LIBCUFILE = "12.4", {"1.9.0.20": "12.4.0", "1.9.1.3": "12.4.1"}, "1.9.1.3"
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_HOME = f"/usr/local/cuda-{CUDA}"
_TARGET = f"{_HOME}/targets/x86_64-linux/lib"

_DKMS_CONF = """PACKAGE_NAME="nvidia"
PACKAGE_VERSION="{version}"
AUTOINSTALL="yes"
REMAKE_INITRD=no
MAKE[0]="unset ARCH; env NV_VERBOSE=1 make ${{parallel_jobs+-j$parallel_jobs}} NV_EXCLUDE_BUILD_MODULES='' \\
    KERNEL_UNAME=${{kernelver}} IGNORE_CC_MISMATCH=1 modules"
CLEAN="true"
{modules}"""
#: Modules of the driver that the packages' source has, and those of Debian's source that it lacks.
MODULES, OMITTED = ("nvidia", "nvidia-peermem"), ("nvidia-uvm", "nvidia-modeset", "nvidia-drm")
_DKMS_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
{first}/usr/lib/dkms/common.postinst {name} {version} /usr/share/{package} "" "$2"
"""
_DKMS_PRERM = """#!/bin/sh
set -e
case "$1" in
    remove|upgrade|deconfigure)
        {first}if [ "$(dkms status -m {name} -v {version})" ]; then
            dkms remove -m {name} -v {version} --all
        fi
        ;;
esac
"""
_ALTERNATIVE = f"--install /etc/cufile.json cufile.json {_HOME}/gds/cufile.json {CUDA.replace('.', '')}"


@dataclass(frozen=True)
class Offer:
    """What the repository for one release of Ubuntu has.

    driver: as NVIDIA numbers it.  revision: of its packages' versions.  branch: in their names; empty from 590 on.
    nvidia_fs: versions.
    """

    driver: str = DRIVER
    revision: str = "0ubuntu1"
    branch: str = BRANCH
    nvidia_fs: tuple[str, ...] = NVIDIA_FS

    @property
    def suffix(self) -> str:
        """The end of the packages' names."""
        return f"-{self.branch}" if self.branch else ""

    @property
    def version(self) -> str:
        """Of the packages."""
        return f"{self.driver}-{self.revision}"

    @property
    def exact(self) -> str:
        """The version in a relation."""
        return f"(= {self.version})"

    @property
    def source(self) -> dict[str, str]:
        """The field that names the source package."""
        return {"Source": f"nvidia-graphics-drivers{self.suffix}"}


def debs(content: Content, offer: Offer) -> list[Deb]:
    """Every package of the repository."""
    return [
        *_modules(content, offer),
        *_userland(content, offer),
        *_umbrellas(offer),
        *(package for version in offer.nvidia_fs for package in nvidia_fs(content, version)),
        *(package for version in LIBCUFILE for package in _gds(content, version)),
    ]


def _unpacked(content: Content, package: str, version: str = DRIVER) -> Path:
    return content.unpack(Original(package, SUITE, version)).files


def open_source(content: Content) -> Path:
    """Debian's source of the open modules, without the debugging symbols that are nine tenths of it.

    It has no nvidia-uvm, nvidia-modeset and nvidia-drm either, which take most of the time to compile: without a GPU
    they have nothing to do.
    """
    source = _unpacked(content, "nvidia-open-kernel-dkms") / f"usr/src/nvidia-current-open-{DRIVER}"
    for built in source.glob("*/*.o_binary"):
        run.run(["objcopy", "--strip-debug", built], doing="leave the debugging symbols out of the driver's source")
    for module in OMITTED:
        shutil.rmtree(source / module, ignore_errors=True)
    return source


def _modules(content: Content, offer: Offer) -> list[Deb]:
    """The open modules of the driver, and what they need."""
    end, own = offer.suffix, offer.source
    tree = f"/usr/src/nvidia-{offer.driver}"
    sources = open_source(content)
    firmware = _unpacked(content, "firmware-nvidia-gsp") / f"usr/lib/firmware/nvidia/{DRIVER}"
    name = f"nvidia-dkms{end}-open"
    initramfs = "if [ -x /usr/sbin/update-initramfs ]; then update-initramfs -u; fi\n"
    needs = ", ".join(f"nvidia-kernel-{part} {offer.exact}" for part in (f"source{end}-open", f"common{end}"))
    return [
        Deb(
            f"nvidia-kernel-source{end}-open",
            offer.version,
            fields={**own, **dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-kernel-source")},
            trees={tree: sources},
            texts={f"{tree}/dkms.conf": _dkms_conf(offer.driver), **_renumbered(sources, tree, offer.driver)},
        ),
        Deb(
            name,
            offer.version,
            fields={
                **own,
                "Depends": f"dkms, {needs}",
                **dict.fromkeys(("Provides", "Conflicts"), "nvidia-dkms-kernel"),
            },
            scripts=dkms_scripts(name, "nvidia", offer.driver, install=initramfs),
        ),
        Deb(
            f"nvidia-kernel-common{end}",
            offer.version,
            fields={
                **own,
                "Depends": f"nvidia-firmware{end} {offer.exact}, nvidia-modprobe",
                **dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-kernel-common"),
            },
            texts={"/lib/modprobe.d/nvidia-graphics-drivers.conf": "blacklist nouveau\nalias nouveau off\n"},
        ),
        Deb(
            f"nvidia-firmware{end}", offer.version, fields=own, trees={f"/lib/firmware/nvidia/{offer.driver}": firmware}
        ),
    ]


def _renumbered(sources: Path, tree: str, driver: str) -> dict[str, str]:
    """The files of the modules' source with the version that the modules get, where it isn't Debian's."""
    if driver == DRIVER:
        return {}
    return {f"{tree}/Kbuild": (sources / "Kbuild").read_text().replace(DRIVER, driver)}


def _userland(content: Content, offer: Offer) -> list[Deb]:
    """The userland that hosts without a screen need."""
    end = offer.suffix
    compute = f"libnvidia-compute{end}"
    nvidia_modprobe = _unpacked(content, "nvidia-modprobe", "570") / "usr/bin/nvidia-modprobe"
    return [
        Deb(
            "nvidia-modprobe",
            offer.version,
            fields={"Depends": "libc6"},
            trees={"/usr/bin/nvidia-modprobe": nvidia_modprobe},
            modes={"/usr/bin/nvidia-modprobe": 0o4755},
        ),
        _library(
            content, offer, compute, {"libcuda1": "libcuda", "libnvidia-ml1": "libnvidia-ml"}, "libcuda.so.1, libcuda1"
        ),
        _library(content, offer, f"libnvidia-cfg1{end}", {"libnvidia-cfg1": "libnvidia-cfg"}, ""),
        # Not for GPUDirect Storage: hosts have it from a whole driver.
        _library(content, offer, f"libnvidia-encode{end}", {"libnvidia-encode1": "libnvidia-encode"}, ""),
        Deb(
            f"nvidia-utils{end}",
            offer.version,
            fields={
                **offer.source,
                "Depends": f"{compute} {offer.exact}, libc6",
                "Provides": "nvidia-utils, nvidia-smi",
            },
            trees={"/usr/bin/nvidia-smi": _unpacked(content, "nvidia-smi") / "usr/lib/nvidia/current/nvidia-smi"},
        ),
    ]


def _library(content: Content, offer: Offer, name: str, libraries: Mapping[str, str], provides: str) -> Deb:
    """A package of libraries: Debian's package → the library's name."""
    folder = "usr/lib/x86_64-linux-gnu/nvidia/current"
    script = "#!/bin/sh\nset -e\nldconfig\n"
    return Deb(
        name,
        offer.version,
        fields={**offer.source, "Depends": "libc6", "Provides": provides},
        trees={
            f"{_LIBRARIES}/{library}.so.{offer.driver}": _unpacked(content, package) / f"{folder}/{library}.so.{DRIVER}"
            for package, library in libraries.items()
        },
        links={f"{_LIBRARIES}/{library}.so.1": f"{library}.so.{offer.driver}" for library in libraries.values()},
        scripts={"postinst": script, "postrm": script},
    )


def _umbrellas(offer: Offer) -> Iterator[Deb]:
    """Packages without files that pull a whole driver, as an administrator installs one."""
    end = offer.suffix
    pieces = (f"nvidia-dkms{end}-open", f"libnvidia-compute{end}", f"nvidia-utils{end}")
    depends = ", ".join(f"{name} {offer.exact}" for name in pieces)
    whole = f"nvidia-driver{end}-open"
    yield Deb(whole, offer.version, fields={**offer.source, "Depends": depends})
    for name in dict.fromkeys((f"nvidia-open{end}", "nvidia-open")):
        yield Deb(name, offer.version, fields={**offer.source, "Depends": f"{whole} {offer.exact}"})


def _dkms_conf(driver: str) -> str:
    blocks = (
        f'BUILT_MODULE_NAME[{number}]="{name}"\nDEST_MODULE_LOCATION[{number}]="/kernel/drivers/char/drm"\n'
        for number, name in enumerate(MODULES)
    )
    return _DKMS_CONF.format(version=driver, modules="".join(blocks))


def dkms_scripts(package: str, name: str, version: str, *, install: str = "", remove: str = "") -> dict[str, str]:
    """The maintainer scripts of a package whose source DKMS builds; install, remove: shell lines before DKMS's."""
    return {
        "postinst": _DKMS_POSTINST.format(package=package, name=name, version=version, first=install),
        "prerm": _DKMS_PRERM.format(name=name, version=version, first=remove),
    }


def renamed_nvidia_fs(original: Path, version: str, driver: str) -> dict[str, str]:
    """File → text of Debian's nvidia-fs in ``original`` as ``version``, which depends on DKMS's ``driver``."""
    configuration = (original / "dkms.conf").read_text()
    configuration = configuration.replace(f'"{DEBIAN_NVIDIA_FS}"', f'"{version}"')
    configuration = configuration.replace('"nvidia-current"', f'"{driver}"')
    numbers = (original / "nvfs-vers.h").read_text()
    for word, number in zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True):
        numbers = re.sub(rf"(NVFS_DRIVER_{word}_VERSION\s+)\d+", rf"\g<1>{number}", numbers)
    return {"dkms.conf": configuration, "nvfs-vers.h": numbers}


def nvidia_fs(content: Content, version: str) -> list[Deb]:
    original = _unpacked(content, "nvidia-fs-dkms", DEBIAN_NVIDIA_FS) / f"usr/src/nvidia-fs-{DEBIAN_NVIDIA_FS}"
    tree = f"/usr/src/nvidia-fs-{version}"
    named = {f"{tree}/{name}": text for name, text in renamed_nvidia_fs(original, version, "nvidia").items()}
    full = f"{version}-1"
    return [
        Deb(
            "nvidia-fs-dkms",
            full,
            fields={"Source": "nvidia-fs", "Depends": "dkms, nvidia-dkms-kernel"},
            trees={tree: original},
            texts={**named, "/etc/modules-load.d/nvidia-fs.conf": "nvidia-fs\n"},
            scripts=dkms_scripts(
                "nvidia-fs-dkms",
                "nvidia-fs",
                version,
                # As NVIDIA's: a module in use makes the removal fail.
                remove="if grep -q '^nvidia_fs ' /proc/modules; then rmmod nvidia_fs; fi\n        ",
            ),
        ),
        Deb("nvidia-fs", full, fields={"Depends": f"nvidia-fs-dkms (= {full})"}),
    ]


def _gds(content: Content, version: str) -> list[Deb]:
    """One CUDA release's libcufile and gds-tools, below /usr/local, with cufile.json as an alternative."""
    dashed, full = CUDA.replace(".", "-"), f"{version}-1"
    library = _unpacked(content, "libcufile0", DEBIAN_LIBCUFILE) / "usr/lib/x86_64-linux-gnu"
    tools = _unpacked(content, "gds-tools", DEBIAN_LIBCUFILE)
    name = f"libcufile.so.{version.rsplit('.', 1)[0]}"
    installed = tools / "usr/libexec/gds/tools"
    configuration = tools / "usr/share/doc/gds-tools/examples/cufile.json"
    remove = (
        f'#!/bin/sh\nset -e\n[ "$1" != remove ] || update-alternatives --remove cufile.json {_HOME}/gds/cufile.json\n'
    )
    return [
        Deb(
            f"libcufile-{dashed}",
            full,
            fields={"Source": f"libcufile-{dashed}", "Depends": "libc6, libstdc++6"},
            trees={f"{_TARGET}/{name}": library / "libcufile.so.1.9.1", f"{_HOME}/gds/cufile.json": configuration},
            texts={f"/etc/ld.so.conf.d/988_cuda-{CUDA}.conf": f"{_TARGET}\n"},
            links={f"{_TARGET}/libcufile.so.0": name, f"{_HOME}/lib64": "targets/x86_64-linux/lib"},
            scripts={
                "postinst": f"#!/bin/sh\nset -e\nupdate-alternatives {_ALTERNATIVE}\nldconfig\n",
                "prerm": remove,
                "postrm": "#!/bin/sh\nset -e\nldconfig\n",
            },
        ),
        Deb(
            f"gds-tools-{dashed}",
            full,
            fields={
                "Source": f"gds-tools-{dashed}",
                "Depends": f"libcufile-{dashed} (>= {version}), libnuma1, python3",
            },
            trees={f"{_HOME}/gds/tools": installed},
        ),
        Deb(
            f"nvidia-gds-{dashed}",
            f"{LIBCUFILE[version]}-1",
            fields={"Depends": f"gds-tools-{dashed}, nvidia-fs (>= 2.19)"},
        ),
    ]
