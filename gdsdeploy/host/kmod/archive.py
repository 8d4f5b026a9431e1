"""Read an archive of modules; nothing of it is unpacked before the signature of its builder is verified.

origin: who has to have signed it; None: anybody, or nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from typing import Any, Dict, Optional, Tuple

from .. import jsontext
from . import provenance
from .errors import PackError
from .files import SIZE_LIMIT
from .module import name_of
from .provenance import Origin
from .vouch import MANIFEST, MANIFEST_LIMIT, sha256

FORMAT = 1
_MODULES_LIMIT = 64
_TEXTS = ("kernel_release", "vermagic", "symvers", "compiler")


def read_manifest(archive: str, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """The manifest of ``archive``, whose modules are not looked at; raises PackError."""
    try:
        with tarfile.open(archive, "r:") as opened:
            return _read_head(opened, archive, origin)[0]
    except OSError as error:
        raise PackError(f"{archive}: cannot be read: {error.strerror or error}") from None
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise PackError(f"{archive}: is not an archive of modules: {error}", "copy it again") from None


def read_provenance(archive: str) -> bytes:
    """The envelope of who built ``archive``; empty where nobody has signed it.  Raises PackError."""
    try:
        with tarfile.open(archive, "r:") as opened:
            _read_manifest(opened, archive)
            return _read_envelope(opened, archive, opened.next())
    except (OSError, tarfile.TarError, ValueError, EOFError) as error:
        raise PackError(f"{archive}: is not an archive of modules: {error}", "copy it again") from None


def verify(archive: str, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """The manifest of ``archive``, with every module's digest compared with it; raises PackError."""
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-verify-") as folder:
        return unpack(archive, "", folder, origin)


def unpack(path: str, release: str, staging: str, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """Extract the modules to the folder ``staging`` and return the manifest, with every digest verified.

    release: of the kernel that they have to be for; empty: any.  Raises PackError or OSError.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            manifest, member = _read_head(archive, path, origin)
            if release and manifest["kernel_release"] != release:
                message = "{} was packed for kernel {}, not {}".format(path, manifest["kernel_release"], release)
                raise PackError(message, "build the modules for this kernel")
            wanted = {"modules/" + item["file"]: item for item in manifest["modules"]}
            while member is not None:
                if member.name not in wanted:
                    raise PackError(f"{path}: has {member.name[:100]!r}, which its manifest does not list")
                _extract(archive, member, wanted.pop(member.name), staging, path)
                member = archive.next()
            if wanted:
                raise PackError("{}: lacks {}".format(path, ", ".join(sorted(wanted))), "copy it again")
        with open(os.path.join(staging, MANIFEST), "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2, sort_keys=True)
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) != path:
            raise
        raise PackError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise PackError(f"{path}: is not an archive of modules: {error}", "copy it again") from None
    return manifest


def _read_head(
    archive: tarfile.TarFile, path: str, origin: Optional[Origin]
) -> Tuple[Dict[str, Any], Optional[tarfile.TarInfo]]:
    """The manifest, signed by ``origin`` if there is one, and the member that follows who signed it."""
    manifest, text = _read_manifest(archive, path)
    member = archive.next()
    envelope = _read_envelope(archive, path, member)
    if origin is not None:
        if not envelope:
            raise PackError(f"{path}: nobody has signed it", "have its builder pack it again: provision the builder")
        try:
            provenance.verify(envelope, text, origin)
        except PackError as error:
            raise PackError(f"{path}: {error.message}", error.hint) from None
    return manifest, archive.next() if envelope else member


def _read_envelope(archive: tarfile.TarFile, path: str, member: Optional[tarfile.TarInfo]) -> bytes:
    if member is None or member.name != provenance.MEMBER:
        return b""
    file = archive.extractfile(member) if member.isreg() and 0 < member.size <= provenance.LIMIT else None
    if file is None:
        raise PackError(f"{path}: {provenance.MEMBER} is not a file of a proper size")
    return file.read()


def _read_manifest(archive: tarfile.TarFile, path: str) -> Tuple[Dict[str, Any], bytes]:
    member = archive.next()
    if member is None or member.name != MANIFEST or not member.isreg() or member.size > MANIFEST_LIMIT:
        raise PackError(f"{path}: does not begin with its manifest")
    file = archive.extractfile(member)
    assert file is not None
    text = file.read()
    value = jsontext.loads(text.decode("utf-8"))
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise PackError(f"{path}: its manifest has another format than {FORMAT}")
    modules = value.get("modules")
    if not all(isinstance(value.get(key), str) for key in _TEXTS) or not isinstance(modules, list):
        raise PackError("{}: its manifest lacks {} or modules".format(path, ", ".join(_TEXTS)))
    if not 0 < len(modules) <= _MODULES_LIMIT or not all(_is_entry(item) for item in modules):
        raise PackError(f"{path}: its manifest has no proper list of modules")
    return value, text


def _is_entry(item: Any) -> bool:
    if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("name", "file", "sha256")):
        return False
    file: str = item["file"]
    size = item.get("size")
    plain = os.path.basename(file) == file and not file.startswith(".") and name_of(file) != file.replace("-", "_")
    return plain and isinstance(size, int) and 0 < size <= SIZE_LIMIT


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, entry: Dict[str, Any], staging: str, path: str) -> None:
    file = archive.extractfile(member) if member.isreg() else None
    if file is None or member.size != entry["size"]:
        raise PackError("{}: {} is not a file of {} bytes".format(path, member.name, entry["size"]), "copy it again")
    target = os.path.join(staging, entry["file"])
    try:
        with open(target, "xb") as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fchmod(copy.fileno(), 0o644)
            os.fsync(copy.fileno())
    except OSError as error:
        # A full disk does not name the file that it has no room for.
        raise OSError(error.errno, error.strerror, target) from None
    if sha256(target) != entry["sha256"]:
        raise PackError(f"{path}: {member.name} does not have its manifest's sha256", "copy it again")
