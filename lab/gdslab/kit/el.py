"""The repositories of a host of the RHEL family, with the content of Debian's packages.

Names, epochs, relations, scriptlets and file layout are those of the family's and NVIDIA's packages.  The content is
Debian's: kernel, driver, nvidia-fs, libcufile, dkms.  ``docs/lab.md`` lists what that can't show.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from gdsdeploy import run
from gdslab.kit import doca, eldoca, elnvidia, elversions, installer, kernel, rpm, sign
from gdslab.kit.content import Content, Original, Trees, copy
from gdslab.kit.elversions import BASE, BASE_FILES, RELEASES, TOOLS, Versions
from gdslab.kit.rpm import Rpm

RED_HAT = "Red Hat, Inc."


def base(versions: Versions) -> list[Rpm]:
    """The packages of the first rpm database: all of Debian's files under two names."""
    tag, number = versions.tag, f"{versions.minor}-1.{versions.tag}"
    names = [f"{name} = {version}.{tag}" for name, version in BASE[versions.major].items()]
    release = ("system-release", "redhat-release", "system-release(releasever)")
    return [
        Rpm("lab-base", number, "noarch", provides=(*names, *BASE_FILES), vendor=RED_HAT),
        Rpm(
            "rocky-release", number, "noarch", vendor=RED_HAT,
            provides=tuple(f"{name} = {versions.minor}" for name in release),
        ),
    ]  # fmt: skip


# The family's own repositories


def compiler(versions: Versions, trees: Trees) -> list[Rpm]:
    """What preflights unpack, for a host has it as ``lab-base``: all files are gcc's."""
    tree, names = trees.new("gcc"), sorted({name for packages in TOOLS.values() for name in packages})
    for package_file in trees.content.closure(names, versions.base):
        run.run(["dpkg-deb", "-x", package_file, tree], doing=f"unpack {package_file.name}")
    for folder in ("doc", "info", "locale", "man"):
        shutil.rmtree(tree / "usr/share" / folder, ignore_errors=True)
    return [
        Rpm(
            name, f"{BASE[versions.major][name]}.{versions.tag}", vendor=RED_HAT,
            tree=tree if name == "gcc" else None, requires=() if name == "gcc" else ("gcc",),
        )
        for name in TOOLS
    ]  # fmt: skip


