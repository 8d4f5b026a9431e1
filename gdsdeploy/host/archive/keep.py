"""Keep the modules of a kernel as an archive, so that they can be put back without a network or a compiler."""

from __future__ import annotations

import os
import shutil
import tarfile
from typing import Any, Dict, List

from ..audit.audit import STACK
from ..errors import HostError, PackError
from ..io import atomic
from ..kmod import driver as drivers
from ..kmod.kernel import Kernel
from ..kmod.vouch import FOLDER, installed_manifest, sha256, vouched
from ..rootdir import inside
from . import pack

PLACE = "/var/lib/gdsdeploy/rollout"
#: Where provision leaves the archive that it made or received.
_PROVISIONED = "/var/lib/gdsdeploy/modules-{}.tar"


def keep(ident: str, release: str = "", root: str = "/") -> Dict[str, Any]:
    """Keep the modules that kernel ``release`` (by default the running one) would load now; idempotent.

    What earlier rollouts kept goes then: only the newest one of a host can be taken back.
    Returns ``{"changed", "kernel", "archive", "from", "modules": [file]}``; archive is empty where there is nothing of
    NVIDIA's to keep; from: "kept", "provision", "installed" or "packed".  Raises AuditError where nobody has vouched
    for the modules and their audit does not pass, PackError or OSError where they cannot be written.
    """
    answer = _keep(ident, release or os.uname().release, root)
    folder = inside(root, PLACE)
    for other in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if other != ident:
            forget(other, root)
    return answer


def _keep(ident: str, release: str, root: str) -> Dict[str, Any]:
    if not os.path.isdir(inside(root, "/lib/modules/" + release)):
        return {"changed": False, "kernel": release, "archive": "", "from": "", "modules": []}
    kernel = Kernel(release, root)
    digests = present(kernel)
    answer = {"kernel": release, "modules": sorted(digests)}
    if not digests:
        return {"changed": False, "archive": "", "from": "", **answer}
    archive = path(ident, kernel.release)
    place = inside(root, archive)
    if _has(place, digests):
        return {"changed": False, "archive": archive, "from": "kept", **answer}
    atomic.make_folder(os.path.dirname(place))
    provisioned = inside(root, _PROVISIONED.format(kernel.release))
    if _has(provisioned, digests):
        atomic.copy(provisioned, place)
        source = "provision"
    elif _is_received(kernel, digests):
        _rebuild(kernel, place)
        source = "installed"
    else:
        pack.pack(kernel, [], place)
        source = "packed"
    return {"changed": True, "archive": archive, "from": source, **answer}


def forget(ident: str, root: str = "/") -> Dict[str, Any]:
    """Delete what was kept; returns ``{"changed", "folder"}``.  Raises OSError."""
    folder = f"{PLACE}/{ident}"
    place = inside(root, folder)
    there = os.path.isdir(place)
    if there:
        shutil.rmtree(place)
    return {"changed": there, "folder": folder}


def path(ident: str, release: str) -> str:
    """Where the archive of a kernel's modules is, or would be."""
    return f"{PLACE}/{ident}/modules-{release}.tar"


def present(kernel: Kernel) -> Dict[str, str]:
    """File name → SHA-256 of every module of NVIDIA's that the kernel would load."""
    places = [place for place in (drivers.find(kernel, name) for name in STACK) if place is not None]
    paths = [kernel.path(place.file) for place in places]
    return {os.path.basename(each): sha256(each) for each in paths}


def _has(archive: str, digests: Dict[str, str]) -> bool:
    """Whether the archive is whole and has exactly these modules."""
    if not os.path.isfile(archive):
        return False
    try:
        modules: List[Dict[str, Any]] = pack.verify(archive)["modules"]
    except HostError:
        return False
    return {item["file"]: item["sha256"] for item in modules} == digests


def _is_received(kernel: Kernel, digests: Dict[str, str]) -> bool:
    """Whether the received modules are all there is to keep, and unchanged since they were audited."""
    files = {item.get("file") for item in installed_manifest(kernel).get("modules", [])}
    return bool(files) and files == set(digests) == {os.path.basename(item) for item in vouched(kernel)}


def _rebuild(kernel: Kernel, target: str) -> None:
    """The archive as it was received: its manifest and its modules are still beside each other."""
    folder = os.path.join(kernel.folder, FOLDER)
    manifest = installed_manifest(kernel)
    try:
        with atomic.replacing(target) as file:
            pack.write_archive(file, manifest, [os.path.join(folder, item["file"]) for item in manifest["modules"]])
            file.flush()
            pack.verify(f"/proc/self/fd/{file.fileno()}")
    except tarfile.TarError as error:
        raise PackError(f"cannot write {target}: {error}") from None
