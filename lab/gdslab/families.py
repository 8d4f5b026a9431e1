"""Hosts of Ubuntu: Debian's programs from the imitated archive, and files of each host."""

from __future__ import annotations

from pathlib import Path

from gdslab import guest
from gdslab.archive import Archive
from gdslab.guest import Release
from gdslab.kit import ubuntu
from gdslab.kit.kits import Kit
from gdslab.recipe import Boot, Recipe
from gdslab.server import Server
from gdslab.systems import System

#: The keyring that Ubuntu's own sources name.
UBUNTU_KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"

_GRUB = "etc/default/grub"


def recipe(system: System, kit: Kit, archive: Archive, boot: Boot | None) -> Recipe:  # noqa: ARG001
    """The recipe of hosts of ``system``, from the repositories of its kit on disk; boot: of VM hosts."""
    family = ubuntu.RELEASES[system.os]
    release = Release(family.codename, system.base.number, "")
    # _apt, apt's own user, may not read this user's cache.
    options = {"APT::Sandbox::User": "root"}
    imitated = Archive(f"copy://{kit.folder / 'ubuntu'}", None, kit.keyring("ubuntu"), {}, options, None)
    kind = "light" if boot is None else "vm"
    packages, content = guest.packages(kind), _files(system, release, imitated, kind)
    sources: tuple[str, ...] = ()
    if boot is not None:
        packages += (f"linux-image-{ubuntu.release(family.older)}",)
        content |= {
            guest.RENAMER: boot.renamer,
            "etc/initramfs-tools/hooks/lab-release": guest.data("guest/lab-release.initramfs-tools").read_text(),
        }
    if boot is not None and boot.preinstalled:
        packages += tuple(f"{name}={version}" for name, version in boot.preinstalled)
        sources = (f"deb [signed-by={kit.keyring('cuda')}] copy://{kit.folder / 'cuda'} /",)
    return Recipe(system.os, kind, release, imitated, packages, content, sources=sources)


def _files(system: System, release: Release, archive: Archive, kind: str) -> dict[str, str | Path]:
    """Files that make Debian's programs a host of ``system``: path → text or file to copy.

    A host's own files have its apt sources, since their port differs by lab.
    """
    removed = {"etc/apt/sources.list.d/debian.sources", guest.keyring(archive).lstrip("/")}
    content = {name: text for name, text in guest.base_files(release, archive, kind).items() if name not in removed}
    if ubuntu.RELEASES[system.os].initramfs == "dracut":
        content = {name: text for name, text in content.items() if not name.startswith("etc/initramfs-tools/")}
        content["etc/dracut.conf.d/lab.conf"] = guest.data("guest/el/dracut.conf").read_text()
    if kind == "vm":
        content[_GRUB] = str(content[_GRUB]).replace("GRUB_DISTRIBUTOR=Debian", "GRUB_DISTRIBUTOR=Ubuntu")
    lines = {"ID": "Ubuntu", "RELEASE": system.number, "CODENAME": release.name}
    lsb = "".join(f"DISTRIB_{name}={value}\n" for name, value in lines.items())
    return {
        **content,
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
