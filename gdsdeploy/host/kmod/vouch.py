"""Installed archives vouch for symbol versions that a host without headers cannot look up.

Modules are packed after an audit against the complete Module.symvers of their kernel.  On another host the same modules
on the same build of that kernel need no second look-up.  A kernel's build is known by one of its own modules: it has
the signature of a key that is made for each build and thrown away, or at least that build's id.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Optional, Set

from .kernel import Kernel

#: Where installed modules and their manifest are, below /lib/modules/<release>.
FOLDER = "updates/gdsdeploy"
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20


def identity(kernel: Kernel) -> Dict[str, str]:
    """``{"file", "sha256"}`` of one of the kernel's own modules; both empty when it has none."""
    module = kernel.own_module()
    if module is None:
        return {"file": "", "sha256": ""}
    return {"file": os.path.relpath(module.path, kernel.folder), "sha256": sha256(module.path)}


def is_same_build(kernel: Kernel, known: Any) -> bool:
    """Whether ``known``, an :func:`identity` of another host, is of this very kernel build."""
    return same_kernel_build(kernel, known) is True


def same_kernel_build(kernel: Kernel, known: Any) -> Optional[bool]:
    """Like :func:`is_same_build`; None where this host does not have the module that would tell."""
    if not isinstance(known, dict) or not isinstance(known.get("file"), str) or not known["file"].startswith("kernel/"):
        return None
    path = kernel.path(os.path.normpath(known["file"]))
    return sha256(path) == known.get("sha256") if os.path.isfile(path) else None


def vouched(kernel: Kernel) -> Set[str]:
    """Files (absolute) that an installed manifest vouches for: unchanged since, on the kernel they were packed for."""
    manifest = installed_manifest(kernel)
    if not is_same_build(kernel, manifest.get("kernel_build")):
        return set()
    files = set()
    for item in manifest.get("modules", []):
        path = os.path.join(kernel.folder, FOLDER, os.path.basename(str(item.get("file"))))
        if os.path.isfile(path) and sha256(path) == item.get("sha256"):
            files.add(path)
    return files


def installed_manifest(kernel: Kernel) -> Dict[str, Any]:
    """The manifest that was installed with the modules; empty when there is none that can be read."""
    try:
        with open(os.path.join(kernel.folder, FOLDER, MANIFEST), "rb") as file:
            value = json.loads(file.read(MANIFEST_LIMIT).decode("utf-8"))
    except (OSError, ValueError):
        return {}
    modules = value.get("modules") if isinstance(value, dict) else None
    return value if isinstance(modules, list) and all(isinstance(item, dict) for item in modules) else {}


def received(kernel: Kernel) -> Dict[str, Any]:
    """The manifest's ``driver`` and ``nvidia_fs`` where every received module is as it was; else empty."""
    manifest = installed_manifest(kernel)
    modules = manifest.get("modules", [])
    if not modules or len(vouched(kernel)) != len(modules):
        return {}
    return {name: manifest.get(name) for name in ("driver", "nvidia_fs")}


def sha256(path: str) -> str:
    """The hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
