"""Have DKMS, the registrar, build and install what is missing or stale, for every kernel that has headers.

DKMS itself decides by names and versions only.  It takes a module that was built against another driver, or without the
OFED that is there now, for installed; whether it is right is read from the files, and what is not is built anew.
"""

from __future__ import annotations

import glob
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from .. import process
from ..audit.audit import audit
from ..errors import BuildError, KernelError, StubError
from ..io import atomic
from ..kmod import driver as drivers
from ..kmod import ofed
from ..kmod.driver import Expected
from ..kmod.kernel import Kernel, releases
from ..kmod.tree import Tree, digest
from ..rootdir import inside, list_folder
from . import dkms_backup
from .kbuild import failure_in

DKMS = "/var/lib/dkms"
#: One log a kernel and package, of the latest build; our recipes name the same place.
LOGS = "/var/log/gdsdeploy/kmod"
#: A whole driver, on a machine under load.
TIMEOUT = 2 * 3600.0
#: What ended longer ago than this is not what a package manager has just complained about.
_MOMENT = 3600.0
#: Findings that a new build against this driver and this kernel takes away.
_STALE = {
    "nvidia-fs": (
        *("driver-tree", "driver-tree-unknown", "symbol-crc", "symbol-unversioned", "symbol-missing"),
        *("vermagic", "unreadable", "missing"),
    ),
    "driver": ("unreadable", "missing", "vermagic"),
}


class Package(NamedTuple):
    """A package in DKMS; ``kind`` is ``driver`` or ``nvidia-fs``."""

    name: str
    version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


@dataclass(frozen=True)
class Wanted:
    """``packages`` in the order in which they depend on each other, and the driver that they are built against."""

    target: str
    packages: Sequence[Package]
    tree: Tree
    #: nvidia-peermem has to work on the target kernel
    peermem: bool = False
    #: where the system is that is looked at; DKMS itself works on the running one only
    root: str = "/"


def provide(wanted: Wanted, check: bool = False) -> Dict[str, Any]:
    """Build and install; returns ``{"changed", "notes": [text], "done": [{kernel_release, package, action, why}]}``.

    check: say what would be done and do nothing.  A kernel other than the target on which something does not build is
    noted, and not tried again until its inputs change.  Raises BuildError for the target, with what the build itself
    said; KernelError when its headers are missing.
    """
    target = Kernel(wanted.target, wanted.root)
    target.headers()
    if wanted.peermem and not check:
        search = ofed.search(target)
        if search.tree is None:
            message = "nvidia-peermem for kernel {} would be a stub that fails to load with 'Invalid argument': {}"
            raise StubError(
                message.format(target.release, search.why_not()), "install OFED or DOCA for this kernel, or use DMA-BUF"
            )
    done: List[Dict[str, str]] = []
    notes: List[str] = []
    for release in [wanted.target, *(item for item in releases(wanted.root) if item != wanted.target)]:
        if release != wanted.target and not _has_headers(release, wanted.root):
            notes.append(f"kernel {release} has no headers: nothing is built for it")
            continue
        for package in wanted.packages:
            kernel = Kernel(release, wanted.root)
            action, why = need(kernel, package, wanted)
            if not action:
                continue
            key = _key(kernel, package, wanted)
            if release != wanted.target and _failed_before(kernel, package) == key:
                notes.append(f"{package} is not tried again for kernel {release}: {_log(release, package)}")
                break
            done.append({"kernel_release": release, "package": str(package), "action": action, "why": why})
            if check:
                continue
            try:
                _run(kernel, package, action)
                _remember(release, package, "")
            except BuildError as error:
                if release == wanted.target:
                    raise
                _remember(release, package, key)
                done.pop()
                notes.append(f"{error.message} ({error.hint})")
                # What comes next depends on it.
                break
    return {"changed": bool(done), "done": done, "notes": notes}


