"""An imitation of NVIDIA's CUDA repository and of Ubuntu's kernels: names, versions, relations and layout.

NVIDIA's own repository is not at hand where tests run, and its traps have to be there every time: packages that became
stubs for another branch, metapackages that pull a driver, a companion that lags behind its branch, flavours that
conflict, names that lose their suffix at branch 590, an epoch and ``~`` versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.repos.archive import Suite
from tests.repos.stack import Stanza, package

#: What Ubuntu 24.04's archive has that the stack leans on.
UBUNTU_SURROUNDINGS: list[Stanza] = [
    package("dkms", "3.0.11-1ubuntu13", architecture="all", depends="kmod, gcc-13, make"),
    *(package(name, version) for name, version in {
        "linux-base": "4.5ubuntu9", "libc6": "2.39-0ubuntu8", "gcc-13": "13.3.0-6ubuntu2",
        "kmod": "31+20240202-2ubuntu7", "make": "4.3-4.1build2", "libnuma1": "2.0.18-1build1",
        "wireless-regdb": "2024.07.04-0ubuntu1",
        "libibverbs1": "50.0-2build2",
        "infiniband-diags": "50.0-2build2", "python3": "3.12.3-0ubuntu2", "libelf1t64": "0.190-1.1build4",
    }.items()),
]  # fmt: skip


def ubuntu_kernel(
    release: str, version: str, *, headers: bool = True, hwe: str = "", flavour: str = "generic", series: str = ""
) -> list[Stanza]:
    """One kernel as Ubuntu has it: signed image, modules, and headers in two parts; hwe: e.g. ``hwe-6.11``.

    A flavour apart from generic has a source of its own, ``linux-nvidia-6.17`` in the series 6.17, which also names the
    common part of its headers.
    """
    name = flavour.removesuffix("-64k")
    suffix = "".join(f"-{word}" for word in ("" if name == "generic" else name, hwe, series) if word)
    full, source = f"{release}-{flavour}", f"linux{suffix}"
    common = f"linux-headers-{release}" if name == "generic" else f"{source}-headers-{release}"
    built = [
        package(
            f"linux-image-{full}", version, source=f"linux-signed{suffix}", conflicts=f"linux-image-unsigned-{full}",
            depends=f"kmod, linux-base (>= 4.5ubuntu1~16.04.1), linux-modules-{full}",
            provides="linux-image, fuse-module, wireguard-modules (= 1.0.0)", recommends="grub-pc | grub-efi-amd64",
        ),
        package(
            f"linux-image-unsigned-{full}", version, source=source, conflicts=f"linux-image-{full}",
            depends=f"kmod, linux-base (>= 4.5ubuntu1~16.04.1), linux-modules-{full}",
        ),
        package(f"linux-modules-{full}", version, source=source),
    ]  # fmt: skip
    if name == "nvidia":
        built.append(package(f"linux-modules-nvidia-fs-{full}", version, source=source, provides="nvidia-fs-dkms"))
    else:
        depends = f"linux-modules-{full}, wireless-regdb"
        built.append(package(f"linux-modules-extra-{full}", version, source=source, depends=depends))
    if flavour == "generic":
        built.append(package(f"linux-image-{release}-lowlatency", version, source="linux-signed-lowlatency"))
    if headers:
        built += [
            package(
                f"linux-headers-{full}", version, source=source,
                depends=f"{common}, libc6 (>= 2.38), libelf1t64 (>= 0.144)",
            ),
            package(common, version, source=source, architecture="all", depends="gcc-13"),
        ]  # fmt: skip
    return built


def on_arm(stanzas: Iterable[Stanza]) -> list[Stanza]:
    """The same packages for arm64."""
    return [{**p, "Architecture": p["Architecture"].replace("amd64", "arm64")} for p in stanzas]


def branch(version: str) -> str:
    """The suffix of a driver's packages: ``-570``, and none from branch 590 on."""
    major = int(version.split(".", 1)[0])
    return f"-{major}" if major < 590 else ""


