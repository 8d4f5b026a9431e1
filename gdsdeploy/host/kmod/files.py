"""Module and symvers files: open them, compressed or not, at a bounded size; read ELF64 relocatable files.

Bounds hold for hostile files, too.  Layouts are those of the ELF-64 object file format and of the gABI's extended
numbering.  For Python before 3.14, zstd data is unpacked by the host's C library: the package manager, systemd or kmod
of every host with zstd-packed modules links it.  Layouts and calls are those of zstd.h (stable since 1.0).  A window
above 128 MiB is refused by the library's own default.

Driver source trees, identified by their content, not by their names.

Layouts seen: flat (``Kbuild``, ``nvidia/``, ``common/``) below /usr/src as NVIDIA, Debian and Ubuntu install it; and
one level down, in ``kernel-open`` or ``kernel``, in an unpacked installer.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import importlib
import io
import lzma
import os
import re
import stat
import struct
import tempfile
import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import IO, Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

from .. import process
from ..errors import ElfError, HostError, TreeError, failing

_LIBRARY = "libzstd.so.1"
CHUNK = 1 << 18
#: A header of xz may ask for any dictionary; ``xz -9`` asks for 64 MiB.
XZ_MEMORY = 256 << 20


class ZstdError(Exception):
    """The data is damaged or truncated."""


@lru_cache(maxsize=1)
def zstd_library() -> Optional[Any]:
    """The C library, with its functions declared; None where the host or this Python can't load it."""
    try:
        # Small Python packages come without ctypes.
        ctypes: Any = importlib.import_module("ctypes")
        loaded = ctypes.CDLL(_LIBRARY)
        for name, result, arguments in (
            ("ZSTD_createDStream", ctypes.c_void_p, []),
            ("ZSTD_freeDStream", ctypes.c_size_t, [ctypes.c_void_p]),
            ("ZSTD_initDStream", ctypes.c_size_t, [ctypes.c_void_p]),
            ("ZSTD_decompressStream", ctypes.c_size_t, [ctypes.c_void_p] * 3),
            ("ZSTD_isError", ctypes.c_uint, [ctypes.c_size_t]),
            ("ZSTD_getErrorName", ctypes.c_char_p, [ctypes.c_size_t]),
        ):
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        return None
    return loaded


def plain_chunks(source: Any) -> Iterator[bytes]:
    """What is left of ``source``, in pieces of at most 256 KiB."""
    return iter(lambda: source.read(CHUNK), b"")


def xz_chunks(source: IO[bytes], *, several: bool = False) -> Iterator[bytes]:
    """The unpacked content of ``source``, as :func:`plain_chunks`; raises EOFError and LZMAError.

    several: streams follow one another, with zeros between them, and may have the older format, .lzma.  The kernel's
    own unpacker takes neither, and stops at the end of the first stream.
    """
    data = source.read(CHUNK)
    while data or not several:
        form = lzma.FORMAT_AUTO if several else lzma.FORMAT_XZ
        decoder = lzma.LZMADecompressor(format=form, memlimit=XZ_MEMORY)
        while not decoder.eof:
            yield decoder.decompress(data, CHUNK)
            data = source.read(CHUNK) if decoder.needs_input else b""
            if decoder.needs_input and not data:
                raise EOFError("truncated")
        if not several:
            return
        data = decoder.unused_data.lstrip(b"\0")
        while not data and (more := source.read(CHUNK)):
            data = more.lstrip(b"\0")


def zstd_chunks(source: IO[bytes]) -> Optional[Iterator[bytes]]:
    """The unpacked content of ``source``, as :func:`plain_chunks`; None where this machine has no library for it.

    Reading raises ZstdError.
    """
    try:
        library: Any = importlib.import_module("compression.zstd")
    except ImportError:
        # Python has it from 3.14 on only.
        return library_chunks(source) if zstd_library() is not None else None
    return _python_chunks(library, source)


def _python_chunks(library: Any, source: IO[bytes]) -> Iterator[bytes]:
    try:
        yield from plain_chunks(library.open(source, "rb"))
    except (EOFError, library.ZstdError) as reason:
        raise ZstdError(str(reason)) from None


