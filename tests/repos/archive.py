"""Builds, signs and serves apt repositories on loopback.

The layout, the signatures and the checksums are real ones, made with gpg and read by the product exactly as it reads
Debian's; only the packages are small.  What cannot be had from a live archive can so be tried: an index that was
tampered with, an expired one, a key that is not pinned, a package that vanished.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import lzma
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

#: A stanza: field → value, in the order in which it is written.
Stanza = Mapping[str, str]


@dataclass(frozen=True)
class Key:
    """A throw-away OpenPGP key in a GNUPGHOME of its own."""

    home: Path
    fingerprint: str
    keyring: Path
    #: options that set gpg's clock, so that a key can have expired without anybody waiting for it
    clock: tuple[str, ...] = ()

    @classmethod
    def generate(cls, home: Path, name: str, *, expires: str = "never", at: datetime | None = None) -> Key:
        """Make a signing key, as of ``at`` if given; its public half is exported to ``keyring``, as gpgv reads it."""
        clock = _clock(at) if at else ()
        home.mkdir(mode=0o700, parents=True)
        user = f"{name} <{name}@archive.example>"
        _gpg(home, *clock, "--passphrase", "", "--quick-generate-key", user, "ed25519", "sign", expires)
        listing = _gpg(home, *clock, "--with-colons", "--list-keys")
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        keyring = home / "keyring.gpg"
        _gpg(home, "--output", str(keyring), "--export", fingerprint)
        # The clock runs on while gpg generates the key, and gpg refuses a key from the future.
        return cls(home, fingerprint, keyring, _clock(at + timedelta(minutes=10)) if at else ())

    def clearsign(self, text: bytes) -> bytes:
        return self._sign(text, "--clearsign")

    def detached(self, text: bytes) -> bytes:
        return self._sign(text, "--armor", "--detach-sign")

    def armoured(self) -> str:
        """The public key as people publish it."""
        return _gpg(self.home, "--armor", "--export", self.fingerprint)

    def forget(self) -> None:
        """End the agent that gpg started for this home."""
        subprocess.run(["gpgconf", "--homedir", self.home, "--kill", "all"], check=True)

    def _sign(self, text: bytes, *how: str) -> bytes:
        argv = [
            "gpg",
            "--homedir",
            self.home,
            "--batch",
            "--quiet",
            *self.clock,
            "--local-user",
            self.fingerprint,
            *how,
        ]
        return subprocess.run(argv, input=text, check=True, capture_output=True).stdout


def _clock(at: datetime) -> tuple[str, ...]:
    return (f"--faked-system-time={at:%Y%m%dT%H%M%S}",)


def _gpg(home: Path, *arguments: str) -> str:
    argv = ["gpg", "--homedir", home, "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback", *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@dataclass
class Suite:
    """One suite of an archive, before it is published; a name with ``/`` at its end makes a flat repository."""

    name: str
    #: component → stanzas; the component of a flat repository is ""
    packages: dict[str, list[Stanza]] = field(default_factory=dict)
    origin: str = "Debian"
    codename: str | None = None
    date: datetime = field(default_factory=lambda: datetime.now(UTC) - timedelta(hours=1))
    valid_for: timedelta | None = timedelta(days=7)
    by_hash: bool = True
    #: endings of the package lists that are written
    compressions: Sequence[str] = (".xz", ".gz")
    #: Debian's security archive writes ``updates/main``
    component_prefix: str = ""
    #: whether lists of their own have what is of all architectures
    all_apart: bool = False
    #: of the Release file, instead of its own; without a value it has none
    fields: Mapping[str, str] = field(default_factory=dict)


class Archive:
    """A repository's folder."""

    def __init__(self, root: Path, architectures: Sequence[str] = ("amd64",)) -> None:
        self.root = root
        self.architectures = architectures
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, suite: str) -> Path:
        """Where the Release file of a suite lies."""
        return self.root / suite.lstrip("./") if suite.endswith("/") else self.root / "dists" / suite

    def publish(self, suite: Suite, key: Key | None, *, detached: bool = False) -> None:
        """Write package lists and a signed Release; without a key it stays unsigned."""
        folder = self.folder(suite.name)
        shutil.rmtree(folder / "by-hash", ignore_errors=True)
        listed: list[str] = []
        for stem, stanzas in self._lists(suite):
            text = "".join("".join(f"{k}: {v}\n" for k, v in stanza.items()) + "\n" for stanza in stanzas).encode()
            for ending, data in (("", text), (".xz", lzma.compress(text)), (".gz", gzip.compress(text, mtime=0))):
                listed.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {stem}{ending}")
                if ending in suite.compressions:
                    self._write(folder, stem + ending, data, suite.by_hash)
        release = self._release(suite, listed)
        for name in ("InRelease", "Release", "Release.gpg"):
            (folder / name).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        if key is None or detached:
            (folder / "Release").write_bytes(release)
        if key is not None and detached:
            (folder / "Release.gpg").write_bytes(key.detached(release))
        elif key is not None:
            (folder / "InRelease").write_bytes(key.clearsign(release))

    def _lists(self, suite: Suite) -> Iterator[tuple[str, Sequence[Stanza]]]:
        """Path without ending, and content, of each package list."""
        for component, stanzas in suite.packages.items():
            if not component:
                yield "Packages", stanzas
                continue
            apart = ("all",) if suite.all_apart else ()
            for architecture in (*self.architectures, *apart):
                kinds = (architecture,) if suite.all_apart else (architecture, "all")
                listed = [stanza for stanza in stanzas if stanza["Architecture"] in kinds]
                yield f"{component}/binary-{architecture}/Packages", listed

    def _release(self, suite: Suite, listed: Sequence[str]) -> bytes:
        # NVIDIA's flat repository has neither suite nor codename.
        own = "" if suite.name.endswith("/") else suite.name
        fields = {
            "Origin": suite.origin,
            "Label": suite.origin,
            "Suite": own,
            "Codename": suite.codename or own,
            "Date": format_datetime(suite.date, usegmt=True),
            "Architectures": " ".join(("all", *self.architectures)),
            "Components": " ".join(suite.component_prefix + c for c in suite.packages if c),
        }
        if suite.valid_for is not None:
            fields["Valid-Until"] = format_datetime(suite.date + suite.valid_for, usegmt=True)
        if not suite.all_apart:
            fields["No-Support-for-Architecture-all"] = "Packages"
        if suite.by_hash:
            fields["Acquire-By-Hash"] = "yes"
        fields |= suite.fields
        lines = [f"{name}: {value}" for name, value in fields.items() if value]
        return "\n".join([*lines, "MD5Sum:", " 0 0 not-used", "SHA256:", *listed, ""]).encode()

    @staticmethod
    def _write(folder: Path, name: str, data: bytes, by_hash: bool) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if by_hash:
            named = path.parent / "by-hash" / "SHA256" / hashlib.sha256(data).hexdigest()
            named.parent.mkdir(parents=True, exist_ok=True)
            named.write_bytes(data)


