"""Keys that sign statements: Ed25519 as PEM; a private one is a file of mode 0600, made at first use."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.signer import CryptoSigner, Key, Signer, SSlibKey

from gdsdeploy import folders
from gdsdeploy.errors import SigningKeyUnusable
from gdsdeploy.host import reading

#: Bytes of a key's file.
LIMIT: Final = 64 * 1024

_RAW = serialization.Encoding.Raw, serialization.PublicFormat.Raw
_PUBLIC = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
_PRIVATE = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()


def default() -> Path:
    """The operator's key, in the user's state folder."""
    return folders.state() / "attest" / "operator.key"


def signer(path: Path | None) -> Signer:
    """What signs with the private key in ``path``; None: the operator's own, which is made if it isn't there.

    Raises SigningKeyUnusable where the file is missing, open to others, or no Ed25519 key.
    """
    place = path or default()
    try:
        if path is None and not place.exists():
            _make(place)
        mode = place.stat()
        if mode.st_mode & 0o077:
            words = f"{place} can be read by others (mode {stat.S_IMODE(mode.st_mode):04o})"
            raise SigningKeyUnusable(words, hint=f"chmod 0600 {place}, and make a new key if others may have it")
        private = serialization.load_pem_private_key(reading.whole(str(place), LIMIT), password=None)
    except OSError as error:
        hint = "Leave --key out: a key is made at first use"
        raise SigningKeyUnusable(f"{place}: {error.strerror}", hint=hint) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _not_a_key(str(place), "private") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise _not_a_key(str(place), "private")
    return CryptoSigner(private, _named(private.public_key()))


def public(pem: bytes, place: str) -> Key:
    """A public key from PEM; raises SigningKeyUnusable that names ``place``."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise _not_a_key(place, "public") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _not_a_key(place, "public")
    return _named(key)


def _named(key: Ed25519PublicKey) -> SSlibKey:
    """Known by the SHA-256 of its 32 bytes, as builders' keys are."""
    return SSlibKey.from_crypto(key, keyid=hashlib.sha256(key.public_bytes(*_RAW)).hexdigest())


def _make(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = Ed25519PrivateKey.generate()
    place.with_suffix(".pub").write_bytes(key.public_key().public_bytes(*_PUBLIC))
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(*_PRIVATE))


def _not_a_key(place: str, kind: str) -> SigningKeyUnusable:
    return SigningKeyUnusable(
        f"{place}: not {'an unencrypted' if kind == 'private' else 'a'} {kind} Ed25519 key in PEM",
        hint="Make one with: openssl genpkey -algorithm ed25519 -out KEY; openssl pkey -in KEY -pubout",
    )