def library_chunks(source: IO[bytes]) -> Iterator[bytes]:
    """:func:`zstd_chunks` by :func:`zstd_library`."""
    import ctypes

    class Buffer(ctypes.Structure):
        """ZSTD_inBuffer and ZSTD_outBuffer."""

        _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("position", ctypes.c_size_t))

    zstd: Any = zstd_library()
    space = ctypes.create_string_buffer(CHUNK)
    stream = zstd.ZSTD_createDStream()
    if not stream:
        raise ZstdError("out of memory")
    try:
        zstd.ZSTD_initDStream(stream)
        missing = 1
        for data in plain_chunks(source):
            packed = Buffer(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data), 0)
            is_flushed = False
            while packed.position < packed.size or not is_flushed:
                plain = Buffer(ctypes.addressof(space), CHUNK, 0)
                missing = zstd.ZSTD_decompressStream(stream, ctypes.byref(plain), ctypes.byref(packed))
                if zstd.ZSTD_isError(missing):
                    raise ZstdError(zstd.ZSTD_getErrorName(missing).decode("ascii", "replace"))
                yield space.raw[: plain.position]
                is_flushed = missing == 0 or plain.position < plain.size
        if missing:
            raise ZstdError("truncated")
    finally:
        zstd.ZSTD_freeDStream(stream)


#: Suffixes that the kernel's module loader and depmod know.
SUFFIXES = ("", ".xz", ".gz", ".zst")
#: Largest file read, after decompression.  A driver with all its debug data is about 250 MB.
SIZE_LIMIT = 1 << 30
#: What a decompressed file may take of memory before it goes to a temporary file.
MEMORY_LIMIT = 16 << 20
#: Bytes of all unpacked files in the cache; a driver's modules have half of it.
_CACHE_LIMIT = 48 << 20
_cache: Dict[Tuple[Any, ...], bytes] = {}


def open_plain(path: str, error: Type[HostError] = ElfError, limit: int = SIZE_LIMIT) -> IO[bytes]:
    """Return a seekable file with the uncompressed content of ``path``; the suffix says how it is compressed.

    Raises ``error`` when the file is unreadable, damaged, or larger than ``limit`` bytes uncompressed.
    """
    unpack = _UNPACKERS.get(os.path.splitext(path)[1])
    try:
        status = os.stat(path)
        # A pipe in the place of a file would be waited for.
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path}: cannot be read: it is not a regular file")
        if status.st_size > limit:
            raise error(f"{path}: has more than {limit} bytes")
        source = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as reason:
        raise error(f"{path}: cannot be read: {reason.strerror}") from None
    if unpack is None:
        return source
    with source:
        identity = (path, status.st_ino, status.st_size, status.st_mtime_ns, limit)
        if identity in _cache:
            return io.BytesIO(_cache[identity])
        target: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=MEMORY_LIMIT)  # noqa: SIM115 - the caller closes it
        try:
            unpack(source, target, limit)
        except DamagedError as reason:
            target.close()
            raise error(f"{path}: {reason}", reason.hint) from None
        except OSError as reason:
            target.close()
            raise error(f"{path}: cannot be unpacked: {reason.strerror or reason}") from None
    # A module is read for its symbols and again for its signature, and unpacking is most of the time of both.
    if target.tell() <= MEMORY_LIMIT:
        target.seek(0)
        _cache[identity] = target.read()
        while sum(map(len, _cache.values())) > _CACHE_LIMIT:
            del _cache[next(iter(_cache))]
    target.seek(0)
    return target


class DamagedError(HostError):
    """A compressed module can't be unpacked."""


def _by_library(
    name: str,
    unpacked: Callable[[IO[bytes]], Optional[Iterator[bytes]]],
    damages: Tuple[Type[Exception], ...],
    source: IO[bytes],
    target: IO[bytes],
    limit: int,
) -> None:
    """damages: what reading the chunks of ``unpacked`` raises."""
    chunks = unpacked(source)
    if chunks is None:
        return _by_program(name, ("--memory=128MB",), source, target, limit)
    size = 0
    try:
        for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise DamagedError(f"unpacks to more than {limit} bytes")
            target.write(chunk)
    except damages as reason:
        raise DamagedError(f"damaged {name} data: {reason}") from None


