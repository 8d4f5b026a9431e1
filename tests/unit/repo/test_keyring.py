"""Fingerprints of keyrings, against those that gpg printed for real ones."""

from __future__ import annotations

import base64

import pytest

from gdsdeploy.platform.debian import ARCHIVE_KEYS, KEYRING, SECURITY_KEYS
from gdsdeploy.repo.repository import key_fingerprints, without_armour

DEBIANS = KEYRING.read_bytes()


def armoured(content: bytes) -> bytes:
    body = base64.encodebytes(content)
    return (
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: none\n\n"
        + body
        + b"=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"
    )


def test_debians_keyring_has_the_keys_that_presets_pin() -> None:
    assert {*ARCHIVE_KEYS, *SECURITY_KEYS} <= set(key_fingerprints(DEBIANS))
    assert len(set(key_fingerprints(DEBIANS))) == len(key_fingerprints(DEBIANS))


def test_armour_changes_nothing() -> None:
    assert without_armour(armoured(DEBIANS)) == DEBIANS
    assert key_fingerprints(armoured(DEBIANS)) == key_fingerprints(DEBIANS)


def test_packets_with_lengths_of_the_newer_form() -> None:
    """The same key, its packet with one octet, two octets and five octets of length (RFC 9580, 4.2.1)."""
    body = b"\x04" + bytes(range(100))
    expected = key_fingerprints(bytes([0x98, len(body)]) + body)
    assert len(expected) == 1
    assert key_fingerprints(bytes([0xC6, len(body)]) + body) == expected
    assert key_fingerprints(b"\xc6\xff" + len(body).to_bytes(4, "big") + body) == expected
    long = b"\x04" + bytes(300)
    two = bytes([0xC6, ((len(long) - 192) >> 8) + 192, (len(long) - 192) & 0xFF]) + long
    assert key_fingerprints(two) == key_fingerprints(b"\x99" + len(long).to_bytes(2, "big") + long)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        DEBIANS[:100],
        b"\x9b" + DEBIANS[1:],
        b"\xc6\xe1" + DEBIANS,
        armoured(b"x")[:-60],
        b"\x99",
        b"\xc6\xff",
    ],
)
def test_what_is_no_keyring_has_none(content: bytes) -> None:
    assert key_fingerprints(content) == ()
