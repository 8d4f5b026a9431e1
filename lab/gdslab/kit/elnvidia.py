"""NVIDIA's rpm packages of the driver and of GPUDirect Storage, with the content of Debian's.

Names, epochs, relations, scriptlets and file layout are those of NVIDIA's spec files and packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gdslab.kit import cuda
from gdslab.kit.content import Original, Trees, copy, replace
from gdslab.kit.elversions import Versions
from gdslab.kit.rpm import Rpm, Stream

#: Debian's folder of libraries.
_LIBRARIES = "usr/lib/x86_64-linux-gnu"


def _debian(package: str, version: str) -> Original:
    return Original(package, "trixie", version)


def driver(versions: Versions, trees: Trees) -> list[Rpm]:
    """The driver's packages for compute, with the open modules' source, and two metapackages."""
    full, kmod = f"3:{versions.driver}-1.{versions.tag}", f"nvidia-kmod = 3:{versions.driver}"
    return [
        *_modules(versions, full, kmod, trees),
        *_programs(versions.driver, full, trees),
        Rpm(
            "nvidia-open", full, "noarch",
            requires=(f"nvidia-driver-cuda = {full}", f"kmod-nvidia-open-dkms = {full}"),
        ),
        Rpm("cuda-drivers", full, "noarch", requires=(f"nvidia-driver-cuda = {full}", kmod)),
        *_libraries(versions.driver, full, trees),
    ]  # fmt: skip


def _modules(versions: Versions, full: str, kmod: str, trees: Trees) -> list[Rpm]:
    v = versions.driver
    return [
        Rpm(
            "kmod-nvidia-open-dkms", full, "noarch", provides=(kmod,), conflicts=("kmod-nvidia-latest-dkms",),
            requires=(f"nvidia-kmod-common = 3:{v}", "dkms", "gcc-c++"), tree=_open_tree(versions, trees),
            scripts=dkms_scripts("nvidia-open", v),
        ),
        Rpm(
            "nvidia-kmod-common", full, "noarch", requires=("linux-firmware", "nvidia-modprobe", kmod),
            tree=_kmod_common(v, trees), config=("/etc/modprobe.d/nvidia-modeset.conf",),
            scripts={
                "post": "nvidia-boot-update post || :\n",
                "preun": 'if [ "$1" -eq 0 ]; then nvidia-boot-update preun || :; fi\n',
            },
        ),
    ]  # fmt: skip


def _programs(v: str, full: str, trees: Trees) -> list[Rpm]:
    epoch = f"3:{v}"
    return [
        Rpm(
            "nvidia-driver-cuda", full,
            requires=(
                f"nvidia-driver-cuda-libs = {epoch}", f"nvidia-kmod-common = {epoch}", f"nvidia-persistenced = {epoch}",
                "opencl-filesystem", "ocl-icd",
            ),
            conflicts=("xorg-x11-drv-nvidia-cuda",),
            tree=trees.moved(
                "nvidia-driver-cuda", _debian("nvidia-smi", v),
                {"usr/lib/nvidia/current/nvidia-smi": "usr/bin/nvidia-smi"},
                {"usr/lib/systemd/system-preset/70-nvidia-driver-cuda.preset": _PRESET},
            ),
        ),
        Rpm(
            "nvidia-persistenced", full,
            requires=(f"libnvidia-cfg >= {epoch}", "libtirpc", "(systemd and shadow-utils)"),
            tree=trees.moved(
                "nvidia-persistenced", _debian("nvidia-persistenced", v),
                {
                    "usr/bin/nvidia-persistenced": "usr/bin/nvidia-persistenced",
                    "usr/lib/systemd/system/*.service": "usr/lib/systemd/system",
                },
            ),
            scripts=service_scripts("nvidia-persistenced.service", user="nvpd"),
        ),
        Rpm(
            "nvidia-modprobe", full,
            tree=trees.moved(
                "nvidia-modprobe", _debian("nvidia-modprobe", ""),
                {"usr/bin/nvidia-modprobe": "usr/bin/nvidia-modprobe"},
            ),
        ),
    ]  # fmt: skip


_PRESET = "".join(f"enable nvidia-{name}.service\n" for name in ("persistenced", "fabricmanager", "imex"))


def _libraries(version: str, full: str, trees: Trees) -> list[Rpm]:
    def tree(name: str, source: str) -> Path:
        return trees.moved(name, _debian(source, version), {f"{_LIBRARIES}/nvidia/current/*": "usr/lib64"})

    ldconfig = {"post": "ldconfig || :\n"}
    return [
        Rpm(
            "nvidia-driver-cuda-libs", full, provides=("nvidia-driver-devel", "libcuda.so.1()(64bit)"),
            requires=(f"libnvidia-ml = {full}", f"libnvidia-cfg = {full}"), scripts=ldconfig,
            tree=tree("nvidia-driver-cuda-libs", "libcuda1"),
        ),
        *(
            Rpm(name, full, provides=(f"{name}.so.1()(64bit)",), scripts=ldconfig, tree=tree(name, f"{name}1"))
            for name in ("libnvidia-ml", "libnvidia-cfg")
        ),
    ]  # fmt: skip


def _open_tree(versions: Versions, trees: Trees) -> Path:
    """The open modules' source below the name that NVIDIA's packages of this branch gave it."""
    v = versions.driver
    place = f"usr/src/nvidia-open-{v}"
    tree = trees.new("kmod-nvidia-open-dkms")
    copy(cuda.open_source(trees.content), tree / place)
    replace(tree / place / "dkms.conf", _driver_conf(v))
    return tree


def _driver_conf(version: str) -> str:
    modules = "".join(
        f'BUILT_MODULE_NAME[{n}]="{name}"\nDEST_MODULE_LOCATION[{n}]="/extra"\n' for n, name in enumerate(cuda.MODULES)
    )
    return (
        f'PACKAGE_NAME="nvidia-open"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n'
        "MAKE[0]=\"'make' -j`nproc` NV_EXCLUDE_BUILD_MODULES='' KERNEL_UNAME=${kernelver} modules\"\n"
        f'CLEAN="make clean"\n{modules}'
    )


def _kmod_common(version: str, trees: Trees) -> Path:
    firmware = f"usr/lib/firmware/nvidia/{version}"
    program = trees.moved(
        "nvidia-kmod-common", _debian("firmware-nvidia-gsp", version), {firmware: firmware},
        {
            "usr/lib/dracut/dracut.conf.d/99-nvidia.conf":
                'omit_drivers+=" nvidia nvidia-drm nvidia-modeset nvidia-uvm nvidia-peermem "\n',
            "usr/lib/modprobe.d/nvidia.conf": _MODPROBE,
            "etc/modprobe.d/nvidia-modeset.conf": "# options nvidia-drm modeset=1\n",
            "usr/bin/nvidia-boot-update": _BOOT_UPDATE,
        },
    )  # fmt: skip
    (program / "usr/bin/nvidia-boot-update").chmod(0o755)
    return program


_MODPROBE = """\
blacklist nouveau
softdep nvidia post: nvidia-uvm nvidia-drm
options nvidia NVreg_PreserveVideoMemoryAllocations=1 NVreg_TemporaryFilePath=/var/tmp
options nvidia NVreg_EnableS0ixPowerManagement=1
"""
#: Adds what keeps nouveau out to the kernel's options wherever they are, and takes out what would do so elsewhere.
_BOOT_UPDATE = """\
#!/bin/bash
set -eu
shopt -s nullglob
wanted=rd.driver.blacklist=nouveau
stale='nomodeset|nouveau\\.modeset=0|modprobe\\.blacklist=nouveau|nvidia-drm\\.(modeset|fbdev)=1'
for file in /etc/kernel/cmdline /boot/loader/entries/*.conf; do
    [ -e "$file" ] || continue
    sed -E -i -e "/^(options |root=)/{s/ ($stale|$wanted)( |\\$)/ /g;s/ +\\$//}" "$file"
    [ "${1:-post}" = preun ] || sed -E -i -e "/^(options |root=)/s/\\$/ $wanted/" "$file"
done
"""


def dkms_scripts(name: str, version: str) -> dict[str, str]:
    """The scriptlets of NVIDIA's dkms packages; none of them fails with its build."""
    module = f"-m {name} -v {version} -q"
    return {
        "post": (
            f"dkms add {module} --rpm_safe_upgrade || :\ndkms build {module} || :\ndkms install {module} --force || :\n"
        ),
        "preun": f"dkms remove {module} --all --rpm_safe_upgrade || :\n",
    }


def service_scripts(unit: str, *, user: str = "") -> dict[str, str]:
    """Scriptlets of systemd: a preset at the first installation, an end at the last removal."""
    pre = f"getent passwd {user} >/dev/null || useradd --system --shell /sbin/nologin {user} || :\n"
    return {
        **({"pre": pre} if user else {}),
        "post": f'if [ "$1" -eq 1 ]; then systemctl --no-reload preset {unit} || :; fi\n',
        "preun": f'if [ "$1" -eq 0 ]; then systemctl --no-reload disable --now {unit} || :; fi\n',
        "postun": f'if [ "$1" -ge 1 ]; then systemctl try-restart {unit} || :; fi\n',
    }


# GPUDirect Storage


def gds(trees: Trees) -> list[Rpm]:
    """nvidia-fs, libcufile and the tools of one CUDA release, in two versions each."""
    return [
        *(rpm for version in cuda.NVIDIA_FS for rpm in _nvidia_fs(version, trees)),
        *(rpm for version in cuda.LIBCUFILE for rpm in _libcufile(version, trees)),
    ]


def _libcufile(v: str, trees: Trees) -> list[Rpm]:
    name, root = cuda.CUDA.replace(".", "-"), f"usr/local/cuda-{cuda.CUDA}"
    library, link = f"{root}/targets/x86_64-linux/lib", "/etc/cufile.json"
    config = f"/{root}/gds/cufile.json"
    debian_tools = _debian("gds-tools", cuda.DEBIAN_LIBCUFILE)
    tools = trees.moved(f"gds-tools-{v}", debian_tools, {"usr/libexec/gds/tools/*": f"{root}/gds/tools"})
    libcufile = trees.moved(
        f"libcufile-{v}", debian_tools, {"usr/share/doc/gds-tools/examples/cufile.json": config.lstrip("/")},
        {f"etc/ld.so.conf.d/000_cuda-{name}.conf": f"/{library}\n"},
    )  # fmt: skip
    for package, soname in {"libcufile0": "libcufile.so.0", "libcufile-rdma1": "libcufile_rdma.so.1"}.items():
        stem, debian = soname.rpartition(".")[0], cuda.DEBIAN_LIBCUFILE.rpartition(".")[0]
        file = f"{stem}.{v.rpartition('.')[0]}"
        trees.add(libcufile, _debian(package, cuda.DEBIAN_LIBCUFILE), {
            f"{_LIBRARIES}/{stem}.{debian}": f"{library}/{file}",
        })  # fmt: skip
        (libcufile / library / soname).symlink_to(file)
    return [
        Rpm(
            f"libcufile-{name}", f"{v}-1", provides=("libcufile.so.0()(64bit)",), tree=libcufile, config=(config,),
            scripts={
                "post": f"ldconfig || :\nupdate-alternatives --install {link} cufile.json {config} 120 || :\n",
                "preun": f'if [ "$1" -eq 0 ]; then update-alternatives --remove cufile.json {config} || :; fi\n',
                "postun": "ldconfig || :\n",
            },
        ),
        Rpm(f"gds-tools-{name}", f"{v}-1", requires=(f"libcufile-{name} >= {v}", "numactl-libs"), tree=tools),
        Rpm(
            f"nvidia-gds-{name}", f"{cuda.LIBCUFILE[v]}-1",
            requires=(f"libcufile-{name} >= {v}", f"gds-tools-{name} >= {v}", "nvidia-fs >= 2.19"),
        ),
    ]  # fmt: skip


def _nvidia_fs(v: str, trees: Trees) -> list[Rpm]:
    place, origin = f"usr/src/nvidia-fs-{v}", f"usr/src/nvidia-fs-{cuda.DEBIAN_NVIDIA_FS}"
    texts = {"etc/modules-load.d/nvidia-fs.conf": "nvidia-fs\n"}
    source = _debian("nvidia-fs-dkms", cuda.DEBIAN_NVIDIA_FS)
    tree = trees.moved(f"nvidia-fs-dkms-{v}", source, {origin: place}, texts)
    for name, text in cuda.renamed_nvidia_fs(tree / place, v, "nvidia-open").items():
        replace(tree / place / name, text)
    return [
        Rpm("nvidia-fs", f"{v}-1", requires=(f"nvidia-fs-dkms = {v}-1",)),
        Rpm(
            "nvidia-fs-dkms", f"{v}-1", requires=("dkms", "(kmod-nvidia-open-dkms or kmod-nvidia-latest-dkms)"),
            tree=tree, scripts=dkms_scripts("nvidia-fs", v),
        ),
    ]  # fmt: skip


def streams(versions: Versions, rpms: Iterable[Rpm]) -> Sequence[Stream]:
    """NVIDIA's module streams; release 10 has none."""
    if versions.major >= 10:
        return ()
    branch = versions.driver.partition(".")[0]
    members = [rpm for rpm in rpms if rpm.version.startswith("3:")]
    return [Stream("nvidia-driver", name, members) for name in ("open-dkms", f"{branch}-open")]
