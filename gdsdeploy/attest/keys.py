"""Keys that sign statements: Ed25519 as PEM; a private one is a file of mode 0600, made at first use."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.signer import CryptoSigner, Key, Signer, SSlibKey

from gdsdeploy import atomic, paths
from gdsdeploy.errors import SigningKeyUnusable
from gdsdeploy.host.io import reading
from gdsdeploy.host.io.private import exposure

#: Bytes of a key's file.
LIMIT: Final = 64 * 1024

_RAW = serialization.Encoding.Raw, serialization.PublicFormat.Raw
_PUBLIC = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
_PRIVATE = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()


def default() -> Path:
    """The operator's key, in the user's state folder."""
    return paths.state() / "attest" / "operator.key"


def signer(path: Path | None) -> Signer:
    """What signs with the private key in ``path``; None: the operator's own, which is made if it isn't there.

    Its own public key is beside the operator's key afterwards.
    Raises SigningKeyUnusable where the file is missing, open to others, or no Ed25519 key.
    """
    place = path or default()
    try:
        if path is None and not place.exists():
            _make(place)
        open_to = exposure(str(place), place.stat())
        if open_to is not None:
            words, command = open_to
            raise SigningKeyUnusable(f"{place} {words}", hint=f"{command}, and make a new key if others may have it")
        private = serialization.load_pem_private_key(reading.whole(str(place), LIMIT), password=None)
    except OSError as error:
        raise _unusable(place, error, own=path is None) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _not_a_key(str(place), "private") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise _not_a_key(str(place), "private")
    if path is None:
        _publish(private.public_key(), place.with_suffix(".pub"))
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
    """Make a key; where another process has made one meanwhile, that one stays."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=place.parent) as file:
        file.write(Ed25519PrivateKey.generate().private_bytes(*_PRIVATE))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(file.name, place)


def _publish(key: Ed25519PublicKey, place: Path) -> None:
    pem = key.public_bytes(*_PUBLIC)
    try:
        if not place.exists() or place.read_bytes() != pem:
            atomic.write(place, pem)
    except OSError as error:
        raise _unusable(place, error, own=True) from None


def _unusable(place: Path, error: OSError, *, own: bool) -> SigningKeyUnusable:
    hint = "Set GDSDEPLOY_STATE_DIR to a folder that you can write to" if own else "Leave --key out: a key is made then"
    return SigningKeyUnusable(f"{place}: {error.strerror}", hint=hint)


def _not_a_key(place: str, kind: str) -> SigningKeyUnusable:
    return SigningKeyUnusable(
        f"{place}: not {'an unencrypted' if kind == 'private' else 'a'} {kind} Ed25519 key in PEM",
        hint="Make one with: openssl genpkey -algorithm ed25519 -out KEY; openssl pkey -in KEY -pubout",
    )
