"""Read small files out of a .deb or .rpm, without unpacking it to disk and without the system's package tools.

Layouts are those of deb(5) and of rpm's file format, version 4: a lead, two headers, and a compressed cpio archive.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import re
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from gdsdeploy.host.kmod import files
from gdsdeploy.repo import rpmheader

#: Bytes of a whole package after decompression; the largest drivers' have some hundred megabytes.
UNPACKED_LIMIT: Final = 2 << 30
#: Bytes of one file that is read, if the caller doesn't say.
FILE_LIMIT: Final = 1 << 20
_NAME_LIMIT: Final = 4096
_XZ_MEMORY: Final = 256 << 20
_CHUNK: Final = 1 << 18
_PAYLOAD_COMPRESSOR: Final = 1125


class UnreadablePackageError(Exception):
    """The package is damaged, or of a kind that this program doesn't read; the message is the reason."""


def find(path: Path, pattern: re.Pattern[str], limit: int = FILE_LIMIT) -> dict[str, bytes]:
    """Path → content of each regular file of the package at ``path`` whose path (``usr/src/…``) matches in full.

    Raises UnreadablePackageError, also for a match that isn't a regular file or has more than ``limit`` bytes.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(8)
            file.seek(0)
            if magic == b"!<arch>\n":
                return _matches(_tar_entries(_deb_data(file)), pattern, limit)
            if magic[:4] == rpmheader.LEAD_MAGIC:
                return _matches(_cpio_entries(_rpm_payload(file)), pattern, limit)
    except (OSError, EOFError, ValueError, struct.error, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise UnreadablePackageError(f"it is damaged: {error or type(error).__name__}") from error
    except files.ZstdError as error:
        raise UnreadablePackageError(f"it is damaged: zstd data: {error}") from error
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


# Compression


def _opened(file: IO[bytes], compression: str) -> IO[bytes]:
    """The uncompressed content of ``file`` from its position on, read from front to back."""
    readers: dict[str, Callable[[IO[bytes]], Iterator[bytes]]] = {
        "": lambda source: iter(lambda: source.read(_CHUNK), b""),
        "gz": lambda source: _pieces(gzip.GzipFile(fileobj=source)),
        "bz2": lambda source: _pieces(bz2.BZ2File(source)),
        "xz": _unxz,
        "zst": _unzstd,
    }
    if compression not in readers:
        raise UnreadablePackageError(f"it is compressed with {compression!r}, which is not read")
    return io.BufferedReader(_Stream(readers[compression](file)), _CHUNK)


def _pieces(plain: Any) -> Iterator[bytes]:
    return iter(lambda: plain.read(_CHUNK), b"")


def _unxz(source: IO[bytes]) -> Iterator[bytes]:
    """Both .xz and the older .lzma; dpkg-deb and rpm write one stream."""
    decoder = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    while not decoder.eof:
        data = source.read(_CHUNK) if decoder.needs_input else b""
        if decoder.needs_input and not data:
            raise EOFError("its xz data ends early")
        yield decoder.decompress(data, _CHUNK)


def _unzstd(source: IO[bytes]) -> Iterator[bytes]:
    try:
        library: Any = importlib.import_module("compression.zstd")
    except ImportError:
        # Python has it from 3.14 on.
        if files.zstd_library() is None:
            raise UnreadablePackageError("it is packed with zstd, and libzstd is not installed here") from None
        return files.zstd_chunks(source)
    return _pieces(library.open(source, "rb"))


# .deb


class _Member(io.RawIOBase):
    """``size`` bytes of a file from its position on."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        if not data and self._left:
            raise EOFError("it ends early")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _deb_data(file: IO[bytes]) -> IO[bytes]:
    """The uncompressed tar of the package's files."""
    file.seek(8)
    while True:
        header = _exactly(file, 60)
        name, size = header[:16].decode("ascii").rstrip(" ").rstrip("/"), int(header[48:58].decode("ascii"))
        if header[58:] != b"`\n" or size < 0:
            raise ValueError("a member of the ar archive has no header")
        if name.split(".")[:2] == ["data", "tar"]:
            return _opened(io.BufferedReader(_Member(file, size), _CHUNK), name[len("data.tar") :].lstrip("."))
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
    file.seek(rpmheader.LEAD)
    _, _, size = rpmheader.read(file)
    file.seek(-size % 8, io.SEEK_CUR)
    _, header, _ = rpmheader.read(file)
    names = {"gzip": "gz", "bzip2": "bz2", "xz": "xz", "lzma": "xz", "zstd": "zst"}
    compressor = "".join(header.strings(_PAYLOAD_COMPRESSOR)[:1]) or "gzip"
    return _opened(file, names.get(compressor, compressor))


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
    while size > 0:
        size -= len(_exactly(file, min(size, _CHUNK)))
