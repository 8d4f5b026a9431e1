"""One kernel release inside a root folder: its modules, its headers, what it expects of a module.

Files of the root that exist and can't be read are recorded: what doesn't exist is an answer, what can't be read is
none, and the audit turns the record into a finding.

Symbols and their CRCs come from Module.symvers, as modpost writes it and reads it (KBUILD_EXTRA_SYMBOLS).

depmod(8) keeps one file for each module name.  Between files of equal rank the order of the directory listing decides,
and only an existing modules.dep shows the outcome.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
import tempfile
from functools import cached_property, lru_cache
from itertools import islice
from typing import (
    AbstractSet,
    Any,
    Callable,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
)

from .. import process
from ..errors import ElfError, HostError, KernelError, SymversError, failing
from ..io import cache
from ..rootdir import LoopError, inside, list_folder, list_names, read_file
from .files import SUFFIXES, open_plain, sha256
from .flavour import series
from .module import Module, in_kernel, name_of, read_module, read_once, stem_of

_Value = TypeVar("_Value")


class Inputs:
    """Reads texts and folders inside ``root``; paths are as seen from inside it."""

    def __init__(self, root: str) -> None:
        self.root = root
        #: message → hint of each file that can't be read
        self.unread: Dict[str, str] = {}

    def text(self, path: str) -> str:
        """The text of a file; empty where it doesn't exist or can't be read."""
        return self.read(path, read_file, "")

    def names(self, path: str) -> List[str]:
        """The sorted names in a folder; empty where it doesn't exist or can't be listed."""
        empty: List[str] = []
        return self.read(path, list_names, empty)

    def skip(self, error: HostError) -> None:
        """Record what the audit continues without."""
        self.unread.setdefault(error.message, error.hint)

    def skip_path(self, path: str, error: OSError) -> None:
        """Record a path of this machine that can't be read."""
        self.skip(HostError(f"{path}: cannot be read: {error.strerror or error}"))

    def read(self, path: str, read: Callable[[str], _Value], nothing: _Value) -> _Value:
        """What ``read`` gives for the place of ``path`` on this machine; ``nothing`` where that can't be read."""
        place = path
        try:
            place = inside(self.root, path)
            return read(place)
        except (FileNotFoundError, NotADirectoryError) as error:
            # A file in the place of a folder is there, and it is no folder.
            if isinstance(error, NotADirectoryError) and os.path.lexists(place):
                self.skip_path(place, error)
        except OSError as error:
            self.skip_path(place, error)
        except LoopError as error:
            self.skip(error)
        return nothing


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


#: In order of precedence; a file hides those of the same name in later folders (depmod.d(5), modprobe.d(5)).
_FOLDERS = ("/etc/{}.d", "/run/{}.d", "/usr/local/lib/{}.d", "/usr/lib/{}.d", "/lib/{}.d")
_TIMEOUT = 600.0


class Choice(NamedTuple):
    """The file that is loaded for a module, and every other one that claims to be it.

    Paths are relative to /lib/modules/<release>.  ``sure`` is False where only the directory order decides.
    """

    file: str
    others: Tuple[str, ...]
    sure: bool

    @property
    def name(self) -> str:
        """The file's name, as depmod knows it."""
        return name_of(self.file)


class Order(NamedTuple):
    """depmod's configuration for one kernel release."""

    #: highest rank first; ``built-in`` stands for every folder that is not named, absolute ones are external
    search: Tuple[str, ...]
    #: FOLDER/NAME of a file without its suffix, where depmod tells dash from underscore → which line; the last wins
    overrides: Dict[str, int]
    #: folders elsewhere whose modules depmod takes, too
    external: Tuple[str, ...] = ()

    def rank(self, file: str) -> int:
        """The smaller the better."""
        stem = stem_of(file)
        if stem in self.overrides:
            return -1 - self.overrides[stem]
        built_in = self.search.index("built-in") if "built-in" in self.search else len(self.search)
        named = ((place, folder) for place, folder in enumerate(self.search) if folder != "built-in")
        return next((place for place, folder in named if file.startswith(folder + "/")), built_in)

    def choose(self, files: Sequence[str], present: str = "") -> Choice:
        """The file that depmod takes from ``files`` of one module name; ``present`` is modules.dep's, if any."""
        ranked = sorted(files, key=lambda file: (self.rank(file), file))
        best = [file for file in ranked if self.rank(file) == self.rank(ranked[0])]
        chosen = present if present in best else best[0]
        return Choice(chosen, tuple(file for file in ranked if file != chosen), len(best) == 1)


