"""Reads small files out of a .deb or .rpm, without unpacking it to disk, and checks the signature of an rpm.

Layouts are those of deb(5) and of rpm's file format, version 4: a lead, two headers, and a compressed cpio archive
(rpm's documentation: "Package format", "RPM v4 signatures and digests", "Tags").  The package managers' own tools
aren't needed; gpgv checks the signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import stat
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from gdsdeploy.errors import RepositoryUntrusted, translated
from gdsdeploy.repo import unpack
from gdsdeploy.repo.packages import Key
from gdsdeploy.repo.repository import verify

#: Bytes before the first header, and what they begin with.
LEAD: Final = 96
LEAD_MAGIC: Final = b"\xed\xab\xee\xdb"
_HEADER_MAGIC: Final = b"\x8e\xad\xe8\x01"
#: Entries and bytes that a header may have; a kernel's has some thousand file names.
_MAX_ENTRIES, _MAX_BYTES = 65536, 64 * 1024**2
_INT32, _STRING, _BINARY, _STRINGS = 4, 6, 7, 8


class Header:
    """The entries of one header: tag → type, place in the store, and number of values."""

    def __init__(self, entries: bytes, store: bytes) -> None:
        self._entries = {tag: rest for tag, *rest in struct.iter_unpack(">IIII", entries)}
        self._store = store

    def strings(self, tag: int) -> list[str]:
        """Empty without the tag; raises ValueError for another type or one that leads out of the header."""
        if tag not in self._entries:
            return []
        kind, offset, count = self._entries[tag]
        if kind not in (_STRING, _STRINGS):
            raise ValueError(f"tag {tag} is not text")
        parts = self._store[offset:].split(b"\0", count)
        if count < 1 or len(parts) <= count:
            raise ValueError(f"tag {tag} is cut off")
        return [part.decode("utf-8", "replace") for part in parts[:count]]

    def number(self, tag: int) -> int | None:
        """None without the tag; raises as ``strings``."""
        if tag not in self._entries:
            return None
        kind, offset, _ = self._entries[tag]
        if kind != _INT32:
            raise ValueError(f"tag {tag} is not a number")
        return int(struct.unpack_from(">I", self._store, offset)[0])

    def binary(self, tag: int) -> bytes:
        """Empty without the tag; raises as ``strings``."""
        if tag not in self._entries:
            return b""
        kind, offset, count = self._entries[tag]
        value = self._store[offset : offset + count]
        if kind != _BINARY or len(value) != count:
            raise ValueError(f"tag {tag} is cut off")
        return value


def read_header(file: BinaryIO) -> tuple[bytes, Header, int]:
    """One header as it lies in the file, read, and the bytes of its store."""
    intro = file.read(16)
    if intro[:4] != _HEADER_MAGIC:
        raise ValueError("a header has no beginning")
    count, size = struct.unpack(">II", intro[8:])
    if count > _MAX_ENTRIES or size > _MAX_BYTES:
        raise ValueError(f"a header of {count} entries and {size} bytes is too large")
    entries, store = file.read(16 * count), file.read(size)
    if len(entries) != 16 * count or len(store) != size:
        raise ValueError("a header is cut off")
    return intro + entries + store, Header(entries, store), size


#: Bytes of a whole package after decompression; the largest drivers' have some hundred megabytes.
UNPACKED_LIMIT: Final = 2 << 30
#: Bytes of one file that is read, if the caller doesn't say.
FILE_LIMIT: Final = 1 << 20
_NAME_LIMIT: Final = 4096
_CHUNK: Final = 1 << 18
_PAYLOAD_COMPRESSOR: Final = 1125


class UnreadablePackageError(Exception):
    """The package is damaged, or of a kind that this program doesn't read; the message is the reason."""


