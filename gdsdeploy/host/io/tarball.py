"""Members of an untrusted tar archive, with bounds that hold while it is read.

:mod:`tarfile` follows headers of any length and keeps every member; only its parser of one header is used.
"""

from __future__ import annotations

import gzip
import pickle  # nosec B403 # of this process' own
import tarfile
import zlib
from typing import IO, Callable, Dict, Iterator, MutableMapping, Tuple, TypeVar, Union

from ..rootdir import open_file

T = TypeVar("T")
#: The name of a file, its size in bytes, and its content in pieces.  Pieces that are not read before the next file
#: are skipped.
Member = Tuple[str, int, Iterator[bytes]]

#: Members, their headers for long names among them.
MEMBERS = 50_000
#: Bytes of all that a compressed archive unpacks to; and how many more for each member that is kept.
UNPACKED, EACH = 128 * 1024 * 1024, 1024 * 1024
#: Bytes of one header for a long name, and of all of them.
_NAME, _NAMES = 64 * 1024, 4 * 1024 * 1024
_BLOCK, _PIECE = 512, 1 << 20
#: Digits of the length of a record in a pax header.
_DIGITS = 5


class Packed(MutableMapping[str, T]):
    """Values that take a tenth of their memory until they are asked for: the evidence of a fleet has gigabytes."""

    def __init__(self) -> None:
        self._packed: Dict[str, bytes] = {}

    def __setitem__(self, key: str, value: T) -> None:
        self._packed[key] = zlib.compress(pickle.dumps(value), 1)

    def __getitem__(self, key: str) -> T:
        # This process has written it.
        value: T = pickle.loads(zlib.decompress(self._packed[key]))  # noqa: S301 # nosec B301
        return value

    def __delitem__(self, key: str) -> None:
        del self._packed[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


def files(path: str, limit: Callable[[str], int], top: str = "") -> Packed[bytes]:
    """Name → content of the files of a tar archive, gzipped or not.

    limit: name → bytes that the file may have; 0: it isn't kept.  top: a folder that isn't part of the names.
    Raises OSError, EOFError and zlib.error (damaged), and ValueError: over a bound, a name twice, a link or a device.
    """
    contents: Packed[bytes] = Packed()
    for full, size, pieces in members(path, more=lambda name: EACH if limit(name.removeprefix(top)) else 0):
        name = full.removeprefix(top)
        most = limit(name)
        if most and name in contents:
            raise ValueError(f"{name} is in it twice")
        if most and size > most:
            raise ValueError(f"{name} is too large: it has {size:,} bytes, and the limit is {most:,}")
        if most:
            contents[name] = b"".join(pieces)
    return contents


def members(path: str, unpacked: int = UNPACKED, more: Callable[[str], int] = lambda _: 0) -> Iterator[Member]:
    """The files of a tar archive, gzipped or not, in their order.

    unpacked: bytes that it may have.  more: name → bytes that it may have in addition for a member of that name.
    Raises what :func:`files` raises, and ValueError for what programs that unpack archives read in different ways: the
    checked files have to be the unpacked ones.
    """
    with open_file(path) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            yield from _Reader(raw, unpacked).members(more)
            return
        with gzip.GzipFile(fileobj=raw) as plain:
            yield from _Reader(plain, unpacked).members(more)


class _Reader:
    """Reads a stream once, from its beginning."""

    def __init__(self, stream: Union[IO[bytes], gzip.GzipFile], unpacked: int) -> None:
        self._stream = stream
        self._left = self._unpacked = unpacked
        self._names = _NAMES

    def members(self, more: Callable[[str], int]) -> Iterator[Member]:
        long = ""
        for _ in range(MEMBERS):
            block = self._take(_BLOCK)
            if not block.strip(b"\0"):
                self._require_end()
                return
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            except tarfile.TarError as error:
                raise ValueError(f"no header of a member: {error}") from None
            if member.size < 0:
                raise ValueError("a member has a size below 0")
            if member.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
                if long:
                    raise ValueError("a member has two names")
                long = self._long_name(member)
                continue
            name, long = long or member.name, ""
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
                raise ValueError(f"{name} is neither a file nor a folder")
            if member.type == tarfile.DIRTYPE:
                if member.size:
                    raise ValueError(f"{name} is a folder with content")
                continue
            self._left += more(name)
            self._unpacked += more(name)
            pieces = self._pieces(member.size)
            yield name, member.size, pieces
            for _ in pieces:  # Skip what the caller didn't read.
                pass
        raise ValueError(f"it has more than {MEMBERS} members")

    def _require_end(self) -> None:
        """Zeros may follow the end, which fill up a record.  Some programs read on (tar --ignore-zeros)."""
        for data in iter(lambda: self._stream.read(_PIECE), b""):
            self._left -= len(data)
            if self._left < 0 or data.strip(b"\0"):
                raise ValueError("something follows its end")

    def _long_name(self, member: tarfile.TarInfo) -> str:
        """The name that a header for the next member gives; empty where it gives none."""
        self._names -= member.size
        if member.size > _NAME or self._names < 0:
            raise ValueError("a header of a member is too large")
        data = b"".join(self._pieces(member.size))
        if member.type == tarfile.GNUTYPE_LONGNAME:
            return data.rstrip(b"\0").decode()
        return _path(data)

    def _pieces(self, size: int) -> Iterator[bytes]:
        for left in range(size, 0, -_PIECE):
            yield self._take(min(left, _PIECE))
        self._take(-size % _BLOCK)

    def _take(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {self._unpacked >> 20} MiB")
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError("it ends too early")
        return data


def _path(records: bytes) -> str:
    """The name in a pax header (POSIX.1-2017, pax, "pax Extended Header": records ``LENGTH KEY=VALUE``); often none."""
    path = b""
    while records:
        digits = records[: _DIGITS + 1].partition(b" ")[0]
        length = int(digits) if digits.isdigit() and len(digits) <= _DIGITS else 0
        key, is_record, value = records[len(digits) + 1 : length].partition(b"=")
        if length > len(records) or not is_record or not value.endswith(b"\n"):
            raise ValueError("a header of a member is damaged")
        if key == b"size" or key.startswith(b"GNU.sparse."):
            raise ValueError("a header gives a member another size or content")
        if key == b"path":
            path = value[:-1]
        records = records[length:]
    return path.decode()
