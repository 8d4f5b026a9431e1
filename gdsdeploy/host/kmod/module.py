"""What a kernel module says about itself: modinfo, the symbols it imports and exports with CRCs, its signature.

Also what ``modprobe --show-depends`` prints of modules, and how Debian renames the driver's.

What an audit says about a module: ``{"id", "severity", "outcome", "message", "hint"}``, all texts.

docs/gen/audit_findings.json says what each id means.  ``severity`` is for people; code branches on ``outcome``.  They
differ only for an undecided finding: a warning with the outcome ``unknown``.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from typing import IO, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..errors import ElfError, failing
from ..io import cache
from ..io.wording import first_few
from .files import SHN_ABS, SHN_UNDEF, SUFFIXES, Elf, open_plain

#: Section, and file of a loaded module, with the build id.
BUILD_ID = ".note.gnu.build-id"
_BUILD_ID_NOTE = re.compile("(?:04000000.{8}03000000|00000004.{8}00000003)474e5500(.+)")
#: modinfo keys that a build by ``build.py`` adds begin with this.
PROVENANCE = "gdsdeploy_"

#: struct modversion_info on 64 bits: a CRC as unsigned long, then a name that fills 64 bytes (linux/module.h).
_MODVERSION = struct.Struct("<Q56s")
#: struct module_signature (linux/module_signature.h): algo, hash, id_type, two lengths, padding, big-endian length.
_SIGNATURE = struct.Struct(">BBBBB3xI")
#: Bit of a symbol's byte in ``__kflagstab``, which took the place of the ``_gpl`` sections (seen in Linux 7.2).
_GPL_ONLY = 1
#: Bounds on what a file can make this program keep; real modules stay below a tenth of each.
_MODINFO_LIMIT = 1 << 20
_SYMBOLS_LIMIT = 1 << 16
_NOTE_LIMIT = 1 << 12
_ENDING = re.compile(r"\.ko(?:{})\Z".format("|".join(map(re.escape, SUFFIXES))))
SIGNATURE_MARK = b"~Module signature appended~\n"
_PKCS7 = 2


#: Errors, and warnings that a person needn't weigh, which a build of the same sources beside the present kernel, driver
#: and OFED takes away: the audit's hint is to build, and build/dkms.py does.
REBUILT = frozenset(
    (
        *("missing", "unreadable", "machine", "vermagic", "driver-tree", "driver-tree-unknown", "page-table"),
        *("symbol-crc", "symbol-missing", "symbol-unversioned", "symbol-namespace", "module-size", "type-data"),
        *("driver-version", "driver-flavour", "nvidia-fs-version", "ofed-tree", "peermem-stub"),
    )
)


@dataclass(frozen=True)
class Module:
    """One module file.  Texts are empty and lists are empty where the module says nothing."""

    path: str
    #: in-kernel name, underscores only
    name: str
    vermagic: str
    version: str
    srcversion: str
    license: str
    #: in-kernel names
    depends: List[str] = field(default_factory=list)
    intree: bool = False
    #: namespaces of symbols that it declares to use (MODULE_IMPORT_NS)
    namespaces: List[str] = field(default_factory=list)
    #: what the build recorded: keys without the prefix, e.g. ``driver``, ``flavour``, ``tree``, ``source``
    provenance: Dict[str, str] = field(default_factory=dict)
    #: symbol → CRC, or None where the module carries no version for it.  Has ``module_layout`` where versions are used:
    #: the kernel checks it first.
    imports: Dict[str, Optional[int]] = field(default_factory=dict)
    #: those imports that the module can do without
    weak: List[str] = field(default_factory=list)
    #: symbol → (CRC or None, whether it is for GPL-compatible modules only)
    exports: Dict[str, Tuple[Optional[int], bool]] = field(default_factory=dict)
    #: export → its namespace, of those in one
    export_namespaces: Dict[str, str] = field(default_factory=dict)
    #: ``{"format": "PKCS#7", "size": bytes}``, or None when nothing is appended
    signature: Optional[Dict[str, object]] = None
    #: as ``uname -m``
    machine: str = ""
    #: as the compiler signs its work, e.g. ``GCC: (Debian 14.2.0-19) 14.2.0``; empty when that was stripped
    compiler: str = ""
    #: what the linker made of the whole build, in hex and without the note's header; empty without one
    build_id: str = ""
    #: bytes of struct module, as the module was compiled; 0 where it isn't there
    struct_size: int = 0


def read_module(path: str) -> Module:
    """Read the module at ``path``, compressed (.xz, .gz, .zst) or not; raises ElfError."""
    with open_plain(path) as file:
        return _read(file, path)


def read_once(path: str) -> Module:
    """Like :func:`read_module`, cached while the file doesn't change; for installed modules."""
    with failing(ElfError, f"{path}: cannot be read"):
        status = os.stat(path)
    return _read_once(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=64)
