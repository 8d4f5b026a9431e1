"""Modules that others have built: locked packages and DKMS.

*Packages.*  The lock has the digest of each file, read in the package, which its repository's signature covers.
dpkg's record says whether the file is still the package's; the kernel has to load exactly those files.

*DKMS.*  What it has added, built and installed is read from its folders and links: ``dkms status`` takes most of a
second.

Installed archives vouch for symbol versions that a host without headers can't look up.

Modules are packed after an audit against the complete Module.symvers of their kernel.  One of the kernel's own modules
identifies its build: a key made for that build signed it, or it has at least that build's id.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

from ..errors import ElfError, KernelError
from ..io import cache
from ..paths import DKMS
from ..rootdir import inside, list_folder, list_names, read_text
from . import driver as drivers
from .files import sha256
from .kernel import Kernel
from .module import name_of, read_once
from .packaged_file import PackagedFile

#: Where installed modules and their manifest are, below /lib/modules/<release>.
FOLDER = "updates/gdsdeploy"
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20


def identity(kernel: Kernel) -> Dict[str, str]:
    """``{"file", "sha256"}`` of one of the kernel's own modules; both empty when it has none."""
    file = kernel.base_file()
    if not file:
        return {"file": "", "sha256": ""}
    digest = file_digest(kernel.path(file))
    if digest is None:
        raise KernelError(f"{kernel.path(file)}: cannot be read", f"reinstall kernel {kernel.release}")
    return {"file": file, "sha256": digest}


def is_same_build(kernel: Kernel, build: Any) -> Optional[bool]:
    """Whether ``build``, an :func:`identity` of another host, is of this very kernel build; None: can't be compared."""
    if not isinstance(build, dict) or not isinstance(build.get("file"), str) or not build["file"].startswith("kernel/"):
        return None
    path = kernel.path(os.path.normpath(build["file"]))
    digest = file_digest(path)
    return None if digest is None else digest == build.get("sha256")


def vouched_files(kernel: Kernel) -> Set[str]:
    """Files (absolute) that an installed manifest vouches for: unchanged since, on the kernel they were packed for."""
    manifest = installed_manifest(kernel)
    if not is_same_build(kernel, manifest.get("kernel_build")):
        return set()
    folder = os.path.join(kernel.folder, FOLDER)
    digests = {
        os.path.join(folder, os.path.basename(str(module.get("file")))): module.get("sha256")
        for module in manifest.get("modules", [])
    }
    return {path for path, digest in digests.items() if digest is not None and file_digest(path) == digest}


