"""Open a module or symvers file, compressed or not, as a seekable binary file of bounded size."""

from __future__ import annotations

import gzip
import importlib
import io
import lzma
import os
import stat
import tempfile
import zlib
from typing import IO, Any, Callable, Dict, Iterator, Tuple, Type

from .. import process
from ..errors import ElfError, HostError
from . import zstd

#: Suffixes that the kernel's module loader and depmod know.
SUFFIXES = ("", ".xz", ".gz", ".zst")
#: Largest file read, after decompression.  A driver with all its debug data is about 250 MB.
SIZE_LIMIT = 1 << 30
#: What a decompressed file may take of memory before it goes to a temporary file.
MEMORY_LIMIT = 16 << 20
#: An xz header may ask for any dictionary; kernels are packed with at most 64 MiB (xz -9).
XZ_MEMORY = 256 << 20
CHUNK = 1 << 18
ZSTD_HINT = "install the package zstd"
#: Bytes of all unpacked files in the cache; a driver's modules have half of it.
_CACHE_LIMIT = 48 << 20
_cache: Dict[Tuple[Any, ...], bytes] = {}


def open_plain(path: str, error: Type[HostError] = ElfError, limit: int = SIZE_LIMIT) -> IO[bytes]:
    """Return a seekable file with the uncompressed content of ``path``; the suffix says how it is compressed.

    Raises ``error`` when the file is unreadable, damaged, or larger than ``limit`` bytes uncompressed.
    """
    unpack = _UNPACKERS.get(os.path.splitext(path)[1])
    try:
        status = os.stat(path)
        # A pipe in the place of a file would be waited for.
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path}: cannot be read: it is not a regular file")
        if status.st_size > limit:
            raise error(f"{path}: has more than {limit} bytes")
        source = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as reason:
        raise error(f"{path}: cannot be read: {reason.strerror}") from None
    if unpack is None:
        return source
    with source:
        identity = (path, status.st_ino, status.st_size, status.st_mtime_ns, limit)
        if identity in _cache:
            return io.BytesIO(_cache[identity])
        target: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=MEMORY_LIMIT)  # noqa: SIM115 - the caller closes it
        try:
            unpack(source, target, limit)
        except DamagedError as reason:
            target.close()
            raise error(f"{path}: {reason}", reason.hint) from None
        except OSError as reason:
            target.close()
            raise error(f"{path}: cannot be unpacked: {reason.strerror or reason}") from None
    # A module is read for its symbols and again for its signature, and unpacking is most of the time of both.
    if target.tell() <= MEMORY_LIMIT:
        target.seek(0)
        _cache[identity] = target.read()
        while sum(map(len, _cache.values())) > _CACHE_LIMIT:
            del _cache[next(iter(_cache))]
    target.seek(0)
    return target


class DamagedError(Exception):
    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _copy(chunks: Iterator[bytes], target: IO[bytes], limit: int) -> None:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise DamagedError(f"unpacks to more than {limit} bytes")
        target.write(chunk)


def _unxz(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    def chunks() -> Iterator[bytes]:
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
        while not decoder.eof:
            data = source.read(CHUNK) if decoder.needs_input else b""
            if decoder.needs_input and not data:
                raise DamagedError("truncated xz data")
            yield decoder.decompress(data, max_length=CHUNK)
        # The kernel's own unpacker stops at the end of the first stream, too.

    try:
        _copy(chunks(), target, limit)
    except lzma.LZMAError as reason:
        raise DamagedError(f"damaged xz data: {reason}") from None


def _ungzip(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    try:
        with gzip.GzipFile(fileobj=source) as plain:
            _copy(iter(lambda: plain.read(CHUNK), b""), target, limit)
    except (EOFError, zlib.error, gzip.BadGzipFile) as reason:
        raise DamagedError(f"damaged gzip data: {reason}") from None


def _unzstd(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    try:
        library: Any = importlib.import_module("compression.zstd")
    except ImportError:
        # Python has it from 3.14 on only.
        by_host = _unzstd_by_library if zstd.library() is not None else _unzstd_by_program
        return by_host(source, target, limit)
    try:
        with library.open(source, "rb") as plain:
            _copy(iter(lambda: plain.read(CHUNK), b""), target, limit)
    except (EOFError, library.ZstdError) as reason:
        raise DamagedError(f"damaged zstd data: {reason}") from None


def _unzstd_by_library(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    try:
        _copy(zstd.chunks(source), target, limit)
    except zstd.ZstdError as reason:
        raise DamagedError(f"damaged zstd data: {reason}") from None


def _unzstd_by_program(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    done = process.pipe(["zstd", "-dcq", "--memory=128MB"], source, target, timeout=120, limit=limit)
    if done.status == process.NOT_FOUND:
        raise DamagedError("is zstd-compressed, and neither libzstd nor the program zstd is installed", ZSTD_HINT)
    if done.truncated:
        raise DamagedError(f"unpacks to more than {limit} bytes")
    if done.status != 0:
        lines = done.stderr.strip().splitlines() or [f"zstd ended with status {done.status}"]
        raise DamagedError(f"damaged zstd data: {lines[0]}")


_UNPACKERS: Dict[str, Callable[[IO[bytes], IO[bytes], int], None]] = {".xz": _unxz, ".gz": _ungzip, ".zst": _unzstd}
