"""Programs that a lab needs on this machine, and their packages."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import MissingProgram
from gdslab.archive import DEBIAN_KEYRING
from gdslab.errors import LabUnavailable

APT_LISTS = Path("/var/lib/apt/lists")


@dataclass(frozen=True)
class Requirement:
    """``package`` (Debian's name) provides ``program``: a name, or a file's absolute path."""

    program: str
    package: str
    why: str


_ALWAYS = (
    Requirement("mmdebstrap", "mmdebstrap", "makes the base systems"),
    Requirement(DEBIAN_KEYRING.as_posix(), "debian-archive-keyring", "verifies the Debian archive"),
    Requirement("ssh", "openssh-client", "reaches the hosts"),
    Requirement("ssh-keygen", "openssh-client", "makes the lab's keys"),
    Requirement("unshare", "util-linux", "keeps mounts private"),
)
_VM = (
    Requirement("qemu-system-x86_64", "qemu-system-x86", "runs the VM hosts"),
    Requirement("qemu-img", "qemu-utils", "makes their disks"),
    Requirement("mke2fs", "e2fsprogs", "makes their file systems"),
)
_KIT = (
    Requirement("dpkg-deb", "dpkg", "makes the packages of the lab's repositories"),
    Requirement("apt-get", "apt", "downloads Debian's packages for them"),
    Requirement("gpg", "gpg", "signs the repositories"),
    Requirement("gpgconf", "gpgconf", "ends the signing agent"),
    Requirement("gpg-agent", "gpg-agent", "holds the signing key"),
    Requirement("objcopy", "binutils", "leaves debugging symbols out of the driver's source"),
    Requirement("zstd", "zstd", "compresses kernel modules"),
    Requirement("xargs", "findutils", "signs kernel modules"),
)
#: What makes repositories of rpm packages, beside the former.
RPM = (
    Requirement("rpmbuild", "rpm", "makes the packages of the lab's repositories"),
    Requirement("rpmsign", "rpm", "signs them"),
    Requirement("createrepo_c", "createrepo-c", "makes the repositories"),
    Requirement("xz", "xz-utils", "compresses kernel modules"),
)
_LIGHT = (Requirement("systemd-nspawn", "systemd-container", "runs the light hosts"),)


def missing(*, vms: bool, lights: bool, kit: bool = False, also: Sequence[Requirement] = ()) -> list[Requirement]:
    """The missing requirements of a lab with these kinds of hosts, of its own repositories (kit), and of ``also``."""
    requirements = (*_ALWAYS, *(_VM if vms else ()), *(_LIGHT if lights else ()), *(_KIT if kit else ()), *also)
    return [requirement for requirement in requirements if not _is_present(requirement.program)]


def ensure(
    *, vms: bool, lights: bool, confirm: Callable[[str], bool], kit: bool = False, also: Sequence[Requirement] = ()
) -> None:
    """List the missing packages and install them if ``confirm`` (called with the question) agrees.

    Raises LabUnavailable without apt-get, without a way to become root, or if ``confirm`` refuses.
    """
    if os.geteuid() != 0:
        try:
            run.which("sudo")
        except MissingProgram as error:
            raise LabUnavailable(
                "the lab needs root for some steps (base systems, light hosts), and sudo is not installed",
                hint="Run as root, or install sudo and allow this user to use it",
            ) from error
    if requirements := missing(vms=vms, lights=lights, kit=kit, also=also):
        _install(requirements, confirm)
    if os.geteuid() != 0:
        # One prompt now, instead of one from each parallel step.
        run.run(["sudo", "-v"], doing="become root through sudo", hint="gdsdeploy makes the lab's base systems as root")


def _install(requirements: list[Requirement], confirm: Callable[[str], bool]) -> None:
    packages = sorted({requirement.package for requirement in requirements})
    listing = "\n".join(f"  {requirement.package}: {requirement.why}" for requirement in requirements)
    if shutil.which("apt-get") is None:
        raise LabUnavailable(
            f"the lab needs packages that this machine, without apt-get, can't install:\n{listing}",
            hint="Install them with this system's package manager, or run the lab on a Debian machine",
        )
    console.say(f"The lab needs these packages on this machine:\n{listing}")
    if not confirm(f"Install {', '.join(packages)} with apt-get?"):
        raise LabUnavailable("the lab's packages were not installed", hint=f"apt-get install {' '.join(packages)}")
    apt = run.as_root(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
    with console.step(f"Installing {', '.join(packages)}"):
        if not any(APT_LISTS.glob("*Packages*")):
            run.run([*apt, "update"], doing="fetch the package lists")
        run.run([*apt, "install", "-y", "--no-install-recommends", *packages], doing="install the lab's packages")


def _is_present(program: str) -> bool:
    if program.startswith("/"):
        return Path(program).is_file()
    with contextlib.suppress(MissingProgram):
        run.which(program)
        return True
    return False
