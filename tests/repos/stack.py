"""An imitation of Debian's GDS packages: their names, versions and relations, without their content.

The live archive shows one state, and a resolver has to be right in the others too: a kernel whose headers are gone,
a driver that was fixed, two drivers at once, a package list that NVIDIA would serve.  The relations are those of
trixie's and bookworm's package lists; the real archive is tried in test_debian_archive.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.repos import dkmspackages
from tests.repos.archive import Suite

Stanza = dict[str, str]


def package(name: str, version: str, *, architecture: str = "amd64", dkms: str = "", **fields: str) -> Stanza:
    """A stanza; ``depends="…"``, ``pre_depends="…"`` and so on become fields.  dkms: the name of its source tree."""
    content = dkmspackages.with_tree(dkms, version) if dkms else deb(name, version)
    stanza = {"Package": name}
    stanza |= {"Version": version, "Architecture": architecture}
    stanza |= {key.replace("_", "-").title(): value for key, value in fields.items()}
    return stanza | {
        "Filename": f"pool/{name}_{version.replace(':', '%3a')}_{architecture}.deb",
        "Size": str(len(content)),
        "SHA256": hashlib.sha256(content).hexdigest(),
    }


def deb(name: str, version: str) -> bytes:
    """What stands for the package file, with its name as its content."""
    return dkmspackages.deb({f"./usr/share/doc/{name}": f"{name} {version}\n".encode()}, "", lambda data: data)


def write_pool(root: Path, stanzas: Iterable[Mapping[str, str]]) -> None:
    """Put the package files of ``stanzas`` where their Filename says."""
    for stanza in stanzas:
        path = root / stanza["Filename"]
        path.parent.mkdir(parents=True, exist_ok=True)
        content = dkmspackages.CONTENTS.get(stanza["SHA256"])
        path.write_bytes(content or deb(stanza["Package"], stanza["Version"]))


def kernel(release: str, version: str, *, headers: bool = True) -> list[Stanza]:
    """One kernel as trixie has it: image, and headers with their common part and build tools."""
    image = f"linux-image-{release}-amd64"
    built = [
        package(
            image, version, source="linux-signed-amd64", pre_depends="linux-base (>= 4.12~)",
            depends="kmod, initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool", conflicts=f"{image}-unsigned",
        ),
        package(f"{image}-dbg", version, source="linux"),
        package(f"linux-image-{release}-cloud-amd64", version, source="linux-signed-amd64"),
        package(f"linux-image-{release}-rt-amd64", version, source="linux-signed-amd64"),
    ]  # fmt: skip
    if headers:
        built += [
            package(
                f"linux-headers-{release}-amd64", version, source="linux",
                depends=f"linux-headers-{release}-common (= {version}), {image} (= {version}) | "
                f"{image}-unsigned (= {version}), linux-kbuild-{release}, gcc-14",
            ),
            package(f"linux-headers-{release}-common", version, architecture="all", source="linux"),
            package(f"linux-kbuild-{release}", version, source="linux", depends="libc6 (>= 2.38), pahole"),
        ]  # fmt: skip
    return built


def open_driver(version: str, revision: str) -> list[Stanza]:
    """The open kernel modules' packages."""
    source, full = "nvidia-open-gpu-kernel-modules", f"{version}-{revision}"
    major = version.split(".", 1)[0]
    return [
        package(
            "nvidia-open-kernel-dkms", full, source=source, dkms="nvidia-current-open",
            pre_depends="nvidia-installer-cleanup",
            provides=f"nvidia-open-kernel-{version}, nvidia-open-kernel-dkms-any (= {version})",
            depends=f"firmware-nvidia-gsp (= {version}) | firmware-nvidia-gsp-{version}, "
            "nvidia-open-kernel-support--v1, dkms (>= 3.0.11)",
        ),
        package(
            "nvidia-open-kernel-support", full, source=source,
            provides=f"nvidia-kernel-support-any, nvidia-open-kernel-support--v1, nvidia-open-kernel-support-{version}",
            depends=f"nvidia-alternative-{version} | nvidia-alternative-{version}, "
            f"nvidia-kernel-common (>= 20151021), nvidia-modprobe (>= {major})",
            conflicts=f"nvidia-open-kernel-support-{version}",
        ),
    ]  # fmt: skip


def proprietary_driver(version: str, revision: str) -> list[Stanza]:
    """The proprietary kernel modules, and the userland that both flavours use."""
    source, full = "nvidia-graphics-drivers", f"{version}-{revision}"
    major = version.split(".", 1)[0]
    return [
        package(
            "nvidia-kernel-dkms", full, source=source, dkms="nvidia-current", pre_depends="nvidia-installer-cleanup",
            provides=f"nvidia-kernel-{version}, nvidia-kernel-dkms-any (= {version})",
            depends=f"firmware-nvidia-gsp (= {version}) | firmware-nvidia-gsp-{version}, "
            "nvidia-kernel-support--v1, dkms (>= 3.0.11)",
        ),
        package(
            "nvidia-kernel-support", full, source=source,
            provides="nvidia-kernel-support--v1, nvidia-kernel-support-any",
            depends=f"nvidia-alternative (= {full}), nvidia-alternative--kmod-alias, "
            f"nvidia-kernel-common (>= 20151021), nvidia-modprobe (>= {major})",
        ),
        package(
            "libcuda1", full, source=source, provides=f"libcuda.so.1 (= {version}), libcuda1-any",
            depends=f"nvidia-support, nvidia-alternative (= {full}), libnvidia-ptxjitcompiler1 (= {full}), libc6",
            recommends=f"nvidia-kernel-dkms (= {full}) | nvidia-open-kernel-{version}, nvidia-persistenced",
        ),
        package("libnvidia-ptxjitcompiler1", full, source=source, depends="libc6 (>= 2.34)"),
        package("libnvidia-ml1", full, source=source, depends=f"nvidia-alternative (= {full}), libc6 (>= 2.34)"),
        package("nvidia-smi", full, source=source, depends=f"nvidia-alternative (= {full}), libnvidia-ml1 (= {full})"),
        package(
            "nvidia-alternative", full, source=source,
            provides=f"nvidia-alternative--kmod-alias, nvidia-alternative-{version}, nvidia-alternative-any",
            depends="glx-alternative-nvidia (>= 1.2)", conflicts="nvidia-legacy-390xx-alternative (<< 390.157-2~)",
        ),
        package(
            "firmware-nvidia-gsp", full, source=source, conflicts=f"firmware-nvidia-gsp-{version}",
            provides=f"firmware-nvidia-gsp (= {version}), firmware-nvidia-gsp-{version}",
        ),
    ]  # fmt: skip