def read_order(inputs: Inputs, release: str) -> Order:
    """Read the depmod.d folders."""
    search: List[str] = []
    external: List[str] = []
    overrides: Dict[str, int] = {}
    for place, words in enumerate(_lines(inputs, "depmod")):
        if words[0] == "search":
            search += [folder.rstrip("/") for folder in words[1:] if folder.rstrip("/") not in search]
        elif words[0] == "override" and len(words) == 4 and _release_matches(words[2], release):
            overrides[f"{words[3]}/{words[1]}"] = place
        elif words[0] == "external" and len(words) > 2 and _release_matches(words[1], release):
            external += [folder.rstrip("/") for folder in words[2:] if folder.startswith("/")]
    ranked = [place for word in search for place in (external if word == "external" else [word])]
    return Order(tuple(ranked or ["updates", "built-in"]), overrides, tuple(external))


def override_line(file: str, release: str) -> str:
    """A line for depmod.d that makes ``file`` win over its namesakes on one kernel.

    depmod reads the release as an extended regular expression and drops backslashes, so brackets quote.
    """
    pattern = re.sub(r"[.+]", r"[\g<0>]", release)
    folder, name = os.path.split(stem_of(file))
    return f"override {name} ^{pattern}$ {folder}\n"


def run_depmod(root: str, release: str, error: Type[HostError], hint: str) -> None:
    """Write modules.dep and its like for kernel ``release``; raises ``error`` with depmod's first line."""
    with contextlib.ExitStack() as stack:
        options: List[str] = []
        if root != "/":
            # With a base folder, depmod still takes the configuration of the system that it runs in.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gdsdeploy-depmod-"))
            for name, text in _files(Inputs(root), "depmod"):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            options = ["-b", root, "-C", folder]
        done = process.run(["depmod", *options, "-a", release], _TIMEOUT)
    if done.status != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
        raise error(f"depmod failed for kernel {release}: {lines[0]}", hint)


def read_renames(inputs: Inputs) -> Dict[str, str]:
    """Module names that modprobe.d turns into others: ``alias`` and ``install … modprobe … -i other``.

    Debian's driver packages install nvidia.ko as nvidia-current-open.ko and map the name back in this way.
    """
    renames: Dict[str, str] = {}
    for words in _lines(inputs, "modprobe"):
        if words[0] == "alias" and len(words) == 3 and not set("*?[:") & set(words[1]):
            renames.setdefault(in_kernel(words[1]), in_kernel(words[2]))
        elif words[0] == "install" and len(words) > 2:
            target = _redirected(words[2:])
            if target:
                renames[in_kernel(words[1])] = in_kernel(target)
    return renames


def read_refusals(inputs: Inputs) -> Dict[str, str]:
    """Module → the command that ``install`` in modprobe.d runs in place of loading it, where that does nothing."""
    lines = (words for words in _lines(inputs, "modprobe") if words[0] == "install" and len(words) > 2)
    return {in_kernel(words[1]): " ".join(words[2:]) for words in lines if os.path.basename(words[2]) in _NOTHING}


def read_dependencies(text: str) -> Dict[str, List[str]]:
    """modules.dep: file → the files loaded before it, all relative to the kernel's folder."""
    parts = (line.partition(":") for line in text.splitlines())
    return {file: needs.split() for file, separator, needs in parts if separator}


def _redirected(words: Sequence[str]) -> Optional[str]:
    """The module that the last modprobe of an install line loads, if it ignores further install lines (-i)."""
    starts = [place for place, word in enumerate(words) if os.path.basename(word) == "modprobe"]
    rest = words[starts[-1] + 1 :] if starts else []
    names = [word for word in rest if not word.startswith(("-", "$", ">", "&", ";", "|"))]
    return names[0] if names and ("-i" in rest or "--ignore-install" in rest) else None


def _release_matches(pattern: str, release: str) -> bool:
    try:
        return pattern == "*" or re.search(pattern, release) is not None
    except re.error:
        return False


def _files(inputs: Inputs, program: str) -> Iterator[Tuple[str, str]]:
    """(name, text) of the files in a program's configuration folders, in the order in which it reads them."""
    files: Dict[str, str] = {}
    for pattern in _FOLDERS:
        folder = pattern.format(program)
        for name in fnmatch.filter(inputs.names(folder), "*.conf"):
            files.setdefault(name, folder)
    for name, folder in sorted(files.items()):
        yield name, inputs.text(f"{folder}/{name}")


