"""Hosts of the RHEL family: Debian's programs below that family's package manager."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy.lab import guest
from gdsdeploy.lab.archive import Archive
from gdsdeploy.lab.kit import el
from gdsdeploy.lab.kit.elversions import RELEASES, Versions
from gdsdeploy.lab.kit.kits import Kit
from gdsdeploy.lab.recipe import Recipe
from gdsdeploy.lab.server import Server
from gdsdeploy.lab.systems import System

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


def recipe(system: System, kit: Kit, archive: Archive, kind: str, renamer: Path | None) -> Recipe:
    """The recipe of hosts of ``system``, from Debian's archive.

    renamer: for VM hosts, the module that gives their kernels the packages' releases.
    """
    packages = (name for name in guest.packages(kind) if name not in _WITHOUT)
    content = _files(system, archive, kind)
    offered = kit.folder / el.repositories(versions(system))["baseos"]
    content |= {f"run/rpms/{package.file}": offered / package.file for package in el.base(versions(system))}
    if renamer is not None:
        content |= {
            **{f"run/kernel/{name}": offered / name for name in el.booted_names(versions(system).older)},
            "etc/dracut.conf.d/lab.conf": guest.data("guest/el/dracut-vm.conf").read_text(),
            "etc/kernel/cmdline": f"root=UUID={guest.ROOT_UUID} ro {_COMMAND_LINE}\n",
            guest.RENAMER: renamer,
        }
    return Recipe(
        *(system.os, kind, system.base, archive, (*packages, *_PACKAGES), content),
        scripts=(("el.sh", system.number),),
        # mmdebstrap's cleaning needs apt, which is gone then.
        options=("--skip=cleanup",),
    )


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
    return {
        "etc/yum.repos.d/rocky.repo": (text, 0o644),
        key: ((server.folder / el.KEYS["baseos"]).read_bytes(), 0o644),
    }