def cuda_driver(
    version: str, *, revision: str = "0ubuntu1", companions: Iterable[str] = ("fabricmanager", "imex", "persistenced")
) -> list[Stanza]:
    """Both flavours of one driver and its userland, as NVIDIA packages them for Ubuntu."""
    s, full = branch(version), f"{version}-{revision}"
    source = f"nvidia-graphics-drivers{s}"
    built = [
        package("nvidia-modprobe", full, depends="libc6 (>= 2.34)"),
        package(f"nvidia-firmware{s}", full, source=source),
        package(
            f"nvidia-kernel-common{s}", full, source=source,
            depends=f"nvidia-firmware{s} (= {full}), nvidia-modprobe (>= {full})", provides="nvidia-kernel-common",
        ),
        package(
            f"libnvidia-compute{s}", full, source=source, depends="libc6 (>= 2.34)", provides="libcuda.so.1, libcuda1",
        ),
        package(f"libnvidia-cfg1{s}", full, source=source, depends="libc6 (>= 2.34)"),
        package(f"libnvidia-gl{s}", full, source=source, depends="libc6 (>= 2.34)"),
        package(f"nvidia-utils{s}", full, source=source, depends=f"libnvidia-compute{s} (= {full}), libc6"),
        package(f"nvidia-compute-utils{s}", full, source=source, depends=f"libnvidia-compute{s} (= {full})"),
    ]  # fmt: skip
    for flavour in ("-open", ""):
        built += [
            package(
                f"nvidia-kernel-source{s}{flavour}", full, source=source, depends="make", dkms="nvidia",
                provides="nvidia-kernel-source", conflicts="nvidia-kernel-source",
            ),
            package(
                f"nvidia-dkms{s}{flavour}", full, source=source,
                depends=f"nvidia-kernel-source{s}{flavour} (= {full}), nvidia-kernel-common{s} (= {full}), "
                "dkms (>= 3.1.8)",
                provides="nvidia-dkms-kernel", conflicts="nvidia-dkms-kernel",
            ),
            package(
                f"nvidia-driver{s}{flavour}", full, source=source,
                depends=", ".join(f"{name} (= {full})" for name in (
                    f"nvidia-dkms{s}{flavour}", f"nvidia-kernel-common{s}", f"libnvidia-compute{s}", f"libnvidia-gl{s}",
                    f"nvidia-utils{s}", f"nvidia-compute-utils{s}",
                )),
            ),
        ]  # fmt: skip
    if s:
        built += [
            package(f"nvidia-open{s}", full, source=source, depends=f"nvidia-driver{s}-open (= {full})"),
            package(f"cuda-drivers{s}", full, source=source, depends=f"nvidia-driver{s} (= {full})"),
        ]
    built += [
        package("nvidia-open", full, source=source, depends=f"nvidia-driver{s}-open (= {full})"),
        package("cuda-drivers", full, source=source, depends=f"nvidia-driver{s} (= {full})"),
    ]
    for name in companions:
        suffix, rebuilt = ("", full) if name == "persistenced" else (s, f"{version}-1")
        built.append(package(f"nvidia-{name}{suffix}", rebuilt, depends="libc6"))
    return built


def driver_pieces(version: str) -> list[Stanza]:
    """Userland of branch 580 that the stack itself doesn't need."""
    full, source = f"{version}-0ubuntu1", "nvidia-graphics-drivers-580"
    return [
        package("libnvidia-decode-580", full, source=source, depends=f"libnvidia-compute-580 (= {full})"),
        package("libnvidia-encode-580", full, source=source, depends=f"libnvidia-decode-580 (= {full})"),
        package("libnvidia-nscq", f"{version}-1", depends="libc6"),
    ]


def nvlink5(version: str, *nvlsms: str) -> list[Stanza]:
    """The metapackage for fourth-generation NVSwitches, and NVLSM, which has versions of its own."""
    s = branch(version)
    depends = f"nvidia-fabricmanager{s} (= {version}-1), libnvsdm{s} (= {version}-1), nvlsm, infiniband-diags"
    return [
        package(f"nvlink5{s}", f"{version}-1", depends=depends),
        package(f"libnvsdm{s}", f"{version}-1", depends="libc6"),
        *(package("nvlsm", each, depends="libc6") for each in nvlsms),
    ]


def stub(name: str, version: str, stands_for: str) -> Stanza:
    """An empty package that a branch became: ``nvidia-dkms-570-open 580…`` stands for nvidia-dkms-580-open."""
    return package(name, version, source="nvidia-graphics-drivers-580", depends=f"{stands_for} (>= {version})")