def gds(nvidia_fs: str, libcufile: str, cuda: str, revision: str) -> list[Stanza]:
    """nvidia-fs, libcufile and gds-tools of one CUDA release; proprietary is the first alternative, as in Debian."""
    source, suffix = f"nvidia-cuda-toolkit ({cuda}-{revision})", f"~{cuda}-{revision}"
    return [
        package(
            "nvidia-fs-dkms", nvidia_fs + suffix, source=source, dkms="nvidia-fs",
            depends="nvidia-kernel-dkms (>= 520) | nvidia-open-kernel-dkms (>= 520) | nvidia-kernel-dkms-any (>= 520)"
            " | nvidia-open-kernel-dkms-any (>= 520), dkms (>= 3.0.11)",
        ),
        package("libcufile0", libcufile + suffix, source=source, depends="libc6 (>= 2.34)"),
        package(
            "gds-tools", libcufile + suffix, source=source,
            depends="python3:any, libcuda1 (>= 520) | libcuda.so.1 (>= 520), libcufile0 (>= 1.4), libnuma1",
        ),
        package("libcufile-rdma1", libcufile + suffix, source=source, depends="libcufile0 (>= 1.3), libibverbs1"),
    ]  # fmt: skip


#: What of main, contrib and other sources the stack leans on.
SURROUNDINGS: list[Stanza] = [
    package("dkms", "3.2.2-1~deb13u1", architecture="all", depends="kmod, dpkg-dev, make | build-essential",
            breaks="nvidia-kernel-dkms (<< 535.230)"),
    package("nvidia-installer-cleanup", "20240109+1", source="nvidia-support"),
    package("nvidia-support", "20240109+1"),
    package("nvidia-kernel-common", "20240109+1", source="nvidia-support"),
    package("nvidia-modprobe", "570.133.07-1", depends="libc6 (>= 2.34)"),
    package("nvidia-persistenced", "550.163.01-1"),
    package("glx-alternative-nvidia", "1.2.2", source="glx-alternatives", depends="update-glx (= 1.2.2)"),
    package("python3", "3.13.5-1", multi_arch="allowed"),
    package("update-glx", "1.2.2", source="glx-alternatives"),
    *(package(name, version) for name, version in {
        "linux-base": "4.12", "initramfs-tools": "0.148", "libc6": "2.41-12", "gcc-14": "14.2.0-19", "pahole": "1.30-1",
        "kmod": "34.2-2", "dpkg-dev": "1.22.21", "make": "4.4.1-2", "libnuma1": "2.0.19-1",
        "libibverbs1": "56.1-1",
    }.items()),
]  # fmt: skip

#: Trixie as facts have it: the newest kernel is too new for the driver, another has lost its headers.
TRIXIE: list[Stanza] = [
    *kernel("6.12.94+deb13", "6.12.94-1"),
    *kernel("6.12.100+deb13", "6.12.100-1", headers=False),
    *kernel("6.12.107+deb13", "6.12.107-1"),
    *open_driver("550.163.01", "2"),
    *proprietary_driver("550.163.01", "2"),
    *gds("2.19.7", "1.9.1.3", "12.4.1", "2"),
    *SURROUNDINGS,
]


def without(stanzas: Iterable[Stanza], *names: str) -> list[Stanza]:
    """The stanzas of all other packages."""
    return [stanza for stanza in stanzas if stanza["Package"] not in names]


def for_arm64(stanza: Mapping[str, str]) -> Stanza:
    """The same package as another architecture has it."""
    there = {key: value.replace("amd64", "arm64") for key, value in stanza.items()}
    content = dkmspackages.CONTENTS.get(stanza["SHA256"]) or deb(there["Package"], there["Version"])
    return there | {"Size": str(len(content)), "SHA256": hashlib.sha256(content).hexdigest()}


def text(stanzas: Iterable[Mapping[str, str]]) -> bytes:
    """A package list."""
    return "\n".join("".join(f"{k}: {v}\n" for k, v in stanza.items()) for stanza in stanzas).encode()


def suites(main: Iterable[Stanza] = TRIXIE, codename: str = "trixie") -> list[Suite]:
    """The three suites that a Debian profile reads, with everything in main of the first."""
    components = ("main", "contrib", "non-free", "non-free-firmware")
    first = {name: list(main) if name == "main" else [] for name in components}
    empty: dict[str, list[Mapping[str, str]]] = {name: [] for name in components}
    return [
        Suite(codename, {**first}, valid_for=None),
        Suite(f"{codename}-updates", empty),
        Suite(f"{codename}-security", empty, component_prefix="updates/"),
    ]
