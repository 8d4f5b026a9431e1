"""The repositories of a host of the RHEL family, with the content of Debian's packages.

Names, epochs, relations, scriptlets and file layout are those of the family's and NVIDIA's packages.  The content is
Debian's: kernel, driver, nvidia-fs, libcufile, dkms.  ``docs/lab.md`` lists what that can't show.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import run
from gdsdeploy.lab.kit.rpm import Rpm, Stream

RED_HAT = "Red Hat, Inc."
#: Debian's folder of libraries.
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: Files of the driver's source that Debian builds with debugging symbols: nine tenths of it.
_OBJECTS = ("nvidia/nv-kernel.o_binary", "nvidia-modeset/nv-modeset-kernel.o_binary")

#: Name of a Debian package → the folder with its files.
Content = Callable[[str], Path]


@dataclass(frozen=True)
class Versions:
    """What a release of the family offers; ``tag``: its part of packages' releases."""

    major: int
    minor: str
    tag: str
    kernel: str
    dkms: str
    driver: str = "550.163.01"
    nvidia_fs: str = "2.19.7"
    cuda: str = "12.4"
    libcufile: str = "1.9.1.3"

    @property
    def release(self) -> str:
        """The kernel's release."""
        return f"{self.kernel}.x86_64"


RELEASES = {
    9: Versions(9, "9.6", "el9", "5.14.0-570.12.1.el9_6", "3.2.2-1.el9"),
    10: Versions(10, "10.1", "el10", "6.12.0-124.8.1.el10_1", "3.2.2-1.el10"),
}

#: What Debian's files give a host without an rpm of its own: name → version, without the distribution's tag.
_BASE: Mapping[int, Mapping[str, str]] = {
    9: {
        "bash": "5.1.8-9", "coreutils": "8.32-39", "cpio": "2.13-16", "dnf": "4.14.0-25", "dracut": "057-88.git20250311",
        "elfutils-libelf-devel": "0.192-6", "file": "5.39-16", "findutils": "1:4.8.0-7", "gawk": "5.1.0-6",
        "gcc": "11.5.0-5", "gcc-c++": "11.5.0-5", "glibc": "2.34-168", "grep": "3.6-5", "grub2-tools": "1:2.06-104",
        "gzip": "1.12-1", "kmod": "28-10", "libgcc": "11.5.0-5", "libibverbs": "54.0-1", "librdmacm": "54.0-1",
        "libstdc++": "11.5.0-5", "libtirpc": "1.3.3-9", "linux-firmware": "20250314-151", "make": "1:4.3-8",
        "numactl-libs": "2.0.19-1", "openssl": "1:3.2.2-6", "patch": "2.7.6-16", "python3": "3.9.21-2", "rpm": "4.16.1.3-37",
        "sed": "4.8-9", "shadow-utils": "2:4.9-12", "systemd": "252-51", "systemd-udev": "252-51", "tar": "2:1.34-7",
        "util-linux": "2.37.4-21", "which": "2.21-29", "xz": "5.2.5-8",
    },
    10: {
        "bash": "5.2.26-6", "coreutils": "9.5-6", "cpio": "2.15-3", "dnf": "4.20.0-14", "dracut": "105-4",
        "elfutils-libelf-devel": "0.193-1", "file": "5.45-7", "findutils": "1:4.10.0-5", "gawk": "5.3.0-6",
        "gcc": "14.3.1-2", "gcc-c++": "14.3.1-2", "glibc": "2.39-58", "grep": "3.11-10", "grub2-tools": "1:2.12-15",
        "gzip": "1.13-3", "kmod": "31-11", "libgcc": "14.3.1-2", "libibverbs": "57.0-2", "librdmacm": "57.0-2",
        "libstdc++": "14.3.1-2", "libtirpc": "1.3.5-1", "linux-firmware": "20250812-17", "make": "1:4.4.1-9",
        "numactl-libs": "2.0.19-3", "openssl": "1:3.5.1-3", "patch": "2.7.6-26", "python3": "3.12.11-3", "rpm": "4.19.1.1-20",
        "sed": "4.9-3", "shadow-utils": "2:4.15.0-8", "systemd": "257-13", "systemd-udev": "257-13", "tar": "2:1.35-7",
        "util-linux": "2.40.2-13", "which": "2.21-44", "xz": "1:5.6.2-4",
    },
}  # fmt: skip
_BASE_FILES = (
    "/bin/sh", "/usr/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/python3", "/usr/bin/kernel-install",
    "/bin/kernel-install", "/usr/sbin/depmod", "/usr/sbin/update-alternatives", "/usr/sbin/useradd", "/sbin/ldconfig",
    "/usr/bin/strip", "/usr/bin/systemctl",
)  # fmt: skip