def cuda_gds(cuda: str, libcufile: str, *, toolkit: str, driver: str) -> list[Stanza]:
    """libcufile, gds-tools, toolkit and metapackages of one CUDA release: ``12-4``, 1.9.1.3, 12.4.1, 550.54.15."""
    return [
        package(f"libcufile-{cuda}", f"{libcufile}-1", source=f"libcufile-{cuda}", depends="libc6 (>= 2.28)"),
        package(f"libcufile-dev-{cuda}", f"{libcufile}-1", depends=f"libcufile-{cuda} (>= {libcufile})"),
        package(f"gds-tools-{cuda}", f"{libcufile}-1", depends=f"libcufile-{cuda} (>= {libcufile}), libnuma1, python3"),
        package(
            f"nvidia-gds-{cuda}", f"{toolkit}-1", depends=f"gds-tools-{cuda} (>= {libcufile}), nvidia-fs (>= 2.19)",
        ),
        package(f"cuda-cudart-{cuda}", f"{toolkit}27-1", depends=f"cuda-toolkit-{cuda}-config-common"),
        package(f"cuda-toolkit-{cuda}-config-common", f"{toolkit}27-1", architecture="all"),
        package(
            f"cuda-libraries-{cuda}", f"{toolkit}-1",
            depends=f"cuda-cudart-{cuda} (>= {toolkit}), libcufile-{cuda} (>= {libcufile})",
        ),
        package(f"cuda-nvcc-{cuda}", f"{toolkit}31-1", depends="gcc-13, libc6"),
        package(
            f"cuda-toolkit-{cuda}", f"{toolkit}-1",
            depends=f"cuda-libraries-{cuda} (>= {toolkit}), cuda-nvcc-{cuda} (>= {toolkit})",
        ),
        package(
            f"cuda-runtime-{cuda}", f"{toolkit}-1",
            depends=f"cuda-libraries-{cuda} (>= {toolkit}), cuda-drivers (>= {driver}) | nvidia-open (>= {driver})",
        ),
        package(
            f"cuda-{cuda}", f"{toolkit}-1",
            depends=f"cuda-runtime-{cuda} (>= {toolkit}), cuda-toolkit-{cuda} (>= {toolkit})",
        ),
        package("cuda", f"{toolkit}-1", depends=f"cuda-{cuda} (>= {toolkit})"),
    ]  # fmt: skip


def cuda_nvidia_fs(version: str) -> list[Stanza]:
    """nvidia-fs, which floats: one package name for every CUDA release."""
    return [
        package("nvidia-fs-dkms", f"{version}-1", source="nvidia-fs", depends="dkms, make", dkms="nvidia-fs"),
        package("nvidia-fs", f"{version}-1", depends=f"nvidia-fs-dkms (= {version}-1)"),
    ]


#: NVIDIA's dkms, newer than Ubuntu's by its epoch.
CUDA_DKMS = package("dkms", "1:3.1.8-1", architecture="all", depends="kmod, gcc-13, make")

#: The repository for Ubuntu 24.04, traps included.
CUDA_UBUNTU: list[Stanza] = [
    CUDA_DKMS,
    *cuda_driver("550.54.15"),
    *cuda_driver("570.172.08"),
    *cuda_driver("580.82.07"),
    # The branch's newest driver has no fabric manager and no IMEX yet.
    *cuda_driver("580.95.05", companions=("persistenced",)),
    *cuda_driver("590.44.01", revision="1ubuntu1"),
    # 570 came to an end: its packages pull the next branch.
    stub("nvidia-driver-570-open", "580.95.05-0ubuntu1", "nvidia-driver-580-open"),
    stub("nvidia-dkms-570-open", "580.95.05-0ubuntu1", "nvidia-dkms-580-open"),
    stub("libnvidia-compute-570", "580.95.05-0ubuntu1", "libnvidia-compute-580"),
    package("nvidia-driver-pinning-580", "580-1", architecture="all", provides="nvidia-driver-pinning"),
    *cuda_nvidia_fs("2.25.7"),
    *cuda_nvidia_fs("2.26.6"),
    *cuda_nvidia_fs("2.28.4"),
    *cuda_gds("12-4", "1.9.1.3", toolkit="12.4.1", driver="550.54.15"),
    *cuda_gds("12-9", "1.14.1.1", toolkit="12.9.1", driver="575.57.08"),
    *cuda_gds("13-0", "1.15.1.6", toolkit="13.0.2", driver="580.95.05"),
    # A release candidate sorts before its release.
    package("libcufile-13-1", "1.16.0.49~rc1-1", depends="libc6"),
]  # fmt: skip

#: The repository for Ubuntu 26.04 in the autumn of 2026: no branch before 595, and nvidia-fs on its own releases.
CUDA_RESOLUTE: list[Stanza] = [
    CUDA_DKMS,
    *cuda_driver("595.71.05", revision="1ubuntu1"),
    *cuda_driver("615.71.09", revision="2ubuntu1"),
    package("nvidia-driver-pinning-615", "615-1", architecture="all", provides="nvidia-driver-pinning"),
    *cuda_nvidia_fs("2.28.4"),
    *cuda_nvidia_fs("2.29.4"),
    *cuda_nvidia_fs("2.30.1"),
    *cuda_gds("13-2", "1.17.1.22", toolkit="13.2.1", driver="595.71.05"),
    *cuda_gds("13-3", "1.18.0.48", toolkit="13.3.0", driver="610.43.03"),
    *cuda_gds("13-4", "1.19.0.53", toolkit="13.4.0", driver="615.71.09"),
]  # fmt: skip

