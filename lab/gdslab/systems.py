"""The operating systems that a lab's hosts can be."""

from __future__ import annotations

from dataclasses import dataclass

from gdslab import guest
from gdslab.errors import LabUnavailable

DEFAULT_OS = "debian-13"


@dataclass(frozen=True)
class System:
    """An operating system of lab hosts.

    base: the Debian release that the hosts' programs come from.
    os_release: the host's os-release; empty for Debian, which keeps its own.
    kit: the repositories that imitate the vendors' ("ubuntu", "el"); empty for Debian, which uses its own archive.
    vm: whether it has VM hosts.
    """

    os: str
    family: str
    base: guest.Release
    os_release: str = ""
    kit: str = ""
    vm: bool = True

    @property
    def number(self) -> str:
        """The release's number: ``24.04`` for ubuntu-24.04."""
        return self.os.partition("-")[2]


def _os_release(**fields: str) -> str:
    return "".join(f'{name}="{value}"\n' for name, value in fields.items())


def _ubuntu(number: str, codename: str, base: str, *, vm: bool = True) -> System:
    text = _os_release(
        PRETTY_NAME=f"Ubuntu {number} LTS",
        NAME="Ubuntu",
        VERSION_ID=number,
        VERSION=f"{number} LTS",
        VERSION_CODENAME=codename,
        ID="ubuntu",
        ID_LIKE="debian",
        UBUNTU_CODENAME=codename,
    )
    return System(f"ubuntu-{number}", "ubuntu", guest.RELEASES[base], text, "ubuntu", vm)


def _rocky(minor: str, name: str, base: str) -> System:
    major = minor.partition(".")[0]
    text = _os_release(
        NAME="Rocky Linux",
        VERSION=f"{minor} ({name})",
        ID="rocky",
        ID_LIKE="rhel centos fedora",
        VERSION_ID=minor,
        PLATFORM_ID=f"platform:el{major}",
        PRETTY_NAME=f"Rocky Linux {minor} ({name})",
    )
    return System(f"rocky-{major}", "rhel", guest.RELEASES[base], text, "el")


SYSTEMS = {
    system.os: system
    for system in (
        System("debian-13", "debian", guest.RELEASES["trixie"]),
        System("debian-12", "debian", guest.RELEASES["bookworm"]),
        _ubuntu("24.04", "noble", "bookworm"),
        _rocky("9.6", "Blue Onyx", "bookworm"),
        _rocky("10.1", "Red Quartz", "trixie"),
        _ubuntu("22.04", "jammy", "bookworm"),
        # The module that renames a VM host's kernel comes by initramfs-tools, and 26.04 has dracut.
        _ubuntu("26.04", "resolute", "trixie", vm=False),
    )
}


def find(name: str) -> System:
    """The system ``name``, such as ``ubuntu-24.04``; raises LabUnavailable for another name."""
    if name not in SYSTEMS:
        raise LabUnavailable(f"the lab has no hosts of {name}", hint=f"Choose a system: {', '.join(SYSTEMS)}")
    return SYSTEMS[name]


def of_release(name: str) -> System:
    """The system of the Debian release ``name``, such as ``trixie``; raises LabUnavailable for another name."""
    release = guest.release(name)
    return next(system for system in SYSTEMS.values() if not system.kit and system.base == release)
