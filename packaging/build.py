"""Builds packages of the host program: ``python packaging/build.py FOLDER`` writes a Debian package and an rpm.

They have the program and its units, and configure nothing: docs/packages.md.  The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from pathlib import Path
from string import Template

from gdsdeploy import __version__
from gdsdeploy.host.apply import gate, peermem, watch
from gdsdeploy.host.paths import PROGRAM
from gdsdeploy.model.profile_parts import SCHEDULERS
from gdsdeploy.zipapp import hostapp

FOLDER = Path(__file__).parent
NAME = "gdsdeploy-host"
#: dpkg and rpm sort "~" before anything else: 0.2.0~rc1 comes before 0.2.0.
VERSION = re.sub(r"\.?(a|b|rc|dev)(?=\d)", r"~\1", __version__)
UNITS = {
    gate.UNIT: gate.unit(gate.Desired(before=list(SCHEDULERS))),
    peermem.UNIT: peermem.unit(peermem.Desired(rdma="peermem", before=list(SCHEDULERS))),
    watch.UNIT: watch.unit(watch.Desired()),
}
#: Seconds since 1970 of every file and package, unless SOURCE_DATE_EPOCH says otherwise: 1980, as in the program.
EPOCH = 315532800


def main(argv: Sequence[str] | None = None) -> int:
    """Build the packages and print their paths."""
    parser = argparse.ArgumentParser(description="Build the Debian package and the rpm of the host program.")
    parser.add_argument("folder", type=Path, help="the folder for the packages")
    parser.add_argument("--only", choices=BUILDERS, help="build one of the two")
    maintainer = "the name and address in the Debian package: NAME <ADDRESS>"
    parser.add_argument("--maintainer", default="The gdsdeploy authors", help=maintainer)
    arguments = parser.parse_args(argv)
    chosen = [arguments.only] if arguments.only else list(BUILDERS)
    missing = [program for program in ("dpkg-deb", "rpmbuild") if shutil.which(program) is None]
    if [kind for kind in chosen if PROGRAMS[kind] in missing]:
        print(f"error: {' and '.join(missing)} not installed. On Debian: apt-get install dpkg rpm", file=sys.stderr)
        return 1
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(EPOCH))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for kind in chosen:
        with tempfile.TemporaryDirectory(prefix="gdsdeploy-packages-") as place:
            print(BUILDERS[kind](Path(place), arguments.folder.absolute(), arguments.maintainer))
    return 0


def build_deb(work: Path, folder: Path, maintainer: str) -> Path:
    """Write the Debian package to ``folder``; raises CalledProcessError."""
    root = work / "root"
    _stage(root)
    date = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]), localtime=False)
    values = {"version": VERSION, "maintainer": maintainer, "date": date}
    docs = f"usr/share/doc/{NAME}"
    _write(root / docs / "copyright", (FOLDER / "copyright").read_bytes())
    _write(root / docs / "NOTICE", (FOLDER.parent / "NOTICE").read_bytes())
    _write(root / docs / "changelog.gz", gzip.compress(_filled("changelog", values), 9, mtime=0))
    files = sorted(path for path in root.rglob("*") if path.is_file())
    sums = [f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.relative_to(root)}\n" for file in files]
    size = str(sum(-(-file.stat().st_size // 1024) for file in files))
    _write(root / "DEBIAN" / "control", _filled("control", {**values, "size": size}))
    _write(root / "DEBIAN" / "md5sums", "".join(sums).encode())
    for script in ("postinst", "postrm"):
        _write(root / "DEBIAN" / script, (FOLDER / "reload").read_bytes(), 0o755)
    _settle(root)
    package = folder / f"{NAME}_{VERSION}_all.deb"
    # gzip gives the same bytes with any number of threads, and the program is compressed already.
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, package], check=True, stdout=2)
    return package


def build_rpm(work: Path, folder: Path, _maintainer: str) -> Path:
    """Write the rpm to ``folder``; raises CalledProcessError."""
    root = work / "root"
    _stage(root)
    for file in ("LICENSE", "NOTICE"):
        _write(root / f"usr/share/licenses/{NAME}" / file, (FOLDER.parent / file).read_bytes())
    _settle(root)
    defined = {"_topdir": work / "top", "_rpmdir": work / "rpms", "staged": root, "host_version": VERSION}
    options = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *options, FOLDER / f"{NAME}.spec"], check=True, stdout=2)
    (package,) = (work / "rpms").rglob("*.rpm")
    return Path(shutil.copy(package, folder))


#: Kind of package → what builds it, and the program for that.
BUILDERS: Mapping[str, Callable[[Path, Path, str], Path]] = {"deb": build_deb, "rpm": build_rpm}
PROGRAMS = {"deb": "dpkg-deb", "rpm": "rpmbuild"}


def _stage(root: Path) -> None:
    """The files that both packages have."""
    _write(root / PROGRAM.lstrip("/"), hostapp.build(), 0o755)
    for unit, text in UNITS.items():
        _write(root / "usr/lib/systemd/system" / unit, text.encode())


def _filled(name: str, values: Mapping[str, str]) -> bytes:
    return Template((FOLDER / name).read_text()).substitute(values).encode()


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _settle(root: Path) -> None:
    """Give folders their mode whatever the umask is, and everything the same time."""
    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in [root, *root.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (seconds, seconds))


if __name__ == "__main__":
    sys.exit(main())