def _read_once(path: str, _identity: Tuple[int, ...]) -> Module:
    value = cache.of_file("module", path, lambda: asdict(read_module(path)))
    return Module(**{**value, "exports": {name: (crc, gpl) for name, (crc, gpl) in value["exports"].items()}})


def name_of(path: str) -> str:
    """The in-kernel name that depmod and modprobe derive from a file's name."""
    return in_kernel(_ENDING.sub("", os.path.basename(path)))


def in_kernel(name: str) -> str:
    """A module's name as the kernel has it, which modprobe takes with hyphens, too."""
    return name.replace("-", "_")


def stem_of(path: str) -> str:
    """A file's path without the suffixes of a module."""
    return _ENDING.sub("", path)


def _read(file: IO[bytes], path: str) -> Module:
    elf = Elf(file, path)
    info = _modinfo(elf)

    def one(key: str) -> str:
        return info[key][0] if key in info else ""

    imports, weak, exports, spaces = _symbols(elf, _import_versions(elf))
    this_module = elf.section(".gnu.linkonce.this_module")
    return Module(
        path=path,
        name=one("name") or name_of(path),
        vermagic=one("vermagic"),
        version=one("version"),
        srcversion=one("srcversion"),
        license=one("license"),
        depends=[in_kernel(name) for name in one("depends").split(",") if name],
        intree=one("intree") == "Y",
        namespaces=info.get("import_ns", []),
        provenance={key[len(PROVENANCE) :]: values[0] for key, values in info.items() if key.startswith(PROVENANCE)},
        imports=imports,
        weak=weak,
        exports=exports,
        export_namespaces=spaces,
        signature=_signature(elf),
        machine=elf.machine,
        compiler=next(filter(None, _texts(elf, ".comment")), ""),
        build_id=build_id_of(_content(elf, BUILD_ID, _NOTE_LIMIT).hex()),
        struct_size=this_module.size if this_module is not None else 0,
    )


def build_id_of(note: str) -> str:
    """The build id in a note in hex, as a module file and /sys/module/NAME/notes have it; anything else as it is.

    The note of either byte order is: length of the name, length of the id, type 3 (NT_GNU_BUILD_ID, elf.h), "GNU", id.
    """
    match = _BUILD_ID_NOTE.match(note)
    return match.group(1) if match else note


def _content(elf: Elf, name: str, limit: int) -> bytes:
    """The bytes of a section; empty without that section."""
    section = elf.section(name)
    return elf.content(section, limit) if section is not None else b""


def _texts(elf: Elf, name: str) -> List[str]:
    return [text.decode("utf-8", "replace") for text in _content(elf, name, _MODINFO_LIMIT).split(b"\0")]


def _modinfo(elf: Elf) -> Dict[str, List[str]]:
    if elf.section(".modinfo") is None:
        raise elf.error("has no .modinfo section: not a kernel module")
    info: Dict[str, List[str]] = {}
    for key, separator, value in (entry.partition("=") for entry in _texts(elf, ".modinfo")):
        if separator:
            info.setdefault(key, []).append(value)
    return info


