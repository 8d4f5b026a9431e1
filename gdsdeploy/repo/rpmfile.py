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
from gdsdeploy.repo import rpmheader
from gdsdeploy.repo.rpmheader import Header
from gdsdeploy.repo.signature import verify

#: Tags of the signature header: OpenPGP signatures of the header, by DSA, EdDSA and RSA keys, and rpm 6's list of them.
_SIGNATURES, _SIGNATURE_LIST = (267, 268), 278
_NAME, _VERSION, _RELEASE, _EPOCH, _ARCH, _PAYLOAD, _PAYLOAD_KIND = 1000, 1001, 1002, 1003, 1022, 5092, 5093
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


def _headers(file: BinaryIO) -> tuple[bytes, bytes, Header]:
    """The signatures, the bytes that they cover, and the header in these; the file is then at its payload."""
    if file.read(rpmheader.LEAD)[:4] != rpmheader.LEAD_MAGIC:
        raise ValueError("it has no lead")
    own, length = rpmheader.read(file)[1:]
    file.read(-length % 8)
    signatures = b"".join(own.binary(tag) for tag in _SIGNATURES)
    try:
        signatures += b"".join(base64.b64decode(text, validate=True) for text in own.strings(_SIGNATURE_LIST))
    except binascii.Error as error:
        raise ValueError(f"tag {_SIGNATURE_LIST}: {error}") from None
    text, header, _ = rpmheader.read(file)
    return signatures, text, header


def _payload_digest(header: Header) -> tuple[str, str]:
    """(hashlib's name, digest in hexadecimal) of everything behind the header."""
    digests = header.strings(_PAYLOAD)
    kind = _DIGESTS.get(header.number(_PAYLOAD_KIND) or 8)
    if len(digests) != 1 or kind is None:
        raise ValueError("its header has no digest of the payload")
    return kind, digests[0]


def _identity(header: Header) -> Expected:
    name, version, release, architecture = (
        "".join(header.strings(tag)[:1]) for tag in (_NAME, _VERSION, _RELEASE, _ARCH)
    )
    return Expected(name, f"{header.number(_EPOCH) or 0}:{version}-{release}", architecture)


def _with_epoch(version: str) -> str:
    return version if ":" in version else f"0:{version}"
