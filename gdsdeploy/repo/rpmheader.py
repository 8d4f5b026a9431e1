"""The headers of an rpm file, format 4: tags with values (rpm's documentation: "Package format", "Tags")."""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

#: Bytes before the first header, and what they begin with.
LEAD: Final = 96
LEAD_MAGIC: Final = b"\xed\xab\xee\xdb"
_MAGIC: Final = b"\x8e\xad\xe8\x01"
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


def read(file: BinaryIO) -> tuple[bytes, Header, int]:
    """One header as it lies in the file, read, and the bytes of its store."""
    intro = file.read(16)
    if intro[:4] != _MAGIC:
        raise ValueError("a header has no beginning")
    count, size = struct.unpack(">II", intro[8:])
    if count > _MAX_ENTRIES or size > _MAX_BYTES:
        raise ValueError(f"a header of {count} entries and {size} bytes is too large")
    entries, store = file.read(16 * count), file.read(size)
    if len(entries) != 16 * count or len(store) != size:
        raise ValueError("a header is cut off")
    return intro + entries + store, Header(entries, store), size