def _import_versions(elf: Elf) -> Dict[str, int]:
    """CRCs from ``__versions`` and, for names longer than its entries hold, ``__version_ext_*`` (Linux 6.14)."""
    versions: Dict[str, int] = {}
    data = _content(elf, "__versions", _MODVERSION.size * _SYMBOLS_LIMIT)
    if len(data) % _MODVERSION.size:
        raise elf.error(f"section __versions has {len(data)} bytes, no multiple of {_MODVERSION.size}")
    for crc, name in _MODVERSION.iter_unpack(data):
        versions[name.split(b"\0", 1)[0].decode("utf-8", "replace")] = crc & 0xFFFFFFFF
    crcs, names = elf.section("__version_ext_crcs"), elf.section("__version_ext_names")
    if (crcs is None) != (names is None):
        raise elf.error("has extended versions without names, or names without versions")
    if crcs is not None and names is not None:
        content = elf.content(crcs, 4 * _SYMBOLS_LIMIT)
        values = [value for (value,) in struct.iter_unpack("<I", content[: len(content) // 4 * 4])]
        texts = elf.content(names, 256 * _SYMBOLS_LIMIT).split(b"\0")[:-1]
        if len(values) != len(texts):
            raise elf.error(f"has {len(values)} extended versions for {len(texts)} names")
        versions.update((text.decode("utf-8", "replace"), value) for text, value in zip(texts, values))
    return versions


def _symbols(
    elf: Elf, versions: Dict[str, int]
) -> Tuple[Dict[str, Optional[int]], List[str], Dict[str, Tuple[Optional[int], bool]], Dict[str, str]]:
    imports: Dict[str, Optional[int]] = {name: versions[name] for name in ("module_layout",) if name in versions}
    weak: List[str] = []
    crcs: Dict[str, int] = {}
    gpl: Dict[str, bool] = {}
    flags: Dict[str, int] = {}
    spaces: Dict[str, str] = {}
    strings = _content(elf, "__ksymtab_strings", _MODINFO_LIMIT)
    for symbol in elf.symbols(b"__"):
        if symbol.section == SHN_UNDEF:
            # GCC and the linker script leave names that aren't imports; the kernel ignores exactly this one.
            if symbol.name != "_GLOBAL_OFFSET_TABLE_":
                imports[symbol.name] = versions.get(symbol.name)
                if symbol.weak:
                    weak.append(symbol.name)
        elif symbol.name.startswith("__crc_"):
            crcs[symbol.name[6:]] = _crc(elf, symbol.section, symbol.value)
        elif symbol.name.startswith("__kstrtabns_"):
            space = strings[symbol.value :].split(b"\0", 1)[0].decode("utf-8", "replace")
            if space:
                spaces[symbol.name[len("__kstrtabns_") :]] = space
        elif symbol.name.startswith("__flags_"):
            flags[symbol.name[8:]] = _number(elf, symbol.section, symbol.value, 1)
        elif symbol.name.startswith("__ksymtab_") and symbol.section < len(elf.sections):
            section = elf.sections[symbol.section].name
            if "ksymtab" in section:
                # ``__ksymtab_gpl`` in a linked module, ``___ksymtab_gpl+name`` before linking; 7.2 has flags instead.
                gpl[symbol.name[10:]] = section.split("+", 1)[0].lstrip("_").startswith("ksymtab_gpl")
        if max(len(imports), len(crcs), len(flags), len(gpl), len(spaces)) > _SYMBOLS_LIMIT:
            raise elf.error(f"has more than {_SYMBOLS_LIMIT} imports or exports")
    gpl.update((name, bool(bits & _GPL_ONLY)) for name, bits in flags.items() if name in gpl)
    return imports, weak, {name: (crcs.get(name), only) for name, only in gpl.items()}, spaces


def _crc(elf: Elf, section: int, value: int) -> int:
    """The CRC that a ``__crc_`` symbol stands for: an absolute symbol's value, or the 32 bits that another marks.

    The marked place is in .rodata from Linux 4.11 to 5.18 (relative CRCs), in __kcrctab since.
    """
    return value & 0xFFFFFFFF if section == SHN_ABS else _number(elf, section, value, 4)


def _number(elf: Elf, section: int, value: int, size: int) -> int:
    if section >= len(elf.sections):
        raise elf.error(f"has a symbol in section {section} of {len(elf.sections)}")
    place = elf.sections[section]
    if not 0 <= value <= place.size - size:
        raise elf.error(f"has a symbol outside section {place.name}")
    return int.from_bytes(elf.read(place.offset + value, size, "a symbol's value"), "little")


def _signature(elf: Elf) -> Optional[Dict[str, object]]:
    tail = len(SIGNATURE_MARK) + _SIGNATURE.size
    if elf.size < tail or elf.read(elf.size - len(SIGNATURE_MARK), len(SIGNATURE_MARK), "") != SIGNATURE_MARK:
        return None
    _algo, _hash, kind, _signer, _key, size = _SIGNATURE.unpack(elf.read(elf.size - tail, _SIGNATURE.size, ""))
    return {"format": "PKCS#7" if kind == _PKCS7 else f"type {kind}", "size": size}


def files_to_load(shown: str) -> List[str]:
    """The files that would be loaded, in that order; the last one is the module itself."""
    return [line.split()[1] for line in shown.splitlines() if line.startswith("insmod ") and len(line.split()) > 1]


def substitute_of(shown: str) -> str:
    """The module that a rule ``install NAME modprobe -i OTHER …`` loads instead (Debian's alternatives); else empty."""
    lines = [line for line in shown.splitlines() if line.strip()]
    if not lines or not lines[-1].startswith("install "):
        return ""
    match = re.search(r"\bmodprobe\s+(?:-i|--ignore-install)\s+([A-Za-z0-9_-]+)", lines[-1])
    return match.group(1) if match else ""


Finding = Dict[str, str]

#: The module does not load, or does not work; it is not what it should be, or will fail later; good to know.
ERROR, WARNING, NOTE = "error", "warning", "note"
#: The outcome of what could not be decided.  The others are ``error``, ``warning`` and, of a note, ``ok``.
UNKNOWN = "unknown"
OK = "ok"
#: Id of the finding that a file which decides can't be read: whatever is audited isn't installed or admitted.
INCOMPLETE = "input-unknown"
_OUTCOMES = (ERROR, UNKNOWN, WARNING, OK)


def finding(ident: str, severity: str, message: str, hint: str = "") -> Finding:
    """A decided finding.  severity: ERROR, WARNING or NOTE."""
    outcome = OK if severity == NOTE else severity
    return {"id": ident, "severity": severity, "outcome": outcome, "message": message, "hint": hint}


def unknown_finding(ident: str, message: str, hint: str = "") -> Finding:
    """A finding that the files at hand do not decide: nothing is known to be wrong, and the module is not ``ok``."""
    return {"id": ident, "severity": WARNING, "outcome": UNKNOWN, "message": message, "hint": hint}


def outcome_of(recorded: Mapping[str, Any]) -> str:
    """The outcome of a finding read from JSON; one without an outcome of these is undecided."""
    outcome = recorded.get("outcome")
    return str(outcome) if outcome in _OUTCOMES else UNKNOWN


def decisive(findings: Sequence[Finding]) -> List[Finding]:
    """The findings that make a module unreliable: its errors or, without errors, the undecided ones."""
    errors = [each for each in findings if outcome_of(each) == ERROR]
    return errors or [each for each in findings if outcome_of(each) == UNKNOWN]


def is_incomplete(findings: Sequence[Finding]) -> bool:
    """Whether the audit could not read something that decides."""
    return any(each["id"] == INCOMPLETE for each in findings)


#: The first few symbols or files for one message; the rest is counted.
some = partial(first_few, most=6)
