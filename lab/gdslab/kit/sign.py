"""The OpenPGP key of a kit: it signs the kit's repositories while they are made.  Then its secret half is deleted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import run


@dataclass(frozen=True)
class Signer:
    """A signing key in the GnuPG folder ``home``; ``fingerprint`` has 40 hexadecimal digits."""

    home: Path
    fingerprint: str

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which other programs, such as rpmsign, use this key."""
        return {"GNUPGHOME": str(self.home)}

    def clearsign(self, document: Path, signed: Path) -> None:
        """Write a clear-signed copy of ``document``, as apt's InRelease."""
        self._gpg("--local-user", self.fingerprint, "--output", str(signed), "--clearsign", str(document))

    def detached(self, document: Path, signature: Path) -> None:
        """Write an armoured detached signature, as apt's Release.gpg and rpm's repomd.xml.asc."""
        argv = ("--local-user", self.fingerprint, "--armor", "--output", str(signature), "--detach-sign", str(document))
        self._gpg(*argv)

    def export(self, path: Path, *, armour: bool = False) -> None:
        """Write the public key, as apt reads it, or armoured, as rpm reads it."""
        self._gpg(*(["--armor"] if armour else []), "--output", str(path), "--export", self.fingerprint)

    def _gpg(self, *arguments: str) -> str:
        argv = [
            "gpg",
            "--homedir",
            str(self.home),
            "--batch",
            "--yes",
            "--quiet",
            "--no-tty",
            "--digest-algo",
            "SHA256",
        ]
        return run.run([*argv, *arguments], doing="sign the lab's repositories").stdout


@contextmanager
def signer(name: str) -> Iterator[Signer]:
    """A new signing key of the user ``name``, without passphrase, for the block.

    The folder is short-lived and has a short path, because gpg's agent puts a socket there.
    """
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-gpg-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        argv = ["gpg", "--homedir", folder, "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
        user = f"{name} <lab@localhost>"
        try:
            key = [*argv, "--passphrase", "", "--quick-generate-key", user, "rsa3072", "sign", "never"]
            run.run(key, doing="make the key of the lab's repositories")
            listing = run.run([*argv, "--with-colons", "--list-keys"], doing="read the key of the lab's repositories")
            fingerprint = next(line.split(":")[9] for line in listing.stdout.splitlines() if line.startswith("fpr:"))
            yield Signer(home, fingerprint)
        finally:
            end = ["gpgconf", "--homedir", folder, "--kill", "all"]
            run.run(end, doing="end gpg's agent", ok=range(256), env={"PATH": os.environ.get("PATH", os.defpath)})