def dkms(versions: Versions, trees: Trees) -> list[Rpm]:
    """EPEL's package, with kernel-install's plugin."""
    needs = ("coreutils", "cpio", "elfutils-libelf-devel", "file", "findutils", "gawk", "gcc", "grep", "gzip", "kmod")
    tree = trees.moved(
        "dkms", Original("dkms", "trixie", versions.dkms.partition("-")[0]),
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


#: AppStream's packages that hosts get on demand.
ON_DEMAND = ("python3-dnf-plugin-versionlock", "ocl-icd", "opencl-filesystem")


def appstream(versions: Versions, trees: Trees) -> list[Rpm]:
    """The packages ON_DEMAND: dnf's plugin that locks versions, and OpenCL's loader, which is empty."""
    plugins = "usr/lib/python3/dist-packages/dnf-plugins"
    tree = trees.moved(
        "versionlock", Original("dnf-plugins-core", versions.base, ""),
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
        Rpm(ON_DEMAND[0], number, "noarch", vendor=RED_HAT, tree=tree, config=config),
        Rpm(ON_DEMAND[1], f"2.2.13-4.{versions.tag}", vendor=RED_HAT),
        Rpm(ON_DEMAND[2], f"1.0-15.{versions.tag}", "noarch", vendor=RED_HAT),
    ]


def kernel_packages(versions: Versions, trees: Trees) -> list[Rpm]:
    """The packages of both kernels, which differ in their names; the older one's headers are empty."""
    work = trees.work / "kernel"
    release, sources = versions.release, f"usr/src/kernels/{versions.release}"
    files = kernel.repack(trees.content, release, work, ending=".ko.xz")
    devel = trees.new("kernel-devel")
    _merge_headers(kernel.headers(trees.content, release, f"/{sources}", work), devel / sources)
    return [
        *(package for version in (versions.older, versions.kernel) for package in _booted(version, files, trees)),
        *_devel(versions.older, None),
        *_devel(versions.kernel, devel),
    ]


def kernel_files(version: str, *parts: str) -> list[str]:
    """File names of parts of the kernel ``version``; those that boot it, without ``parts``."""
    names = [f"kernel-{part}" for part in parts] or ["kernel", "kernel-core", "kernel-modules", "kernel-modules-core"]
    return [f"{name}-{version}.{rpm.ARCHITECTURE}.rpm" for name in names]


def _devel(version: str, tree: Path | None) -> list[Rpm]:
    """The headers of a kernel, and what keeps them at its version."""
    return [
        Rpm(
            "kernel-devel", version, vendor=RED_HAT, tree=tree,
            provides=("installonlypkg(kernel)", f"kernel-devel-uname-r = {elversions.release(version)}"),
            requires=("gcc", "make", "findutils", "elfutils-libelf-devel", "openssl"),
        ),
        Rpm(
            "kernel-devel-matched", version, vendor=RED_HAT,
            requires=(f"kernel-devel = {version}", f"kernel-core = {version}"),
        ),
    ]  # fmt: skip


def _booted(version: str, files: kernel.Kernel, trees: Trees) -> list[Rpm]:
    """What boots a kernel; the modules that the lab's hosts keep are all in kernel-modules-core."""
    release = elversions.release(version)
    folder = f"lib/modules/{release}"
    core = trees.new(f"kernel-core-{version}")
    for name, file in {"vmlinuz": files.vmlinuz, "System.map": files.system_map, "config": files.config}.items():
        copy(file, core / folder / name)
    modules = trees.new(f"kernel-modules-core-{version}")
    copy(files.modules, modules / folder)
    (modules / folder / "build").symlink_to(f"/usr/src/kernels/{release}")
    (modules / folder / "source").symlink_to("build")
    only = ("installonlypkg(kernel)",)
    part = {name: f"kernel-{name}-uname-r = {release}" for name in ("core", "modules", "modules-core")}
    return [
        Rpm(
            "kernel", version, vendor=RED_HAT, provides=(*only, f"kernel-x86_64 = {version}"),
            requires=tuple(part.values()),
        ),
        Rpm(
            "kernel-core", version, vendor=RED_HAT, tree=core, ghosts=_boot_files(release),
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
            # kernel-install runs depmod.  The vendor's scriptlets do, too: an emulated machine needs 20 s each time.
            requires=(f"kernel-uname-r = {release}",), scripts={"postun": _LEFT.format(release)},
        ),
        Rpm(
            "kernel-modules", version, vendor=RED_HAT, provides=(*only, part["modules"]),
            requires=(f"kernel-uname-r = {release}", part["modules-core"]),
        ),
    ]  # fmt: skip


#: What depmod made goes with the kernel.
_LEFT = "rm -f /lib/modules/{0}/modules.* || :\nrmdir /lib/modules/{0} 2>/dev/null || :\n"


def _merge_headers(files: kernel.Headers, target: Path) -> None:
    """One folder of Debian's two: its Makefile is the common one, and the compiler that of the host."""
    copy(files.common, target)
    for other in (target / "arch").iterdir():
        if other.is_dir() and other.name != "x86":
            shutil.rmtree(other)
    for entry in files.own.iterdir():
        if entry.name not in ("Makefile", "scripts", "tools", ".kernelvariables"):
            copy(entry, target / entry.name)
    (target / ".kernelvariables").write_text("DEBIAN_KERNEL_NO_CC_VERSION_CHECK = y\n")


def _boot_files(release: str) -> tuple[str, ...]:
    """What kernel-install makes in /boot."""
    return f"/boot/vmlinuz-{release}", f"/boot/initramfs-{release}.img"


# All repositories


#: Repository → file with the key that signs it and its packages, armoured.
KEYS = {
    "baseos": "RPM-GPG-KEY-Rocky",
    "appstream": "RPM-GPG-KEY-Rocky",
    "epel": "RPM-GPG-KEY-EPEL",
    "cuda": "RPM-GPG-KEY-NVIDIA",
    "doca": "RPM-GPG-KEY-Mellanox",
    "doca-kernel": "RPM-GPG-KEY-site",
}
#: What a profile lists; the others are for those who ask for DOCA's packages.
LISTED = ("baseos", "appstream", "epel", "cuda")
#: Repositories whose packages are signed and whose index isn't, as in the field → why a fleet file accepts that.
UNSIGNED = {"epel": "EPEL signs packages, not repomd.xml", "doca": "DOCA signs packages, not repomd.xml"}


def build(os: str, content: Content, out: Path, work: Path) -> dict[str, str]:
    """Make the repositories of ``os`` in ``out``, at their paths, with the keys of ``KEYS``.

    work: folder for unpacked packages; the caller removes it.  Returns repository → fingerprint of its key.
    """
    versions = RELEASES[int(os.rpartition("-")[2])]
    trees = Trees(work / "trees", content)
    cuda = [*elnvidia.driver(versions, trees), *elnvidia.gds(trees)]
    contents = {
        "baseos": [*base(versions), *kernel_packages(versions, trees)],
        "appstream": [*appstream(versions, trees), *compiler(versions, trees)],
        "epel": dkms(versions, trees),
        "cuda": cuda,
        "doca": eldoca.network(versions, trees),
        "doca-kernel": eldoca.for_kernel(versions, trees),
    }
    fingerprints = {}
    for file in sorted(set(KEYS.values())):
        with sign.signer(f"Lab of gdsdeploy, in place of {file.rpartition('-')[2]}") as signer:
            signer.export(out / file, armour=True)
            for name in (name for name, key in KEYS.items() if key == file):
                streams = elnvidia.streams(versions, cuda) if name == "cuda" else ()
                _publish(
                    contents[name], out / repositories(versions)[name], signer, streams, signs=name not in UNSIGNED
                )
                fingerprints[name] = signer.fingerprint
    if os in installer.SYSTEMS:
        installer.build_rpm(os, cuda, out / repositories(versions)["cuda"], out / installer.FOLDER, work)
    return fingerprints


def _publish(
    packages: Sequence[Rpm], folder: Path, signer: sign.Signer, streams: Sequence[rpm.Stream], *, signs: bool
) -> None:
    """Make a repository of signed packages; signs: whether its index is signed, too."""
    rpm.sign(rpm.build(packages, folder), signer.home, signer.fingerprint)

    def sign_file(path: Path) -> None:
        signer.detached(path, path.with_name(f"{path.name}.asc"))

    rpm.publish(folder, sign_file if signs else None, streams)


def repositories(versions: Versions) -> dict[str, str]:
    """Name of each repository → its folder below the server's root, as the vendors' addresses end."""
    major = versions.major
    return {
        "baseos": f"rocky/{major}/BaseOS/x86_64/os",
        "appstream": f"rocky/{major}/AppStream/x86_64/os",
        "epel": f"epel/{major}/Everything/x86_64",
        "cuda": f"compute/cuda/repos/rhel{major}/x86_64",
        **doca.folders(f"rhel{major}"),
    }


def yum_repositories(versions: Versions, address: str, key: str) -> str:
    """The text of the distribution's own ``.repo`` file; ``address``: of the server, ``key``: path on the host."""
    places = repositories(versions)
    return "\n".join(
        f"[{name}]\nname=Rocky Linux {versions.minor} - {name}\nbaseurl={address}/{places[name]}\n"
        f"gpgcheck=1\nenabled=1\ngpgkey=file://{key}\n"
        for name in ("baseos", "appstream")
    )
