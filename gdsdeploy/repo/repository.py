"""The repository that an index belongs to, and OpenPGP signatures over indices, checked by gpgv.

Only pinned primary keys count, whatever the keyring has.  The signed text is what gpgv itself extracted: nothing
outside the signature is ever read.  A repository without ``uri`` in the fleet file takes its address from the
controller's own apt sources.  Nothing here downloads: verbs that only validate read addresses, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import SUFFIXES, Source, SourcesError, parse_sources
from gdsdeploy.host.io import reading
from gdsdeploy.run import run, which

if TYPE_CHECKING:
    from gdsdeploy.model.lock import Index

#: An index may be dated this far ahead of this machine's clock.
MAX_FUTURE: Final = timedelta(minutes=10)
FETCHES_AT_ONCE: Final = 6


#: Bytes of a keyring; Debian's has 60 kB.
LARGEST_KEYRING: Final = 16 << 20


@dataclass(frozen=True)
class Repository:
    """A repository with nothing left open."""

    name: str
    #: of rpm: the folder that holds ``repodata``; empty while only the controller's apt sources know it
    uri: str
    #: on the controller
    keyring: Path
    fingerprints: tuple[str, ...]
    #: on the host
    host_keyring: str
    #: ``("/",)`` for apt's flat layout, whose files are relative to ``uri`` wherever its index is; empty for rpm
    suites: tuple[str, ...] = ()
    #: empty for a flat layout and for rpm
    components: tuple[str, ...] = ()
    #: why its index is used although it isn't signed, which rpm knows only; empty: ``fingerprints`` have to sign it
    unsigned: str = ""
    #: primary keys that have to sign each package of an unsigned one
    package_keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({' '.join(self.suites)})" if self.suites else self.name


@dataclass(frozen=True, kw_only=True)
class VerifiedIndex:
    """An index of a repository: a Release file of apt's, or a repomd.xml."""

    repository: Repository
    #: empty for rpm
    suite: str = ""
    date: datetime
    valid_until: datetime | None = None
    #: primary fingerprints; empty for one that is used unsigned
    signed_by: tuple[str, ...]

    def index(self) -> Index:
        """The lock's record of it."""
        # The model takes long to import; the lab reads this machine's sources without it.
        from gdsdeploy.model.lock import Index

        return Index(
            repository=self.repository.name,
            kind="apt" if self.suite else "rpm",
            uri=self.repository.uri,
            suite=self.suite,
            components=self.repository.components,
            date=rfc3339(self.date),
            valid_until=rfc3339(self.valid_until) if self.valid_until else None,
            signed_by="".join(self.signed_by[:1]),
            host_keyring=self.repository.host_keyring,
            metadata="unsigned" if self.repository.unsigned else "signed",
            package_keys=self.repository.package_keys,
            why=self.repository.unsigned,
        )


def require_past(uri: str, date: datetime, now: datetime) -> None:
    """Raise RepositoryUntrusted for an index that is dated in the future."""
    if date > now + MAX_FUTURE:
        raise RepositoryUntrusted(
            f"{uri}: this index is dated {rfc3339(date)}, and it is {rfc3339(now)}",
            hint="Correct this machine's clock",
        )


def rfc3339(moment: datetime) -> str:
    """A time as locks have it: in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_ARMOUR: Final = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)
#: Tag of a packet with a primary key, and the version of keys whose fingerprint is 40 digits (RFC 9580, 5.5).
_PRIMARY, _VERSION = 6, 4


def without_armour(keyring: bytes) -> bytes:
    """The keyring as gpgv reads it."""
    blocks = _ARMOUR.findall(keyring)
    if not blocks:
        return keyring
    packets = b""
    for block in blocks:
        # Header lines end at the first empty line; the line that starts with "=" is a checksum.
        _, _, body = block.replace(b"\r", b"").partition(b"\n\n")
        lines = (body or block).splitlines()
        packets += base64.b64decode(b"".join(line for line in lines if not line.startswith(b"=") and b":" not in line))
    return packets


def key_fingerprints(keyring: bytes) -> tuple[str, ...]:
    """The 40 digits of each primary key, in their order; empty for what isn't a keyring, or holds newer keys only."""
    try:
        packets = list(_packets(without_armour(keyring)))
    except (binascii.Error, ValueError, IndexError):
        return ()
    # RFC 9580, 5.5.4: SHA-1 over 0x99, the length in two bytes, and the packet's content.
    digests = [
        hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
        for tag, body in packets
        if tag == _PRIMARY and body[:1] == bytes([_VERSION]) and len(body) < 1 << 16
    ]
    return tuple(dict.fromkeys(digests))


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each packet; raises ValueError and IndexError where the data is cut or no packet."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("no packet of OpenPGP")
        size, length = _length(data, at, is_new=bool(head & 0x40))
        begin = at + 1 + size
        if begin + length > len(data):
            raise ValueError("the last packet is cut")
        yield (head & 0x3F if head & 0x40 else (head & 0x3C) >> 2), data[begin : begin + length]
        at = begin + length


