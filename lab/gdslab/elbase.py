"""Hosts of the RHEL family: Debian's programs below that family's package manager."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gdslab import guest
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.kit import el
from gdslab.kit.elversions import RELEASES, Versions
from gdslab.kit.kits import Kit
from gdslab.recipe import Boot, Recipe
from gdslab.server import Server
from gdslab.systems import System

#: What the family's minimal hosts have, and what builds kernel modules there; Debian's names.
_PACKAGES = (
    *("bc", "cpio", "dnf", "dnf-plugins-core", "dracut-core", "file", "findutils", "gawk", "grub-common", "openssl"),
    *("patch", "rpm", "xz-utils", "zstd", "g++", "gcc", "libc6-dev", "libelf-dev", "make"),
    *("libibverbs1", "libnuma1", "librdmacm1"),
)
#: Debian's own, and what they would only be unpacked for.
_WITHOUT = ("initramfs-tools", "python3-apt")
#: As guest/grub.default has it for Debian.
_COMMAND_LINE = "console=ttyS0,115200 net.ifnames=0 mitigations=off nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
_EXCLUDED = "".join(f"path-exclude=/usr/share/{folder}/*\n" for folder in ("doc", "info", "locale", "man"))


def versions(system: System) -> Versions:
    """What the repositories of ``system`` have."""
    return RELEASES[int(system.number)]


def recipe(system: System, kit: Kit, archive: Archive, boot: Boot | None) -> Recipe:
    """The recipe of hosts of ``system``, from Debian's archive; boot: of VM hosts, whose rpms come from the kit."""
    kind = "light" if boot is None else "vm"
    packages = (name for name in guest.packages(kind) if name not in _WITHOUT)
    content = _files(system, archive, kind)
    places = {name: kit.folder / place for name, place in el.repositories(versions(system)).items()}
    content |= {f"run/rpms/{package.file}": places["baseos"] / package.file for package in el.base(versions(system))}
    if boot is not None:
        older, newest = versions(system).older, versions(system).kernel
        kernels = el.kernel_files(older)
        rpms = []
        if boot.preinstalled:
            # With what dnf would take for them from the distribution.  DKMS needs headers of the kernel that is there.
            kernels += el.kernel_files(older, "devel", "devel-matched")
            kernels += el.kernel_files(newest, "devel")
            rpms = [_rpm(places.values(), *package) for package in boot.preinstalled]
            rpms += [path for name in el.ON_DEMAND for path in places["appstream"].glob(f"{name}-[0-9]*.rpm")]
        rpms += [places["baseos"] / name for name in kernels]
        content |= {
            **{f"run/packages/{path.name}": path for path in rpms},
            "etc/dracut.conf.d/lab.conf": guest.data("guest/el/dracut-vm.conf").read_text(),
            "etc/kernel/cmdline": f"root=UUID={guest.ROOT_UUID} ro {_COMMAND_LINE}\n",
            guest.RENAMER: boot.renamer,
        }
    return Recipe(
        *(system.os, kind, system.base, archive, (*packages, *_PACKAGES), content),
        scripts=(("el.sh", system.number),),
        # mmdebstrap's cleaning needs apt, which is gone then.
        options=("--skip=cleanup",),
    )


def _rpm(folders: Iterable[Path], name: str, version: str) -> Path:
    """The file of a package in one of the folders; raises LabUnavailable without one."""
    pattern = f"{name}-{version.rpartition(':')[2]}.*.rpm"
    for folder in folders:
        for path in folder.glob(pattern):
            return path
    raise LabUnavailable(f"the lab's repositories have no {name} {version}")


def _files(system: System, archive: Archive, kind: str) -> dict[str, str | Path]:
    """Files of the base system: path → text, or the file to copy; nothing of apt, initramfs-tools or Debian's GRUB."""
    common = guest.base_files(system.base, archive, kind)
    others = ("etc/apt/", "etc/initramfs-tools/", "etc/default/grub")
    return {
        **{name: text for name, text in common.items() if not name.startswith(others)},
        guest.DPKG: _EXCLUDED,
        "usr/lib/os-release": system.os_release,
        "etc/redhat-release": f"Rocky Linux release {versions(system).minor}\n",
    }


def seed_files(system: System, server: Server) -> dict[str, tuple[str | bytes, int]]:
    """Files of a host that name the distribution's own repositories: path → (content, permissions)."""
    key = f"etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-{system.number}"
    text = el.yum_repositories(versions(system), server.uri, f"/{key}")
    return {"etc/yum.repos.d/rocky.repo": (text, 0o644), key: ((server.folder / el.KEYS["baseos"]).read_bytes(), 0o644)}
