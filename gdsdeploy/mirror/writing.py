"""The files of a mirror: apt's package lists with the Release file that names them, and signatures by the user's key.

gpg and its agent sign; this program never reads the secret key.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from gdsdeploy import atomic
from gdsdeploy.errors import GdsError, ProgramFailed, RepositoryUntrusted
from gdsdeploy.repo.repository import verify
from gdsdeploy.run import run, which

#: Fields that the mirror writes itself, or leaves out: where the file lies, and checksums that are too weak.
_DROPPED = re.compile(r"^(?:Filename|MD5sum|SHA1|SHA512):.*\n(?:[ \t].*\n)*", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class MirroredPackage:
    """A package in a list: its stanza in the original index, and where its file lies in the mirror."""

    package: str
    version: str
    stanza: str
    filename: str


def place(repository: str, filename: str) -> str:
    """Where the file ``filename`` of ``repository`` lies, relative to the mirror."""
    return f"pool/{repository}/{filename.removeprefix('pool/')}"


def package_list(entries: Iterable[MirroredPackage]) -> bytes:
    """The text of a package list, sorted."""
    blocks = []
    for entry in sorted(entries, key=lambda entry: (entry.package, entry.version)):
        text = _DROPPED.sub("", entry.stanza.strip("\n") + "\n")
        blocks.append(f"{text}Filename: {entry.filename}\n")
    return "\n".join(blocks).encode()


def write_suite(root: Path, suite: str, architecture: str, lists: Mapping[str, bytes], date: datetime) -> Path:
    """Write package lists (component → text) and the unsigned Release file; return its path.

    The same lists and date give the same bytes.  There is no Valid-Until: a mirror is what it was when it was made.
    """
    folder = root / "dists" / suite
    listed = []
    for component, text in sorted(lists.items()):
        for ending, data in (("", text), (".gz", gzip.compress(text, mtime=0)), (".xz", lzma.compress(text))):
            name = f"{component}/binary-{architecture}/Packages{ending}"
            listed.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
            write(folder / name, data)
    fields = {
        "Origin": "gdsdeploy mirror",
        "Label": "gdsdeploy mirror",
        "Suite": suite,
        "Codename": suite,
        "Date": format_datetime(date.astimezone(UTC), usegmt=True),
        "Architectures": architecture,
        "Components": " ".join(sorted(lists)),
        "Description": "The packages of a gdsdeploy.lock, and what they need",
    }
    release = "\n".join([*(f"{key}: {value}" for key, value in fields.items()), "SHA256:", *listed, ""])
    write(folder / "Release", release.encode())
    return folder / "Release"


def write(path: Path, data: bytes) -> bool:
    """Write a file in one step if its content differs; whether it did."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, data)
    return True


_MAKE = 'gpg --quick-generate-key "Our mirror" ed25519 sign never'


def signing_key(name: str | None) -> str:
    """The full fingerprint of the user's secret key ``name``; raises GdsError that lists the user's keys."""
    keys = secret_keys()
    listed = "\n".join(f"  {fingerprint}  {name}" for fingerprint, name in keys.items()) or "  (none)"
    if name is None:
        raise GdsError(
            f"a mirror is signed, and no key was named; your secret keys are:\n{listed}",
            hint=f"Name one with --key FINGERPRINT, or create one: {_MAKE}",
        )
    fingerprint = re.sub(r"\s|^0x", "", name).upper()
    if fingerprint not in keys:
        raise GdsError(
            f"--key {name}: there is no secret key with this fingerprint; there are:\n{listed}",
            hint=f"Name all 40 digits of one of these, or create a key: {_MAKE}",
        )
    return fingerprint


def secret_keys(*, home: Path | None = None) -> dict[str, str]:
    """Full fingerprint → user id of the primary secret keys in the user's keyring, or in the one in ``home``."""
    argv = [*_gpg(home), "--batch", "--with-colons", "--list-secret-keys"]
    names: dict[str, str] = {}
    fingerprint, primary = "", False
    for line in run(argv, doing="list your secret keys", timeout=60).stdout.splitlines():
        fields = line.split(":")
        if fields[0] in ("sec", "ssb"):
            primary, fingerprint = fields[0] == "sec", ""
        elif fields[0] == "fpr" and primary and not fingerprint:
            fingerprint = fields[9]
            names[fingerprint] = ""
        elif fields[0] == "uid" and fingerprint and not names[fingerprint]:
            names[fingerprint] = fields[9]
    return names


def holds(path: Path, fingerprint: str) -> bool:
    """Whether a file of public keys, armoured or not, has the key ``fingerprint``."""
    argv: list[str | Path] = [*_gpg(), "--batch", "--with-colons", "--show-keys", path]
    # 2: not a file of keys.
    shown = run(argv, doing=f"list the keys of {path}", ok=(0, 2), timeout=60).stdout
    return fingerprint in {line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:")}


def has_signature(text: bytes, signature: Path, fingerprint: str, keyring: Path) -> bool:
    """Whether the file ``signature`` is a good detached signature of ``text`` by this key."""
    try:
        detached = signature.read_bytes()
        verify(text, detached=detached, keyring=keyring, fingerprints=[fingerprint], name=str(signature))
    except (OSError, RepositoryUntrusted):
        return False
    return True


def export(fingerprint: str, path: Path, *, armour: bool = False, home: Path | None = None) -> None:
    """Write the public key to ``path``, as gpgv and apt read it, or armoured, as rpm does."""
    argv = [*_gpg(home), "--batch", *(["--armor"] if armour else []), "--export", fingerprint]
    _write_output(path, argv, f"export the public key {fingerprint}", timeout=60)


def sign(fingerprint: str, document: Path, signature: Path, *, clear: bool, home: Path | None = None) -> None:
    """Write a clear-signed copy of ``document``, or an armoured detached signature; gpg's agent asks for a passphrase.

    Raises GdsError when the key cannot be used.
    """
    kind = ["--clearsign"] if clear else ["--armor", "--detach-sign"]
    argv = [*_gpg(home), "--local-user", fingerprint, "--digest-algo", "SHA256", *kind, str(document)]
    try:
        _write_output(signature, argv, f"sign {document.name}")
    except ProgramFailed as error:
        hint = 'Try `gpg --clearsign` by hand; in a terminal, set GPG_TTY="$(tty)" for its questions'
        raise GdsError(error.message, hint=hint) from None


def _write_output(path: Path, argv: Sequence[str | Path], doing: str, timeout: float | None = None) -> None:
    """Replace ``path`` by the output of a gpg command in one step."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        run([argv[0], "--output", part, *argv[1:]], doing=doing, timeout=timeout)
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _gpg(home: Path | None = None) -> list[str]:
    return [which("gpg", hint="Install the package gnupg"), *(["--homedir", str(home)] if home else [])]
