"""Signatures are checked and made by the real openssl; where it can't tell, nothing counts as signed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis.strategies import integers

from gdsdeploy.host.archive import provenance
from gdsdeploy.host.errors import HostError
from gdsdeploy.host.secure_boot import openssl
from gdsdeploy.host.secure_boot.openssl import OpensslError

#: RFC 8032, section 7.1, test 3: private key, public key, message, signature.
SEED, PUBLIC, MESSAGE, SIGNATURE = (
    bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7"),
    "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    bytes.fromhex("af82"),
    bytes.fromhex(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    ),
)
PEM = provenance.public_pem(SEED)


def test_the_vector_of_the_standard() -> None:
    assert provenance.public_bytes(PEM).hex() == PUBLIC
    assert openssl.sign_ed25519(provenance.private_pem(SEED), MESSAGE) == SIGNATURE
    assert openssl.verify_ed25519(PEM, MESSAGE, SIGNATURE)
    assert Ed25519PrivateKey.from_private_bytes(SEED).sign(MESSAGE) == SIGNATURE


@given(where=integers(0, 64 + 2 - 1), bit=integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_a_flipped_bit_is_refused_wherever_it_is(where: int, bit: int) -> None:
    whole = bytearray(SIGNATURE + MESSAGE)
    whole[where] ^= 1 << bit
    assert not openssl.verify_ed25519(PEM, bytes(whole[64:]), bytes(whole[:64]))


def test_other_encodings_of_the_same_signature_are_refused() -> None:
    order = 2**252 + 27742317777372353535851937790883648493
    larger = SIGNATURE[:32] + (int.from_bytes(SIGNATURE[32:], "little") + order).to_bytes(32, "little")
    for wrong in (larger, b"", SIGNATURE[:-1], SIGNATURE + b"\0"):
        assert not openssl.verify_ed25519(PEM, MESSAGE, wrong)


@pytest.mark.parametrize(
    ("program", "words", "hint"),
    [
        (None, "openssl isn't installed", "install the package openssl"),
        (
            "echo 'pkeyutl: Unknown option: -rawin' >&2; exit 1",
            "openssl can't tell: pkeyutl: Unknown option",
            "version 3",
        ),
        ("echo Signature Verified Successfully; exit 1", "openssl can't tell: exit status 1", ""),
        ("echo Signature Verification Failure", "openssl can't tell: exit status 0", ""),
        ("exit 0", "openssl can't tell: exit status 0", ""),
    ],
)
def test_without_an_answer_nothing_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, words: str, hint: str
) -> None:
    if program is not None:
        (tmp_path / "openssl").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "openssl").chmod(0o755)
    monkeypatch.setattr("gdsdeploy.host.process.search_path", lambda _env=None: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (
        lambda: openssl.verify_ed25519(PEM, MESSAGE, SIGNATURE),
        lambda: openssl.verify_digest(b"certificate", "sha256", bytes(32), b"signature"),
        lambda: openssl.sign_ed25519(provenance.private_pem(SEED), MESSAGE),
    ):
        with pytest.raises(OpensslError, match=words) as caught:
            ask()
        assert hint in caught.value.hint
        assert isinstance(caught.value, HostError)


def test_the_callers_variables_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENSSL_CONF", "OPENSSL_MODULES", "LD_PRELOAD"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    assert openssl.verify_ed25519(PEM, MESSAGE, SIGNATURE)
    assert os.environ["OPENSSL_CONF"]