def base(versions: Versions) -> list[Rpm]:
    """The packages of the first rpm database: all of Debian's files under two names."""
    tag, number = versions.tag, f"{versions.minor}-1.{versions.tag}"
    names = [f"{name} = {version}.{tag}" for name, version in _BASE[versions.major].items()]
    release = ("system-release", "redhat-release", "system-release(releasever)")
    return [
        Rpm("lab-base", number, "noarch", provides=(*names, *_BASE_FILES), vendor=RED_HAT),
        Rpm(
            "rocky-release", number, "noarch", vendor=RED_HAT,
            provides=tuple(f"{name} = {versions.minor}" for name in release),
        ),
    ]  # fmt: skip


class Trees:
    """Folders with the files of packages, made below ``work`` of the content's files, which they share."""

    def __init__(self, work: Path, content: Content) -> None:
        self._work, self._content = work, content

    def new(self, name: str, texts: Mapping[str, str] | None = None) -> Path:
        """An empty folder for the package ``name``, with ``texts`` by path."""
        folder = self._work / name
        folder.mkdir(parents=True)
        for path, text in (texts or {}).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return folder

    def moved(self, name: str, source: str, places: Mapping[str, str], texts: Mapping[str, str] | None = None) -> Path:
        """A folder for the package ``name``: of the Debian package ``source``, each path of ``places`` at its value.

        A path is a file, a folder, or a pattern of files that go into the folder of its value.
        """
        folder = self.new(name, texts)
        self.add(folder, source, places)
        return folder

    def add(self, folder: Path, source: str, places: Mapping[str, str]) -> None:
        """The same into ``folder``, which exists.  Raises FileNotFoundError for a path that ``source`` doesn't have."""
        origin = self._content(source)
        for pattern, place in places.items():
            matches = sorted(origin.glob(pattern))
            if not matches:
                raise FileNotFoundError(f"Debian's {source} has no {pattern}")
            for match in matches:
                copy(match, folder / place / match.name if "*" in pattern else folder / place)