def need(kernel: Kernel, package: Package, wanted: Wanted) -> Tuple[str, str]:
    """(``install`` or ``rebuild`` or nothing, why)."""
    if not installed(kernel, package):
        return "install", "DKMS has not installed it"
    expected = Expected(wanted.tree.version, wanted.tree.flavour)
    if package.kind == "nvidia-fs":
        names = ["nvidia_fs"]
    else:
        names = ["nvidia", *(name for name in ("nvidia_peermem",) if drivers.find(kernel, name) is not None)]
    stale = set(_STALE[package.kind])
    if package.kind == "driver" and ofed.find(kernel) is not None:
        stale |= {"peermem-stub", "symbol-crc"}
    for result in audit(kernel, names, expected):
        for item in result["findings"]:
            if item["id"] in stale:
                return "rebuild", "{}: {}".format(result["module"], item["message"])
    return "", ""


def installed(kernel: Kernel, package: Package) -> bool:
    """Whether DKMS says so: it has built the package, and its link for this kernel leads to that build.

    Read from its own files, as ``dkms status`` does in most of a second of shell.
    """
    built = f"{DKMS}/{package.name}/{package.version}/{kernel.release}"
    for arch in list_folder(kernel.root, built):
        files = [name for name in list_folder(kernel.root, f"{built}/{arch}/module") if ".ko" in name]
        link = f"{DKMS}/{package.name}/kernel-{kernel.release}-{arch}"
        if files and inside(kernel.root, link) == inside(kernel.root, f"{built}/{arch}"):
            return True
    return False


def _run(kernel: Kernel, package: Package, action: str) -> None:
    argv = [str(package), "-k", kernel.release]
    if action == "rebuild":
        # Without the copy that is kept there would be nothing to go back to.
        dkms_backup.save(kernel, package.name)
        _dkms(kernel, package, ["dkms", "unbuild", *argv])
    begun = time.time()
    _dkms(kernel, package, ["dkms", "install", *argv], begun)


def _dkms(kernel: Kernel, package: Package, argv: Sequence[str], begun: float = 0.0) -> None:
    done = process.run(argv, TIMEOUT)
    if done.status == 0:
        return
    if done.status == process.NOT_FOUND:
        raise BuildError("dkms is not installed", "install the package dkms")
    # Our recipe's build has done it already; what failed before that build has not.
    dkms_backup.restore(Kernel(kernel.release, kernel.root), package.name)
    back = dkms_backup.restored(kernel, package.name)
    log = _log(kernel.release, package)
    message, hint = _said(log, begun) if begun else ("", "")
    if not message:
        lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines()]
        error = next((line for line in lines if line.startswith("Error!")), f"exit status {done.status}")
        after = lines[lines.index(error) + 1 : lines.index(error) + 3] if error in lines else []
        message = "DKMS cannot install {} for kernel {}: {}".format(
            package, kernel.release, " ".join([error, *after]).strip()
        )
        hint = "run it by hand to see all of it: {}".format(" ".join(argv))
    if back:
        hint += "; what worked before is back in place: {}".format(", ".join(back))
    raise BuildError(message, hint)


def _said(log: str, begun: float) -> Tuple[str, str]:
    """(message, hint) of a build that failed since ``begun``; both empty when it was not the build that failed."""
    try:
        fresh = os.path.getmtime(log) >= begun - 1
    except OSError:
        fresh = False
    return failure_in(log) if fresh else ("", "")


def why() -> None:
    """Raise the BuildError of the latest build that failed, of any kernel, if that was a moment ago."""
    for log in sorted(glob.glob(os.path.join(LOGS, "*", "*.log")), key=os.path.getmtime, reverse=True):
        message, hint = _said(log, time.time() - _MOMENT)
        if message:
            raise BuildError(message, hint)


def _log(release: str, package: Package) -> str:
    return f"{LOGS}/{release}/{package.name}.log"


def _has_headers(release: str, root: str) -> bool:
    try:
        Kernel(release, root).headers()
    except KernelError:
        return False
    return True


def _key(kernel: Kernel, package: Package, wanted: Wanted) -> str:
    return json.dumps([str(package), kernel.symvers_digest(), digest(wanted.tree)])


def _failed_before(kernel: Kernel, package: Package) -> str:
    try:
        with open(inside(kernel.root, _log(kernel.release, package) + ".failed"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _remember(release: str, package: Package, key: str) -> None:
    path = _log(release, package) + ".failed"
    if key:
        atomic.write(path, key)
    else:
        atomic.remove(path)
