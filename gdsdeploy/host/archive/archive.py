"""Read an archive of modules; the builder's signature is verified before anything is unpacked.

origin: the required signer; None: any or none.  With one, functions raise OpensslError where openssl can't tell.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from typing import Any, Dict, Iterator, Optional, Tuple

from ..errors import PackError
from ..io import jsontext, tarball
from ..io.tarball import Member
from ..kmod.files import SIZE_LIMIT, sha256
from ..kmod.module import name_of
from ..kmod.packaged import MANIFEST, MANIFEST_LIMIT
from ..secure_boot.openssl import OpensslError
from . import provenance
from .provenance import Origin

FORMAT = 1
_MODULES_LIMIT = 64
#: Bytes of an archive with as many modules as it may have.
UNPACKED = (_MODULES_LIMIT + 1) * SIZE_LIMIT
_TEXTS = ("kernel_release", "vermagic", "symvers", "compiler")
_OBJECTS = ("driver", "nvidia_fs", "key")


def read_manifest(archive: str, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """The manifest of ``archive``, whose modules aren't read; raises PackError."""
    with _errors(archive):
        return _read_head(tarball.members(archive, UNPACKED), archive, origin)[0]


def read_provenance(archive: str) -> bytes:
    """The signed envelope of ``archive``; empty if it's unsigned.  Raises PackError."""
    with _errors(archive):
        members = tarball.members(archive, UNPACKED)
        _read_manifest(members, archive)
        return _read_envelope(next(members, None), archive)


def verify(archive: str, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """The manifest of ``archive``, after every module's digest was compared with it; raises PackError."""
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-verify-") as folder:
        return unpack(archive, "", folder, origin)


def unpack(path: str, release: str, staging: str, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """Extract the modules to the folder ``staging`` and return the manifest, with every digest verified.

    release: of the kernel that they have to be for; empty: any.  Raises PackError or OSError.
    """
    with _errors(path):
        members = tarball.members(path, UNPACKED)
        manifest, member = _read_head(members, path, origin)
        if release and manifest["kernel_release"] != release:
            message = f"{path} was packed for kernel {manifest['kernel_release']}, not {release}"
            raise PackError(message, f"build the modules for kernel {release}")
        pending = {"modules/" + module["file"]: module for module in manifest["modules"]}
        while member is not None:
            if member[0] not in pending:
                raise PackError(f"{path}: has {member[0][:100]!r}, which its manifest doesn't list")
            _extract(member, pending.pop(member[0]), staging, path)
            member = next(members, None)
        if pending:
            raise PackError(f"{path}: doesn't have {', '.join(sorted(pending))}", "copy it again")
    with open(os.path.join(staging, MANIFEST), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2, sort_keys=True)
    return manifest


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Raise what is wrong with the archive ``path`` as a PackError; an OSError of another file passes."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) != path:
            raise
        raise PackError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError, zlib.error) as error:
        raise PackError(f"{path}: is not an archive of modules: {error}", "copy it again") from None


def _read_head(
    members: Iterator[Member], path: str, origin: Optional[Origin]
) -> Tuple[Dict[str, Any], Optional[Member]]:
    """The manifest, signed by ``origin`` if given, and the first member after the envelope."""
    manifest, text = _read_manifest(members, path)
    member = next(members, None)
    envelope = _read_envelope(member, path)
    if origin is not None:
        if not envelope:
            raise PackError(f"{path}: isn't signed", "have its builder pack it again: provision the builder")
        try:
            provenance.verify(envelope, text, origin)
        except (PackError, OpensslError) as error:
            raise type(error)(f"{path}: {error.message}", error.hint) from None
    return manifest, next(members, None) if envelope else member


def _read_envelope(member: Optional[Member], path: str) -> bytes:
    if member is None or member[0] != provenance.MEMBER:
        return b""
    _, size, pieces = member
    if not 0 < size <= provenance.LIMIT:
        raise PackError(f"{path}: {provenance.MEMBER} has {size} bytes, not 1 to {provenance.LIMIT}")
    return b"".join(pieces)


def _read_manifest(members: Iterator[Member], path: str) -> Tuple[Dict[str, Any], bytes]:
    name, size, pieces = next(members, ("", 0, iter(())))
    if name != MANIFEST or size > MANIFEST_LIMIT:
        raise PackError(f"{path}: doesn't begin with its manifest")
    text = b"".join(pieces)
    value = jsontext.loads(text.decode("utf-8"))
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise PackError(f"{path}: its manifest has another format than {FORMAT}")
    modules = value.get("modules")
    if not all(isinstance(value.get(key), str) for key in _TEXTS) or not isinstance(modules, list):
        raise PackError(f"{path}: its manifest needs {', '.join(_TEXTS)} and modules")
    if not all(isinstance(value.get(key), dict) for key in _OBJECTS):
        raise PackError(f"{path}: its manifest needs objects as {', '.join(_OBJECTS)}")
    if not 0 < len(modules) <= _MODULES_LIMIT or not all(map(_is_entry, modules)):
        raise PackError(f"{path}: its manifest has an invalid list of modules")
    return value, text


def _is_entry(value: Any) -> bool:
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("name", "file", "sha256")):
        return False
    file: str = value["file"]
    size = value.get("size")
    plain = os.path.basename(file) == file and not file.startswith(".") and name_of(file) != file.replace("-", "_")
    return plain and isinstance(size, int) and 0 < size <= SIZE_LIMIT


def _extract(member: Member, entry: Dict[str, Any], staging: str, path: str) -> None:
    name, size, pieces = member
    if size != entry["size"]:
        raise PackError(f"{path}: {name} isn't a file of {entry['size']} bytes", "copy it again")
    target = os.path.join(staging, entry["file"])
    try:
        with open(target, "xb") as copy:
            for piece in pieces:
                copy.write(piece)
            copy.flush()
            os.fchmod(copy.fileno(), 0o644)
            os.fsync(copy.fileno())
    except OSError as error:
        # ENOSPC carries no file name.
        raise OSError(error.errno, error.strerror, target) from None
    if sha256(target) != entry["sha256"]:
        raise PackError(f"{path}: {name} doesn't have its manifest's sha256", "copy it again")
