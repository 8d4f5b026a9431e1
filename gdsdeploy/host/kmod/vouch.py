"""Installed archives vouch for symbol versions that a host without headers can't look up.

Modules are packed after an audit against the complete Module.symvers of their kernel.  One of the kernel's own modules
identifies its build: a key made for that build signed it, or it has at least that build's id.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Optional, Set

from ..errors import KernelError
from ..io import cache
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
    digest = file_digest(module.path)
    if digest is None:
        raise KernelError(f"{module.path}: cannot be read", f"reinstall kernel {kernel.release}")
    return {"file": os.path.relpath(module.path, kernel.folder), "sha256": digest}


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


def sha256(path: str) -> str:
    """The hexadecimal SHA-256 of a file's content; raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
