"""Modules that locked packages bring: whether the kernel would load exactly those files.

The lock has the digest of each file, read in the package, which its repository's signature covers.  dpkg's record says
whether the file is still the package's.
"""

from __future__ import annotations

import re
from typing import Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

from ..paths import DKMS
from ..rootdir import list_folder, read_text
from . import driver as drivers
from .dkms_state import is_linked
from .kernel import Kernel
from .module import name_of
from .packaged_file import PackagedFile
from .vouch import FOLDER, file_digest

#: How the names of the packages begin.
PREFIX = "linux-modules-nvidia-"
_RECORDS = "/var/lib/dpkg/info"


class Problem(NamedTuple):
    """Why a file isn't what the kernel would load: a message for people, and ``by``: the file that has precedence."""

    file: PackagedFile
    id: str
    message: str
    hint: str
    by: str = ""


#: Ids of problems: the file is gone, or has other content; it isn't the package's by dpkg's record; another file of the
#: module has precedence; modules.dep doesn't list it.
MISSING, CONTENT, OWNER, SHADOWED, STALE = "missing", "content", "owner", "shadowed", "depmod-stale"


def problems(kernel: Kernel, files: Sequence[PackagedFile]) -> List[Problem]:
    """The first problem of each of ``files`` that has one."""
    owned = {package: _owned(kernel, package) for package in {file.package for file in files}}
    return [problem for file in files for problem in [_problem(kernel, file, owned[file.package])] if problem]


def whole(kernel: Kernel, files: Sequence[PackagedFile]) -> Dict[str, PackagedFile]:
    """Path → its file, of those without a problem."""
    wrong = {problem.file for problem in problems(kernel, files)}
    return {kernel.path(file.file): file for file in files if file not in wrong}


def shadows(kernel: Kernel, files: Sequence[PackagedFile]) -> List[str]:
    """What of gdsdeploy's or of DKMS has precedence over ``files``: FOLDER, and NAME/VERSION of builds in DKMS."""
    preferred = [problem.by for problem in problems(kernel, files) if problem.by]
    received = [FOLDER] if any(file.startswith(FOLDER + "/") for file in preferred) else []
    built = {name_of(file) for file in preferred if not file.startswith(FOLDER + "/")}
    return [*received, *(_builds(kernel, built) if built else [])]


def _problem(kernel: Kernel, file: PackagedFile, owned: Container[str]) -> Optional[Problem]:
    # apt drops the hold of a package that it installs again.
    install, hold = f"apt-get install --reinstall {file.package}={file.version}", f"apt-mark hold {file.package}"
    again = f"install it again: {install} && {hold}"
    path = f"/lib/modules/{kernel.release}/{file.file}"
    digest = file_digest(kernel.path(file.file))
    if digest is None:
        return Problem(file, MISSING, f"{path} of {file.origin} isn't there, or can't be read", again)
    if digest != file.sha256:
        return Problem(file, CONTENT, f"{path} isn't as the lock has it of {file.origin}", again)
    if file.file not in owned:
        return Problem(file, OWNER, f"{path} doesn't belong to {file.package} by dpkg's record", again)
    place = drivers.find(kernel, file.module)
    if place is not None and place.file != file.file:
        message = f"{place.file} has precedence over {path} of {file.origin}"
        hint = f"remove {place.file}, then run depmod -a {kernel.release}"
        return Problem(file, SHADOWED, message, hint, place.file)
    if file.file not in kernel.dependencies:
        message = f"modules.dep doesn't list {path} of {file.origin}: modprobe doesn't find it"
        return Problem(file, STALE, message, f"run depmod -a {kernel.release}")
    return None


def _owned(kernel: Kernel, package: str) -> Set[str]:
    """Files below the kernel's folder that dpkg has on record for ``package``, of any architecture."""
    pattern = re.compile(rf"{re.escape(package)}(:\w+)?\.list")
    names = [name for name in list_folder(kernel.root, _RECORDS) if pattern.fullmatch(name)]
    folders = [f"{usr}/lib/modules/{kernel.release}/" for usr in ("", "/usr")]
    lines = [line for name in names for line in read_text(kernel.root, f"{_RECORDS}/{name}").splitlines()]
    return {line[len(folder) :] for line in lines for folder in folders if line.startswith(folder)}


def _builds(kernel: Kernel, modules: Container[str]) -> Iterator[str]:
    """Builds that DKMS has installed for the kernel, with one of these modules."""
    for name in list_folder(kernel.root, DKMS):
        for version in list_folder(kernel.root, f"{DKMS}/{name}"):
            for arch in list_folder(kernel.root, f"{DKMS}/{name}/{version}/{kernel.release}"):
                built = list_folder(kernel.root, f"{DKMS}/{name}/{version}/{kernel.release}/{arch}/module")
                linked = is_linked(kernel.root, name, version, kernel.release, arch)
                if linked and any(name_of(file) in modules for file in built):
                    yield f"{name}/{version}"
