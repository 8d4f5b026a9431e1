"""Have DKMS build and install what is missing or stale, for every kernel that has headers.

DKMS decides by names and versions only.  An audit of the files finds modules that were built against another driver, or
without the present OFED; those are rebuilt.

Copies of what DKMS installed, because DKMS removes the installed modules before it builds their successors.

gdsdeploy's recipes copy after every install.  A failed build puts the copy back; the next install removes it first,
because DKMS refuses to install beside a file of the same version.  ``/var/lib/gdsdeploy/kept/<kernel>/<name in DKMS>``
has the copies in ``files``, and in ``restored`` the list of those that were put back.
"""

from __future__ import annotations

import filecmp
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import process
from ..audit.audit import STACK, audit
from ..errors import BuildError, KernelError, StubError, UnbuildableError, failing
from ..io import atomic
from ..kmod import driver as drivers, ofed
from ..kmod.driver import Expected
from ..kmod.files import Tree, digest
from ..kmod.kernel import Kernel, releases, run_depmod
from ..kmod.module import REBUILT, name_of
from ..kmod.packaged import is_linked
from ..paths import DKMS
from ..rootdir import inside, list_folder, read_text
from .kbuild import INHERITED, failure_in
from .run import source_digest

FOLDER = "/var/lib/gdsdeploy/kept"


def installed_files(kernel: Kernel, name: str) -> List[str]:
    """What DKMS has installed as ``name``, relative to the kernel's folder."""
    link = inside(kernel.root, f"{DKMS}/{name}/kernel-{kernel.release}-{os.uname().machine}")
    names = {name_of(path) for path in glob.glob(os.path.join(glob.escape(link), "module", "*.ko*"))}
    return [choice.file for choice in map(kernel.choose, sorted(names)) if choice is not None]


def save(kernel: Kernel, name: str) -> List[str]:
    """Copy what DKMS has installed as ``name``; returns the files, relative to the kernel's folder."""
    files = installed_files(kernel, name)
    if not files:
        return []
    place = _place(kernel, name)
    base = os.path.dirname(place)
    with failing(BuildError, f"cannot keep a copy in {base}"):
        atomic.make_folder(base)
        staging = tempfile.mkdtemp(prefix=".new-", dir=base)
        try:
            for file in files:
                target = os.path.join(staging, "files", file)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(kernel.path(file), target)
            shutil.rmtree(place, ignore_errors=True)
            os.rename(staging, place)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        for other in set(os.listdir(inside(kernel.root, FOLDER))) - {*releases(kernel.root), kernel.release}:
            shutil.rmtree(os.path.join(inside(kernel.root, FOLDER), other), ignore_errors=True)
    return files


def restore(kernel: Kernel, name: str) -> List[str]:
    """Put back those copies of which the kernel has no file by that name; returns what was put back."""
    place = _place(kernel, name)
    files: List[str] = []
    pattern = os.path.join(glob.escape(place), "files", "**", "*.ko*")
    for path in sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True))):
        file = os.path.relpath(path, os.path.join(place, "files"))
        target = os.path.join(kernel.folder, file)
        if kernel.by_name.get(name_of(file)):
            continue
        with failing(BuildError, f"cannot put {target} back"):
            atomic.copy(path, target)
        files.append(file)
    if files:
        listed = sorted({*restored_files(kernel, name), *files})
        atomic.write(os.path.join(place, "restored"), "".join(file + "\n" for file in listed))
        run_depmod(kernel.root, kernel.release, BuildError, f"run depmod -a {kernel.release}")
    return files


def restored_files(kernel: Kernel, name: str) -> List[str]:
    """What was put back and has not been replaced since."""
    text = read_text("/", os.path.join(_place(kernel, name), "restored"))
    return [line for line in text.splitlines() if line.strip()]


def release(kernel: Kernel, name: str) -> List[str]:
    """Remove unchanged files that :func:`restore` put back, because DKMS is about to install its own."""
    place = _place(kernel, name)
    removed: List[str] = []
    for file in restored_files(kernel, name):
        target, copy = os.path.join(kernel.folder, file), os.path.join(place, "files", file)
        if os.path.isfile(target) and os.path.isfile(copy) and filecmp.cmp(target, copy, shallow=False):
            os.unlink(target)
            removed.append(file)
    atomic.remove(os.path.join(place, "restored"))
    return removed


