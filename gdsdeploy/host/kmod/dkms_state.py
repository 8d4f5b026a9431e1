"""What DKMS has added, built and installed, from its folders and links: ``dkms status`` takes most of a second."""

from __future__ import annotations

import os
import re
from typing import Iterator, List, Sequence

from ..errors import ElfError
from ..paths import DKMS
from ..rootdir import inside, list_folder, list_names, read_text
from .module import read_once
from .vouch import file_digest

#: What follows the state where an installed module isn't the one that DKMS built; dkms itself has several wordings.
DIFFERS = "(Diff between built and installed module!)"
_BROKEN = ": broken"
#: Names that DKMS takes for kernels.
_KERNEL = re.compile(r"[0-9]+\.")


def version_of(tree: str) -> str:
    """The version by which DKMS knows a source tree, whose name ends in it: Debian 12's nvidia-fs 2.13.5 is 2.13."""
    return tree.rpartition("-")[2]


def lines(root: str = "/") -> List[str]:
    """What ``dkms status`` would print, without what it adds about original modules; raises OSError.

    As dkms 3.2: a version is broken if its source is missing, a kernel has a build if that has a folder of
    modules, and the build is installed if the link of that kernel leads to it.
    """
    return [line for name in list_names(inside(root, DKMS)) for line in _of_module(root, name)]


def broken(root: str, names: Sequence[str]) -> List[str]:
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
