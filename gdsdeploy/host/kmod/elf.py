"""Read ELF64 relocatable files (kernel modules) within bounds that hostile files can't break.

Layouts are those of the ELF-64 object file format and of the gABI's extended numbering.
"""

from __future__ import annotations

import os
import struct
from typing import IO, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..errors import ElfError

#: ``e_machine`` → name as ``uname -m`` gives it.
MACHINES = {62: "x86_64", 183: "aarch64"}
#: The largest piece that is read whole, in bytes; a real driver's symbol table has 3 MB.
READ_LIMIT = 64 << 20
#: -ffunction-sections gives some modules thousands of sections.
SECTIONS_LIMIT = 1 << 16
SYMBOLS_LIMIT = 1 << 21
#: Longest name of a section or symbol, in bytes; the kernel's own limit is 512.
NAME_LIMIT = 1024

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ET_REL = 1
_STB_WEAK = 2
_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_SHT_SYMTAB_SHNDX = 18
SHN_UNDEF = 0
SHN_ABS = 0xFFF1
SHN_XINDEX = 0xFFFF


class Section(NamedTuple):
    """``offset`` and ``size`` in bytes of the file; ``link`` is the index of a related section."""

    number: int
    name: str
    type: int
    offset: int
    size: int
    link: int


class Symbol(NamedTuple):
    """``section`` is an index, or SHN_UNDEF, or SHN_ABS; ``value`` is an offset in its section, or absolute."""

    name: str
    section: int
    value: int
    weak: bool


class Elf:
    """One open ELF64 relocatable file; every method raises ElfError for what the file gets wrong."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self.path = path
        self.size = self._file.seek(0, os.SEEK_END)
        header = _HEADER.unpack(self.read(0, _HEADER.size, "the ELF header"))
        ident, kind, machine, shoff, shentsize, shnum, shstrndx = (header[i] for i in (0, 1, 2, 6, 11, 12, 13))
        if ident[:4] != b"\x7fELF":
            raise self.error("is not an ELF file")
        if ident[4] != 2 or ident[5] != 1:
            raise self.error("is not a 64-bit little-endian ELF file")
        if kind != _ET_REL:
            raise self.error(f"is an ELF file of type {kind}, not a relocatable one: not a kernel module")
        if machine not in MACHINES:
            raise self.error(f"is for machine {machine}; known are {', '.join(MACHINES.values())}")
        self.machine = MACHINES[machine]
        if shentsize != _SECTION.size:
            raise self.error(f"has section headers of {shentsize} bytes")
        self.sections = self._read_sections(shoff, shnum, shstrndx)
        self._by_name: Dict[str, Section] = {}
        for section in self.sections:
            self._by_name.setdefault(section.name, section)

    def error(self, what: str) -> ElfError:
        return ElfError(f"{self.path}: {what}")

    def read(self, offset: int, size: int, what: str) -> bytes:
        """Return ``size`` bytes at ``offset``; ``what`` names them in the error when the file ends before."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.error(f"is truncated: {what} would end at byte {offset + size} of {self.size}")
        if size > READ_LIMIT:
            raise self.error(f"{what} has {size} bytes, more than any real module")
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except OSError as reason:
            raise self.error(f"cannot be read: {reason.strerror}") from None
        if len(data) != size:
            raise self.error("changed while it was read")
        return data

    def section(self, name: str) -> Optional[Section]:
        """Return the first section of that name."""
        return self._by_name.get(name)

    def content(self, section: Section, limit: int = READ_LIMIT) -> bytes:
        """Return the bytes of ``section``, at most ``limit``; empty for one that takes no space in the file."""
        if section.type == _SHT_NOBITS:
            return b""
        if section.size > limit:
            raise self.error(f"section {section.name} has {section.size} bytes, more than any real one")
        return self.read(section.offset, section.size, f"section {section.name}")

    def symbols(self, prefix: bytes = b"") -> Iterator[Symbol]:
        """Yield the undefined symbols of the (one) symbol table and those that begin with ``prefix``."""
        table = next((section for section in self.sections if section.type == _SHT_SYMTAB), None)
        if table is None:
            return
        count, odd = divmod(table.size, _SYMBOL.size)
        if odd or count > SYMBOLS_LIMIT:
            raise self.error(f"has a symbol table of {table.size} bytes")
        if not 0 < table.link < len(self.sections):
            raise self.error("has a symbol table without names")
        names = self.content(self.sections[table.link])
        wide = self._wide_indices(table, count)
        entries: Iterator[Tuple[int, int, int, int, int, int]] = _SYMBOL.iter_unpack(self.content(table))
        for number, (name, info, _other, index, value, _size) in enumerate(entries):
            if not name or (index != SHN_UNDEF and not names.startswith(prefix, name)):
                continue
            end = names.find(b"\0", name, name + NAME_LIMIT)
            if end < 0:
                raise self.error(f"symbol {number} has no proper name")
            if index == SHN_XINDEX and wide:
                index = wide[number]
            yield Symbol(names[name:end].decode("utf-8", "replace"), index, value, info >> 4 == _STB_WEAK)

    def _wide_indices(self, table: Section, count: int) -> Tuple[int, ...]:
        for section in self.sections:
            if section.type == _SHT_SYMTAB_SHNDX and section.link == table.number:
                data = self.content(section)
                if len(data) != 4 * count:
                    raise self.error(f"has a section index table of {len(data)} bytes for {count} symbols")
                return struct.unpack(f"<{count}I", data)
        return ()

    def _read_sections(self, shoff: int, shnum: int, shstrndx: int) -> List[Section]:
        if shoff == 0:
            raise self.error("has no section headers")
        first = _SECTION.unpack(self.read(shoff, _SECTION.size, "the section headers"))
        count = shnum or first[5]
        names_index = first[6] if shstrndx == SHN_XINDEX else shstrndx
        if not 0 < count <= SECTIONS_LIMIT:
            raise self.error(f"has {count} sections")
        if not 0 < names_index < count:
            raise self.error("has no section names")
        raw = list(_SECTION.iter_unpack(self.read(shoff, _SECTION.size * count, "the section headers")))
        names = self.read(raw[names_index][4], raw[names_index][5], "the section names")
        sections = []
        for index, (name, kind, _flags, _addr, offset, size, link, _info, _align, _entsize) in enumerate(raw):
            end = names.find(b"\0", name, name + NAME_LIMIT)
            if end < 0:
                raise self.error(f"section {index} has no proper name")
            sections.append(Section(index, names[name:end].decode("utf-8", "replace"), kind, offset, size, link))
        return sections