def copy(source: Path, target: Path) -> None:
    """Copy a file, link or folder; files of the same file system are shared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    else:
        _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def replace(path: Path, text: str) -> None:
    """Write ``path``, which may share its content with another."""
    path.unlink(missing_ok=True)
    path.write_text(text)


# The driver, as NVIDIA's repository has it


def driver(versions: Versions, trees: Trees) -> list[Rpm]:
    """The driver's packages for compute, and both flavours of its source; see facts of NVIDIA's spec files."""
    v = versions.driver
    epoch, full = f"3:{v}", f"3:{v}-1.{versions.tag}"
    kmod = f"nvidia-kmod = {epoch}"
    libraries = {"libnvidia-ml": "libnvidia-ml1", "libnvidia-cfg": "libnvidia-cfg1"}
    return [
        Rpm(
            "kmod-nvidia-open-dkms", full, "noarch", provides=(kmod,), conflicts=("kmod-nvidia-latest-dkms",),
            requires=(f"nvidia-kmod-common = {epoch}", "dkms", "gcc-c++"), tree=_open_tree(versions, trees),
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
        Rpm(
            "nvidia-driver-cuda", full,
            requires=(
                f"nvidia-driver-cuda-libs = {epoch}", f"nvidia-kmod-common = {epoch}", f"nvidia-persistenced = {epoch}",
                "opencl-filesystem", "ocl-icd",
            ),
            conflicts=("xorg-x11-drv-nvidia-cuda",),
            tree=trees.moved(
                "nvidia-driver-cuda", "nvidia-smi", {"usr/lib/nvidia/current/nvidia-smi": "usr/bin/nvidia-smi"},
                {"usr/lib/systemd/system-preset/70-nvidia-driver-cuda.preset": _PRESET},
            ),
        ),
        Rpm(
            "nvidia-driver-cuda-libs", full, provides=("nvidia-driver-devel", "libcuda.so.1()(64bit)"),
            requires=(f"libnvidia-ml = {full}", f"libnvidia-cfg = {full}"), scripts={"post": "ldconfig || :\n"},
            tree=_libraries(trees, "nvidia-driver-cuda-libs", "libcuda1"),
        ),
        *(
            Rpm(
                name, full, provides=(f"{name}.so.1()(64bit)",), scripts={"post": "ldconfig || :\n"},
                tree=_libraries(trees, name, source),
            )
            for name, source in libraries.items()
        ),
        Rpm(
            "nvidia-persistenced", full, requires=(f"libnvidia-cfg >= {epoch}", "libtirpc", "(systemd and shadow-utils)"),
            tree=trees.moved(
                "nvidia-persistenced", "nvidia-persistenced",
                {
                    "usr/bin/nvidia-persistenced": "usr/bin/nvidia-persistenced",
                    "usr/lib/systemd/system/*.service": "usr/lib/systemd/system",
                },
            ),
            scripts=service_scripts("nvidia-persistenced.service", user="nvpd"),
        ),
        Rpm(
            "nvidia-modprobe", full,
            tree=trees.moved("nvidia-modprobe", "nvidia-modprobe", {"usr/bin/nvidia-modprobe": "usr/bin/nvidia-modprobe"}),
        ),
        Rpm("nvidia-open", full, "noarch", requires=(f"nvidia-driver-cuda = {full}", f"kmod-nvidia-open-dkms = {full}")),
        Rpm("cuda-drivers", full, "noarch", requires=(f"nvidia-driver-cuda = {full}", kmod)),
    ]  # fmt: skip


_PRESET = "".join(f"enable nvidia-{name}.service\n" for name in ("persistenced", "fabricmanager", "imex"))


def _libraries(trees: Trees, name: str, source: str) -> Path:
    return trees.moved(name, source, {f"{_LIBRARIES}/nvidia/current/*": "usr/lib64"})


def _open_tree(versions: Versions, trees: Trees) -> Path:
    """The open modules' source below the name that NVIDIA's packages of this branch gave it."""
    v = versions.driver
    place = f"usr/src/nvidia-open-{v}"
    origin = f"usr/src/nvidia-current-open-{v}"
    tree = trees.moved("kmod-nvidia-open-dkms", "nvidia-open-kernel-dkms", {origin: place})
    for name in _OBJECTS:
        path = tree / place / name
        path.rename(path.with_suffix(".debug"))
        argv = ["objcopy", "--strip-debug", path.with_suffix(".debug"), path]
        run.run(argv, doing="leave the debugging symbols out of the driver's source")
        path.with_suffix(".debug").unlink()
    replace(tree / place / "dkms.conf", _driver_conf(v))
    return tree


def _driver_conf(version: str) -> str:
    names = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
    modules = "".join(
        f'BUILT_MODULE_NAME[{n}]="{name}"\nDEST_MODULE_LOCATION[{n}]="/extra"\n' for n, name in enumerate(names)
    )
    return (
        f'PACKAGE_NAME="nvidia-open"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n'
        "MAKE[0]=\"'make' -j`nproc` NV_EXCLUDE_BUILD_MODULES='' KERNEL_UNAME=${kernelver} modules\"\n"
        f'CLEAN="make clean"\n{modules}'
    )


def _kmod_common(version: str, trees: Trees) -> Path:
    program = trees.moved(
        "nvidia-kmod-common", "firmware-nvidia-gsp", {f"usr/lib/firmware/nvidia/{version}": f"usr/lib/firmware/nvidia/{version}"},
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
            f"dkms add {module} --rpm_safe_upgrade || :\n"
            f"dkms build {module} || :\ndkms install {module} --force || :\n"
        ),
        "preun": f"dkms remove {module} --all --rpm_safe_upgrade || :\n",
    }


def service_scripts(unit: str, *, user: str = "") -> dict[str, str]:
    """systemd's scriptlets: a preset at the first installation, an end at the last removal."""
    pre = f"getent passwd {user} >/dev/null || useradd -r -d /var/run/{unit.partition('.')[0]} -s /sbin/nologin {user} || :\n"
    return {
        **({"pre": pre} if user else {}),
        "post": f'if [ "$1" -eq 1 ]; then systemctl --no-reload preset {unit} || :; fi\n',
        "preun": f'if [ "$1" -eq 0 ]; then systemctl --no-reload disable --now {unit} || :; fi\n',
        "postun": f'if [ "$1" -ge 1 ]; then systemctl try-restart {unit} || :; fi\n',
    }


# GPUDirect Storage


