"""Copies of what DKMS installed, kept until its successor is installed.

DKMS takes the installed modules away before it builds their successors: when a dependency changed on the same kernel,
and when a package is upgraded.  A build that fails then leaves a host with nothing.  So our recipes keep a copy after
every install, a failed build puts it back where it was, and the next install takes it away first, because DKMS refuses
to install beside a file of the same version.

``/var/lib/gdsdeploy/kept/<kernel>/<name in DKMS>/files/…`` has the copies, below the kernel's folder as they were;
``restored`` beside it lists those that were put back.
"""

from __future__ import annotations

import filecmp
import glob
import os
import shutil
import tempfile
from typing import List

from .. import process
from ..errors import BuildError
from ..io import atomic
from ..kmod.kernel import Kernel, releases
from ..kmod.module import name_of
from ..rootdir import inside

FOLDER = "/var/lib/gdsdeploy/kept"
_DKMS = "/var/lib/dkms"
_DEPMOD_TIMEOUT = 600.0


def save(kernel: Kernel, name: str) -> List[str]:
    """Keep what DKMS has installed as ``name``; the files, relative to the kernel's folder."""
    link = inside(kernel.root, f"{_DKMS}/{name}/kernel-{kernel.release}-{os.uname().machine}")
    wanted = {name_of(path) for path in glob.glob(os.path.join(glob.escape(link), "module", "*.ko*"))}
    files = [choice.file for choice in map(kernel.choose, sorted(wanted)) if choice is not None]
    if not files:
        return []
    place = _place(kernel, name)
    base = os.path.dirname(place)
    try:
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
        _prune(kernel)
    except OSError as error:
        raise BuildError(f"cannot keep a copy in {base}: {error.strerror}") from None
    return files


def restore(kernel: Kernel, name: str) -> List[str]:
    """Put back those kept files of which the kernel has none by that name; returns what was put back."""
    place = _place(kernel, name)
    back: List[str] = []
    for path in _files(place):
        file = os.path.relpath(path, os.path.join(place, "files"))
        target = os.path.join(kernel.folder, file)
        if kernel.by_name.get(name_of(file)):
            continue
        try:
            atomic.copy(path, target)
        except OSError as error:
            raise BuildError(f"cannot put {target} back: {error.strerror}") from None
        back.append(file)
    if back:
        listed = sorted({*_restored(place), *back})
        atomic.write(os.path.join(place, "restored"), "".join(file + "\n" for file in listed))
        _depmod(kernel)
    return back


def restored(kernel: Kernel, name: str) -> List[str]:
    """What was put back and has not been replaced since."""
    return _restored(_place(kernel, name))


def release(kernel: Kernel, name: str) -> List[str]:
    """Take away what :func:`restore` put back and nobody has changed since; DKMS is about to install its own."""
    place = _place(kernel, name)
    gone: List[str] = []
    for file in _restored(place):
        target, copy = os.path.join(kernel.folder, file), os.path.join(place, "files", file)
        if os.path.isfile(target) and os.path.isfile(copy) and filecmp.cmp(target, copy, shallow=False):
            os.unlink(target)
            gone.append(file)
    if os.path.exists(os.path.join(place, "restored")):
        os.unlink(os.path.join(place, "restored"))
    return gone


def _depmod(kernel: Kernel) -> None:
    base = [] if kernel.root == "/" else ["-b", kernel.root]
    done = process.run(["depmod", *base, "-a", kernel.release], _DEPMOD_TIMEOUT)
    if done.status != 0:
        raise BuildError(f"depmod failed for kernel {kernel.release}: {done.stderr.strip()}", "run it again")


def _place(kernel: Kernel, name: str) -> str:
    return os.path.join(inside(kernel.root, FOLDER), kernel.release, name.replace("/", "_"))


def _files(place: str) -> List[str]:
    pattern = os.path.join(glob.escape(place), "files", "**", "*.ko*")
    return sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))


def _restored(place: str) -> List[str]:
    try:
        with open(os.path.join(place, "restored"), encoding="utf-8") as text:
            return [line.rstrip("\n") for line in text if line.strip()]
    except FileNotFoundError:
        return []


def _prune(kernel: Kernel) -> None:
    """Forget kernels that are no longer installed."""
    there = {*releases(kernel.root), kernel.release}
    base = inside(kernel.root, FOLDER)
    for name in os.listdir(base):
        if name not in there:
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)
