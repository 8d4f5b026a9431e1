"""Hosts of systems other than Debian: base systems from the imitated archive, and files of each host."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy.lab import guest
from gdsdeploy.lab.archive import Archive
from gdsdeploy.lab.guest import Release
from gdsdeploy.lab.kit import ubuntu
from gdsdeploy.lab.kit.kits import Kit
from gdsdeploy.lab.server import Server
from gdsdeploy.lab.systems import System

#: The keyring that Ubuntu's own sources name.
UBUNTU_KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"

_GRUB = "etc/default/grub"


def bootstrap_source(system: System, kit: Kit) -> tuple[Release, Archive]:
    """What mmdebstrap makes the base system of ``system`` from: the kit's archive on disk."""
    family = ubuntu.RELEASES[system.os]
    release = Release(family.codename, system.base.number, "", image=family.image)
    uri = f"copy://{kit.folder / 'ubuntu'}"
    # _apt, apt's own user, may not read this user's cache.
    options = {"APT::Sandbox::User": "root"}
    return release, Archive(uri, None, kit.keyring("ubuntu"), {}, options, None)


def base_files(system: System) -> dict[str, str]:
    """Files that make Debian's programs a host of ``system``: path → text.

    A host's own files have its apt sources, since their port differs by lab.
    """
    codename = ubuntu.RELEASES[system.os].codename
    lines = {"ID": "Ubuntu", "RELEASE": system.number, "CODENAME": codename}
    lsb = "".join(f"DISTRIB_{name}={value}\n" for name, value in lines.items())
    return {
        "usr/lib/os-release": system.os_release,
        "etc/lsb-release": f'{lsb}DISTRIB_DESCRIPTION="Ubuntu {system.number} LTS"\n',
        "etc/debian_version": f"{system.base.name}/sid\n",
        "etc/apt/apt.conf.d/90lab": 'Acquire::Languages "none";\n',
    }


def seed_files(system: System, server: Server) -> dict[str, tuple[str | bytes, int]]:
    """Files of a host that name the lab's repositories: path → (content, permissions)."""
    codename = ubuntu.RELEASES[system.os].codename
    sources = "\n".join(
        f"Types: deb\nURIs: {server.uri}/ubuntu\nSuites: {suites}\nComponents: {' '.join(ubuntu.COMPONENTS)}\n"
        f"Signed-By: {UBUNTU_KEYRING}\n"
        for suites in (f"{codename} {codename}-updates", f"{codename}-security")
    )
    return {
        "etc/apt/sources.list.d/ubuntu.sources": (sources, 0o644),
        UBUNTU_KEYRING.lstrip("/"): (server.kit.keyring("ubuntu").read_bytes(), 0o644),
    }


def all_files(system: System, release: Release, archive: Archive, kind: str) -> dict[str, str | Path]:
    """Files of a base system of ``system``: a Debian host's with the system's own; path → text or file to copy.

    release, archive: what the base system is made from (:func:`bootstrap_source`).
    """
    removed = {"etc/apt/sources.list.d/debian.sources", guest.keyring(archive).lstrip("/")}
    content = {name: text for name, text in guest.base_files(release, archive, kind).items() if name not in removed}
    if ubuntu.RELEASES[system.os].initramfs == "dracut":
        content = {name: text for name, text in content.items() if not name.startswith("etc/initramfs-tools/")}
        content["etc/dracut.conf.d/lab.conf"] = guest.data("guest/el/dracut.conf").read_text()
    if kind == "vm":
        content[_GRUB] = str(content[_GRUB]).replace("GRUB_DISTRIBUTOR=Debian", "GRUB_DISTRIBUTOR=Ubuntu")
    return {**content, **base_files(system)}


def boot_files(renamer: Path) -> dict[str, str | Path]:
    """Files by which a VM host's kernels get their packages' releases; renamer: the module for them."""
    return {
        "usr/local/lib/lab/gds_lab_release.ko": renamer,
        "etc/initramfs-tools/hooks/lab-release": guest.data("guest/lab-release.initramfs-tools").read_text(),
    }
