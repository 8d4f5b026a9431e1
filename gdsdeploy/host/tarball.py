"""Members of a tar archive that somebody else made, within bounds that hold while it is read.

:mod:`tarfile` follows headers of any length and keeps every member; only its parser of one header is used.
"""

from __future__ import annotations

import gzip
import re
import tarfile
from typing import IO, Callable, Dict

#: Members, their headers for long names among them.
MEMBERS = 20_000
#: Bytes of all that a compressed archive unpacks to, and of the members that are kept.
UNPACKED, KEPT = 128 * 1024 * 1024, 64 * 1024 * 1024
#: Bytes of one header for a long name, and of all of them.
_NAME, _NAMES = 64 * 1024, 4 * 1024 * 1024
_BLOCK = 512
_PATH = re.compile(rb"^[0-9]+ path=(.*)$", re.MULTILINE)


def files(path: str, wanted: Callable[[str], bool], limit: int) -> Dict[str, bytes]:
    """Name → content of the files of a tar archive, gzipped or not, that are ``wanted``.

    limit: bytes of one of them.
    Raises OSError, EOFError and zlib.error (damaged), and ValueError: over a bound, a name twice, a link or a device.
    """
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            return _Reader(raw).files(wanted, limit)
        with gzip.GzipFile(fileobj=raw) as plain:
            return _Reader(plain).files(wanted, limit)  # type: ignore[arg-type]


class _Reader:
    """Reads a stream once, from its beginning."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = UNPACKED
        self._names = _NAMES

    def files(self, wanted: Callable[[str], bool], limit: int) -> Dict[str, bytes]:
        found: Dict[str, bytes] = {}
        long, kept = "", 0
        for _ in range(MEMBERS):
            block = self._take(_BLOCK)
            if not block.strip(b"\0"):
                return found
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            except tarfile.TarError as error:
                raise ValueError(f"no header of a member: {error}") from None
            if member.size < 0:
                raise ValueError("a member has a size below 0")
            if member.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
                long = self._long(member)
                continue
            name, long = long or member.name, ""
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
                raise ValueError(f"{name} is neither a file nor a folder")
            if member.type == tarfile.DIRTYPE or not wanted(name):
                self._skip(member.size)
                continue
            kept += member.size
            if name in found or member.size > limit or kept > KEPT:
                raise ValueError(f"{name} is in it twice" if name in found else f"{name} is too large")
            found[name] = self._content(member.size)
        raise ValueError(f"it has more than {MEMBERS} members")

    def _long(self, member: tarfile.TarInfo) -> str:
        """The name that a header for the next member gives; empty where it gives none."""
        self._names -= member.size
        if member.size > _NAME or self._names < 0:
            raise ValueError("a header of a member is too large")
        data = self._content(member.size)
        if member.type == tarfile.GNUTYPE_LONGNAME:
            return data.rstrip(b"\0").decode()
        match = _PATH.search(data)
        return match.group(1).decode() if match else ""

    def _content(self, size: int) -> bytes:
        content = self._take(size)
        self._take(-size % _BLOCK)
        return content

    def _skip(self, size: int) -> None:
        size += -size % _BLOCK
        while size > 0:
            size -= len(self._take(min(size, 1 << 20)))

    def _take(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {UNPACKED >> 20} MiB")
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError("it ends too early")
        return data