def _lines(inputs: Inputs, program: str) -> Iterator[List[str]]:
    """Words of every line of a program's configuration."""
    for _, text in _files(inputs, program):
        # As libkmod does: a backslash joins lines, and otherwise vanishes.
        for line in re.sub(r"\\(.)", r"\1", text.replace("\\\n", "")).splitlines():
            words = line.split("#", 1)[0].split()
            if words:
                yield words


#: In-tree modules read to learn the symbol versions of a kernel whose headers are not installed; 300 cost about 1 s.
OBSERVED_LIMIT = 300
#: The large ones first, because they import most, but not the giants among the graphics drivers.
_OBSERVED_SIZE = 256 << 10
_OBSERVED_FIRST = (
    "kernel/drivers/gpu/drm/",
    "kernel/fs/",
    "kernel/drivers/nvme/",
    "kernel/drivers/infiniband/",
    "kernel/net/",
)
#: What is in the first package of a kernel, and not in one beside it: nvme before all.
_BASE_FIRST = (
    "kernel/drivers/nvme/host/nvme-core.ko",
    "kernel/drivers/nvme/host/nvme.ko",
    "kernel/fs/xfs/",
    "kernel/fs/ext4/",
    "kernel/lib/",
    "kernel/crypto/",
    "kernel/fs/",
    "kernel/net/",
    "kernel/drivers/block/",
    "kernel/drivers/net/",
    "kernel/",
)
#: Links can lead to folders with links; RHEL's weak-updates have some hundreds.
_LINKED_LIMIT = 1 << 14
#: Commands with which administrators keep modules from being loaded.
_NOTHING = ("false", "true", ":")
#: Modules that can't be read before the rest isn't tried: the reason is the same for thousands.
_UNREAD_LIMIT = 10
_SYMVERS_HINT = "reinstall the kernel's headers"
_ENDINGS = tuple(".ko" + suffix for suffix in SUFFIXES)


