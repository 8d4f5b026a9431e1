"""OpenPGP signatures over indices, checked by gpgv: only pinned primary keys count, whatever the keyring has.

The signed text is what gpgv itself extracted: nothing outside the signature is ever read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.repo.keyring import without_armour
from gdsdeploy.run import run, which

#: OpenPGP hash numbers that a signature may use: SHA-256, SHA-384, SHA-512, SHA-224 (RFC 9580, 9.5).
_HASHES: Final = {"8", "9", "10", "11"}


@dataclass(frozen=True)
class Signed:
    """What a good signature covers, and the primary fingerprints of the pinned keys that made one."""

    text: bytes
    fingerprints: tuple[str, ...]


def verify(
    document: bytes, *, detached: bytes | None = None, keyring: Path, fingerprints: Sequence[str], name: str
) -> Signed:
    """Check ``document``: clear-signed, or with a ``detached`` signature.

    name: how messages call the document, normally its address.
    Raises RepositoryUntrusted unless a pinned key made a good signature and no signature is bad.
    """
    if not keyring.is_file():
        raise RepositoryUnusable(
            f"{keyring}: there is no such keyring to check {name} with",
            hint="Install the archive's keyring package, or set `keyring` of this repository",
        )
    gpgv = which("gpgv", hint="Install the package gpgv")
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as folder:
        work = Path(folder)
        keys, signed, plain = work / "keys.gpg", work / "signed", work / "plain"
        keys.write_bytes(without_armour(keyring.read_bytes()))
        signed.write_bytes(document if detached is None else detached)
        argv: list[str | Path] = [gpgv, "--status-fd", "1", "--keyring", keys]
        if detached is None:
            argv += ["--output", plain, signed]
        else:
            plain.write_bytes(document)
            argv += [signed, plain]
        # Statuses 1 and 2 also mean "one of several signatures is by a key that is not in the keyring".
        done = run(argv, doing=f"check the signature of {name}", ok=(0, 1, 2), env={"GNUPGHOME": folder}, timeout=60)
        good, reasons = _judge(done.stdout, fingerprints)
        if reasons or not good or not plain.is_file():
            reasons = reasons or ["it is not signed"]
            raise RepositoryUntrusted(
                "\n  ".join([f"{name}: the signature does not hold:", *reasons]),
                hint="Do not use this mirror; compare the repository's `fingerprints` with the vendor's published keys",
            )
        return Signed(plain.read_bytes(), tuple(pin for pin in fingerprints if pin in good))


def _judge(status: str, pinned: Sequence[str]) -> tuple[set[str], list[str]]:
    """Gpgv's status lines → (pinned primary fingerprints with a good signature, reasons against the document)."""
    good: set[str] = set()
    bad: list[str] = []
    unusable: list[str] = []
    sound = False
    for line in status.splitlines():
        word, *rest = line.removeprefix("[GNUPG:] ").split()
        if word == "NEWSIG":
            sound = False
        elif word == "GOODSIG":
            sound = True
        elif word == "BADSIG":
            bad.append(f"the text was changed after key {rest[0]} signed it")
        elif word in ("EXPSIG", "EXPKEYSIG", "REVKEYSIG"):
            what = {"EXPSIG": "the signature has expired", "EXPKEYSIG": "the key has expired"}
            unusable.append(f"signed by {rest[0]}, but {what.get(word, 'the key was revoked')}")
        elif word == "ERRSIG":
            unusable.append(f"signed by {rest[0]}, which is not in the keyring or cannot be checked")
        elif word == "VALIDSIG" and sound:
            primary, algorithm = rest[9], rest[7]
            if algorithm not in _HASHES:
                unusable.append(f"signed by {primary} with a hash that is too weak")
            elif primary not in pinned:
                unusable.append(f"signed by {primary}, which is not one of the pinned fingerprints")
            else:
                good.add(primary)
    return good, bad or ([] if good else unusable)
