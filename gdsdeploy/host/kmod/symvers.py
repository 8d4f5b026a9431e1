"""Module.symvers: which symbol has which CRC, as modpost writes it and reads it (KBUILD_EXTRA_SYMBOLS)."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable, Iterator, Mapping, NamedTuple, Sequence

from ..errors import SymversError
from .files import open_plain
from .module import Module

#: A distribution kernel's file has 30 000 lines and 2 MB.
SIZE_LIMIT = 64 << 20
SYMBOLS_LIMIT = 1 << 20
_LINE_LIMIT = 4096
#: scripts/mod/modpost.c, of all releases since 2.6; a truncated one is none of them, or has no newline.
_KIND = re.compile(r"EXPORT_(?:UNUSED_)?SYMBOL(_GPL(?:_FUTURE)?)?")


class Export(NamedTuple):
    """One line.  ``module`` is a path without suffix: ``vmlinux``, ``drivers/nvme/host/nvme``, ``/build/nvidia``."""

    crc: int
    module: str
    gpl: bool
    namespace: str = ""


class Exports(Mapping[str, Export]):
    """Symbol → Export, of which an audit looks at a few hundred among tens of thousands."""

    def __init__(self, fields: Mapping[str, Sequence[Any]]) -> None:
        """fields: symbol → an Export's fields."""
        self._fields = fields

    def __getitem__(self, symbol: str) -> Export:
        return Export(*self._fields[symbol])

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def read_symvers(path: str) -> Dict[str, Export]:
    """Read ``path``, plain or compressed (.gz, .xz, .zst); symbol → Export.  Raises SymversError with the line."""
    exports: Dict[str, Export] = {}
    with open_plain(path, SymversError, SIZE_LIMIT) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LINE_LIMIT), b""), start=1):
            if len(exports) >= SYMBOLS_LIMIT or len(line) >= _LINE_LIMIT:
                raise SymversError(f"{path}:{number}: is larger than any real Module.symvers")
            if not line.endswith(b"\n"):
                raise SymversError(f"{path}:{number}: is truncated: its last line has no end")
            text = line.decode("utf-8", "replace").rstrip("\n")
            if text:
                symbol, export = _parse(text, path, number)
                exports[symbol] = export
    return exports


def write_symvers(module: Module, place: str, versioned: bool = True) -> str:
    """The Module.symvers text of a build of ``module``, in the order of symbol names.

    place: the module's path; modpost writes its last component into ``depends:``.  versioned: whether the kernel
    compares versions; if not, a missing one is 0.  Raises SymversError for an export without a required version.
    """
    lines = []
    for name, (crc, gpl) in sorted(module.exports.items()):
        if crc is None and versioned:
            hint = "the module was built for a kernel without CONFIG_MODVERSIONS; rebuild it for this kernel"
            raise SymversError(f"{module.path}: exports {name} without a symbol version", hint)
        lines.append(format_line(name, Export(crc or 0, place, gpl)))
    return "".join(lines)


def format_line(symbol: str, export: Export) -> str:
    """One line as modpost writes it since Linux 5.6."""
    kind = "EXPORT_SYMBOL_GPL" if export.gpl else "EXPORT_SYMBOL"
    return f"0x{export.crc:08x}\t{symbol}\t{export.module}\t{kind}\t{export.namespace}\n"


def from_cmd_files(texts: Iterable[str], place: str) -> Dict[str, Export]:
    """Exports from ``.<unit>.o.cmd`` files: kbuild leaves ``#SYMVER name crc`` lines while compiling (Linux ≥ 5.19).

    They say no more than name and CRC; GPL-ness is not in them, and modpost needs it only for a warning.
    """
    lines = re.findall(r"^#SYMVER (\S+) 0x([0-9a-fA-F]{1,8})\s*$", "\n".join(texts), re.MULTILINE)
    return {name: Export(int(crc, 16), place, True) for name, crc in lines}


def digest_name(module: str) -> str:
    """The in-kernel name of a line's module."""
    return os.path.basename(module).replace("-", "_")


def _parse(text: str, path: str, number: int) -> tuple[str, Export]:
    parts = text.split("\t")
    try:
        crc = int(parts[0], 16)
    except ValueError:
        crc = -1
    if len(parts) not in (4, 5) or not parts[0].startswith("0x") or not 0 <= crc <= 0xFFFFFFFF or not parts[1]:
        raise SymversError(f"{path}:{number}: isn't a line of a Module.symvers: {text[:80]!r}")
    # Linux 5.4 and 5.5 had the namespace third; everything else has it last, or not at all.
    if parts[3].startswith("EXPORT_"):
        module, kind, namespace = parts[2], parts[3], parts[4] if len(parts) == 5 else ""
    elif len(parts) == 5 and parts[4].startswith("EXPORT_"):
        namespace, module, kind = parts[2], parts[3], parts[4]
    else:
        raise SymversError(f"{path}:{number}: names no kind of export: {text[:80]!r}")
    match = _KIND.fullmatch(kind)
    if match is None:
        raise SymversError(f"{path}:{number}: names no kind of export: {text[:80]!r}")
    return parts[1], Export(crc, module, bool(match.group(1)), namespace)
