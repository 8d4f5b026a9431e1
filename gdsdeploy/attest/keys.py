"""Ed25519 keys in PEM that sign statements; the operator's private key is made at first use, with mode 0600."""

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
    """The signer of the private key in ``path``; None: the operator's key, made and published beside it if missing.

    Raises SigningKeyUnusable where the file is missing, readable by others, or isn't an Ed25519 key.
    """
    place = path or default()
    try:
        if path is None and not place.exists():
            _make(place)
        exposed = exposure(str(place), place.stat())
        if exposed is not None:
            problem, command = exposed
            raise SigningKeyUnusable(f"{place} {problem}", hint=f"{command}; make a new key if others may have it")
        private = serialization.load_pem_private_key(reading.whole(str(place), LIMIT), password=None)
        if not isinstance(private, Ed25519PrivateKey):
            raise _not_a_key(str(place), "private")
        if path is None:
            place = place.with_suffix(".pub")
            _publish(private.public_key(), place)
    except OSError as error:
        own = "Set GDSDEPLOY_STATE_DIR to a folder that you can write to"
        hint = own if path is None else "Leave out --key: gdsdeploy then makes a key"
        raise SigningKeyUnusable(f"{place}: {error.strerror}", hint=hint) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _not_a_key(str(place), "private") from None
    return CryptoSigner(private, _identify(private.public_key()))


def public(pem: bytes, place: str) -> Key:
    """The public key in ``pem``; raises SigningKeyUnusable that names ``place``."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise _not_a_key(place, "public") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _not_a_key(place, "public")
    return _identify(key)


def _identify(key: Ed25519PublicKey) -> SSlibKey:
    """The key with the SHA-256 of its 32 bytes as its id, like builders' keys."""
    return SSlibKey.from_crypto(key, keyid=hashlib.sha256(key.public_bytes(*_RAW)).hexdigest())


def _make(place: Path) -> None:
    """Make a key, unless another process makes one at the same time."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=place.parent) as file:
        file.write(Ed25519PrivateKey.generate().private_bytes(*_PRIVATE))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(file.name, place)


def _publish(key: Ed25519PublicKey, place: Path) -> None:
    pem = key.public_bytes(*_PUBLIC)
    if not place.exists() or place.read_bytes() != pem:
        atomic.write(place, pem)


def _not_a_key(place: str, kind: str) -> SigningKeyUnusable:
    return SigningKeyUnusable(
        f"{place}: not {'an unencrypted' if kind == 'private' else 'a'} {kind} Ed25519 key in PEM",
        hint="Make one with: openssl genpkey -algorithm ed25519 -out KEY; openssl pkey -in KEY -pubout",
    )