def _length(data: bytes, at: int, *, is_new: bool) -> tuple[int, int]:
    """(bytes of the length's field, the length) of the packet at ``at`` (RFC 9580, 4.2)."""
    if not is_new:
        size = (1, 2, 4, 0)[data[at] & 0x03]
        if size == 0:
            raise ValueError("a packet of no certain length")
        return size, int.from_bytes(data[at + 1 : at + 1 + size], "big")
    first = data[at + 1]
    if first < 192:
        return 1, first
    if first < 224:
        return 2, ((first - 192) << 8) + data[at + 2] + 192
    if first == 255:
        return 5, int.from_bytes(data[at + 2 : at + 6], "big")
    raise ValueError("a packet in parts")


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
    try:
        ring = without_armour(reading.whole(str(keyring), LARGEST_KEYRING))
    except (OSError, ValueError):
        # Any file of this machine may be named here: nothing of it is said.
        raise RepositoryUnusable(f"{keyring}: no keyring of OpenPGP, or larger than one") from None
    gpgv = which("gpgv", hint="Install the package gpgv")
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as folder:
        work = Path(folder)
        keys, signed, plain = work / "keys.gpg", work / "signed", work / "plain"
        keys.write_bytes(ring)
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
        match word:
            case "NEWSIG" | "GOODSIG":
                sound = word == "GOODSIG"
            case "BADSIG":
                bad.append(f"the text was changed after key {rest[0]} signed it")
            case "EXPSIG" | "EXPKEYSIG" | "REVKEYSIG":
                what = {"EXPSIG": "the signature has expired", "EXPKEYSIG": "the key has expired"}
                unusable.append(f"signed by {rest[0]}, but {what.get(word, 'the key was revoked')}")
            case "ERRSIG":
                unusable.append(f"signed by {rest[0]}, which is not in the keyring or cannot be checked")
            case "VALIDSIG" if sound:
                primary, algorithm = rest[9], rest[7]
                if algorithm not in _HASHES:
                    unusable.append(f"signed by {primary} with a hash that is too weak")
                elif primary not in pinned:
                    unusable.append(f"signed by {primary}, which is not one of the pinned fingerprints")
                else:
                    good.add(primary)
    return good, bad or ([] if good else unusable)


def controller_sources(etc: Path = Path("/etc/apt")) -> list[Source]:
    """Every enabled source of this machine, in apt's order; an empty list where there is no apt.

    Raises RepositoryUnusable naming a file that cannot be read, or the line that apt would not accept either.
    """
    files = [etc / "sources.list"]
    parts = etc / "sources.list.d"
    if parts.is_dir():
        files += sorted(p for p in parts.iterdir() if p.suffix in SUFFIXES)
    sources: list[Source] = []
    for path in files:
        if not path.is_file():
            continue
        try:
            sources += parse_sources(path.read_text(encoding="utf-8", errors="replace"), str(path))
        except OSError as error:
            hint = "Make it readable, or set `uri` of each repository in the fleet file"
            raise RepositoryUnusable(f"{path}: cannot be read: {error.strerror}", hint=hint) from error
        except SourcesError as error:
            raise RepositoryUnusable(error.message, hint=error.hint) from None
    return sources