def _by_program(name: str, options: Sequence[str], source: IO[bytes], target: IO[bytes], limit: int) -> None:
    done = process.pipe([name, "-dcq", *options], source, target, timeout=120, limit=limit)
    if done.status == process.NOT_FOUND:
        raise DamagedError(f"is {name}-compressed, and {name} isn't installed", f"install the package {name}")
    if done.truncated:
        raise DamagedError(f"unpacks to more than {limit} bytes")
    if done.status != 0:
        raise DamagedError(f"damaged {name} data: {done.failure()}")


_UNPACKERS: Dict[str, Callable[[IO[bytes], IO[bytes], int], None]] = {
    ".xz": partial(_by_library, "xz", xz_chunks, (EOFError, lzma.LZMAError)),
    ".gz": partial(
        _by_library,
        "gzip",
        lambda source: plain_chunks(gzip.GzipFile(fileobj=source)),
        (EOFError, zlib.error, gzip.BadGzipFile),
    ),
    ".zst": partial(_by_library, "zstd", zstd_chunks, (ZstdError,)),
    # Of kernel images only.
    ".lz4": partial(_by_program, "lz4", ()),
}


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
        self._by_name = {section.name: section for section in reversed(self.sections)}

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


SOURCES = "/usr/src"
_SUBFOLDERS = ("", "kernel-open", "kernel")
#: What makes up the interfaces that nvidia-fs and peermem are compiled against, and how the exporting unit is built.
#: Binary objects and everything that a build leaves behind stay out.
_DIGESTED = (
    "Kbuild",
    "Makefile",
    "conftest.sh",
    "header-presence-tests.mk",
    "common/inc/*.h",
    "common/inc/*/*.h",
    "nvidia/*.c",
    "nvidia/*.h",
    "nvidia/*.Kbuild",
    "nvidia-peermem/*.c",
    "nvidia-peermem/*.h",
    "nvidia-peermem/*.Kbuild",
)
_FOLDERS = ("", "common/inc", "nvidia", "nvidia-peermem")
_TEXT_LIMIT = 4 << 20
_TREES_HINT = "gdsdeploy kmod trees lists those of this host"
_OPEN = re.compile(r'MODULE_LICENSE\("Dual MIT/GPL"\)')
_PROPRIETARY = re.compile(r'MODULE_LICENSE\("NVIDIA"\)')


@dataclass(frozen=True)
class Tree:
    """A driver's kernel module sources."""

    #: the folder that has Kbuild
    path: str
    version: str
    #: ``open`` or ``proprietary``
    flavour: str
    #: the name under which DKMS knows it; empty without dkms.conf
    dkms_name: str

    @property
    def headers(self) -> str:
        """The folder with nv-p2p.h."""
        return os.path.join(self.path, "nvidia")

    def modules(self) -> List[str]:
        """Names of the modules that the tree builds, such as nvidia-uvm, sorted."""
        folders = [
            os.path.basename(os.path.dirname(each)) for each in glob.glob(os.path.join(glob.escape(self.path), "*", ""))
        ]
        return sorted(name for name in folders if os.path.isfile(os.path.join(self.path, name, name + ".Kbuild")))

    def as_dict(self) -> Dict[str, str]:
        return {**asdict(self), "digest": digest(self)}


def identify(path: str) -> List[Tree]:
    """The driver trees in a folder: none, one, or (an unpacked installer) one of each flavour."""
    trees = []
    for subfolder in _SUBFOLDERS:
        place = os.path.join(path, subfolder) if subfolder else path
        kbuild = _text(place, "Kbuild")
        if not kbuild or not os.path.isfile(os.path.join(place, "nvidia", "nv-p2p.h")):
            continue
        version = _version(path, place, kbuild)
        flavour = _flavour(place)
        if version and flavour:
            conf = _text(place, "dkms.conf") or _text(path, "dkms.conf")
            name = re.search(r'^PACKAGE_NAME="?([\w.+-]+)', conf, re.MULTILINE)
            trees.append(Tree(place, version, flavour, name.group(1) if name else ""))
    return trees


