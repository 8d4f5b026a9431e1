"""Keep the modules of a kernel as an archive, so that they can be put back without a network or a compiler."""

from __future__ import annotations

import os
import shutil
import tarfile
from typing import Any, Dict

from ..audit.audit import STACK
from ..errors import HostError, PackError
from ..io import atomic
from ..kmod import driver as drivers
from ..kmod.kernel import Kernel
from ..kmod.vouch import FOLDER, installed_manifest, sha256, vouched_files
from ..rootdir import inside
from . import pack

PLACE = "/var/lib/gdsdeploy/rollout"
#: Where provision leaves the archive that it made or received.
_PROVISIONED = "/var/lib/gdsdeploy/modules-{}.tar"


def keep(ident: str, release: str = "", root: str = "/") -> Dict[str, Any]:
    """Keep the modules that kernel ``release`` (by default the running one) would load now; idempotent.

    Deletes what earlier rollouts kept.  Returns ``{"changed", "kernel", "archive", "from", "modules": [file]}``;
    archive: empty without NVIDIA's modules; from: "kept", "provision", "installed" or "packed".  Raises AuditError if
    the modules have no manifest and fail their audit, PackError or OSError if they can't be written.
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
    digests = module_digests(kernel)
    answer = {"kernel": release, "modules": sorted(digests)}
    if not digests:
        return {"changed": False, "archive": "", "from": "", **answer}
    archive = path(ident, kernel.release)
    place = inside(root, archive)
    if _has_exactly(place, digests):
        return {"changed": False, "archive": archive, "from": "kept", **answer}
    atomic.make_folder(os.path.dirname(place))
    provisioned = inside(root, _PROVISIONED.format(kernel.release))
    if _has_exactly(provisioned, digests):
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
    exists = os.path.isdir(place)
    if exists:
        shutil.rmtree(place)
    return {"changed": exists, "folder": folder}


def path(ident: str, release: str) -> str:
    """Where the archive of a kernel's modules is, or would be."""
    return f"{PLACE}/{ident}/modules-{release}.tar"


def module_digests(kernel: Kernel) -> Dict[str, str]:
    """File name → SHA-256 of each of NVIDIA's modules that the kernel would load."""
    places = (drivers.find(kernel, name) for name in STACK)
    paths = [kernel.path(place.file) for place in places if place is not None]
    return {os.path.basename(each): sha256(each) for each in paths}


def _has_exactly(archive: str, digests: Dict[str, str]) -> bool:
    """Whether the archive is undamaged and has exactly these modules."""
    try:
        return os.path.isfile(archive) and digests == {
            module["file"]: module["sha256"] for module in pack.verify(archive)["modules"]
        }
    except HostError:
        return False


def _is_received(kernel: Kernel, digests: Dict[str, str]) -> bool:
    """Whether the received modules are all that is to be kept, and unchanged since they were audited."""
    files = {module.get("file") for module in installed_manifest(kernel).get("modules", [])}
    return bool(files) and files == set(digests) == set(map(os.path.basename, vouched_files(kernel)))


def _rebuild(kernel: Kernel, target: str) -> None:
    """Write the archive as it was received: its manifest and its modules lie beside each other."""
    manifest = installed_manifest(kernel)
    paths = [os.path.join(kernel.folder, FOLDER, module["file"]) for module in manifest["modules"]]
    try:
        with atomic.replacing(target) as file:
            pack.write_archive(file, manifest, paths)
            file.flush()
            pack.verify(f"/proc/self/fd/{file.fileno()}")
    except tarfile.TarError as error:
        raise PackError(f"cannot write {target}: {error}") from None
