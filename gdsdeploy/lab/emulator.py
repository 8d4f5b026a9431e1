"""The QEMU that emulates VM hosts: this machine's own, or a newer one in a folder where its own is slow.

Of the same Debian archive, beside this machine's packages and not among them: what a lab needs changes nothing here.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import ProgramFailed
from gdsdeploy.lab import files, guest, images
from gdsdeploy.lab.archive import Archive

QEMU = "qemu-system-x86_64"
#: The program loader of a Debian system for amd64; it runs programs of a folder with the libraries of that folder.
LOADER = "ld-linux-x86-64.so.2"
#: First version that emulates the lab's hosts well, and the Debian release that has it.  Side by side on one machine
#: (two runs), it took a quarter less processor time than 7.2 for a boot and for Ansible's tasks, a fifth less for an
#: installation by apt, and a quarter of the time to start a program; 11.1 took no less than 10.0.
ENOUGH, RELEASE = 10, "trixie"
PACKAGES = ("qemu-system-x86",)


def root(cache: Path, archive: Archive) -> Path | None:
    """Folder with a newer QEMU, made below ``cache`` when missing; None where this machine's own is new enough.

    None, after a word about it, also where the archive does not give one: hosts run all the same, only slower.
    """
    if major(run.run([QEMU, "--version"], doing="ask for QEMU's version").stdout) >= ENOUGH:
        return None
    release = guest.RELEASES[RELEASE]

    def make(work: Path) -> None:
        argv = images.from_archive(release, archive, work / "root", "extract", PACKAGES)
        with console.step(f"Fetching {RELEASE}'s QEMU, which emulates faster than this machine's"):
            doing = f"fetch {RELEASE}'s QEMU"
            run.run(run.as_root([*images.CONTAINED, *argv]), doing=doing, log=work / "log")

    cache.mkdir(parents=True, exist_ok=True)
    try:
        entry = files.cached(cache, _entry_name(release, archive), make, what="the emulator")
    except ProgramFailed as error:
        console.say(f"  {error.message}\n  this machine's QEMU emulates the hosts instead, more slowly")
        return None
    return entry / "root"


def major(said: str) -> int:
    """The first number of the version that ``qemu-system-x86_64 --version`` said; 0 where it said none."""
    found = re.search(r"version (\d+)", said)
    return int(found[1]) if found else 0


def _entry_name(release: guest.Release, archive: Archive) -> str:
    argv = images.from_archive(release, archive, Path("root"), "extract", PACKAGES)
    return f"qemu-{RELEASE}-{hashlib.sha256(chr(0).join(argv).encode()).hexdigest()[:12]}"


def command(folder: Path | None) -> list[str]:
    """The beginning of a command line that runs the QEMU of ``folder``, or this machine's own."""
    if folder is None:
        return [QEMU]
    system = folder / "usr"
    data = [word for name in ("qemu", "seabios") for word in ("-L", str(system / "share" / name))]
    libraries = system / "lib/x86_64-linux-gnu"
    return [str(system / "lib64" / LOADER), "--library-path", str(libraries), str(system / "bin" / QEMU), *data]
