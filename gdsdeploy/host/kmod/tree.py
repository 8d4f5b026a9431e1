"""Driver source trees, identified by their content, not by their names.

Layouts seen: flat (``Kbuild``, ``nvidia/``, ``common/``) below /usr/src as NVIDIA, Debian and Ubuntu install it; and
one level down, in ``kernel-open`` or ``kernel``, in an unpacked installer.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from dataclasses import asdict, dataclass
from typing import Dict, Iterator, List

from ..errors import TreeError

SOURCES = "/usr/src"
_SUBFOLDERS = ("", "kernel-open", "kernel")
#: What makes up the interfaces that nvidia-fs and peermem are compiled against, and how the exporting unit is built.
#: Binary objects and everything that a build leaves behind stay out.
_DIGESTED = (
    "Kbuild",
    "Makefile",
    "conftest.sh",
    "header-presence-tests.mk",
    "common/inc/*.h",
    "common/inc/*/*.h",
    "nvidia/*.c",
    "nvidia/*.h",
    "nvidia/*.Kbuild",
    "nvidia-peermem/*.c",
    "nvidia-peermem/*.h",
    "nvidia-peermem/*.Kbuild",
)
_FOLDERS = ("", "common/inc", "nvidia", "nvidia-peermem")
_TEXT_LIMIT = 4 << 20
_TREES_HINT = "gdsdeploy kmod trees lists those of this host"
_OPEN = re.compile(r'MODULE_LICENSE\("Dual MIT/GPL"\)')
_PROPRIETARY = re.compile(r'MODULE_LICENSE\("NVIDIA"\)')


@dataclass(frozen=True)
class Tree:
    """A driver's kernel module sources."""

    #: the folder that has Kbuild
    path: str
    version: str
    #: ``open`` or ``proprietary``
    flavour: str
    #: the name under which DKMS knows it; empty without dkms.conf
    dkms_name: str

    @property
    def headers(self) -> str:
        """The folder with nv-p2p.h."""
        return os.path.join(self.path, "nvidia")

    def modules(self) -> List[str]:
        """Names of the modules that the tree builds, such as nvidia-uvm, sorted."""
        folders = [
            os.path.basename(os.path.dirname(each)) for each in glob.glob(os.path.join(glob.escape(self.path), "*", ""))
        ]
        return sorted(name for name in folders if os.path.isfile(os.path.join(self.path, name, name + ".Kbuild")))

    def as_dict(self) -> Dict[str, str]:
        return {**asdict(self), "digest": digest(self)}


def identify(path: str) -> List[Tree]:
    """The driver trees in a folder: none, one, or (an unpacked installer) one of each flavour."""
    trees = []
    for subfolder in _SUBFOLDERS:
        place = os.path.join(path, subfolder) if subfolder else path
        kbuild = _text(place, "Kbuild")
        if not kbuild or not os.path.isfile(os.path.join(place, "nvidia", "nv-p2p.h")):
            continue
        version = _version(path, place, kbuild)
        flavour = _flavour(place)
        if version and flavour:
            conf = _text(place, "dkms.conf") or _text(path, "dkms.conf")
            name = re.search(r'^PACKAGE_NAME="?([\w.+-]+)', conf, re.MULTILINE)
            trees.append(Tree(place, version, flavour, name.group(1) if name else ""))
    return trees


def find_trees(sources: str = SOURCES) -> List[Tree]:
    """Every driver tree below ``sources``, each once, sorted by path."""
    trees: Dict[str, Tree] = {}
    for folder in sorted(glob.glob(os.path.join(glob.escape(sources), "*", ""))):
        for tree in identify(folder.rstrip("/")):
            trees.setdefault(os.path.realpath(tree.path), tree)
    return sorted(trees.values(), key=lambda tree: tree.path)


def select(trees: List[Tree], version: str, flavour: str) -> Tree:
    """The one tree of ``version`` and ``flavour``; raises TreeError, which lists every tree, for none or several."""
    fit = [tree for tree in trees if (tree.version, tree.flavour) == (version, flavour)]
    if len(fit) == 1:
        return fit[0]
    listed = _listed(fit or trees) or "none at all"
    if fit:
        hint = "name one with --driver-tree, or remove the others"
        raise TreeError(f"there are {len(fit)} source trees of driver {version} ({flavour}): {listed}", hint)
    hint = "install the package with the driver's kernel module source"
    raise TreeError(f"there is no source tree of driver {version} ({flavour}); there is: {listed}", hint)


def _listed(trees: List[Tree]) -> str:
    return "; ".join(f"{tree.path} is {tree.version} ({tree.flavour})" for tree in trees)


def expect(path: str, version: str = "", flavour: str = "") -> Tree:
    """The tree at ``path``, which has to be of ``version`` and ``flavour`` where those are given; raises TreeError."""
    trees = identify(path)
    if not trees:
        message = f"{path} is not a driver source tree: it needs Kbuild with a version, nvidia/nv-p2p.h and a license"
        raise TreeError(message, _TREES_HINT)
    fit = [tree for tree in trees if version in ("", tree.version) and flavour in ("", tree.flavour)]
    if len(fit) != 1:
        message = f"{path} is not the source of driver {version or 'any'} ({flavour or 'any'})"
        raise TreeError(f"{message}: {_listed(trees)}", _TREES_HINT)
    return fit[0]


def digest(tree: Tree) -> str:
    """``sha256:…`` over names and contents of the files that builds against this tree depend on; raises TreeError."""
    return digest_files(tree.path, list(_files(tree.path)))


def digest_files(folder: str, names: List[str]) -> str:
    """``sha256:…`` over the sorted ``names`` inside ``folder`` with the sha256 of each content; raises TreeError."""
    total = hashlib.sha256()
    for name in sorted(names):
        try:
            with open(os.path.join(folder, name), "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise _unread(os.path.join(folder, name), error) from None
        total.update(f"{name}\0{content}\n".encode())
    return "sha256:" + total.hexdigest()


def _files(path: str) -> Iterator[str]:
    for folder in _FOLDERS:
        place = os.path.join(path, folder)
        try:
            # glob takes a folder that can't be listed for an empty one.
            os.listdir(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unread(place, error) from None
    for pattern in _DIGESTED:
        for file in glob.glob(os.path.join(glob.escape(path), pattern)):
            if os.path.isfile(file) and not os.path.islink(file) and not file.endswith(".mod.c"):
                yield os.path.relpath(file, path)


def _unread(path: str, error: OSError) -> TreeError:
    return TreeError(f"{path}: cannot be read: {error.strerror}", "reinstall the package that has this source")


def _version(path: str, place: str, kbuild: str) -> str:
    for text, pattern in (
        (kbuild, r'NV_VERSION_STRING=\\*"([0-9][0-9.]*)\\*"'),
        (_text(path, "version.mk"), r"^NVIDIA_VERSION\s*=\s*([0-9][0-9.]*)"),
        (_text(place, "dkms.conf"), r'^PACKAGE_VERSION="?([0-9][0-9.]*)'),
    ):
        match = re.search(pattern, text, re.MULTILINE)
        if match:
            return match.group(1)
    return ""


def _flavour(place: str) -> str:
    """By the license that the source declares: nv.c, or nv-frontend.c before 545."""
    for name in ("nv.c", "nv-frontend.c"):
        text = _text(os.path.join(place, "nvidia"), name)
        if _OPEN.search(text):
            return "open"
        if _PROPRIETARY.search(text):
            return "proprietary"
    return ""


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read(_TEXT_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
