"""The QEMU that emulates VM hosts: this machine's own, or a newer one of the same archive in a cache folder."""

from __future__ import annotations

import re
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import ProgramFailed
from gdslab import images
from gdslab.archive import Archive

QEMU = "qemu-system-x86_64"
#: Debian's program loader for amd64; it runs a folder's programs with that folder's libraries.
LOADER = "ld-linux-x86-64.so.2"
#: First version that emulates the lab's hosts well, and the Debian release that has it.  On one machine (two runs), it
#: took a quarter less processor time than 7.2 for a boot and for Ansible's tasks; 11.1 took no less than 10.0.
ENOUGH, RELEASE = 10, "trixie"
PACKAGES = ("qemu-system-x86",)


def root(cache: Path, archive: Archive) -> Path | None:
    """Folder below ``cache`` with a newer QEMU, made when missing; None for this machine's own QEMU.

    None also, with a message, where the archive doesn't provide one.
    """
    if major_version(run.run([QEMU, "--version"], doing="ask for QEMU's version").stdout) >= ENOUGH:
        return None

    title = "QEMU, which emulates faster than this machine's"
    try:
        return images.unpacked(cache, archive, RELEASE, PACKAGES, name="qemu", what="QEMU", title=title)
    except ProgramFailed as error:
        console.say(f"  {error.message}\n  gdsdeploy uses this machine's QEMU instead; the hosts run more slowly")
        return None


def major_version(output: str) -> int:
    """The major version in the output of ``qemu-system-x86_64 --version``; 0 without one."""
    match = re.search(r"version (\d+)", output)
    return int(match[1]) if match else 0


def command(folder: Path | None) -> list[str]:
    """The first words of a command that runs the QEMU in ``folder``, or this machine's own."""
    if folder is None:
        return [QEMU]
    data = [word for name in ("qemu", "seabios") for word in ("-L", str(folder / "usr/share" / name))]
    return [*loaded(folder, QEMU), *data]


def loaded(folder: Path, program: str) -> list[str]:
    """The first words of a command that runs ``program`` of the packages in ``folder``, with their libraries."""
    system = folder / "usr"
    libraries = system / "lib/x86_64-linux-gnu"
    return [str(system / "lib64" / LOADER), "--library-path", str(libraries), str(system / "bin" / program)]
