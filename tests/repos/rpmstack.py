"""An imitation of a RHEL 9 host's repositories: NVIDIA's CUDA repository, and a base system with kernels.

Names, epochs, relations and module streams are NVIDIA's as its installation guide and public spec files have them;
the packages are empty.  The traps of the real repository are in it: see TRAPS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tests.repos.rpmarchive import Rpm, Stream

#: Kernels with modules and headers; the newest lacks its headers, as a mirror between two updates does.
KERNELS = ("5.14.0-427.13.1.el9_4", "5.14.0-503.15.1.el9_5", "5.14.0-503.40.1.el9_5")
HEADERLESS = "5.14.0-570.12.1.el9_6"

#: What each thing is here for, by package.
TRAPS = {
    "kmod-nvidia-open-dkms 580.126.09": "newest of its branch, but its nvidia-persistenced is not there yet",
    "kmod-nvidia-open-dkms 590.44.01": "a newer branch, in another stream",
    "kmod-nvidia-open-dkms 580.200.01": "newest of all in 580, but in no stream at all",
    "nvidia-driver-cuda 580.95.05~rc1": "a release candidate, older than the release",
    "kmod-nvidia-latest-dkms": "the other flavour, which provides the same nvidia-kmod",
    "cuda-12-9": "a metapackage that pulls the newest driver",
}


def kernel(version: str, *, headers: bool = True) -> list[Rpm]:
    """One kernel as RHEL 9 has it: an empty package that needs core and modules by uname."""
    uname = f"{version}.x86_64"
    vendor = "Red Hat, Inc."
    core = (f"kernel-uname-r = {uname}", f"kernel-core-uname-r = {uname}")
    packages = [
        Rpm(
            "kernel", version, vendor=vendor, provides=(f"kernel-x86_64 = {version}",),
            requires=tuple(f"kernel-{part}-uname-r = {uname}" for part in ("core", "modules", "modules-core")),
        ),
        Rpm(
            "kernel-core", version, vendor=vendor, provides=core,
            requires=(f"kernel-modules-core-uname-r = {uname}", "/usr/bin/kernel-install", "linux-firmware >= 2020"),
        ),
        Rpm(
            "kernel-modules", version, vendor=vendor, provides=(f"kernel-modules-uname-r = {uname}",),
            requires=(f"kernel-uname-r = {uname}", f"kernel-modules-core-uname-r = {uname}"),
        ),
        Rpm(
            "kernel-modules-core", version, vendor=vendor, requires=(f"kernel-uname-r = {uname}",),
            provides=(f"kernel-modules-core-uname-r = {uname}",),
        ),
        Rpm("kernel-debug-core", version, vendor=vendor, provides=(f"kernel-core-uname-r = {uname}+debug",)),
    ]  # fmt: skip
    if headers:
        packages += [
            Rpm(
                "kernel-devel", version, vendor=vendor, provides=(f"kernel-devel-uname-r = {uname}",),
                requires=("gcc", "make", "(elfutils-libelf-devel if kernel-core)"),
            ),
            Rpm(
                "kernel-devel-matched", version, vendor=vendor,
                requires=(f"kernel-devel = {version}", f"kernel-core = {version}"),
            ),
        ]  # fmt: skip
    return packages


def flavoured_kernel(stem: str, version: str, *, arch: str = "x86_64") -> list[Rpm]:
    """A kernel of another flavour in the layout of ``kernel``: ``kernel-64k``, ``kernel-rt``, ``kernel-uek``."""
    suffix = {"kernel-64k": "+64k", "kernel-rt": "+rt"}.get(stem, "")
    uname, plain = f"{version}.{arch}{suffix}", stem == "kernel"
    parts = ("core", "modules", "modules-core")
    own = {part: f"{stem}-{part}-uname-r = {uname}" for part in parts}
    running = (f"kernel-uname-r = {uname}", *(() if plain else (f"{stem}-uname-r = {uname}",)))
    packages = [
        Rpm(stem, version, arch, requires=tuple(own.values())),
        Rpm(f"{stem}-core", version, arch, provides=(own["core"], *running), requires=(own["modules-core"],)),
        Rpm(f"{stem}-modules", version, arch, provides=(own["modules"],), requires=(running[-1], own["modules-core"])),
        Rpm(f"{stem}-modules-core", version, arch, provides=(own["modules-core"],), requires=(running[-1],)),
        Rpm(f"{stem}-devel", version, arch, provides=(f"kernel-devel-uname-r = {uname}",), requires=("gcc", "make")),
        Rpm(f"{stem}-debug-core", version, arch, provides=(f"kernel-uname-r = {version}.{arch}+debug",)),
    ]
    if stem in ("kernel", "kernel-64k"):
        same = (f"{stem}-core = {version}", f"{stem}-devel = {version}")
        packages.append(Rpm(f"{stem}-devel-matched", version, arch, requires=same))
    return packages


def amazon_kernel(stem: str, version: str, *, arch: str = "x86_64") -> list[Rpm]:
    """A kernel of Amazon Linux 2023: one package with image and modules, named by its series."""
    uname = f"{version.split(':')[-1]}.{arch}"
    return [
        Rpm(stem, version, arch, provides=(f"kernel-uname-r = {uname}",), requires=("dracut", "linux-firmware")),
        Rpm(f"{stem}-devel", version, arch, provides=(f"kernel-devel-uname-r = {uname}",), requires=("gcc", "make")),
        Rpm(f"{stem}-headers", version, arch, provides=("kernel-headers",)),
        Rpm(f"{stem}-modules-extra", version, arch, requires=(f"kernel-uname-r = {uname}",)),
    ]


#: EPEL's dkms: what it needs follows the kernels that are there.
EPEL_DKMS = Rpm(
    "dkms", "3.4.3-2.el9", "noarch", vendor="Fedora Project",
    requires=(
        "gcc", "make", "(kernel-64k-devel-matched if kernel-64k-core)", "(kernel-devel-matched if kernel-core)",
        "(kernel-rt-devel if kernel-rt-core)",
    ),
)  # fmt: skip


def on_arm(rpms: Iterable[Rpm]) -> tuple[Rpm, ...]:
    """The same packages for aarch64."""

    def words(relations: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(r.replace("x86_64", "aarch64").replace("(x86-64)", "(aarch-64)") for r in relations)

    return tuple(
        replace(
            rpm, arch=rpm.arch.replace("x86_64", "aarch64"), requires=words(rpm.requires), provides=words(rpm.provides)
        )
        for rpm in rpms
    )


def driver(version: str, *, release: str = "1.el9", lags: tuple[str, ...] = ()) -> list[Rpm]:
    """One driver as NVIDIA has it since it took over the spec files of its repository; ``lags``: not there yet."""
    full, epoch = f"3:{version}-{release}", f"3:{version}"
    kmod = f"nvidia-kmod = {epoch}"
    packages = [
        Rpm(
            "kmod-nvidia-open-dkms", full, "noarch", provides=(kmod,), files=(f"/usr/src/nvidia-{version}/dkms.conf",),
            requires=("dkms", f"nvidia-kmod-common = {epoch}", "kernel-devel"),
            conflicts=("kmod-nvidia-latest-dkms",),
        ),
        Rpm(
            "kmod-nvidia-latest-dkms", full, "noarch", provides=(kmod,),
            files=(f"/usr/src/nvidia-{version}/dkms.conf",),
            requires=("dkms", f"nvidia-kmod-common = {epoch}"), conflicts=("kmod-nvidia-open-dkms",),
        ),
        Rpm(
            "nvidia-kmod-common", full, "noarch", requires=(kmod, "dracut", "(kernel-modules-core if kernel-core)"),
            provides=(f"nvidia-kmod-common = {epoch}",), obsoletes=("cuda-nvidia-kmod-common <= 3:500",),
        ),
        Rpm(
            "nvidia-driver-cuda", full,
            requires=(
                f"nvidia-driver-cuda-libs(x86-64) = {full}", f"nvidia-kmod-common = {epoch}",
                f"nvidia-persistenced = {epoch}", "/usr/share/ocl-icd/registry",
            ),
        ),
        Rpm("nvidia-driver-cuda-libs", full, requires=(f"libnvidia-ml = {full}", "libc.so.6(GLIBC_2.34)(64bit)")),
        Rpm("libnvidia-ml", full, provides=("libnvidia-ml.so.1()(64bit)",)),
        Rpm("nvidia-driver", full, requires=(f"nvidia-driver-libs(x86-64) = {full}", f"nvidia-kmod-common = {epoch}")),
        Rpm("nvidia-driver-libs", full, requires=(f"libnvidia-ml = {full}", "libdrm")),
        Rpm("nvidia-persistenced", full, requires=(f"libnvidia-ml = {full}", "(systemd and shadow-utils)")),
        Rpm("nvidia-modprobe", full),
        # These come from another pipeline, without epoch and distribution tag.
        Rpm("nvidia-fabricmanager", f"{version}-1", requires=("nvlsm",)),
        Rpm("nvidia-imex", f"{version}-1"),
        Rpm(
            f"nvlink5-{version.split('.', 1)[0]}", f"{version}-1",
            requires=(f"nvidia-fabricmanager = {version}-1", "nvlsm"),
        ),
        Rpm("cuda-drivers", full, requires=("kmod-nvidia-latest-dkms >= 3:0", f"nvidia-driver-cuda = {full}")),
        Rpm(
            "nvidia-open", full, "noarch", requires=(f"nvidia-driver = {full}", f"kmod-nvidia-open-dkms = {full}"),
        ),
    ]  # fmt: skip
    return [rpm for rpm in packages if rpm.name not in lags]


def regrouped(version: str, *, release: str = "1.el9") -> list[Rpm]:
    """One driver from branch 610 on: its libraries are in one package, and its SELinux policy has another version."""
    full, epoch = f"3:{version}-{release}", f"3:{version}"
    libraries = ("libnvidia-ml", "nvidia-driver-libs", "nvidia-driver-cuda-libs")
    moved = (*libraries, "nvidia-kmod-common", "nvidia-persistenced")
    soname = "libnvidia-ml.so.1()(64bit)"
    policy = "(nvidia-driver-selinux if selinux-policy-targeted)"
    return [
        *(rpm for rpm in driver(version, release=release) if rpm.name not in moved),
        Rpm("nvidia-driver-common", full, provides=(soname,), obsoletes=("libnvidia-ml < 3:610",)),
        Rpm("nvidia-driver-selinux", "0.1-2.el9", "noarch", requires=("selinux-policy",)),
        Rpm(
            "nvidia-kmod-common", full, "noarch", requires=(f"nvidia-kmod = {epoch}", "dracut", policy),
            provides=(f"nvidia-kmod-common = {epoch}",),
        ),
        Rpm("nvidia-driver-cuda-libs", full, requires=(f"nvidia-driver-common = {full}",)),
        Rpm("nvidia-driver-libs", full, requires=(f"nvidia-driver-common = {full}", "libdrm")),
        Rpm("nvidia-persistenced", full, requires=(f"nvidia-driver-common = {full}", "(systemd and shadow-utils)")),
    ]  # fmt: skip


def gds(cuda: str, version: str) -> list[Rpm]:
    """libcufile and gds-tools of one CUDA release, and the metapackage that has nvidia-fs float."""
    name = cuda.replace(".", "-")
    return [
        Rpm(f"libcufile-{name}", f"{version}-1", provides=("libcufile.so.0()(64bit)",), requires=("numactl-libs",)),
        Rpm(f"libcufile-devel-{name}", f"{version}-1", requires=(f"libcufile-{name} >= {version}",)),
        Rpm(f"gds-tools-{name}", f"{version}-1", requires=(f"libcufile-{name} >= {version}", "/usr/bin/python3")),
        Rpm(
            f"nvidia-gds-{name}", f"{cuda}.1-1",
            requires=(f"libcufile-{name} >= {version}", f"gds-tools-{name} >= {version}", "nvidia-fs >= 2.0"),
        ),
        Rpm(f"cuda-{name}", f"{cuda}.1-1", requires=(f"cuda-toolkit-{name}", "cuda-drivers >= 3:525")),
        Rpm(f"cuda-toolkit-{name}", f"{cuda}.1-1", requires=(f"cuda-nvcc-{name}", f"libcublas-{name} >= {cuda}")),
        Rpm(f"cuda-nvcc-{name}", f"{cuda}.86-1", requires=("gcc",)),
        Rpm(f"libcublas-{name}", f"{cuda}.1.4-1"),
    ]  # fmt: skip


def nvidia_fs(version: str) -> list[Rpm]:
    """nvidia-fs's source package, and the one that is named after nothing."""
    return [
        Rpm("nvidia-fs", f"{version}-1", requires=(f"nvidia-fs-dkms = {version}-1",)),
        Rpm(
            "nvidia-fs-dkms", f"{version}-1", requires=("dkms", "(kmod-nvidia-open-dkms or kmod-nvidia-latest-dkms)"),
            files=(f"/usr/src/nvidia-fs-{version}/dkms.conf",),
        ),
    ]  # fmt: skip


