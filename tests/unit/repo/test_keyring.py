"""Keyrings and signatures: fingerprints, against those that gpg printed for real keys, and gpgv's status lines."""

from __future__ import annotations

import base64

import pytest

from gdsdeploy.platform.debian import ARCHIVE_KEYS, KEYRING, SECURITY_KEYS
from gdsdeploy.repo.repository import _judge, key_fingerprints, without_armour

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


# -- What gpgv's status lines mean; the whole way is tried with real keys in tests/repos.

PINNED, OTHER = "A" * 40, "B" * 40


def valid(primary: str, algorithm: str = "8") -> str:
    return f"VALIDSIG {'C' * 40} 2026-11-18 1795040262 0 4 0 1 {algorithm} 01 {primary}"


GOOD = ("NEWSIG", "GOODSIG CCCC someone", valid(PINNED))
#: A good one by a key that isn't pinned.
STRANGERS = ("NEWSIG", "GOODSIG E x", valid(OTHER))
NOT_PINNED = f"signed by {OTHER}, which is not one of the pinned fingerprints"


@pytest.mark.parametrize(
    ("lines", "good", "reasons"),
    [
        (GOOD, {PINNED}, []),
        # As Debian's archive has them: each index is signed by the keys of two releases.
        (("NEWSIG", "ERRSIG DDDD 1 8 01 1795040262 9", "NO_PUBKEY DDDD", *GOOD, *STRANGERS), {PINNED}, []),
        # A bad one outweighs a good one, and none is saved by the one before it.
        ((*GOOD, "NEWSIG", "BADSIG DDDD x"), {PINNED}, ["the text was changed after key DDDD signed it"]),
        ((*STRANGERS, "NEWSIG", "EXPKEYSIG DDDD someone", valid(PINNED)), set(),
         [NOT_PINNED, "signed by DDDD, but the key has expired"]),
        (("NEWSIG", "GOODSIG C x", valid(PINNED, "1")), set(), [f"signed by {PINNED} with a hash that is too weak"]),
        (("NEWSIG", "GOODSIG C x", valid(PINNED, "2")), set(), [f"signed by {PINNED} with a hash that is too weak"]),
        (("NEWSIG", "REVKEYSIG DDDD x", valid(PINNED)), set(), ["signed by DDDD, but the key was revoked"]),
        (("NODATA 3",), set(), []),
    ],
)  # fmt: skip
def test_which_signatures_count(lines: tuple[str, ...], good: set[str], reasons: list[str]) -> None:
    assert _judge("".join(f"[GNUPG:] {line}\n" for line in lines), [PINNED]) == (good, reasons)