def flip(path: Path, at: int | None = None) -> str:
    """Change one bit of a file, in its middle or at ``at``; returns the file's name."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)
    return path.name


def files(root: Path) -> dict[str, bytes]:
    """Path below ``root`` → content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(
        self, *args: object, log: list[str], logins: list[str], instead: dict[int, int], **kwargs: object
    ) -> None:
        self._log, self._logins, self._instead = log, logins, instead
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def send_head(self) -> Any:
        """As the folder has it, or 401 where a login is wanted and another came."""
        if self._logins and self.headers["Authorization"] not in self._logins:
            self.send_error(401)
            return None
        return super().send_head()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        super().send_error(self._instead.get(code, code), message, explain)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        self._log.append(format % args)


@dataclass(frozen=True)
class Server:
    """A running web server."""

    uri: str
    #: a line for each request that it answered
    log: list[str]
    #: the words of logins, one of which each request has to have; empty: none has to
    logins: list[str] = field(default_factory=list)
    #: status → what it answers instead
    instead: dict[int, int] = field(default_factory=dict)


@contextmanager
def serve(root: Path) -> Iterator[Server]:
    """Serve a folder on loopback."""
    log, logins, instead = list[str](), list[str](), dict[int, int]()
    handler = functools.partial(_Handler, directory=os.fspath(root), log=log, logins=logins, instead=instead)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{server.server_address[1]}", log, logins, instead)
        finally:
            server.shutdown()
            thread.join()