def base(name: str, version: str, **more: tuple[str, ...]) -> Rpm:
    """A package of the distribution."""
    return Rpm(name, version, vendor="Red Hat, Inc.", **more)


BASEOS: tuple[Rpm, ...] = (
    *[rpm for version in KERNELS for rpm in kernel(version)],
    *kernel(HEADERLESS, headers=False),
    base("glibc", "2.34-125.el9", provides=("libc.so.6(GLIBC_2.34)(64bit)",)),
    base("bash", "5.1.8-9.el9", files=("/usr/bin/sh",)),
    base("python3", "3.9.21-1.el9", files=("/usr/bin/python3",)),
    base("systemd", "252-46.el9"),
    base("systemd-udev", "252-46.el9", files=("/usr/bin/kernel-install",)),
    base("shadow-utils", "2:4.9-10.el9"),
    base("dracut", "057-70.git20240819.el9"),
    base("linux-firmware", "20241014-146.1.el9"),
    base("gcc", "11.5.0-2.el9"),
    base("make", "1:4.3-8.el9"),
    base("elfutils-libelf-devel", "0.191-4.el9"),
    base("libdrm", "2.4.121-1.el9"),
    base("numactl-libs", "2.0.18-2.el9"),
    # /usr/share is in no primary list: this file is found in the file lists alone.
    base("ocl-icd", "2.2.13-4.el9", files=("/usr/share/ocl-icd/registry",)),
)

