"""Programs of this machine that a lab needs, and the packages that have them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import LabUnavailable, MissingProgram
from gdsdeploy.lab.archive import DEBIAN_KEYRING

APT_LISTS = Path("/var/lib/apt/lists")


@dataclass(frozen=True)
class Requirement:
    """``package`` (Debian's name) provides ``program``, or the file where ``program`` is an absolute path."""

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
_LIGHT = (Requirement("systemd-nspawn", "systemd-container", "runs the light hosts"),)


def missing(*, vms: bool, lights: bool, also: Sequence[Requirement] = ()) -> list[Requirement]:
    """What this machine lacks for a lab with these kinds of hosts, and of what is wanted beside it."""
    wanted = (*_ALWAYS, *(_VM if vms else ()), *(_LIGHT if lights else ()), *also)
    return [needed for needed in wanted if not _present(needed.program)]


def ensure(*, vms: bool, lights: bool, confirm: Callable[[str], bool], also: Sequence[Requirement] = ()) -> None:
    """Install what is missing, after saying so and asking through ``confirm`` (called with the question).

    Raises LabUnavailable when this machine has no apt-get, has no way to become root, or the answer is no.
    """
    if os.geteuid() != 0:
        try:
            run.which("sudo")
        except MissingProgram as error:
            raise LabUnavailable(
                "the lab needs root for some steps (base systems, light hosts), and sudo is not installed",
                hint="Run as root, or install sudo and allow this user to use it.",
            ) from error
    lacking = missing(vms=vms, lights=lights, also=also)
    if lacking:
        _install(lacking, confirm)
    if os.geteuid() != 0:
        # Asked for once, before steps run side by side and would each prompt.
        run.run(["sudo", "-v"], doing="become root through sudo", hint="The lab's base systems are made as root.")


def _install(lacking: list[Requirement], confirm: Callable[[str], bool]) -> None:
    packages = sorted({needed.package for needed in lacking})
    listing = "\n".join(f"  {needed.package}: {needed.why}" for needed in lacking)
    if shutil.which("apt-get") is None:
        raise LabUnavailable(
            f"this machine lacks programs that the lab needs, and has no apt-get to install them:\n{listing}",
            hint="Install them with this system's package manager, or run the lab on a Debian machine.",
        )
    console.say(f"These packages are needed and not installed on this machine:\n{listing}")
    if not confirm(f"Install {', '.join(packages)} with apt-get?"):
        raise LabUnavailable("the lab's packages were not installed", hint=f"apt-get install {' '.join(packages)}")
    apt = run.as_root(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
    with console.step(f"Installing {', '.join(packages)}"):
        if not any(APT_LISTS.glob("*Packages*")):
            run.run([*apt, "update"], doing="fetch the package lists")
        run.run([*apt, "install", "-y", "--no-install-recommends", *packages], doing="install the lab's packages")


def _present(program: str) -> bool:
    if program.startswith("/"):
        return Path(program).is_file()
    try:
        run.which(program)
    except MissingProgram:
        return False
    return True