def find_files(path: Path, pattern: re.Pattern[str], limit: int = FILE_LIMIT) -> dict[str, bytes]:
    """Path → content of each regular file of the package at ``path`` whose path (``usr/src/…``) matches in full.

    Raises UnreadablePackageError, also for a match that isn't a regular file or has more than ``limit`` bytes.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(8)
            file.seek(0)
            if magic == b"!<arch>\n":
                return _matches(_tar_entries(_deb_data(file)), pattern, limit)
            if magic[:4] == LEAD_MAGIC:
                return _matches(_cpio_entries(_rpm_payload(file)), pattern, limit)
    except unpack.UnknownCompressionError as error:
        raise UnreadablePackageError(str(error)) from error
    except (*unpack.DAMAGED, ValueError, struct.error, tarfile.TarError) as error:
        raise UnreadablePackageError(f"it is damaged: {error or type(error).__name__}") from error
    raise UnreadablePackageError("it is neither a .deb nor an .rpm")


#: (path without ``./`` or ``/`` before it, whether it's a regular file, size, a function that reads it)
_Entry = tuple[str, bool, int, Callable[[], bytes]]


def _matches(entries: Iterator[_Entry], pattern: re.Pattern[str], limit: int) -> dict[str, bytes]:
    matches = {}
    for name, is_regular, size, read in entries:
        if not pattern.fullmatch(name):
            continue
        if not is_regular or size > limit:
            what = f"has {size} bytes" if is_regular else "is not a regular file"
            raise UnreadablePackageError(f"{name} in it {what}")
        matches[name] = read()
    return matches


class _Stream(io.RawIOBase):
    """Pieces of bytes as a file that is read once from front to back."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._size += len(piece)
            if self._size > UNPACKED_LIMIT:
                raise UnreadablePackageError(f"it unpacks to more than {UNPACKED_LIMIT} bytes")
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise EOFError("it ends early")
    return data


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """``size`` bytes of a file from its position on."""
    while size > 0:
        piece = _exactly(file, min(size, _CHUNK))
        size -= len(piece)
        yield piece


def _opened(pieces: Iterator[bytes]) -> IO[bytes]:
    """``pieces`` as a file that is read from front to back."""
    return io.BufferedReader(_Stream(pieces), _CHUNK)


# .deb


def _deb_data(file: IO[bytes]) -> IO[bytes]:
    """The uncompressed tar of the package's files."""
    file.seek(8)
    while True:
        header = _exactly(file, 60)
        name, size = header[:16].decode("ascii").rstrip(" ").rstrip("/"), int(header[48:58].decode("ascii"))
        if header[58:] != b"`\n" or size < 0:
            raise ValueError("a member of the ar archive has no header")
        if name.split(".")[:2] == ["data", "tar"]:
            return _opened(unpack.pieces(_opened(_pieces(file, size)), name[len("data.tar") :].lstrip(".")))
        file.seek(size + size % 2, io.SEEK_CUR)