D570, D580, D580_OLD, D590 = driver("570.172.08"), driver("580.95.05"), driver("580.65.06"), driver("590.44.01")
LAGGING = driver("580.126.09", lags=("nvidia-persistenced",))
STRAY = driver("580.200.01")
CANDIDATE = driver("580.95.05~rc1")

CUDA: tuple[Rpm, ...] = (
    *D570, *D580_OLD, *CANDIDATE, *D580, *LAGGING, *STRAY, *D590,
    *gds("12.9", "1.14.1.1"), *gds("13.0", "1.15.1.6"),
    *nvidia_fs("2.25.7"), *nvidia_fs("2.26.6"),
    Rpm("nvlsm", "2025.10.14-1"),
    Rpm("nvidia-driver-assistant", "0.46.126.20-1"),
    Rpm("dkms", "3.2.1-1.el9", "noarch", requires=("gcc", "make", "kernel-devel")),
)  # fmt: skip

_OPEN, _DKMS = "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"


#: The repository in the autumn of 2026, and what a host with SELinux has.
CUDA_2026: tuple[Rpm, ...] = (
    *driver("595.71.05"), *regrouped("615.71.09"), *gds("13.2", "1.17.1.22"), *gds("13.4", "1.19.0.53"),
    *nvidia_fs("2.28.4"), *nvidia_fs("2.30.1"), Rpm("nvlsm", "2025.10.14-1"),
    Rpm("dkms", "3.4.3-2.el9", "noarch", requires=("gcc", "make", "kernel-devel")),
)  # fmt: skip
SELINUX: tuple[Rpm, ...] = tuple(base(name, "38.1.65-1.el9") for name in ("selinux-policy", "selinux-policy-targeted"))


def _stream(name: str, rpms: list[Rpm], without: str) -> Stream:
    return Stream("nvidia-driver", name, tuple(rpm for rpm in rpms if rpm.name != without))


STREAMS: tuple[Stream, ...] = (
    _stream("570-open", D570, _DKMS),
    _stream("580-open", [*D580_OLD, *CANDIDATE, *D580, *LAGGING], _DKMS),
    _stream("580-dkms", [*D580_OLD, *CANDIDATE, *D580, *LAGGING], _OPEN),
    _stream("open-dkms", [*D570, *D580, *D590], _DKMS),
    _stream("latest-dkms", [*D570, *D580, *D590], _OPEN),
    # STRAY belongs to a stream that nobody enables.
    _stream("580.200", STRAY, ""),
)
