"""Where a shared library's functions, and its own calls of other libraries' functions, are in its file.  Pure.

Only libcufile's own calls pass its stubs in ``.plt``: so a probe there counts what libcufile itself reads and writes.
"""

from __future__ import annotations

import struct
from typing import Dict, Iterable, Iterator, List, NamedTuple, Tuple

_HEADER, _SECTION, _PROGRAM = (
    struct.Struct("<16sHHIQQQIHHHHHH"),
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IIQQQQQQ"),
)
_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_DYNSYM, _RELA, _PROGBITS, _LOAD, _EXECUTABLE = 11, 4, 1, 1, 4
_JUMP_SLOT, _X86_64 = 7, 62
#: Sections of a library; those of 1.4 to 1.20 are about 30.
SECTIONS_LIMIT = 256


class NotALibraryError(Exception):
    """The file isn't an ELF64 shared library of this machine, or contradicts itself."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


def offsets(data: bytes, functions: Iterable[str], calls: Iterable[str]) -> Dict[str, int]:
    """Name → offset in the file ``data`` of each of ``functions`` and of the stub of each of ``calls`` that it has.

    Raises NotALibraryError.
    """
    try:
        return {**_functions(data, set(functions)), **_stubs(data, set(calls))}
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise NotALibraryError(f"its structure is damaged: {error}") from None


def _sections(data: bytes) -> List[_Section]:
    header = _HEADER.unpack_from(data)
    if header[0][:6] != b"\x7fELF\x02\x01" or header[2] != _X86_64:
        raise NotALibraryError("it isn't a library for x86_64")
    begin, size, number = header[6], header[11], header[12]
    if size != _SECTION.size or number > SECTIONS_LIMIT:
        raise NotALibraryError("it has no usable table of sections")
    return [_Section(*_SECTION.unpack_from(data, begin + at * size)) for at in range(number)]


def _segments(data: bytes) -> Iterator[Tuple[int, int, int]]:
    """(address, offset, bytes) of each executable part."""
    header = _HEADER.unpack_from(data)
    for at in range(min(header[10], SECTIONS_LIMIT)):
        kind, flags, offset, address, _, size, _, _ = _PROGRAM.unpack_from(data, header[5] + at * _PROGRAM.size)
        if kind == _LOAD and flags & 1:
            yield address, offset, size


def _in_file(data: bytes, address: int) -> int:
    for begin, offset, size in _segments(data):
        if begin <= address < begin + size and offset + size <= len(data):
            return address - begin + offset
    raise NotALibraryError(f"no code is at {address:#x}")


def _text(data: bytes, table: _Section, at: int) -> str:
    begin = table.offset + at
    return data[begin : data.index(b"\0", begin, begin + 512)].decode("latin-1")


def _symbols(data: bytes, sections: List[_Section], table: _Section) -> Iterator[Tuple[str, int]]:
    """(name, address) of each dynamic symbol; 0: another library's."""
    names = sections[table.link]
    for at in range(table.offset, table.offset + table.size - _SYMBOL.size + 1, _SYMBOL.size):
        name, _, _, section, value, _ = _SYMBOL.unpack_from(data, at)
        yield _text(data, names, name), value if section else 0


def _functions(data: bytes, names: set[str]) -> Dict[str, int]:
    sections = _sections(data)
    (table,) = [section for section in sections if section.type == _DYNSYM]
    return {name: _in_file(data, value) for name, value in _symbols(data, sections, table) if name in names and value}


def _stubs(data: bytes, names: set[str]) -> Dict[str, int]:
    """The jump through each function's slot: ``ff 25`` and the distance to the slot."""
    sections = _sections(data)
    (table,) = [section for section in sections if section.type == _DYNSYM]
    symbols = [name for name, _ in _symbols(data, sections, table)]
    slots: Dict[int, str] = {}
    for section in sections:
        if section.type == _RELA:
            for at in range(section.offset, section.offset + section.size - _RELOCATION.size + 1, _RELOCATION.size):
                slot, info, _ = _RELOCATION.unpack_from(data, at)
                if info & 0xFFFFFFFF == _JUMP_SLOT and symbols[info >> 32] in names:
                    slots[slot] = symbols[info >> 32]
    stubs: Dict[str, int] = {}
    for section in sections:
        # Stubs are 8 or 16 bytes long; code of the library itself is no table of such.
        if section.type == _PROGBITS and section.flags & _EXECUTABLE and section.entry in (8, 16):
            code = data[section.offset : section.offset + section.size]
            at = code.find(b"\xff\x25")
            while 0 <= at <= len(code) - 6:
                distance = struct.unpack_from("<i", code, at + 2)[0]
                name = slots.get(section.address + at + 6 + distance)
                if name is not None:
                    stubs.setdefault(name, section.offset + at)
                at = code.find(b"\xff\x25", at + 1)
    return stubs