class Kernel:
    """A kernel release; every path it takes and gives is relative to /lib/modules/<release> unless said otherwise.

    Raises KernelError when the root has no such release.
    """

    def __init__(self, release: str, root: str = "/") -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+~-]*", release):
            raise KernelError(f"{release!r} is not a kernel release", "give it as uname -r shows it")
        self.release = release
        self.root = root
        self.folder = inside(root, "/lib/modules/" + release)
        if not os.path.isdir(self.folder):
            others = ", ".join(list_folder(root, "/lib/modules")) or "none is installed"
            message = f"kernel {release} has no modules in {os.path.join(root, 'lib/modules')}"
            raise KernelError(message, f"install it, or choose from: {others}")
        #: what can't be read of all that decides about this kernel's modules
        self.inputs = Inputs(root)
        self.order = read_order(self.inputs, release)
        #: files whose path has a link, or that are elsewhere
        self._linked: Set[str] = set()
        self.by_name: Dict[str, List[str]] = {}
        external = [f"{place}/" for place in self.order.external if self._follow(place)]
        for folder in ("", *external):
            for file in self._walk(folder):
                self.by_name.setdefault(name_of(file), []).append(file)
        self.renames = read_renames(self.inputs)
        self.refusals = read_refusals(self.inputs)
        self.dependencies = read_dependencies(self.inputs.text(f"/lib/modules/{release}/modules.dep"))
        #: name → the file that modules.dep has first under it
        self._present: Dict[str, str] = {}
        self._modules: Dict[str, Module] = {}
        self._has_unread = False

    def path(self, file: str) -> str:
        """Where ``file`` is on this machine; links, as in weak-updates, are followed inside the root."""
        path = os.path.join(self.folder, file)
        return inside(self.root, self.shown(file)) if file in self._linked or os.path.islink(path) else path

    def shown(self, file: str) -> str:
        """The path of ``file`` inside the root."""
        return os.path.join(f"/lib/modules/{self.release}", file)

    def read(self, file: str) -> Module:
        """The module in ``file``; raises ElfError."""
        if file not in self._modules:
            self._modules[file] = read_once(self.path(file))
        return self._modules[file]

    def choose(self, name: str) -> Optional[Choice]:
        """The file that depmod takes for the file name ``name``, or None when there is none."""
        files = self.by_name.get(name)
        if not files:
            return None
        if not self._present and self.dependencies:
            for file in self.dependencies:
                self._present.setdefault(name_of(file), file)
        return self.order.choose(files, self._present.get(name, ""))

    @cached_property
    def config(self) -> Dict[str, str]:
        """The kernel's configuration (``CONFIG_…`` → value) from its headers or /boot; empty when neither is there."""
        places = ("/lib/modules/{}/build/.config", "/boot/config-{}", "/lib/modules/{}/config")
        texts = (self.inputs.text(place.format(self.release)) for place in places)
        return dict(re.findall(r"^(CONFIG_\w+)=(.*)$", next(filter(None, texts), ""), re.MULTILINE))

    @cached_property
    def builtin(self) -> AbstractSet[str]:
        """In-kernel names of what is built into the kernel; modprobe loads no file of that name."""
        return frozenset(map(name_of, self.inputs.text(self.shown("modules.builtin")).splitlines()))

    def vermagic(self) -> str:
        """What the kernel expects in every module; empty when neither its own modules nor its headers say.

        Without modules of its own, it is composed from the headers as include/linux/vermagic.h does.
        """
        if self.own_module is not None:
            return self.own_module.vermagic
        header = f"/lib/modules/{self.release}/build/include/generated/utsrelease.h"
        release = re.search(r'UTS_RELEASE "([^"]+)"', self.inputs.text(header))
        if release is None or not self.config:
            return ""
        preempt = "preempt_rt" if "CONFIG_PREEMPT_RT" in self.config else "preempt"
        options = (
            ("SMP", "CONFIG_SMP"),
            (preempt, "CONFIG_PREEMPT_RT", "CONFIG_PREEMPT_BUILD", "CONFIG_PREEMPT"),
            ("mod_unload", "CONFIG_MODULE_UNLOAD"),
            ("modversions", "CONFIG_MODVERSIONS"),
            ("aarch64", "CONFIG_ARM64"),
        )
        words = [word for word, *names in options if any(name in self.config for name in names)]
        return " ".join([release.group(1), *words]) + " "

    @property
    def versioned(self) -> bool:
        """Whether the kernel compares symbol versions; Debian's does up to 6.12 and no longer in 7.2."""
        return "modversions" in self.vermagic().split()

    @cached_property
    def own_module(self) -> Optional[Module]:
        """The first in-tree module that can be read; None: see :attr:`is_headers_only`."""
        return next(iter(self._own_modules(read_once)), None)

    @property
    def is_headers_only(self) -> bool:
        """Whether the kernel has no modules of its own, as on a machine that only builds; unreadable ones count."""
        return self.own_module is None and not self._has_unread

    def symvers(self) -> Mapping[str, Export]:
        """What the kernel and its own modules export, by Module.symvers; empty when that is not installed."""
        path = self._symvers_path()
        return _symvers_of(path, os.path.getmtime(path)) if path else {}

    def operations(self) -> Mapping[str, Export]:
        """Those whose names end as tables of operations do: some hundreds of tens of thousands."""
        path, symvers = self._symvers_path(), self.symvers()
        names = cache.of_file("operations", path, lambda: [name for name in symvers if name.endswith("_ops")])
        return {name: symvers[name] for name in names if name in symvers}

    def symvers_digest(self) -> str:
        """``sha256:…`` of Module.symvers as it is stored, or nothing."""
        path = self._symvers_path()
        if not path:
            return ""
        with failing(KernelError, f"{path}: cannot be read", _SYMVERS_HINT):
            return "sha256:" + sha256(path)

    def observed(self) -> Iterator[Module]:
        """The kernel's own modules, read one by one: for hosts without headers, their imports have its versions."""
        return islice(self._own_modules(), OBSERVED_LIMIT)

    def headers(self) -> str:
        """The build folder on this machine; raises KernelError when the headers are not installed."""
        path = inside(self.root, f"/lib/modules/{self.release}/build")
        if not os.path.isfile(os.path.join(path, "Makefile")):
            raise KernelError(
                f"the headers of kernel {self.release} are not installed: {path} has no Makefile",
                f"install linux-headers-{self.release} (kernel-devel-{self.release} on RHEL)",
            )
        return path

    def base_file(self) -> str:
        """The in-tree module that tells this build of the kernel from others: one that each host with it has.

        Large distributions have the rarer modules in packages of their own, whose names have ``extra`` in them.
        Empty without a readable one.
        """
        records = "/var/lib/dpkg/info"
        names = fnmatch.filter(list_folder(self.root, records), f"linux-modules-extra-{self.release}*.list")
        extra = {line for name in names for line in self.inputs.text(f"{records}/{name}").splitlines()}

        def rank(file: str) -> Tuple[bool, int, str]:
            place = next(place for place, start in enumerate(_BASE_FIRST) if file.startswith(start))
            return self.shown(file) in extra or "/usr" + self.shown(file) in extra, place, file

        files = sorted(self._own_files(), key=rank)[:OBSERVED_LIMIT]
        return next((file for file in files if any(self._readable([file], read_once))), "")

    def _own_modules(self, read: Callable[[str], Module] = read_module) -> Iterator[Module]:
        sizes = {file: os.lstat(self.path(file)).st_size for file in self._own_files()}
        small = [file for file in sizes if sizes[file] < _OBSERVED_SIZE]
        return self._readable(
            sorted(small, key=lambda file: (not file.startswith(_OBSERVED_FIRST), -sizes[file], file)), read
        )

    def _own_files(self) -> List[str]:
        return [file for files in self.by_name.values() for file in files if file.startswith("kernel/")]

    def _readable(self, files: Iterable[str], read: Callable[[str], Module]) -> Iterator[Module]:
        unread = 0
        for file in files:
            try:
                module = read(self.path(file))
            except HostError as error:
                self.inputs.skip(error)
                self._has_unread = True
                unread += 1
                if unread == _UNREAD_LIMIT:
                    return
                continue
            # Out-of-tree packages install below kernel/, too.
            if module.intree:
                yield module

    def _symvers_path(self) -> str:
        packed = (f"/lib/modules/{self.release}/symvers", f"/boot/symvers-{self.release}")
        places = [f"/lib/modules/{self.release}/build/Module.symvers"]
        places += [place + suffix for suffix in SUFFIXES for place in packed]
        paths = (inside(self.root, place) for place in places)
        return next((path for path in paths if os.path.exists(path)), "")

    def _walk(self, below: str, parents: Tuple[str, ...] = ()) -> Iterator[str]:
        """Modules in the folder ``below`` (empty, or with a slash at its end); as depmod, through links."""
        place = inside(self.root, self.shown(below)) if below[:1] == "/" or below in self._linked else None
        place = (place or os.path.join(self.folder, below)).rstrip("/")
        if place in parents:
            # A link to a folder above.
            return
        if len(self._linked) > _LINKED_LIMIT:
            self.inputs.skip(KernelError(f"{self.folder}: more than {_LINKED_LIMIT} files are reached through links"))
            return
        try:
            with os.scandir(place) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            self.inputs.skip_path(place, error)
            return
        # Thousands of files, so no more than this is done for each.
        for entry in entries:
            file, is_module = below + entry.name, entry.name.endswith(_ENDINGS)
            is_linked = entry.is_symlink() or below[:1] == "/" or below in self._linked
            if is_linked and not self._follow(file):
                continue
            if os.path.isdir(self.path(file)) if is_linked else entry.is_dir():
                if is_module:
                    self.inputs.skip_path(entry.path, IsADirectoryError(errno.EISDIR, "is a folder"))
                if entry.name not in ("build", "source"):
                    self._linked.update([f"{file}/"] if is_linked else ())
                    yield from self._walk(f"{file}/", (*parents, place))
            elif is_module:
                yield file

    def _follow(self, file: str) -> bool:
        """Take down that ``file`` is or was reached by a link; False: it leads nowhere, and depmod ignores it."""
        self._linked.add(file)
        try:
            os.stat(self.path(file))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self.inputs.skip_path(os.path.join(self.folder, file), error)
        except HostError as error:
            self.inputs.skip(error)
            return False
        return True


