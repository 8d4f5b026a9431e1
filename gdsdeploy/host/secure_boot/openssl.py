"""Signatures by the host's openssl, which is there wherever modules are signed; what it can't tell raises an error."""

from __future__ import annotations

import os
import tempfile
from typing import Dict, Sequence, Tuple

from .. import process
from ..errors import HostError

_TIMEOUT = 30.0
#: In FIPS mode, the system's own provider may lack Ed25519.
_ED25519 = ("-rawin", "-provider", "default", "-propquery", "?fips=yes")
_ANSWERS = {False: "Signature Verification Failure", True: "Signature Verified Successfully"}


class OpensslError(HostError):
    """There is no openssl, or it knows no answer: nothing is decided about the signature."""

    exit_code = 1


def verify_digest(certificate: bytes, hashed: str, digest: bytes, signature: bytes) -> bool:
    """Whether the key of ``certificate`` (DER) signed ``digest``; hashed: hashlib's name.  Raises OpensslError."""
    options = ("-certin", "-keyform", "DER", "-pkeyopt", f"digest:{hashed.replace('_', '-')}")
    return bool(signature) and _verify(options, certificate, digest, signature)


def verify_ed25519(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the key ``public`` (PEM) signed ``message``; raises OpensslError."""
    return len(signature) == 64 and _verify(("-pubin", *_ED25519), public.encode("ascii"), message, signature)


def _verify(options: Sequence[str], key: bytes, data: bytes, signature: bytes) -> bool:
    words = ("pkeyutl", "-verify", *options, "-inkey", "key", "-in", "data", "-sigfile", "signature")
    done, _ = _ask(words, {"key": key, "data": data, "signature": signature})
    for answer, text in _ANSWERS.items():
        if done.stdout.strip() == text and (done.status == 0) is answer:
            return answer
    raise _error(done)


def sign_ed25519(private: str, message: bytes) -> bytes:
    """The signature, 64 bytes, of ``message`` by the key ``private`` (PEM); raises OpensslError."""
    words = ("pkeyutl", "-sign", *_ED25519, "-inkey", "/dev/stdin", "-in", "data", "-out", "signature")
    done, signature = _ask(words, {"data": message}, private)
    if done.status != 0 or len(signature) != 64:
        raise _error(done)
    return signature


def public_of(private: str) -> str:
    """The public key of ``private``, both PEM; raises OpensslError."""
    done, _ = _ask(("pkey", "-pubout"), {}, private)
    if done.status != 0:
        raise _error(done)
    return done.stdout


def _ask(words: Sequence[str], files: Dict[str, bytes], stdin: str = "") -> Tuple[process.Output, bytes]:
    """Run openssl in a folder with ``files``; its output, and the file ``signature``.  stdin: may be a private key."""
    try:
        with tempfile.TemporaryDirectory(prefix="gdsdeploy-openssl-") as folder:
            for name, data in files.items():
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(data)
            # None of the caller's variables: some choose a configuration, and with it what openssl loads.
            done = process.run(["openssl", *words], _TIMEOUT, cwd=folder, input=stdin, inherited=("PATH",))
            path = os.path.join(folder, "signature")
            if not os.path.isfile(path):
                return done, b""
            with open(path, "rb") as file:
                return done, file.read(4096)
    except OSError as error:
        raise OpensslError(f"openssl can't be asked: {error.strerror or error}") from None


def _error(done: process.Output) -> OpensslError:
    if done.status == process.NOT_FOUND:
        return OpensslError("openssl isn't installed", "install the package openssl")
    lines = done.stderr.strip().splitlines() or [f"exit status {done.status}"]
    return OpensslError(f"openssl can't tell: {lines[0]}", "is it version 3 or newer?")
