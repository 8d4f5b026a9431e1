"""Ed25519 with the standard library: the vectors of RFC 8032, and the same answers as OpenSSL by `cryptography`."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis.strategies import binary, integers

from gdsdeploy.host.archive import provenance

#: Section 7.1: private key, public key, message, signature.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.mark.parametrize(("seed", "public", "message", "signature"), VECTORS)
def test_the_vectors_of_the_standard(seed: str, public: str, message: str, signature: str) -> None:
    assert provenance.public_key(bytes.fromhex(seed)).hex() == public
    assert provenance.ed25519_sign(bytes.fromhex(seed), bytes.fromhex(message)).hex() == signature
    assert provenance.ed25519_verify(bytes.fromhex(public), bytes.fromhex(signature), bytes.fromhex(message))


@given(seed=binary(min_size=32, max_size=32), message=binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_it_signs_what_openssl_signs(seed: bytes, message: bytes) -> None:
    theirs = Ed25519PrivateKey.from_private_bytes(seed)
    assert provenance.public_key(seed) == theirs.public_key().public_bytes_raw()
    assert provenance.ed25519_sign(seed, message) == theirs.sign(message)


@given(where=integers(0, 32 + 64 + 20 - 1), bit=integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_is_refused_wherever_it_is(where: int, bit: int) -> None:
    seed, message = b"s" * 32, b"twenty bytes of text"
    whole = bytearray(provenance.public_key(seed) + provenance.ed25519_sign(seed, message) + message)
    whole[where] ^= 1 << bit
    parts = bytes(whole[:32]), bytes(whole[32:96]), bytes(whole[96:])
    assert not provenance.ed25519_verify(*parts)
    with pytest.raises((InvalidSignature, ValueError)):
        Ed25519PublicKey.from_public_bytes(parts[0]).verify(parts[1], parts[2])


def test_other_encodings_of_the_same_signature_are_refused() -> None:
    seed, message = b"s" * 32, b"text"
    public, signature = provenance.public_key(seed), provenance.ed25519_sign(seed, message)
    answer = int.from_bytes(signature[32:], "little")
    assert not provenance.ed25519_verify(public, signature[:32] + (answer + ORDER).to_bytes(32, "little"), message)
    for wrong in (b"", signature[:-1], signature + b"\0"):
        assert not provenance.ed25519_verify(public, wrong, message)
    for point in (b"", public[:-1], b"\xff" * 32, (1 | 1 << 255).to_bytes(32, "little")):
        assert not provenance.ed25519_verify(point, signature, message)


def test_a_private_key_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        provenance.ed25519_sign(b"short", b"")