def releases(root: str = "/") -> List[str]:
    """The kernel releases that have modules inside ``root``."""
    return [name for name in list_folder(root, "/lib/modules") if list_folder(root, f"/lib/modules/{name}/kernel")]


@lru_cache(maxsize=2)
def _symvers_of(path: str, _changed: float) -> Mapping[str, Export]:
    try:
        return Exports(cache.of_file("symvers", path, lambda: read_symvers(path)))
    except HostError as error:
        raise KernelError(error.message, error.hint or _SYMVERS_HINT) from None


#: license texts that the kernel accepts for EXPORT_SYMBOL_GPL (include/linux/license.h)
GPL_COMPATIBLE = frozenset(
    ("GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL")
)


#: Linux 6.16 has namespaces that name modules; users alone don't tell of one.
_ANY_SPACE = frozenset(("module:…",))


class Provider(NamedTuple):
    """``module`` is an in-kernel name or ``vmlinux``; ``file`` is empty for those known by Module.symvers only.

    ``crc`` is None where the exporter has no versions, ``gpl`` where neither that nor the namespace is known.
    """

    module: str
    file: str
    crc: Optional[int]
    gpl: Optional[bool]
    license: str = ""
    #: a symbol in a namespace is for modules that import it; where it isn't known, each that it may be
    namespaces: Tuple[str, ...] = ()


