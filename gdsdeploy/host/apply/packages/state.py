"""Packages: versions, holds, half-installed ones, and the holders of the package managers' locks."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

from ... import process
from ...errors import RolloutError
from ...io import reading
from ...rootdir import inside, list_folder, read_text

#: Of :mod:`~gdsdeploy.host.io.reading`.
DPKG, RPM, manager = reading.DPKG, reading.RPM, reading.package_manager
#: dpkg writes what it is about to do there, and merges it into its status when it ends.
_UPDATES = "/var/lib/dpkg/updates"
#: Files that package managers lock with fcntl(2) for as long as they work.
_LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
    "/var/lib/rpm/.rpm.lock",
    "/usr/lib/sysimage/rpm/.rpm.lock",
)
#: Files in which they write their process while they work.
_PIDS = ("/var/lib/dnf/rpmdb_lock.pid", "/var/cache/dnf/metadata_lock.pid")
_DPKG_FORMAT = "${Package}\\t${Architecture}\\t${Version}\\t${db:Status-Abbrev}\\n"
_RPM_FORMAT = "%{NAME}\\t%{ARCH}\\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\tii \\n"
_TIMEOUT = 120.0
#: What Debian calls machines.
_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
#: struct flock where off_t has 64 bits, which it has on every host of this program.
_FLOCK = "hhqqi4x"


class Package(NamedTuple):
    """``state``: dpkg's three letters: wanted, is, and R for one that has to be installed again.

    ``name``: as apt writes it, NAME:ARCHITECTURE for a foreign one.
    """

    name: str
    architecture: str
    version: str
    state: str

    @property
    def installed(self) -> bool:
        return self.state[1:2] == "i"

    @property
    def is_held(self) -> bool:
        return self.state[:1] == "h"

    @property
    def broken(self) -> bool:
        """Half-installed; the next installation runs triggers that wait (W, t), so these break nothing."""
        return self.state[1:2] in "FHU" or self.state[2:3] == "R"


def read_packages(root: str = "/", kind: str = "") -> List[Package]:
    """Every package that the package manager knows; raises RolloutError where it cannot be asked.

    kind: DPKG or RPM on a host that has both; empty: the one that it has.
    """
    kind = kind or manager(root)
    if not kind:
        return []
    if kind == DPKG:
        argv = ["dpkg-query", "--admindir=" + inside(root, "/var/lib/dpkg"), "-W", "-f", _DPKG_FORMAT]
    else:
        argv = ["rpm", "--root", os.path.abspath(root), "-qa", "--qf", _RPM_FORMAT]
    output = process.run(argv, _TIMEOUT)
    if output.status != 0:
        raise RolloutError("packages", f"{argv[0]} cannot be asked: {output.failure()}", "see: dpkg --audit")
    rows = (line.split("\t") for line in output.stdout.splitlines())
    packages = [Package(*row) for row in rows if len(row) == 4]
    if kind == RPM:
        return packages
    own = native(packages)
    return [package._replace(name=full_name(package.name, package.architecture, own)) for package in packages]


def native(packages: Iterable[Package]) -> str:
    """The architecture of dpkg, which is the host's own."""
    return next((p.architecture for p in packages if p.name == "dpkg"), _DEBIAN.get(os.uname().machine, ""))


def full_name(name: str, architecture: str, own: str) -> str:
    """A package's name as apt writes it on a host of architecture ``own``."""
    return name if architecture in (own, "all", "") or not own else f"{name}:{architecture}"


def versions(names: List[str], packages: List[Package]) -> Dict[str, Dict[str, Any]]:
    """By name ``{"version", "held"}``: of the host's own architecture; every version where rpm has several."""
    machine = os.uname().machine
    own = (machine, _DEBIAN.get(machine, ""), "all", "noarch")
    by_name: Dict[str, List[Package]] = {name: [] for name in sorted(set(names))}
    for package in packages:
        if package.installed and package.name in by_name:
            by_name[package.name].append(package)
    chosen = {name: [one for one in same if one.architecture in own] or same for name, same in by_name.items()}
    return {
        name: {"version": " ".join(sorted({one.version for one in same})), "held": any(one.is_held for one in same)}
        for name, same in chosen.items()
    }


def state(root: str = "/") -> Dict[str, Any]:
    """``{"manager", "broken": [{"package", "state"}], "interrupted", "locks": [{"path", "pid", "program"}]}``."""
    broken = [
        {"package": package.name, "state": package.state.strip()} for package in read_packages(root) if package.broken
    ]
    interrupted = any(name.isdigit() for name in list_folder(root, _UPDATES))
    return {"manager": manager(root), "broken": broken, "interrupted": interrupted, "locks": locks(root)}


def locks(root: str = "/") -> List[Dict[str, Any]]:
    """Who holds a package manager's lock; pid is 0 where it is a process that cannot be seen from here."""
    holders = [(path, _lock_holder(inside(root, path))) for path in _LOCKS]
    holders += [(path, _recorded_pid(root, path)) for path in _PIDS]
    return [{"path": path, "pid": pid, "program": program(pid, root)} for path, pid in holders if pid is not None]


def program(pid: int, root: str = "/") -> str:
    """What a process is called; empty when it is gone."""
    return read_text(root, f"/proc/{pid}/comm").strip()


def _lock_holder(path: str) -> Optional[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else max(pid, 0)
    finally:
        os.close(descriptor)


def _recorded_pid(root: str, path: str) -> Optional[int]:
    text = read_text(root, path).split()
    pid = int(text[0]) if text and text[0].isdigit() else 0
    return pid if pid and os.path.isdir(inside(root, f"/proc/{pid}")) else None
