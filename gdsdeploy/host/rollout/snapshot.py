"""The state of the host, as a document that a rollback compares with, and how a host differs from it.  Reads only."""

from __future__ import annotations

import os
import socket
import stat
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..apply import written
from ..apply.packages import left, state
from ..audit.audit import STACK
from ..boot.present import boot_id, booting, lock_digest, now
from ..errors import RolloutError
from ..kmod import driver as drivers
from ..kmod.files import sha256
from ..kmod.kernel import Kernel, releases
from ..kmod.packaged import FOLDER, MANIFEST
from ..rootdir import inside, read_text

VERSION = 1
_PROVISION = "/var/lib/gdsdeploy/"


def take(names: Sequence[str] = (), root: str = "/") -> Dict[str, Any]:
    """The document, as the package's docstring has it; raises RolloutError where the packages cannot be listed."""
    provision = {name: read_text(root, _PROVISION + name).split() for name in ("installed", "held")}
    lines = left.parse(read_text(root, left.RECORD))
    provision["removed"] = sorted(one.name for one in lines if not one.has_moved)
    names = [*names, *provision["installed"], *provision["held"]]
    return {
        "version": VERSION,
        "when": now(),
        "host": socket.gethostname(),
        "boot_id": boot_id(root),
        "kernel": os.uname().release,
        "lock_digest": lock_digest(root),
        "boot": booting(root),
        "manager": state.manager(root),
        "packages": state.versions(names, state.read_packages(root)),
        "provision": provision,
        "kernels": {release: modules(Kernel(release, root)) for release in releases(root)},
        "files": {path: look(root, path) for path in written.paths(root)},
    }


def modules(kernel: Kernel) -> Dict[str, Any]:
    """``{"files": {path: sha256}, "chosen": {module: path}}``, paths below the kernel's folder."""
    names = [name for name in kernel.by_name if name.startswith(("nvidia", "nv_peer"))]
    files = [file for name in names for file in kernel.by_name[name]]
    # The manifest says what audited them; it lies beside the modules that were received.
    folder = os.path.join(kernel.folder, FOLDER)
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        files.append(f"{FOLDER}/{MANIFEST}")
    chosen = {name: drivers.find(kernel, name) for name in STACK}
    return {
        "files": {file: sha256(kernel.path(file)) for file in sorted(files)},
        "chosen": {name: place.file for name, place in chosen.items() if place is not None},
    }


def look(root: str, path: str) -> Optional[Dict[str, Any]]:
    """A file's digest, mode (octal text) and owner; None where it is not there.  Raises RolloutError."""
    place = inside(root, path)
    try:
        status = os.stat(place)
        if not stat.S_ISREG(status.st_mode):
            return None
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return {"sha256": sha256(place), "mode": mode, "uid": status.st_uid, "gid": status.st_gid}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RolloutError("io", f"{path} cannot be read: {error.strerror}", "do it as root") from None


def lines(document: Dict[str, Any]) -> List[str]:
    """The document in words."""
    boots = document["boot"]
    then = "" if boots["next"] == boots["default"] else f", and {boots['next']} next"
    then = f": {boots['problem']}" if boots["problem"] else then
    text = [
        f"{document['host']}: kernel {document['kernel']}, boot {document['boot_id']}",
        f"boots {boots['default'] or 'an unknown entry'} by default{then}",
    ]
    text += [
        f"{name} {package['version'] or 'is not installed'}{' (held)' if package['held'] else ''}"
        for name, package in document["packages"].items()
    ]
    for release, kernel in document["kernels"].items():
        chosen = ", ".join(f"{kernel['files'].get(file, '')[:12]} {file}" for file in kernel["chosen"].values())
        text.append(f"{release}: " + (chosen or "none of NVIDIA's modules"))
    return text + [f"{file['sha256'][:12]} {path}" for path, file in document["files"].items() if file]


Difference = Dict[str, str]


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> List[Difference]:
    """Every difference of two snapshots, each as ``{"what", "name", "was", "is", "says"}`` of texts.

    It leaves out the boot's id, the time and what boots next.  Raises RolloutError unless ``was`` is a snapshot of this
    version.
    """
    if not isinstance(was, Mapping) or was.get("version") != VERSION or not isinstance(was.get("packages"), Mapping):
        raise RolloutError(
            "snapshot",
            f"this isn't a snapshot of version {VERSION}",
            "make one: gdsdeploy-host.pyz rollout snapshot --json",
        )
    pairs = [
        _difference("boot", "default", was["boot"]["default"], now["boot"]["default"]),
        _difference("kernel", "running", was["kernel"], now["kernel"]),
        *_packages(was["packages"], now["packages"]),
        *_kernels(was["kernels"], now["kernels"]),
        *(_difference("file", path, _file(one), _file(two)) for path, one, two in _both(was["files"], now["files"])),
    ]
    for name in ("installed", "held", "removed"):
        one, two = (" ".join(sorted(snapshot["provision"][name])) for snapshot in (was, now))
        pairs.append(_difference("provision", name, one, two))
    return [pair for pair in pairs if pair["was"] != pair["is"]]


def _packages(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name, one, two in _both(was, now):
        # Only one snapshot asked about this package.
        if one is None or two is None:
            continue
        yield _difference("package", name, one["version"], two["version"])
        if one["version"] and two["version"]:
            yield _difference("hold", name, "held" if one["held"] else "", "held" if two["held"] else "")


def _kernels(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for release, one, two in _both(was, now):
        yield _difference("kernel", release, "installed" if one else "", "installed" if two else "")
        if one is None or two is None:
            continue
        for what, key in (("module", "files"), ("chosen", "chosen")):
            for name, first, second in _both(one[key], two[key]):
                yield _difference(what, f"{release}/{name}", first or "", second or "")


def _both(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Tuple[str, Any, Any]]:
    for name in sorted({*was, *now}):
        yield name, was.get(name), now.get(name)


def _file(entry: Any) -> str:
    return "{mode} {uid}:{gid} {sha256}".format(**entry) if entry else ""


def _difference(what: str, name: str, was: str, now: str) -> Difference:
    words = f"{what} {name}: was {was or 'not there'}, is {now or 'not there'}"
    return {"what": what, "name": name, "was": was, "is": now, "says": words}