def find_trees(sources: str = SOURCES) -> List[Tree]:
    """Every driver tree below ``sources``, each once, sorted by path."""
    trees: Dict[str, Tree] = {}
    for folder in sorted(glob.glob(os.path.join(glob.escape(sources), "*", ""))):
        for tree in identify(folder.rstrip("/")):
            trees.setdefault(os.path.realpath(tree.path), tree)
    return sorted(trees.values(), key=lambda tree: tree.path)


def select(trees: List[Tree], version: str, flavour: str) -> Tree:
    """The one tree of ``version`` and ``flavour``; raises TreeError, which lists every tree, for none or several."""
    fit = [tree for tree in trees if (tree.version, tree.flavour) == (version, flavour)]
    if len(fit) == 1:
        return fit[0]
    listed = _listed(fit or trees) or "none at all"
    if fit:
        hint = "name one with --driver-tree, or remove the others"
        raise TreeError(f"there are {len(fit)} source trees of driver {version} ({flavour}): {listed}", hint)
    hint = "install the package with the driver's kernel module source"
    raise TreeError(f"there is no source tree of driver {version} ({flavour}); there is: {listed}", hint)


def _listed(trees: List[Tree]) -> str:
    return "; ".join(f"{tree.path} is {tree.version} ({tree.flavour})" for tree in trees)


def expect(path: str, version: str = "", flavour: str = "") -> Tree:
    """The tree at ``path``, which has to be of ``version`` and ``flavour`` where those are given; raises TreeError."""
    trees = identify(path)
    if not trees:
        message = f"{path} is not a driver source tree: it needs Kbuild with a version, nvidia/nv-p2p.h and a license"
        raise TreeError(message, _TREES_HINT)
    fit = [tree for tree in trees if version in ("", tree.version) and flavour in ("", tree.flavour)]
    if len(fit) != 1:
        message = f"{path} is not the source of driver {version or 'any'} ({flavour or 'any'})"
        raise TreeError(f"{message}: {_listed(trees)}", _TREES_HINT)
    return fit[0]


def digest(tree: Tree) -> str:
    """``sha256:…`` over names and contents of the files that builds against this tree depend on; raises TreeError."""
    return digest_files(tree.path, list(_files(tree.path)))


def sha256(path: str) -> str:
    """The hexadecimal SHA-256 of a file's content; raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def digest_files(folder: str, names: List[str]) -> str:
    """``sha256:…`` over the sorted ``names`` inside ``folder`` with the sha256 of each content; raises TreeError."""
    total = hashlib.sha256()
    for name in sorted(names):
        with _reading(os.path.join(folder, name)):
            content = sha256(os.path.join(folder, name))
        total.update(f"{name}\0{content}\n".encode())
    return "sha256:" + total.hexdigest()


def _files(path: str) -> Iterator[str]:
    for folder in _FOLDERS:
        place = os.path.join(path, folder)
        # glob takes a folder that can't be listed for an empty one.
        with _reading(place), contextlib.suppress(FileNotFoundError):
            os.listdir(place)
    for pattern in _DIGESTED:
        for file in glob.glob(os.path.join(glob.escape(path), pattern)):
            if os.path.isfile(file) and not os.path.islink(file) and not file.endswith(".mod.c"):
                yield os.path.relpath(file, path)


def _reading(path: str) -> ContextManager[None]:
    return failing(TreeError, f"{path}: cannot be read", "reinstall the package that has this source")


def _version(path: str, place: str, kbuild: str) -> str:
    texts = (
        (kbuild, r'NV_VERSION_STRING=\\*"([0-9][0-9.]*)\\*"'),
        (_text(path, "version.mk"), r"^NVIDIA_VERSION\s*=\s*([0-9][0-9.]*)"),
        (_text(place, "dkms.conf"), r'^PACKAGE_VERSION="?([0-9][0-9.]*)'),
    )
    matches = (re.search(pattern, text, re.MULTILINE) for text, pattern in texts)
    return next((match.group(1) for match in matches if match), "")


def _flavour(place: str) -> str:
    """By the license that the source declares: nv.c, or nv-frontend.c before 545."""
    for name in ("nv.c", "nv-frontend.c"):
        text = _text(os.path.join(place, "nvidia"), name)
        if _OPEN.search(text):
            return "open"
        if _PROPRIETARY.search(text):
            return "proprietary"
    return ""


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read(_TEXT_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