#: Ubuntu 24.04's own archive: two kernels of its release, one of the hardware-enablement stack, and its own driver.
NOBLE: list[Stanza] = [
    *ubuntu_kernel("6.8.0-60", "6.8.0-60.63"),
    *ubuntu_kernel("6.8.0-71", "6.8.0-71.71", headers=False),
    *ubuntu_kernel("6.11.0-26", "6.11.0-26.26~24.04.1", hwe="hwe-6.11"),
    package("linux-image-generic", "6.8.0-60.63", source="linux-meta", depends="linux-image-6.8.0-60-generic"),
    *cuda_driver("580.95.05", revision="0ubuntu0.24.04.2", companions=()),
    *UBUNTU_SURROUNDINGS,
]


def debian_cuda_driver(version: str, *, revision: str = "1") -> list[Stanza]:
    """One driver as NVIDIA packages it for Debian: Debian's names, but for the open modules and the metapackages."""
    full, source = f"{version}-{revision}", "nvidia-graphics-drivers"
    exact = f"(= {full})"
    return [
        package("firmware-nvidia-gsp", full, source=source),
        package("nvidia-modprobe", full, depends="libc6 (>= 2.34)"),
        package("nvidia-alternative", full, source=source, depends="glx-alternative-nvidia (>= 1.2)"),
        package(
            "nvidia-kernel-support", full, source=source,
            depends=f"nvidia-alternative {exact}, nvidia-modprobe (>= {full})",
        ),
        *(package(
            name, full, source=source, dkms="nvidia", provides=f"nvidia-kernel-{version}",
            conflicts=f"nvidia-kernel-{version}",
            depends=f"firmware-nvidia-gsp {exact}, nvidia-kernel-support {exact}, dkms (>= 3.1.8)",
        ) for name in ("nvidia-kernel-open-dkms", "nvidia-kernel-dkms")),
        package(
            "libcuda1", full, source=source, depends=f"nvidia-alternative {exact}",
            provides=f"libcuda.so.1 (= {version})",
        ),
        package("libnvidia-ml1", full, source=source, depends=f"nvidia-alternative {exact}"),
        package("nvidia-smi", full, source=source, depends=f"libnvidia-ml1 {exact}"),
        package(
            "nvidia-driver-cuda", full, source=source,
            depends=f"libcuda1 {exact}, nvidia-smi {exact}, nvidia-persistenced {exact}",
        ),
        package("nvidia-persistenced", full, depends="libc6"),
        package("nvidia-open", full, source=source, depends=f"nvidia-kernel-open-dkms {exact}"),
        package("cuda-drivers", full, source=source, depends=f"nvidia-kernel-dkms {exact}, nvidia-driver-cuda {exact}"),
    ]  # fmt: skip


#: NVIDIA's repository for Debian 13.
CUDA_DEBIAN: list[Stanza] = [
    CUDA_DKMS,
    *debian_cuda_driver("570.172.08"),
    *debian_cuda_driver("580.95.05"),
    *cuda_nvidia_fs("2.26.6"),
    *cuda_gds("12-9", "1.14.1.1", toolkit="12.9.1", driver="575.57.08"),
    *cuda_gds("13-0", "1.15.1.6", toolkit="13.0.2", driver="580.95.05"),
]

#: A DOCA repository: OFED and its NVMe module, built on the host.
DOCA: list[Stanza] = [
    *(stanza for version in ("3.2.1-044000", "3.3.0-087000") for stanza in (
        package("doca-ofed", version, depends=f"mlnx-ofed-kernel-dkms (>= {version}), libibverbs1"),
        package("mlnx-ofed-kernel-dkms", version, source="mlnx-ofed-kernel", depends="dkms, mlnx-tools"),
        package("mlnx-nvme-dkms", version, source="mlnx-nvme", depends="mlnx-ofed-kernel-dkms, dkms"),
    )),
    package("mlnx-tools", "25.10-0"),
]  # fmt: skip


def flat(stanzas: Iterable[Stanza], *, origin: str = "NVIDIA") -> Suite:
    """The stanzas as a flat repository, as NVIDIA serves them: no suites, no components, no hashes, no expiry."""
    files: list[Mapping[str, str]] = [{**p, "Filename": "./" + p["Filename"].rsplit("/", 1)[-1]} for p in stanzas]
    return Suite("/", {"": files}, origin=origin, by_hash=False, valid_for=None, compressions=(".gz", ""))


def noble_suites(main: Iterable[Stanza] = NOBLE, codename: str = "noble") -> list[Suite]:
    """The suites that an Ubuntu profile reads, with everything in main of the first."""
    components = ("main", "restricted", "universe", "multiverse")
    empty: dict[str, list[Mapping[str, str]]] = {name: [] for name in components}
    first: dict[str, list[Mapping[str, str]]] = {**empty, "main": list(main)}
    names = (codename, f"{codename}-updates", f"{codename}-security")
    return [
        Suite(name, first if name == codename else empty, origin="Ubuntu", codename=codename, valid_for=None)
        for name in names
    ]
