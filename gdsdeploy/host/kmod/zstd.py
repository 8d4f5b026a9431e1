"""Unpack zstd data with the C library of the host, for Python before 3.14.

The package manager, systemd or kmod of every host with zstd-packed modules links it.  Layouts and calls are those of
zstd.h (stable since 1.0).  A window above 128 MiB is refused by the library's own default.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import IO, Any, Iterator, Optional

_LIBRARY = "libzstd.so.1"
_CHUNK = 1 << 18


class ZstdError(Exception):
    """The data is damaged or truncated."""


@lru_cache(maxsize=1)
def library() -> Optional[Any]:
    """The C library, with its functions declared; None where the host or this Python can't load it."""
    try:
        # Small Python packages come without ctypes.
        ctypes: Any = importlib.import_module("ctypes")
        loaded = ctypes.CDLL(_LIBRARY)
        for name, result, arguments in (
            ("ZSTD_createDStream", ctypes.c_void_p, []),
            ("ZSTD_freeDStream", ctypes.c_size_t, [ctypes.c_void_p]),
            ("ZSTD_initDStream", ctypes.c_size_t, [ctypes.c_void_p]),
            ("ZSTD_decompressStream", ctypes.c_size_t, [ctypes.c_void_p] * 3),
            ("ZSTD_isError", ctypes.c_uint, [ctypes.c_size_t]),
            ("ZSTD_getErrorName", ctypes.c_char_p, [ctypes.c_size_t]),
        ):
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        return None
    return loaded


def chunks(source: IO[bytes]) -> Iterator[bytes]:
    """The unpacked content of ``source``, in pieces of at most 256 KiB; raises ZstdError.  Needs :func:`library`."""
    import ctypes

    class Buffer(ctypes.Structure):
        """ZSTD_inBuffer and ZSTD_outBuffer."""

        _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("position", ctypes.c_size_t))

    zstd: Any = library()
    space = ctypes.create_string_buffer(_CHUNK)
    stream = zstd.ZSTD_createDStream()
    if not stream:
        raise ZstdError("out of memory")
    try:
        zstd.ZSTD_initDStream(stream)
        missing = 1
        for data in iter(lambda: source.read(_CHUNK), b""):
            packed = Buffer(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data), 0)
            is_flushed = False
            while packed.position < packed.size or not is_flushed:
                plain = Buffer(ctypes.addressof(space), _CHUNK, 0)
                missing = zstd.ZSTD_decompressStream(stream, ctypes.byref(plain), ctypes.byref(packed))
                if zstd.ZSTD_isError(missing):
                    raise ZstdError(zstd.ZSTD_getErrorName(missing).decode("ascii", "replace"))
                yield space.raw[: plain.position]
                is_flushed = missing == 0 or plain.position < plain.size
        if missing:
            raise ZstdError("truncated")
    finally:
        zstd.ZSTD_freeDStream(stream)
