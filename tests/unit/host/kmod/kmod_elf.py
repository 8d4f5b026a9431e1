"""Write small kernel modules as files: the sections that readers look at, nothing that could run."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

VERMAGIC = "6.12.94+deb13-amd64 SMP preempt mod_unload modversions "
SIGNATURE = b"x" * 413 + struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, 413) + b"~Module signature appended~\n"

PROGBITS, SYMTAB, STRTAB, NOBITS = 1, 2, 3, 8
ABS = 0xFFF1


class Strings:
    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


class Writer:
    """Sections and symbols by name; ``bytes()`` lays them out."""

    def __init__(self, machine: int = 62) -> None:
        self.machine = machine
        self.sections: list[tuple[str, int, bytes]] = [("", 0, b"")]
        self.symbols: list[tuple[str, int, int, int]] = []

    def section(self, name: str, data: bytes, kind: int = PROGBITS) -> int:
        self.sections.append((name, kind, data))
        return len(self.sections) - 1

    def symbol(self, name: str, section: int = 0, value: int = 0, info: int = 0x10) -> None:
        self.symbols.append((name, section, value, info))

    def bytes(self) -> bytes:
        names, strings = Strings(), Strings()
        table = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
        for name, section, value, info in self.symbols:
            table += struct.pack("<IBBHQQ", strings.add(name), info, 0, section, value, 0)
        sections = [*self.sections, (".symtab", SYMTAB, table), (".strtab", STRTAB, strings.data)]
        offsets = [names.add(name) for name, _, _ in sections]
        offsets.append(names.add(".shstrtab"))
        sections.append((".shstrtab", STRTAB, names.data))
        body, headers, start = b"", b"", 64
        for (name, kind, data), offset in zip(sections, offsets):  # noqa: B905 - runs on 3.8, too
            link = len(sections) - 2 if name == ".symtab" else 0
            place = start + len(body)
            headers += struct.pack("<IIQQQQIIQQ", offset, kind, 0, 0, place, len(data), link, 0, 1, 0)
            body += b"" if kind == NOBITS else data
        ident = b"\x7fELF" + bytes([2, 1, 1]) + b"\0" * 9
        shoff = start + len(body)
        header = struct.pack(
            "<16sHHIQQQIHHHHHH",
            ident,
            1,
            self.machine,
            1,
            0,
            0,
            shoff,
            0,
            64,
            0,
            0,
            64,
            len(sections),
            len(sections) - 1,
        )
        return header + body + headers


def module_bytes(
    name: str = "nvidia",
    *,
    vermagic: str = VERMAGIC,
    license: str = "GPL v2",  # noqa: A002
    depends: str = "",
    info: Sequence[tuple[str, str]] = (),
    imports: Mapping[str, int | None] | None = None,
    weak: Sequence[str] = (),
    exports: Mapping[str, tuple[int, bool]] | None = None,
    layout: str = "kcrctab",
    extended: Mapping[str, int] | None = None,
    machine: int = 62,
    signature: bytes = b"",
) -> bytes:
    """A module's bytes.

    exports: name → (CRC, GPL only); layout: where the CRC is: ``absolute`` (before 4.11, and arm), ``rodata`` (relative
    CRCs, to 5.18), ``kcrctab`` (since 5.19), ``flags`` (7.2, without versions).
    """
    elf = Writer(machine)
    pairs = [("license", license), *info, ("depends", depends), ("name", name), ("vermagic", vermagic)]
    elf.section(".modinfo", b"".join("{}={}\0".format(*pair).encode() for pair in pairs))
    imports = imports or {}
    known = {"module_layout": 0x11111111, **imports} if "modversions" in vermagic else {}
    entries = [(crc, symbol) for symbol, crc in known.items() if crc is not None]
    elf.section("__versions", b"".join(struct.pack("<Q56s", crc, symbol.encode()) for crc, symbol in entries))
    if extended:
        elf.section("__version_ext_crcs", struct.pack(f"<{len(extended)}I", *extended.values()))
        elf.section("__version_ext_names", b"".join(symbol.encode() + b"\0" for symbol in extended))
    for symbol in [*imports, *(extended or {})]:
        elf.symbol(symbol, info=0x20 if symbol in weak else 0x10)
    _write_exports(elf, exports or {}, layout)
    return elf.bytes() + signature


def _write_exports(elf: Writer, exports: Mapping[str, tuple[int, bool]], layout: str) -> None:
    for gpl in (False, True):
        chosen = [(name, crc) for name, (crc, only) in exports.items() if only == gpl]
        suffix = "_gpl" if gpl and layout != "flags" else ""
        table = elf.section("__ksymtab" + suffix, b"\0" * 12 * len(chosen))
        crcs = b"".join(struct.pack("<I", crc) for _, crc in chosen)
        place = {"absolute": ABS, "flags": 0}.get(layout)
        if place is None:
            place = elf.section(".rodata" if layout == "rodata" else "__kcrctab" + suffix, crcs)
        flags = elf.section("__kflagstab", bytes([gpl]) * len(chosen)) if layout == "flags" else 0
        for number, (name, crc) in enumerate(chosen):
            elf.symbol("__ksymtab_" + name, table, 12 * number, 0)
            elf.symbol(name, 1, 0)
            if layout == "flags":
                elf.symbol("__flags_" + name, flags, number, 0)
            else:
                elf.symbol("__crc_" + name, place, crc if layout == "absolute" else 4 * number, 0)


def write_module(path: Path, name: str = "nvidia", **options: object) -> Path:
    """Write :func:`module_bytes` to ``path``, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(module_bytes(name, **options))  # type: ignore[arg-type]
    return path
