"""Copies of what DKMS installed, because DKMS removes the installed modules before it builds their successors.

gdsdeploy's recipes copy after every install.  A failed build puts the copy back; the next install removes it first,
because DKMS refuses to install beside a file of the same version.  ``/var/lib/gdsdeploy/kept/<kernel>/<name in DKMS>``
has the copies in ``files``, and in ``restored`` the list of those that were put back.
"""

from __future__ import annotations

import filecmp
import glob
import os
import shutil
import tempfile
from typing import List

from ..errors import BuildError
from ..io import atomic
from ..kmod.kernel import Kernel, releases, run_depmod
from ..kmod.module import name_of
from ..paths import DKMS
from ..rootdir import inside

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
        for other in set(os.listdir(inside(kernel.root, FOLDER))) - {*releases(kernel.root), kernel.release}:
            shutil.rmtree(os.path.join(inside(kernel.root, FOLDER), other), ignore_errors=True)
    except OSError as error:
        raise BuildError(f"cannot keep a copy in {base}: {error.strerror}") from None
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
        try:
            atomic.copy(path, target)
        except OSError as error:
            raise BuildError(f"cannot put {target} back: {error.strerror}") from None
        files.append(file)
    if files:
        listed = sorted({*restored_files(kernel, name), *files})
        atomic.write(os.path.join(place, "restored"), "".join(file + "\n" for file in listed))
        run_depmod(kernel.root, kernel.release, BuildError, f"run depmod -a {kernel.release}")
    return files


def restored_files(kernel: Kernel, name: str) -> List[str]:
    """What was put back and has not been replaced since."""
    try:
        with open(os.path.join(_place(kernel, name), "restored"), encoding="utf-8") as text:
            return [line.rstrip("\n") for line in text if line.strip()]
    except FileNotFoundError:
        return []


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
