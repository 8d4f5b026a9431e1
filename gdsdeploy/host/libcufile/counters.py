"""The counters that libcufile keeps in shared memory, where ``profile.cufile_stats`` isn't 0.

The segment begins with a version, which doesn't tell layouts apart: version and size together do.  The layouts are
data/cufile_counters.json, found by letting the printer of each release (1.4.0 to 1.20.0) name every slot.  All numbers
are little-endian and packed.  segments.py says which process may have written a segment, route.py what it means.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from .. import data

#: Why a segment gives no counters.
UNKNOWN_LAYOUT, LEVEL_LOW, MALFORMED = "unknown-layout", "level-low", "malformed"
#: Most GPUs of one segment: the largest layout has room for 105.
GPUS = 128


class Layout(NamedTuple):
    """Where the counters are in the segment of some releases: offsets in bytes."""

    version: int
    size: int
    #: releases in which it was seen
    releases: Tuple[str, ...]
    read_bytes: int
    write_bytes: int
    #: of the number of GPUs; the first one's UUID is 8 bytes later
    gpus: int
    stride: int
    #: counter → its offset from the UUID of its GPU
    read: Mapping[str, int]
    write: Mapping[str, int]


class Direction(NamedTuple):
    """Reads, or writes, between files and one GPU since the process opened cuFile."""

    #: operations
    n: int
    #: operations by their way; None: this release doesn't count that way on its own
    nvfs: Optional[int]
    p2pdma: Optional[int]
    #: through the memory of the host
    posix: int
    #: operations whose offset or size wasn't aligned
    unaligned: int
    errors: int
    bytes: int


class Gpu(NamedTuple):
    uuid: str
    read: Direction
    write: Direction


class Counters(NamedTuple):
    """What one process has counted.  The bytes are all it moved, also into the memory of the host."""

    version: int
    size: int
    read_bytes: int
    write_bytes: int
    gpus: Tuple[Gpu, ...]


@lru_cache(maxsize=1)
def layouts() -> Mapping[Tuple[int, int], Layout]:
    """(version, size) → layout."""
    return {(row.version, row.size): row for row in data.rows("cufile_counters", Layout)}


def sizes() -> Tuple[int, ...]:
    """Bytes of the segments of all known releases."""
    return tuple(sorted({layout.size for layout in layouts().values()}))


def releases(version: int, size: int) -> Optional[str]:
    """The first and the last release that has this layout, such as ``1.9.1 to 1.13.1``; None unless it has several."""
    layout = layouts().get((version, size))
    return None if layout is None or len(layout.releases) < 2 else f"{layout.releases[0]} to {layout.releases[-1]}"


def decode(segment: bytes) -> Union[Counters, str]:
    """The counters in a segment, or why it has none: UNKNOWN_LAYOUT, LEVEL_LOW or MALFORMED."""
    if len(segment) < 4:
        return UNKNOWN_LAYOUT
    version = _u32(segment, 0)
    # From 1.16 on, levels 1 and 2 leave it to the process itself.
    if version == 0 and len(segment) in sizes() and not any(segment):
        return LEVEL_LOW
    layout = layouts().get((version, len(segment)))
    if layout is None:
        return UNKNOWN_LAYOUT
    number = _u32(segment, layout.gpus)
    first = layout.gpus + 8
    if first + number * layout.stride > len(segment):
        return MALFORMED
    gpus = []
    for at in range(first, first + number * layout.stride, layout.stride):
        read, write = (_direction(segment, at, offsets) for offsets in (layout.read, layout.write))
        gpus.append(Gpu(_uuid(segment[at : at + 16]), read, write))
    totals = (_u64(segment, layout.read_bytes), _u64(segment, layout.write_bytes))
    return Counters(version, len(segment), *totals, tuple(gpus))


def _direction(segment: bytes, at: int, offsets: Mapping[str, int]) -> Direction:
    values: Dict[str, Any] = {name: _u64(segment, at + offset) for name, offset in offsets.items()}
    return Direction(**{"nvfs": None, "p2pdma": None, **values})


def _uuid(raw: bytes) -> str:
    """As nvidia-smi prints it."""
    text = raw.hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _u32(segment: bytes, at: int) -> int:
    value: int = struct.unpack_from("<I", segment, at)[0]
    return value


def _u64(segment: bytes, at: int) -> int:
    value: int = struct.unpack_from("<Q", segment, at)[0]
    return value


def as_record(counters: Counters) -> Dict[str, Any]:
    """As JSON values; ``from_record`` reads them."""
    gpus = [[gpu.uuid, list(gpu.read), list(gpu.write)] for gpu in counters.gpus]
    return {**counters._asdict(), "gpus": gpus}


def from_record(record: Any) -> Optional[Counters]:
    """The counters of a record; None if it isn't one, whatever it is."""
    if not isinstance(record, dict):
        return None
    numbers: List[Any] = [record.get(name) for name in ("version", "size", "read_bytes", "write_bytes")]
    version, size, read, written = numbers
    rows = record.get("gpus")
    if not all(map(_is_count, numbers)) or not isinstance(rows, list) or len(rows) > GPUS:
        return None
    gpus: List[Gpu] = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
            return None
        reads, writes = (_direction_of(values) for values in row[1:])
        if reads is None or writes is None:
            return None
        gpus.append(Gpu(row[0], reads, writes))
    return Counters(version, size, read, written, tuple(gpus))


def _direction_of(values: Any) -> Optional[Direction]:
    if not isinstance(values, list) or len(values) != len(Direction._fields):
        return None
    direction = Direction(*values)
    optional = (direction.nvfs, direction.p2pdma)
    others = (value for value in direction if value is not None)
    return direction if all(map(_is_count, others)) and values.count(None) == optional.count(None) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