def gds(versions: Versions, trees: Trees) -> list[Rpm]:
    """nvidia-fs, libcufile and the tools of one CUDA release."""
    name, v, fs = versions.cuda.replace(".", "-"), versions.libcufile, versions.nvidia_fs
    root = f"usr/local/cuda-{versions.cuda}"
    library = f"{root}/targets/x86_64-linux/lib"
    config = f"/{root}/gds/cufile.json"
    tools = trees.moved("gds-tools", "gds-tools", {"usr/libexec/gds/tools/*": f"{root}/gds/tools"})
    libcufile = trees.moved(
        "libcufile", "libcufile0", {f"{_LIBRARIES}/*": library},
        {f"etc/ld.so.conf.d/000_cuda-{name}.conf": f"/{library}\n"},
    )  # fmt: skip
    trees.add(libcufile, "libcufile-rdma1", {f"{_LIBRARIES}/*": library})
    trees.add(libcufile, "gds-tools", {"usr/share/doc/gds-tools/examples/cufile.json": config.lstrip("/")})
    return [
        Rpm(
            f"libcufile-{name}", f"{v}-1", provides=("libcufile.so.0()(64bit)",), tree=libcufile, config=(config,),
            scripts={
                "post": f"ldconfig || :\nupdate-alternatives --install /etc/cufile.json cufile.json {config} 120 || :\n",
                "preun": f'if [ "$1" -eq 0 ]; then update-alternatives --remove cufile.json {config} || :; fi\n',
                "postun": "ldconfig || :\n",
            },
        ),
        Rpm(f"gds-tools-{name}", f"{v}-1", requires=(f"libcufile-{name} >= {v}", "numactl-libs"), tree=tools),
        Rpm(
            f"nvidia-gds-{name}", f"{versions.cuda}.1-1",
            requires=(f"libcufile-{name} >= {v}", f"gds-tools-{name} >= {v}", f"nvidia-fs >= {fs}"),
        ),
        Rpm("nvidia-fs", f"{fs}-1", requires=(f"nvidia-fs-dkms = {fs}-1",)),
        Rpm(
            "nvidia-fs-dkms", f"{fs}-1", requires=("dkms", "(kmod-nvidia-open-dkms or kmod-nvidia-latest-dkms)"),
            tree=_nvidia_fs(versions, trees), scripts=dkms_scripts("nvidia-fs", fs),
        ),
    ]  # fmt: skip


def _nvidia_fs(versions: Versions, trees: Trees) -> Path:
    place = f"usr/src/nvidia-fs-{versions.nvidia_fs}"
    texts = {"etc/modules-load.d/nvidia-fs.conf": "nvidia-fs\n"}
    tree = trees.moved("nvidia-fs-dkms", "nvidia-fs-dkms", {place: place}, texts)
    conf = tree / place / "dkms.conf"
    # NVIDIA's package names the driver as its own packages do.
    replace(conf, conf.read_text().replace('="nvidia-current"', '="nvidia-open"'))
    return tree


# The family's own repositories


def dkms(versions: Versions, trees: Trees) -> list[Rpm]:
    """EPEL's package, with kernel-install's plugin."""
    needs = ("coreutils", "cpio", "elfutils-libelf-devel", "file", "findutils", "gawk", "gcc", "grep", "gzip", "kmod")
    tree = trees.moved(
        "dkms", "dkms",
        {
            "etc/dkms": "etc/dkms", "usr/sbin/dkms": "usr/sbin/dkms",
            "usr/lib/dkms/dkms_autoinstaller": "usr/lib/dkms/dkms_autoinstaller",
        },
        {"usr/lib/kernel/install.d/40-dkms.install": _DKMS_PLUGIN},
    )  # fmt: skip
    (tree / "usr/lib/kernel/install.d/40-dkms.install").chmod(0o755)
    return [
        Rpm(
            "dkms", versions.dkms, "noarch", vendor="Fedora Project", tree=tree, config=("/etc/dkms/framework.conf",),
            requires=(*needs, "make", "patch", "sed", "tar", "(kernel-devel-matched if kernel-core)"),
        )
    ]  # fmt: skip


_DKMS_PLUGIN = """\
#!/bin/sh
case $1 in
    add) exec /usr/sbin/dkms kernel_postinst -k "$2" ;;
    remove) exec /usr/sbin/dkms kernel_prerm -k "$2" ;;
esac
"""