class Symbols:
    """Look-up over Module.symvers, the modules on disk and, without the former, what the kernel's modules import."""

    def __init__(
        self,
        kernel: Kernel,
        chosen: Collection[Module],
        extra: Mapping[str, Export],
        replaced: AbstractSet[str] = frozenset(),
    ) -> None:
        """chosen: modules that would be loaded whatever else lies around, e.g. the driver's; extra: see ``audit``.

        replaced: files in whose place others come.
        """
        self._kernel = kernel
        self._symvers = kernel.symvers()
        self._from_modules: Dict[str, Provider] = {}
        #: symbol → its version, and the namespaces that all of its users import
        self._observed: Dict[str, Tuple[int, FrozenSet[str]]] = {}
        # A module under audit can't vouch for itself.
        audited = {module.name for module in chosen}
        self._not_observed = (module for module in kernel.observed() if module.name not in audited)
        self._files: Set[str] = set(replaced)
        #: whether a symbol that is not found is certainly missing
        self.complete = bool(self._symvers)
        for symbol, export in extra.items():
            self._from_modules[symbol] = _provider(export)
        for module in chosen:
            self._add(module)
        for name, files in kernel.by_name.items():
            if any(not file.startswith("kernel/") for file in files):
                self._add_name(name)

    def modules(self) -> Set[str]:
        """In-kernel names of the modules whose exports are known."""
        return {provider.module for provider in self._from_modules.values()}

    def prepare(self, module: Module, observe: bool = True) -> None:
        """Read what ``module`` depends on.

        observe: without Module.symvers, also the kernel's own modules, until each import of ``module`` is known.
        """
        for name in module.depends:
            self._add_name(name)
        if observe and not self.complete:
            unknown = module.imports.keys() - self._from_modules.keys() - self._observed.keys()
            while unknown:
                other = next(self._not_observed, None)
                if other is None:
                    return
                unknown -= self._observe(other)

    def find(self, symbol: str) -> Optional[Provider]:
        """The exporter of ``symbol``; None when nothing known exports it."""
        # A module on disk that took the place of one of the kernel's own counts, not what the kernel was built with.
        if symbol in self._from_modules:
            return self._from_modules[symbol]
        export = self._symvers.get(symbol)
        if export is not None:
            return _provider(export)
        if symbol in self._observed:
            crc, spaces = self._observed[symbol]
            return Provider("vmlinux", "", crc, None, "", tuple(sorted(spaces)))
        return None

    def kernel_exports(self, symbol: str) -> bool:
        """Whether the kernel itself exports ``symbol``, by Module.symvers."""
        export = self._symvers.get(symbol)
        return export is not None and export.module == "vmlinux"

    def _observe(self, module: Module) -> Set[str]:
        """Learn from the imports of one of the kernel's own modules; the symbols whose version it has."""
        # A module needs no import of a namespace that names it (module:…).
        spaces = frozenset(module.namespaces) | (_ANY_SPACE if series(self._kernel.release) >= (6, 16) else set())
        found = {symbol: crc for symbol, crc in module.imports.items() if crc is not None}
        for symbol, crc in found.items():
            known = self._observed.get(symbol)
            self._observed[symbol] = (crc, spaces & known[1] if known is not None else spaces)
        return set(found)

    def _add_name(self, name: str) -> None:
        files = self._kernel.by_name.get(name)
        # A file is never loaded in the place of what is built in.
        choice = self._kernel.order.choose(files) if files and name not in self._kernel.builtin else None
        if choice is None or choice.file in self._files:
            return
        self._files.add(choice.file)
        try:
            self._add(self._kernel.read(choice.file))
        except ElfError as error:
            self._kernel.inputs.skip(error)

    def _add(self, module: Module) -> None:
        for symbol, (crc, gpl) in module.exports.items():
            space = module.export_namespaces.get(symbol)
            spaces = (space,) if space else ()
            provider = Provider(module.name, module.path, crc, gpl, module.license, spaces)
            self._from_modules.setdefault(symbol, provider)


def _provider(export: Export) -> Provider:
    spaces = (export.namespace,) if export.namespace else ()
    return Provider(name_of(export.module), "", export.crc, export.gpl, "", spaces)
