"""Type data (BTF) of a module, as far as a kernel checks it without the types of its own that it refers to.

The layout is that of Documentation/bpf/btf.rst; kernel/bpf/btf.c refuses a module whose data breaks it.
"""

from __future__ import annotations

import struct
from typing import Tuple

from .files import Elf, open_plain

_MAGIC = 0xEB9F
#: struct btf_header: magic, version, flags, its own length; offset and length of types, and of texts.
_HEADER = struct.Struct("<HBBIIIII")
#: struct btf_type: name, kind and count, size or another type.
_TYPE = struct.Struct("<III")
#: Kind → bytes that follow a type: once, and for each of its members.
_AFTER = {
    **dict.fromkeys((2, 7, 8, 9, 10, 11, 12, 16, 18), (0, 0)),
    **dict.fromkeys((1, 14, 17), (4, 0)),
    3: (12, 0),
    **dict.fromkeys((4, 5, 15, 19), (0, 12)),
    **dict.fromkeys((6, 13), (0, 8)),
}


def btf_problem(path: str) -> Tuple[str, bool]:
    """(What is wrong with the type data of the module in ``path``, whether that's certain); empty: nothing is.

    A kind of type that isn't known here may be one of newer kernels.  Raises ElfError.
    """
    with open_plain(path) as file:
        elf = Elf(file, path)
        section = elf.section(".BTF")
        data = elf.content(section) if section is not None else b""
    if not data:
        return "", True
    if len(data) < _HEADER.size:
        return f"it ends after {len(data)} bytes", True
    magic, version, _flags, size, types, types_size, texts, texts_size = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != 1:
        return f"its header is of version {version}, magic 0x{magic:04x}", version == 1
    if size < _HEADER.size or size + max(types + types_size, texts + texts_size) > len(data):
        return f"its header needs more than its {len(data)} bytes", True
    place, end = size + types, size + types + types_size
    while place <= end - _TYPE.size:
        info = _TYPE.unpack_from(data, place)[1]
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        if kind not in _AFTER:
            return f"a type is of kind {kind}", not kind
        once, each = _AFTER[kind]
        place += _TYPE.size + once + count * each
    return ("" if place == end else "its last type is truncated"), True