def appstream(versions: Versions, trees: Trees) -> list[Rpm]:
    """What hosts get on demand: dnf's plugin that locks versions, and OpenCL's loader, which is empty."""
    plugins = "usr/lib/python3/dist-packages/dnf-plugins"
    tree = trees.moved(
        "versionlock", "dnf-plugins-core",
        {
            f"{plugins}/versionlock.py": f"{plugins}/versionlock.py",
            "usr/lib/python3/dist-packages/dnfpluginscore": "usr/lib/python3/dist-packages/dnfpluginscore",
            "etc/dnf/plugins/versionlock.conf": "etc/dnf/plugins/versionlock.conf",
            "etc/dnf/plugins/versionlock.list": "etc/dnf/plugins/versionlock.list",
        },
    )  # fmt: skip
    config = ("/etc/dnf/plugins/versionlock.conf", "/etc/dnf/plugins/versionlock.list")
    number = f"4.3.0-24.{versions.tag}"
    return [
        Rpm("python3-dnf-plugin-versionlock", number, "noarch", vendor=RED_HAT, tree=tree, config=config),
        Rpm("ocl-icd", f"2.2.13-4.{versions.tag}", vendor=RED_HAT),
        Rpm("opencl-filesystem", f"1.0-15.{versions.tag}", "noarch", vendor=RED_HAT),
    ]


@dataclass(frozen=True)
class Kernel:
    """A kernel's files under its release in the family: ``image``, ``modules`` (``lib/modules/R``), ``headers``."""

    image: Path
    modules: Path
    headers: Path


def kernel(versions: Versions, files: Kernel, trees: Trees) -> list[Rpm]:
    """The kernel's packages; modules are those that the lab's hosts keep, all of them in kernel-modules-core."""
    release, version = versions.release, versions.kernel
    folder = f"lib/modules/{release}"
    core = trees.new("kernel-core")
    copy(files.image, core / folder / "vmlinuz")
    modules = trees.new("kernel-modules-core")
    copy(files.modules, modules / folder)
    (modules / folder / "build").symlink_to(f"/usr/src/kernels/{release}")
    (modules / folder / "source").symlink_to("build")
    devel = trees.new("kernel-devel")
    copy(files.headers, devel / f"usr/src/kernels/{release}")
    only = ("installonlypkg(kernel)",)
    part = {name: f"kernel-{name}-uname-r = {release}" for name in ("core", "modules", "modules-core", "devel")}
    depmod = f"/usr/sbin/depmod -a {release} || :\n"
    return [
        Rpm(
            "kernel", version, vendor=RED_HAT, provides=(*only, f"kernel-x86_64 = {version}"),
            requires=tuple(part[name] for name in ("core", "modules", "modules-core")),
        ),
        Rpm(
            "kernel-core", version, vendor=RED_HAT, tree=core, ghosts=tuple(f"/boot/{name}" for name in _made(release)),
            provides=(*only, part["core"], f"kernel-uname-r = {release}"),
            requires=(
                part["modules-core"], "linux-firmware >= 20150904", "/usr/bin/kernel-install", "dracut >= 027",
                "systemd >= 203-2", "coreutils",
            ),
            scripts={
                "posttrans": f"/bin/kernel-install add {release} /lib/modules/{release}/vmlinuz || exit $?\n",
                "preun": f"/bin/kernel-install remove {release} || exit $?\n",
            },
        ),
        Rpm(
            "kernel-modules-core", version, vendor=RED_HAT, tree=modules, provides=(*only, part["modules-core"]),
            requires=(f"kernel-uname-r = {release}",), scripts={"posttrans": depmod, "postun": f"rm -f /lib/modules/{release}/modules.* || :\nrmdir /lib/modules/{release} 2>/dev/null || :\n"},
        ),
        Rpm(
            "kernel-modules", version, vendor=RED_HAT, provides=(*only, part["modules"]), scripts={"posttrans": depmod},
            requires=(f"kernel-uname-r = {release}", part["modules-core"]),
        ),
        Rpm(
            "kernel-devel", version, vendor=RED_HAT, tree=devel, provides=(*only, part["devel"]),
            requires=("gcc", "make", "findutils", "elfutils-libelf-devel", "openssl"),
        ),
        Rpm(
            "kernel-devel-matched", version, vendor=RED_HAT,
            requires=(f"kernel-devel = {version}", f"kernel-core = {version}"),
        ),
    ]  # fmt: skip


def _made(release: str) -> tuple[str, ...]:
    """What kernel-install makes in /boot."""
    return f"vmlinuz-{release}", f"initramfs-{release}.img"


def streams(versions: Versions, rpms: Iterable[Rpm]) -> Sequence[Stream]:
    """NVIDIA's module streams; release 10 has none."""
    if versions.major >= 10:
        return ()
    branch = versions.driver.partition(".")[0]
    members = [rpm for rpm in rpms if rpm.version.startswith("3:")]
    return [Stream("nvidia-driver", name, members) for name in ("open-dkms", f"{branch}-open")]