def _place(kernel: Kernel, name: str) -> str:
    return os.path.join(inside(kernel.root, FOLDER), kernel.release, name.replace("/", "_"))


#: One log for each kernel and package, of the latest build; gdsdeploy's recipes write the same place.
LOGS = "/var/log/gdsdeploy/kmod"
#: Ends the name of a file beside the log, with the inputs and the reason of a build that doesn't help.
_TRIED = ".tried"
_COMPILER = re.compile(r"/(?:.*-)?(?:gcc|clang|ld|pahole)(?:-[0-9.]+)?$")
#: Seconds for a complete driver, on a machine under load.
TIMEOUT = 2 * 3600.0
#: Seconds after which a failed build can't be the one that a package manager has just reported.
_RECENT = 3600.0
#: The module without which a package isn't installed.
_MODULE = {"driver": "nvidia", "nvidia-fs": "nvidia_fs"}


class Package(NamedTuple):
    """A package in DKMS; ``kind`` is ``driver`` or ``nvidia-fs``."""

    name: str
    version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


class DkmsRequest(NamedTuple):
    """``packages`` in the order of their dependencies, and the driver that they are built against."""

    target: str
    packages: Sequence[Package]
    tree: Tree
    #: nvidia-peermem has to work on the target kernel
    peermem: bool = False
    #: the inspected system; DKMS itself works on the running one only
    root: str = "/"
    #: build for the target kernel alone
    target_only: bool = False


def provide(plan: DkmsRequest, check: bool = False) -> Dict[str, Any]:
    """Build and install; returns ``{"changed", "notes": [text], "done": [{kernel_release, package, action, why}]}``.

    check: do nothing.  A failure on a kernel other than the target is noted; where the sources are refused, it isn't
    retried until its inputs change.
    Raises BuildError for a failure on the target, KernelError if the target's headers are missing.
    """
    target = Kernel(plan.target, plan.root)
    target.headers()
    if plan.peermem and not check:
        search = ofed.search(target)
        if search.tree is None:
            hint = "install OFED or DOCA for this kernel, or use DMA-BUF"
            raise StubError(search.stub_reason(target.release), hint)
    done: List[Dict[str, str]] = []
    notes: List[str] = []
    for release in dict.fromkeys([plan.target, *([] if plan.target_only else releases(plan.root))]):
        if release != plan.target and not _has_headers(release, plan.root):
            notes.append(f"kernel {release} has no headers: nothing is built for it")
            continue
        for package in plan.packages:
            kernel = Kernel(release, plan.root)
            action, why = need(kernel, package, plan)
            if not action:
                continue
            log, mark = _log(release, package), json.dumps([*_inputs(kernel, package, plan), why])
            if read_text(plan.root, log + _TRIED) == mark:
                notes.append(f"{package} is not tried again for kernel {release}: {why}: {log}")
                if release == plan.target:
                    continue
                break
            done.append({"kernel_release": release, "package": str(package), "action": action, "why": why})
            if check:
                continue
            try:
                _run(kernel, package, action)
                # A build that leaves what it was to take away wouldn't take it away the next time.
                left = need(Kernel(release, plan.root), package, plan)[1]
                atomic.remove(log + _TRIED)
                if left == why:
                    atomic.write(log + _TRIED, mark)
            except BuildError as error:
                if release == plan.target:
                    raise
                if isinstance(error, UnbuildableError):
                    atomic.write(log + _TRIED, mark)
                done.pop()
                notes.append(f"{error.message} ({error.hint})")
                # The next package depends on it.
                break
    return {"changed": bool(done), "done": done, "notes": notes}


def need(kernel: Kernel, package: Package, plan: DkmsRequest) -> Tuple[str, str]:
    """(``install`` or ``rebuild`` or nothing, why)."""
    if not is_installed(kernel, package):
        return "install", "DKMS has not installed it"
    expected = Expected(plan.tree.version, plan.tree.flavour)
    names = ["nvidia_fs"]
    if package.kind == "driver":
        parts = [name for name in STACK if name not in ("nvidia", "nvidia_fs")]
        names = ["nvidia", *(name for name in parts if drivers.find(kernel, name) is not None)]
    has_ofed = ofed.search(kernel).tree is not None
    for result in audit(kernel, names, expected):
        for finding in result["findings"]:
            # Without OFED, nvidia-peermem stays a stub.
            if finding["id"] in REBUILT and (has_ofed or finding["id"] != StubError.id):
                return "rebuild", f"{result['module']}: {finding['message']}"
    return "", ""