def _tar_entries(plain: IO[bytes]) -> Iterator[_Entry]:
    with tarfile.open(fileobj=plain, mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("./").lstrip("/")

            def read(each: tarfile.TarInfo = member) -> bytes:
                content = archive.extractfile(each)
                return b"" if content is None else _exactly(content, each.size)

            yield name, member.isreg(), member.size, read


# .rpm


def _rpm_payload(file: BinaryIO) -> IO[bytes]:
    """The uncompressed cpio archive of the package's files."""
    file.seek(LEAD)
    _, _, size = read_header(file)
    file.seek(-size % 8, io.SEEK_CUR)
    _, header, _ = read_header(file)
    names = {"gzip": "gz", "bzip2": "bz2", "xz": "xz", "lzma": "xz", "zstd": "zst"}
    compressor = "".join(header.strings(_PAYLOAD_COMPRESSOR)[:1]) or "gzip"
    return _opened(unpack.pieces(file, names.get(compressor, compressor)))


def _cpio_entries(plain: IO[bytes]) -> Iterator[_Entry]:
    """Of the newc format, which rpm writes for files below 4 GiB."""
    while True:
        header = _exactly(plain, 110)
        if header[:6] not in (b"070701", b"070702"):
            raise ValueError("its cpio archive is of another format")
        numbers = [int(header[6 + 8 * place : 14 + 8 * place], 16) for place in range(13)]
        mode, size, name_size = numbers[1], numbers[6], numbers[11]
        if not 0 < name_size <= _NAME_LIMIT:
            raise ValueError("its cpio archive has a name of no proper length")
        name = _exactly(plain, name_size).rstrip(b"\0").decode("utf-8", "replace")
        _skip(plain, -(110 + name_size) % 4)
        if name == "TRAILER!!!":
            return
        consumed = 0

        def read(count: int = size) -> bytes:
            nonlocal consumed
            consumed = count
            return _exactly(plain, count)

        yield name.removeprefix("./").lstrip("/"), stat.S_ISREG(mode), size, read
        _skip(plain, size - consumed + -size % 4)


def _skip(file: IO[bytes], size: int) -> None:
    for _ in _pieces(file, size):
        pass


#: Tags of the signature header: OpenPGP signatures of the header, by DSA, EdDSA and RSA keys, and rpm 6's list of them.
_SIGNATURES, _SIGNATURE_LIST = (267, 268), 278
_NAME, _VERSION, _RELEASE, _EPOCH, _ARCH, _PAYLOAD_DIGEST, _PAYLOAD_KIND = 1000, 1001, 1002, 1003, 1022, 5092, 5093
#: OpenPGP's numbers of digests.
_DIGESTS: Final = {8: "sha256", 9: "sha384", 10: "sha512"}
_HINT: Final = "Do not use this mirror; compare `package_keys` with the keys that the vendor publishes"


def check_signature(path: Path, expected: Key, *, keyring: Path, fingerprints: Sequence[str], name: str) -> None:
    """Raise RepositoryUntrusted unless a pinned key signed this very package, and its content is the signed one.

    expected: what the index says about the file; its version is ``[EPOCH:]VERSION-RELEASE``.
    name: how messages call the file, normally its address.  Raises RepositoryUnusable where ``keyring`` isn't there.
    """
    with path.open("rb") as file:
        try:
            signatures, text, header = _headers(file)
            kind, digest = _payload_digest(header)
            package = _identity(header)
        except (ValueError, struct.error) as error:
            raise RepositoryUntrusted(f"{name}: not a package of rpm 4.14 or newer: {error}", hint=_HINT) from None
        if not signatures:
            raise RepositoryUntrusted(f"{name}: the package is not signed", hint=_HINT)
        verify(text, detached=signatures, keyring=keyring, fingerprints=fingerprints, name=name)
        if hashlib.file_digest(file, kind).hexdigest() != digest:
            raise RepositoryUntrusted(f"{name}: the package's content is not the signed one", hint=_HINT)
    own, version, architecture = expected
    if package != (own, version if ":" in version else f"0:{version}", architecture):
        raise RepositoryUntrusted(
            f"{name}: the index calls it {' '.join(expected)}, but the signed package is {' '.join(package)}",
            hint=_HINT,
        )


def _headers(file: BinaryIO) -> tuple[bytes, bytes, Header]:
    """The signatures, the bytes that they cover, and the header in these; the file is then at its payload."""
    if file.read(LEAD)[:4] != LEAD_MAGIC:
        raise ValueError("it has no lead")
    own, length = read_header(file)[1:]
    file.read(-length % 8)
    signatures = b"".join(own.binary(tag) for tag in _SIGNATURES)
    with translated(binascii.Error, lambda error: ValueError(f"tag {_SIGNATURE_LIST}: {error}")):
        signatures += b"".join(base64.b64decode(text, validate=True) for text in own.strings(_SIGNATURE_LIST))
    text, header, _ = read_header(file)
    return signatures, text, header


def _payload_digest(header: Header) -> tuple[str, str]:
    """(hashlib's name, digest in hexadecimal) of everything behind the header."""
    digests = header.strings(_PAYLOAD_DIGEST)
    kind = _DIGESTS.get(header.number(_PAYLOAD_KIND) or 8)
    if len(digests) != 1 or kind is None:
        raise ValueError("its header has no digest of the payload")
    return kind, digests[0]


def _identity(header: Header) -> Key:
    name, version, release, architecture = (
        "".join(header.strings(tag)[:1]) for tag in (_NAME, _VERSION, _RELEASE, _ARCH)
    )
    return name, f"{header.number(_EPOCH) or 0}:{version}-{release}", architecture