def installed_manifest(kernel: Kernel) -> Dict[str, Any]:
    """The manifest that was installed with the modules; empty when there is none that can be read."""
    try:
        with open(os.path.join(kernel.folder, FOLDER, MANIFEST), "rb") as file:
            value = json.loads(file.read(MANIFEST_LIMIT).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    modules = value.get("modules") if isinstance(value, dict) else None
    return value if isinstance(modules, list) and all(isinstance(module, dict) for module in modules) else {}


def received_parts(kernel: Kernel) -> Dict[str, Any]:
    """The manifest's ``driver`` and ``nvidia_fs`` where every received module is as it was; else empty."""
    manifest = installed_manifest(kernel)
    modules = manifest.get("modules", [])
    if not modules or len(vouched_files(kernel)) != len(modules):
        return {}
    return {name: manifest.get(name) for name in ("driver", "nvidia_fs")}


def file_digest(path: str) -> Optional[str]:
    """As :func:`sha256`; None where there is no file that can be read."""
    try:
        return cache.of_file("sha256", path, lambda: sha256(path)) if os.path.isfile(path) else None
    except OSError:
        return None


#: What follows the state where an installed module isn't the one that DKMS built; dkms itself has several wordings.
DIFFERS = "(Diff between built and installed module!)"
_BROKEN = ": broken"
#: Names that DKMS takes for kernels.
_KERNEL = re.compile(r"[0-9]+\.")


def dkms_version(tree: str) -> str:
    """The version by which DKMS knows a source tree, whose name ends in it: Debian 12's nvidia-fs 2.13.5 is 2.13."""
    return tree.rpartition("-")[2]


def dkms_status(root: str = "/") -> List[str]:
    """What ``dkms status`` would print, without what it adds about original modules; raises OSError.

    As dkms 3.2: a version is broken if its source is missing, a kernel has a build if that has a folder of
    modules, and the build is installed if the link of that kernel leads to it.
    """
    return [line for name in list_names(inside(root, DKMS)) for line in _of_module(root, name)]


def broken_in_dkms(root: str, names: Sequence[str]) -> List[str]:
    """The folders of versions whose source is missing, and the links of kernels to them, of these packages.

    With one of them, ``dkms remove`` and ``dkms autoinstall`` fail, and so do the scripts of packages that run them.
    """
    paths: List[str] = []
    for name in names:
        lines = [line for line in _of_module(root, name) if line.endswith(_BROKEN)]
        folders = [f"{DKMS}/{line[: -len(_BROKEN)]}" for line in lines]
        links = [f"{DKMS}/{name}/{each}" for each in list_folder(root, f"{DKMS}/{name}") if each.startswith("kernel-")]
        places = tuple(inside(root, folder) + "/" for folder in folders)
        paths += [*folders, *(link for link in links if folders and inside(root, link).startswith(places))]
    return paths


def is_linked(root: str, name: str, version: str, release: str, arch: str) -> bool:
    """Whether DKMS's link for the kernel leads to the build of this version."""
    link = f"{DKMS}/{name}/kernel-{release}-{arch}"
    place = inside(root, f"{DKMS}/{name}/{version}/{release}/{arch}")
    return inside(root, link) == place


def _of_module(root: str, name: str) -> Iterator[str]:
    for version in list_folder(root, f"{DKMS}/{name}"):
        folder = inside(root, f"{DKMS}/{name}") + "/" + version
        if version.startswith("kernel-") or os.path.islink(folder) or not os.path.isdir(folder):
            continue
        has_source = os.path.isdir(inside(root, f"{DKMS}/{name}/{version}/source"))
        if not os.path.islink(folder + "/source"):
            if os.path.isdir(inside(root, f"/usr/src/{name}-{version}")):
                yield f"{name}/{version}{_BROKEN}"
        elif not has_source:
            yield f"{name}/{version}{_BROKEN}"
        else:
            builds = list(_builds(root, name, version))
            yield from builds or [f"{name}/{version}: added"]


def _builds(root: str, name: str, version: str) -> Iterator[str]:
    for release in filter(_KERNEL.match, list_folder(root, f"{DKMS}/{name}/{version}")):
        for arch in list_folder(root, f"{DKMS}/{name}/{version}/{release}"):
            modules = f"{DKMS}/{name}/{version}/{release}/{arch}/module"
            if not os.path.isdir(inside(root, modules)):
                continue
            state = "built"
            if is_linked(root, name, version, release, arch):
                state = "installed" if _are_installed(root, modules, release) else f"installed {DIFFERS}"
            yield f"{name}/{version}, {release}, {arch}: {state}"


def _are_installed(root: str, modules: str, release: str) -> bool:
    """Whether the kernel's folder has each module of the build, signed or not; True where the kernel is gone."""
    listed = read_text(root, f"/lib/modules/{release}/modules.dep")
    names = [name for name in list_folder(root, modules) if ".ko" in name]
    for name in names if listed else ():
        # depmod lists it, under its name with or without a compression.
        base = re.escape(name.partition(".ko")[0])
        files = re.findall(rf"^((?:\S*/)?{base}\.ko(?:\.\w+)?):", listed, re.MULTILINE)
        places = [inside(root, f"/lib/modules/{release}/{file}") for file in files]
        if not any(are_equal(inside(root, f"{modules}/{name}"), place) for place in places):
            return False
    return bool(names) or not listed


def are_equal(built: str, installed: str) -> bool:
    """Whether two module files have the same content, or are signed copies of one build."""
    digest = file_digest(built)
    if digest is None or digest == file_digest(installed):
        return digest is not None
    # A signature that came later changes the file, but not what was built.
    try:
        build_id = read_once(built).build_id
        return bool(build_id) and build_id == read_once(installed).build_id
    except ElfError:
        return False


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
    return [*received, *(_installed_builds(kernel, built) if built else [])]


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


def _installed_builds(kernel: Kernel, modules: Container[str]) -> Iterator[str]:
    """Builds that DKMS has installed for the kernel, with one of these modules."""
    for name in list_folder(kernel.root, DKMS):
        for version in list_folder(kernel.root, f"{DKMS}/{name}"):
            for arch in list_folder(kernel.root, f"{DKMS}/{name}/{version}/{kernel.release}"):
                built = list_folder(kernel.root, f"{DKMS}/{name}/{version}/{kernel.release}/{arch}/module")
                linked = is_linked(kernel.root, name, version, kernel.release, arch)
                if linked and any(name_of(file) in modules for file in built):
                    yield f"{name}/{version}"
