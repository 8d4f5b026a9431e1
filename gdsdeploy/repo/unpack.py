"""Unpacks what repositories serve, in pieces: an index or a package of some kilobytes may hold gigabytes.

What one index may have follows from what the signed file above it declares: its unpacked size, and a multiple of its
packed one.  One limit holds for all.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Final

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.kmod import files

#: Bytes of an unpacked index, whatever is declared; file lists of a distribution with its history have half of it.
LARGEST_INDEX: Final = 1 << 30
#: How many times its packed size an index may have (real ones have up to 20), and what a small one may have anyway.
_RATIO: Final = 64
_SMALL: Final = 16 << 20

#: What unpacking raises for damaged data.
DAMAGED: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, files.ZstdError)


class UnknownCompressionError(ValueError):
    """Data of a kind that this program doesn't read; the message is the reason."""


def index(path: Path, uri: str, declared: int | None, most: int = LARGEST_INDEX) -> bytes:
    """The content of the index at ``path``, whose compression the ending of ``uri`` tells.

    declared: bytes that it has to have; None: nothing says so.  most: bytes that it may have at all.
    Raises RepositoryUntrusted for any other size, RepositoryUnusable for damaged data.
    """
    limit = min(most, max(_SMALL, _RATIO * path.stat().st_size), *([] if declared is None else [declared]))
    text = io.BytesIO()
    try:
        with path.open("rb") as source:
            for piece in pieces(source, compression(uri)):
                text.write(piece)
                if text.tell() > limit:
                    raise RepositoryUntrusted(f"{uri}: it decompresses to more than the {limit} bytes it may have")
    except (*DAMAGED, UnknownCompressionError) as error:
        raise RepositoryUnusable(f"{uri}: cannot be decompressed: {error or type(error).__name__}") from error
    if declared is not None and text.tell() != declared:
        raise RepositoryUntrusted(f"{uri}: it does not decompress to the {declared} bytes it may have")
    # Not copied: the buffer is given away.
    return text.getvalue()


def require_size(uri: str, *declared: int | None, most: int = LARGEST_INDEX) -> None:
    """Raise RepositoryUntrusted unless an index of these sizes, packed and unpacked, may be fetched."""
    largest = max(size or 0 for size in declared)
    if largest > most:
        raise RepositoryUntrusted(f"{uri}: {largest} bytes are not what a list can have; it may have {most}")


def compression(name: str) -> str:
    """Compression of a file by its ending; empty for others."""
    ending = name.rpartition(".")[2]
    return ending if ending in _READERS else ""


def pieces(source: IO[bytes], compression: str) -> Iterator[bytes]:
    """The unpacked content of ``source`` from its position on, in pieces of at most 256 KiB.

    compression: ``gz``, ``bz2``, ``xz`` (also the older .lzma), ``zst``, or empty.
    Raises UnknownCompressionError for another one, and one of DAMAGED.
    """
    if compression not in _READERS:
        raise UnknownCompressionError(f"it is compressed with {compression!r}, which is not read")
    return _READERS[compression](source)


def _unzstd(source: IO[bytes]) -> Iterator[bytes]:
    chunks = files.zstd_chunks(source)
    if chunks is None:
        raise UnknownCompressionError("it is packed with zstd, and libzstd is not installed here")
    return chunks


_READERS: Final[dict[str, Callable[[IO[bytes]], Iterator[bytes]]]] = {
    "": files.plain_chunks,
    "gz": lambda source: files.plain_chunks(gzip.GzipFile(fileobj=source)),
    "bz2": lambda source: files.plain_chunks(bz2.BZ2File(source)),
    "xz": partial(files.xz_chunks, several=True),
    "zst": _unzstd,
}
