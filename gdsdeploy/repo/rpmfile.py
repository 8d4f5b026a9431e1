"""An rpm file's own signature, checked where no signed index vouches for the file.

The signature covers the file's header, and the header has the digest of the payload, so both are checked.  The program
rpm isn't needed: the header is read here, and gpgv checks the signature.  The format is that of rpm 4.14 and newer
(its documentation: "RPM v4 signatures and digests", "Tags").
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from gdsdeploy.errors import RepositoryUntrusted
from gdsdeploy.repo.signature import verify

_LEAD, _LEAD_MAGIC, _HEADER_MAGIC = 96, b"\xed\xab\xee\xdb", b"\x8e\xad\xe8\x01"
#: Entries and bytes that a header may have; a kernel's has some thousand file names.
_MAX_ENTRIES, _MAX_HEADER = 65536, 64 * 1024**2
#: Tags of the signature header: OpenPGP signatures of the header, by DSA, EdDSA and RSA keys, and rpm 6's list of them.
_SIGNATURES, _SIGNATURE_LIST = (267, 268), 278
_NAME, _VERSION, _RELEASE, _EPOCH, _ARCH, _PAYLOAD, _PAYLOAD_KIND = 1000, 1001, 1002, 1003, 1022, 5092, 5093
_INT32, _STRING, _BINARY, _STRINGS = 4, 6, 7, 8
#: OpenPGP's numbers of digests.
_DIGESTS: Final = {8: "sha256", 9: "sha384", 10: "sha512"}
_HINT: Final = "Do not use this mirror; compare `package_keys` with the keys that the vendor publishes"


@dataclass(frozen=True)
class Expected:
    """What the index says about a file: ``version`` is ``[EPOCH:]VERSION-RELEASE``."""

    package: str
    version: str
    architecture: str


def check(path: Path, expected: Expected, *, keyring: Path, fingerprints: Sequence[str], name: str) -> None:
    """Raise RepositoryUntrusted unless a pinned key signed this very package, and its content is the signed one.

    name: how messages call the file, normally its address.  Raises RepositoryUnusable where ``keyring`` isn't there.
    """
    with path.open("rb") as file:
        try:
            signatures, text, header = _headers(file)
            kind, digest = _payload_digest(header)
            package = _identity(header)
        except (ValueError, struct.error) as error:
            raise RepositoryUntrusted(f"{name}: not a package of rpm 4.14 or newer: {error}", hint=_HINT) from None
        if not signatures:
            raise RepositoryUntrusted(f"{name}: the package is not signed", hint=_HINT)
        verify(text, detached=signatures, keyring=keyring, fingerprints=fingerprints, name=name)
        if hashlib.file_digest(file, kind).hexdigest() != digest:
            raise RepositoryUntrusted(f"{name}: the package's content is not the signed one", hint=_HINT)
    if package != Expected(expected.package, _with_epoch(expected.version), expected.architecture):
        raise RepositoryUntrusted(
            f"{name}: the index calls it {expected.package} {expected.version} {expected.architecture}, but the signed"
            f" package is {package.package} {package.version} {package.architecture}",
            hint=_HINT,
        )


class _Header:
    """The entries of one header: tag → type, place in the store, and number of values."""

    def __init__(self, entries: bytes, store: bytes) -> None:
        self._entries = {tag: rest for tag, *rest in struct.iter_unpack(">IIII", entries)}
        self._store = store

    def strings(self, tag: int) -> list[str]:
        """Empty without the tag; raises ValueError for another type or one that leads out of the header."""
        if tag not in self._entries:
            return []
        kind, offset, count = self._entries[tag]
        if kind not in (_STRING, _STRINGS):
            raise ValueError(f"tag {tag} is not text")
        parts = self._store[offset:].split(b"\0", count)
        if count < 1 or len(parts) <= count:
            raise ValueError(f"tag {tag} is cut off")
        return [part.decode("utf-8", "replace") for part in parts[:count]]

    def number(self, tag: int) -> int | None:
        """None without the tag; raises as ``strings``."""
        if tag not in self._entries:
            return None
        kind, offset, _ = self._entries[tag]
        if kind != _INT32:
            raise ValueError(f"tag {tag} is not a number")
        return int(struct.unpack_from(">I", self._store, offset)[0])

    def binary(self, tag: int) -> bytes:
        """Empty without the tag; raises as ``strings``."""
        if tag not in self._entries:
            return b""
        kind, offset, count = self._entries[tag]
        value = self._store[offset : offset + count]
        if kind != _BINARY or len(value) != count:
            raise ValueError(f"tag {tag} is cut off")
        return value


def _headers(file: BinaryIO) -> tuple[bytes, bytes, _Header]:
    """The signatures, the bytes that they cover, and the header in these; the file is then at its payload."""
    if file.read(_LEAD)[:4] != _LEAD_MAGIC:
        raise ValueError("it has no lead")
    own, length = _read_header(file)[1:]
    file.read(-length % 8)
    signatures = b"".join(own.binary(tag) for tag in _SIGNATURES)
    try:
        signatures += b"".join(base64.b64decode(text, validate=True) for text in own.strings(_SIGNATURE_LIST))
    except binascii.Error as error:
        raise ValueError(f"tag {_SIGNATURE_LIST}: {error}") from None
    text, header, _ = _read_header(file)
    return signatures, text, header


def _read_header(file: BinaryIO) -> tuple[bytes, _Header, int]:
    """One header as it lies in the file, read, and the bytes of its store."""
    intro = file.read(16)
    if intro[:4] != _HEADER_MAGIC:
        raise ValueError("a header has no beginning")
    count, size = struct.unpack(">II", intro[8:])
    if count > _MAX_ENTRIES or size > _MAX_HEADER:
        raise ValueError(f"a header of {count} entries and {size} bytes is too large")
    entries, store = file.read(16 * count), file.read(size)
    if len(entries) != 16 * count or len(store) != size:
        raise ValueError("a header is cut off")
    return intro + entries + store, _Header(entries, store), size


def _payload_digest(header: _Header) -> tuple[str, str]:
    """(hashlib's name, digest in hexadecimal) of everything behind the header."""
    digests = header.strings(_PAYLOAD)
    kind = _DIGESTS.get(header.number(_PAYLOAD_KIND) or 8)
    if len(digests) != 1 or kind is None:
        raise ValueError("its header has no digest of the payload")
    return kind, digests[0]


def _identity(header: _Header) -> Expected:
    name, version, release, architecture = (
        "".join(header.strings(tag)[:1]) for tag in (_NAME, _VERSION, _RELEASE, _ARCH)
    )
    return Expected(name, f"{header.number(_EPOCH) or 0}:{version}-{release}", architecture)


def _with_epoch(version: str) -> str:
    return version if ":" in version else f"0:{version}"