def _inputs(kernel: Kernel, package: Package, plan: DkmsRequest) -> List[Any]:
    """What the result of a build depends on: sources, kernel, OFED, other modules and compilers."""
    found, source = ofed.search(kernel).tree, inside(plan.root, f"/usr/src/{package.name}-{package.version}")
    is_fs = package.kind == "nvidia-fs" and os.path.isdir(source)
    sources = [str(package), digest(plan.tree), source_digest(source) if is_fs else ""]
    programs = glob.glob(glob.escape(inside(plan.root, "/usr/bin")) + "/*")
    states = ((path, os.stat(path)) for path in sorted(filter(_COMPILER.search, programs)) if os.path.exists(path))
    compilers = [(path, state.st_size, state.st_mtime_ns) for path, state in states]
    modules = hashlib.sha256("\n".join(sorted(kernel.by_name)).encode()).hexdigest()
    return [*sources, kernel.symvers_digest(), found.symvers if found else "", modules, compilers]


def is_installed(kernel: Kernel, package: Package) -> bool:
    """Whether DKMS has built the package, and its link for this kernel leads to that build."""
    built = f"{DKMS}/{package.name}/{package.version}/{kernel.release}"
    return any(
        is_linked(kernel.root, package.name, package.version, kernel.release, arch)
        for arch in list_folder(kernel.root, built)
        if any(".ko" in name for name in list_folder(kernel.root, f"{built}/{arch}/module"))
    )


def _run(kernel: Kernel, package: Package, action: str) -> None:
    argv = [str(package), "-k", kernel.release]
    if action == "rebuild":
        # A failed build restores this copy.
        save(kernel, package.name)
        _dkms(kernel, package, ["dkms", "unbuild", *argv])
    _dkms(kernel, package, ["dkms", "install", *argv], time.time())
    installed = Kernel(kernel.release, kernel.root)
    if not is_installed(installed, package) or drivers.find(installed, _MODULE[package.kind]) is None:
        message = f"dkms ended without an error and did not install {package} for kernel {kernel.release}"
        raise BuildError(message, f"look at: dkms status {package}; what it waits for is its BUILD_DEPENDS")


def _dkms(kernel: Kernel, package: Package, argv: Sequence[str], begun: float = 0.0) -> None:
    done = process.run(argv, TIMEOUT, inherited=INHERITED)
    if done.status == 0:
        return
    if done.status == process.NOT_FOUND:
        raise BuildError("dkms is not installed", "install the package dkms")
    # The recipe's build has restored already, unless DKMS failed before it.
    restore(Kernel(kernel.release, kernel.root), package.name)
    files = ", ".join(restored_files(kernel, package.name))
    failure = _failure(_log(kernel.release, package), begun) if begun else None
    if failure is None:
        lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines()]
        error = next((line for line in lines if line.startswith("Error!")), f"exit status {done.status}")
        after = lines[lines.index(error) + 1 : lines.index(error) + 3] if error in lines else []
        message = f"DKMS can't install {package} for kernel {kernel.release}: {' '.join([error, *after]).strip()}"
        failure = BuildError(message, f"to see the complete output, run: {' '.join(argv)}")
    if files:
        failure.hint += f"; the previous modules are back in place: {files}"
    raise failure


def _failure(log: str, begun: float) -> Optional[BuildError]:
    """Of a build that failed since ``begun``; None if the build didn't fail."""
    try:
        fresh = os.path.getmtime(log) >= begun - 1
    except OSError:
        fresh = False
    return failure_in(log) if fresh else None


def why() -> None:
    """Raise the BuildError of the latest build that failed, of any kernel, if that was within the last hour."""
    for log in sorted(glob.glob(os.path.join(LOGS, "*", "*.log")), key=os.path.getmtime, reverse=True):
        failure = _failure(log, time.time() - _RECENT)
        if failure is not None:
            raise failure


def _log(release: str, package: Package) -> str:
    return f"{LOGS}/{release}/{package.name}.log"


def _has_headers(release: str, root: str) -> bool:
    try:
        Kernel(release, root).headers()
    except KernelError:
        return False
    return True
