"""Run kbuild for one kernel, keep its log, and say in one line what went wrong; check and place what it made.

*Symbol versions.*  Modules are built against those of the target kernel's own nvidia.ko.  In this order: the installed
nvidia.ko; a Module.symvers of a build of this driver for this kernel (DKMS keeps it) that the nvidia.ko beside it
proves; the exports of a compilation of only the exporting unit.

*After the compiler.*  The build is recorded inside the module and audited, and only then the module is placed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from .. import process
from ..audit.audit import Result, audit
from ..errors import BuildError, ElfError, HostError, KernelError, SymversError, UnbuildableError, failing
from ..io import atomic
from ..kmod import driver as drivers
from ..kmod.driver import Expected
from ..kmod.files import SUFFIXES, Elf, Tree, digest
from ..kmod.kernel import Export, Kernel, format_line, from_cmd_files, read_symvers, write_symvers
from ..kmod.module import ERROR, INCOMPLETE, PROVENANCE, Module, name_of, outcome_of, read_module
from ..kmod.ofed import Search, search
from ..paths import DKMS
from ..rootdir import inside, read_text

#: A driver takes 150 s on 2 cores; a machine under load many times that.
TIMEOUT = 3600.0
#: The first match is the cause; later errors are mostly consequences.
_ERRORS = (
    re.compile(r"^(?:.*: )?(?:fatal )?error: .*", re.IGNORECASE),
    re.compile(r"^ERROR: modpost: .*"),
    re.compile(r"^.*: (?:Command )?not found$|^.*: No such file or directory$"),
    re.compile(r"^make(?:\[\d+\])?: \*\*\* .*"),
)
_MISSING = re.compile(r"(?:^|[\s:/])([\w.+-]+): (?:Command )?not found$", re.MULTILINE)
#: All that a build gets of its caller's variables: DKMS, an outer make and a user have others that change it unnoticed.
INHERITED = ("PATH", "HOME", "TMPDIR")
#: What tools write when the machine lacks something, and never because of the sources.
_TROUBLE = re.compile(
    r"(?:No space left on device|Disk quota exceeded|Read-only file system|(?:Input/output|I/O) error"
    r"|Cannot allocate memory|Too many open files|Resource temporarily unavailable|Stale file handle)\W*$"
    r"|\b(?:Killed|Terminated)\b|^(?:\S+: )?out of memory|virtual memory exhausted|LLVM ERROR: out of memory"
    r"|internal compiler error"
)
#: A compiler's, modpost's, objtool's or a source's own refusal.
_REFUSED = re.compile(
    r'^\S+:\d+(?::\d+)?: (?:fatal )?error: |^ERROR: (?:modpost: |")|^\S+\.o: error: objtool|PREEMPT_RT sanity check',
    re.MULTILINE,
)
#: A line of the sources, as a compiler quotes it.
_QUOTED = re.compile(r"^\s*\d* \|")
#: Bytes below which a full disk explains a failure; probes hide what the compiler says about it.
_FULL = 1 << 20
AGAIN = "the sources weren't judged: this build is tried again when it is next asked for"
#: How a log ends.
_ENDS: Dict[str, Type[BuildError]] = {"error: ": UnbuildableError, "trouble: ": BuildError}
_HINT = "hint: "
_TAIL = 1 << 16
#: What make is at, for programs that wait for a build on this host: ``nvidia 212 640``, a module, its units so far, and
#: all of them or 0.  The file is there while make runs.
PROGRESS = "/run/gdsdeploy/build"
#: kbuild's line about a unit, with its folder; what modpost generates isn't in the sources' lists.
_UNIT = re.compile(rb"^ +C(?:C|XX) \[M\] +(?:(?:\S*/)?([\w-]+)/)?[\w-][\w.-]*(?<!\.mod)\.o$")
#: The name of the empty module.
EMPTY = "probe"
_PROBE = '#include <linux/module.h>\nMODULE_LICENSE("GPL");\nMODULE_DESCRIPTION("probe");\n'


class Log:
    """A build's log file; every program's command line and output is appended."""

    def __init__(self, path: str, progress: str = "") -> None:
        self.path, self._progress = path, progress
        #: of the next step: module → how many units it has, or 0; empty: it compiles nothing that is worth a count
        self.units: Mapping[str, int] = {}
        self._killed = _out_of_memory()
        with failing(BuildError, f"cannot write the build log {path}"), os.fdopen(self._descriptor(), "w") as log:
            log.truncate()

    def note(self, text: str) -> None:
        """Append a line."""
        with os.fdopen(self._descriptor(os.O_APPEND), "a", encoding="utf-8") as log:
            log.write(text + "\n")

    def _descriptor(self, flags: int = 0) -> int:
        return atomic.open_descriptor(self.path, os.O_WRONLY | flags, 0o644)

    def end_with_failure(self, error: HostError) -> None:
        """End the log with why the build failed; :func:`failure_in` reads it.  On a full disk, nothing is written."""
        end = next((end for end, kind in _ENDS.items() if isinstance(error, kind)), "trouble: ")
        with contextlib.suppress(OSError):
            self.note(f"{end}{error.message}\n{_HINT}{error.hint}")

    def run(self, argv: Sequence[str], cwd: str, env: Optional[Mapping[str, str]] = None) -> process.Output:
        """Run a step of the build in ``cwd``, with ``env`` and INHERITED as its environment."""
        units, self.units = self.units, {}
        with _counting(self._progress, units) as each:
            done = process.run(argv, TIMEOUT, env, cwd, inherited=INHERITED, each=each)
        self.note(f"$ cd {cwd} && {' '.join(argv)}\n{done.stdout}{done.stderr}[exit status {done.status}]")
        return done

    def failure(self, message: str, done: process.Output, folder: str) -> BuildError:
        """The error for a step in ``folder`` that failed: only a refusal of the sources says something about them."""
        why, hint = self.trouble(done, folder), f"the log is {self.path}"
        if not why and _REFUSED.search(done.stdout + "\n" + done.stderr) is not None:
            return UnbuildableError(f"{message}: {first_error(done).replace(folder + '/', '')}", hint)
        return BuildError(f"{message}: {why or first_error(done).replace(folder + '/', '')}", f"{hint}; {AGAIN}")

    def trouble(self, done: process.Output, folder: str) -> str:
        """What the machine lacked; empty where nothing shows that it lacked something."""
        lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if not _QUOTED.match(line)]
        said = next(filter(_TROUBLE.search, lines), "")
        if said or done.status < 0 or done.status in (process.NOT_FOUND, process.TIMED_OUT):
            return said or (f"ended by signal {-done.status}" if done.status < 0 else done.failure())
        if _out_of_memory() != self._killed:
            return "the kernel has killed a process for lack of memory meanwhile"
        full = [place for place in (folder, tempfile.gettempdir()) if shutil.disk_usage(place).free < _FULL]
        return f"no space left in {full[0]}" if full else ""


@contextlib.contextmanager
def _counting(path: str, units: Mapping[str, int]) -> Iterator[Callable[[bytes], object]]:
    """What takes make's output, and keeps in the file ``path`` which unit it is at; see PROGRESS."""
    try:
        descriptor = atomic.open_descriptor(path, os.O_WRONLY, 0o644) if path and units else -1
    except OSError:
        # Users may build, too; what is built is the same.
        descriptor = -1
    if descriptor < 0:
        yield len
        return
    name, counts, rest = next(iter(units)), dict.fromkeys(units, 0), b""

    def take(chunk: bytes) -> None:
        nonlocal name, rest
        *lines, rest = (rest + chunk).split(b"\n")
        for unit in filter(None, map(_UNIT.match, lines)):
            folder = (unit[1] or b"").decode()
            name = folder if folder in units else name
            counts[name] += 1
        # A reader gets the old line or the new one, as they are equally long.
        os.pwrite(descriptor, f"{name} {counts[name]} {units[name]}".ljust(63).encode() + b"\n", 0)

    try:
        with contextlib.suppress(OSError):
            take(b"")
        yield take
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            atomic.remove(path)


def units_of(folder: str, names: Sequence[str]) -> Dict[str, int]:
    """Each module of the driver's tree ``folder`` → how many units the lists of its sources have."""
    counts = {}
    for name in names:
        lists = [each for end in ("Kbuild", "mk") for each in glob.glob(f"{glob.escape(folder)}/{name}/*.{end}")]
        text = "\n".join(read_text("/", each) for each in lists)
        counts[name] = len(set(re.findall(rf"\b{name}/[\w./-]+\.c(?:c|pp)?\b", text)))
    return counts


def _out_of_memory() -> str:
    """The kernel's counter of processes that it has killed for lack of memory."""
    found = re.search(r"^oom_kill \d+$", read_text("/", "/proc/vmstat"), re.MULTILINE)
    return found[0] if found else ""


def failure_in(path: str) -> Optional[BuildError]:
    """The failure of the build that the log ``path`` ends with; None for any other log."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - _TAIL, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if len(lines) < 2 or not lines[-1].startswith(_HINT):
        return None
    hint = lines[-1][len(_HINT) :]
    ends = (kind(lines[-2][len(end) :], hint) for end, kind in _ENDS.items() if lines[-2].startswith(end))
    return next(ends, None)


def make_modules(
    log: Log, kernel: Kernel, folder: str, variables: Sequence[str], jobs: int, env: Optional[Mapping[str, str]] = None
) -> process.Output:
    """Build the external module in ``folder`` by the target kernel's own kbuild."""
    argv = ["make", f"-j{max(jobs, 1)}", "-C", kernel.headers(), "M=" + folder, *variables, "modules"]
    return log.run(argv, folder, env)


def without_debug_information(kernel: Kernel) -> Dict[str, str]:
    """Variables of the environment that leave debug information out, where only DKMS would read it, to strip it.

    It takes a fifth of the compiler's time.  pahole makes BTF of it where the headers have a ``vmlinux``, as Debian
    13's have; kernels with CONFIG_GENDWARFKSYMS compute symbol versions from it.
    """
    if os.path.isfile(os.path.join(kernel.headers(), "vmlinux")) or "CONFIG_GENDWARFKSYMS" in kernel.config:
        return {}
    return {"KCFLAGS": "-g0"}


def first_error(done: process.Output) -> str:
    """The line of a build's output that says why it failed."""
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines()]
    last = lines[-1] if lines and lines[-1] else f"exit status {done.status}"
    return next((line for pattern in _ERRORS for line in lines if pattern.match(line)), last)


def _missing_hint(kernel: Kernel, done: process.Output) -> str:
    missing = _MISSING.search(done.stderr + done.stdout)
    if missing:
        return "install " + {"pahole": "dwarves (pahole)"}.get(missing[1], missing[1])
    return "install make" if done.status == process.NOT_FOUND else f"reinstall linux-headers-{kernel.release}"


#: The name that modpost writes into ``depends:`` is the last component of the exporter's path in Module.symvers.
EXPORTER = "nvidia"
#: The only unit of the driver that exports nvidia_p2p_*.
UNIT = "nvidia/nv-p2p.o"
_LABEL = "__export_symbol_"


class Versions(NamedTuple):
    """``path`` is a Module.symvers for modpost, ``extra`` what the audit needs beyond the installed modules."""

    path: str
    extra: Dict[str, Export]
    #: ``module``, ``symvers``, ``compiled``, or ``built`` by the same run
    origin: str


def earlier_exports(kernel: Kernel, tree: Tree, log: Log) -> Optional[Dict[str, Export]]:
    """The driver's exports by a Module.symvers of this very driver and kernel; None without a trustworthy one."""
    base, version, release = map(glob.escape, (inside(kernel.root, DKMS), tree.version, kernel.release))
    for folder in [*sorted(glob.glob(os.path.join(base, "*", version, release, "*", "module"))), tree.path]:
        path = os.path.join(folder, "Module.symvers")
        if not os.path.isfile(path):
            continue
        try:
            exports = {
                name: export._replace(module=EXPORTER)
                for name, export in read_symvers(path).items()
                if name_of(export.module) == EXPORTER
            }
            reason = _distrust(kernel, tree, folder, exports)
        except SymversError as error:
            reason = error.message
        if not reason:
            return exports
        log.note(f"{path} is not used: {reason}")
    return None


def _distrust(kernel: Kernel, tree: Tree, folder: str, exports: Dict[str, Export]) -> str:
    """Why a Module.symvers may be of another driver or kernel than the nvidia.ko beside it proves."""
    module = _nvidia_in(folder)
    if module is None:
        return "there is no nvidia.ko beside it"
    if (module.version, drivers.flavour(module)) != (tree.version, tree.flavour):
        return f"it is of driver {module.version} ({drivers.flavour(module)})"
    if module.vermagic != kernel.vermagic():
        return f"the nvidia.ko beside it was built for {module.vermagic!r}"
    if not exports or any(module.exports.get(name) != (each.crc, each.gpl) for name, each in exports.items()):
        return "the nvidia.ko beside it exports other versions"
    return ""


def _nvidia_in(folder: str) -> Optional[Module]:
    for suffix in SUFFIXES:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia*.ko" + suffix))):
            with contextlib.suppress(ElfError):
                module = read_module(path)
                if module.name == EXPORTER:
                    return module
    return None


def compile_unit(kernel: Kernel, tree: Tree, folder: str, log: Log, settings: Sequence[str]) -> Dict[str, Export]:
    """What nvidia.ko will export for nvidia-fs, by compiling only that unit in ``folder``, a copy of the tree."""
    argv = ["make", "-C", kernel.headers(), "M=" + folder, "NV_KERNEL_MODULES=nvidia", *settings]
    done = log.run([*argv, UNIT], folder, {"IGNORE_CC_MISMATCH": "1"})
    exports = _exports_of_unit(kernel, os.path.join(folder, "nvidia")) if done.status == 0 else {}
    if not exports:
        raise log.failure(f"cannot compile {UNIT} of {tree.path} for kernel {kernel.release}", done, folder)
    return exports


def _exports_of_unit(kernel: Kernel, folder: str) -> Dict[str, Export]:
    if kernel.versioned:
        command = os.path.join(folder, ".nv-p2p.o.cmd")
        if not os.path.isfile(command):
            return {}
        with open(command, encoding="utf-8", errors="replace") as text:
            return from_cmd_files([text.read()], EXPORTER)
    # Without versions only the names count: kbuild labels each since Linux 6.4.
    path = os.path.join(folder, "nv-p2p.o")
    with open(path, "rb") as file:
        names = [symbol.name for symbol in Elf(file, path).symbols() if symbol.name.startswith(_LABEL)]
    return {name[len(_LABEL) :]: Export(0, EXPORTER, True) for name in names}


#: What earlier builds leave in source folders.
SKIPPED = (
    *("*.o", "*.ko", "*.mod", "*.mod.c", ".*.cmd", "Module.symvers", "modules.order", "config-host.h", "conftest"),
    ".gdsdeploy-build-*",
)
#: Not needed for the unit that exports nvidia_p2p_* nor for nvidia-peermem.
SKIPPED_OF_DRIVER = ("*.o_binary", "nvidia-uvm", "nvidia-drm", "nvidia-modeset")


class BuildRequest(NamedTuple):
    """What to build against, and how."""

    kernel: Kernel
    tree: Tree
    jobs: int = 1
    #: further ``NAME=value`` for make, such as DKMS's LLVM=1
    variables: Sequence[str] = ()
    #: the driver of ``tree`` will be installed later: ignore what is installed for this kernel
    ahead: bool = False
    #: nvidia-peermem: ``required``, ``optional`` (left out where it would be a stub) or ``stub`` (DKMS needs the file)
    peermem: str = "optional"
    #: a file; see PROGRESS
    progress: str = ""


class Built(NamedTuple):
    """One finished module file; the path is of this machine."""

    file: str
    module: Module
    audit: Dict[str, Any]

    def as_dict(self) -> Dict[str, Any]:
        return {
            "name": self.module.name,
            "file": self.file,
            "version": self.module.version,
            "provenance": self.module.provenance,
            "audit": self.audit,
        }


@dataclass
class BuildContext:
    """A folder for intermediate files; headers are checked once, symbol versions are looked up once."""

    request: BuildRequest
    folder: str
    _versions: Optional[Versions] = None
    #: remarks for the user, one line each
    notes: List[str] = field(default_factory=list)

    def check_headers(self, log: Log) -> None:
        """Build an empty module, once, because a configure script's "no" answers may only mean that nothing compiles.

        Raises KernelError with what is missing (a compiler, pahole, generated files).
        """
        kernel, folder = self.request.kernel, os.path.join(self.folder, EMPTY)
        if os.path.isfile(os.path.join(folder, f"{EMPTY}.ko")):
            return
        os.makedirs(folder, exist_ok=True)
        for name, text in ((f"{EMPTY}.c", _PROBE), ("Makefile", f"obj-m += {EMPTY}.o\n")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        done = make_modules(log, kernel, folder, self.request.variables, 1)
        if done.status == 0 and os.path.isfile(os.path.join(folder, f"{EMPTY}.ko")):
            return
        why = log.trouble(done, folder)
        # The folder has another name each time.
        words = why or first_error(done).replace(f"{folder}/", "")
        message = f"the headers of kernel {kernel.release} cannot build even an empty module: {words}"
        is_broken = not why or done.status == process.NOT_FOUND
        raise KernelError(message, f"{_missing_hint(kernel, done) if is_broken else AGAIN}; the log is {log.path}")

    def versions(self, log: Log) -> Versions:
        """The driver's symbol versions for this kernel; raises BuildError or SymversError."""
        if self._versions is None:
            self._versions = self._find_versions(log)
        return self._versions

    def use_versions_of(self, nvidia: str) -> None:
        """Take the versions of ``nvidia``, the nvidia.ko that this run built."""
        module = read_module(nvidia)
        extra = {name: Export(crc or 0, EXPORTER, gpl) for name, (crc, gpl) in module.exports.items()}
        text = write_symvers(module, EXPORTER, self.request.kernel.versioned)
        self._versions = self._write_versions(text, extra, "built")

    def _find_versions(self, log: Log) -> Versions:
        kernel, tree = self.request.kernel, self.request.tree
        place = None if self.request.ahead else drivers.find(kernel, EXPORTER)
        if place is not None:
            module = kernel.read(place.file)
            if (module.version, drivers.flavour(module)) != (tree.version, tree.flavour):
                message = (
                    f"kernel {kernel.release} has nvidia.ko of driver {module.version} ({drivers.flavour(module)}),"
                )
                message += f" but {tree.path} is the source of {tree.version} ({tree.flavour})"
                raise BuildError(message, "build the driver for this kernel first, or pass --ahead if it comes later")
            return self._write_versions(write_symvers(module, EXPORTER, kernel.versioned), {}, "module")
        exports, origin = earlier_exports(kernel, tree, log), "symvers"
        if exports is None:
            exports, origin = compile_unit(kernel, tree, self.unit_folder(), log, self.settings()), "compiled"
        lines = (format_line(name, export) for name, export in sorted(exports.items()))
        return self._write_versions("".join(lines), exports, origin)

    def _write_versions(self, text: str, extra: Dict[str, Export], origin: str) -> Versions:
        path = os.path.join(self.folder, "nvidia.symvers")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return Versions(path, extra, origin)

    @property
    def versions_origin(self) -> str:
        """Where the versions came from; empty if no module needed them."""
        return self._versions.origin if self._versions is not None else ""

    @cached_property
    def ofed(self) -> Search:
        """The OFED tree of the kernel, searched once."""
        return search(self.request.kernel)

    def unit_folder(self) -> str:
        """A copy of the driver's tree for compiling its small parts and for their probes' answers."""
        folder = os.path.join(self.folder, "driver")
        if not os.path.isdir(folder):
            shutil.copytree(self.request.tree.path, folder, ignore=shutil.ignore_patterns(*SKIPPED, *SKIPPED_OF_DRIVER))
        return folder

    def settings(self) -> List[str]:
        """Variables for the driver's Kbuild; its own Makefile would set them, with folders of the running kernel."""
        kernel = self.request.kernel
        headers = kernel.headers()
        sources = os.path.join(kernel.folder, "source")
        sources = os.path.realpath(sources) if os.path.isdir(sources) else headers
        machine = os.uname().machine
        return [
            f"-j{max(self.request.jobs, 1)}",
            "ARCH=" + {"aarch64": "arm64"}.get(machine, machine),
            "NV_SPECTRE_V2=0",
            "NV_KERNEL_SOURCES=" + sources,
            "NV_KERNEL_OUTPUT=" + headers,
            *self.request.variables,
        ]


def provenance(request: BuildRequest) -> Dict[str, str]:
    """What every build records inside the module, each key prefixed with PROVENANCE."""
    return {"driver": request.tree.version, "flavour": request.tree.flavour, "tree": digest(request.tree)}


def record(log: Log, file: str, entries: Dict[str, str]) -> None:
    """Append ``entries`` to the modinfo of the unsigned module ``file`` and read them back; raises BuildError."""
    section = file + ".modinfo"
    folder = os.path.dirname(file)
    dump = log.run(["objcopy", "--dump-section", ".modinfo=" + section, file], folder)
    if dump.status != 0:
        raise BuildError(f"cannot read the modinfo of {file}: {first_error(dump)}", "install binutils")
    with open(section, "ab") as data:
        for key, value in entries.items():
            data.write(f"{PROVENANCE}{key}={value}\0".encode())
    update = log.run(["objcopy", "--update-section", ".modinfo=" + section, file], folder)
    if update.status != 0 or read_module(file).provenance != entries:
        raise BuildError(f"cannot record the build in {file}: {first_error(update)}")


def audit_built(
    request: BuildRequest, log: Log, files: Sequence[str], extra: Dict[str, Export], what: str, *, peermem: bool = False
) -> List[Result]:
    """Audit what was built, in the order of ``files``; raises BuildError for any error, and for what can't be read."""
    kernel, tree = request.kernel, request.tree
    expected = Expected(tree.version, tree.flavour, digest(tree), peermem)
    results = audit(kernel, list(files), expected, extra)
    problems: List[str] = []
    is_incomplete = False
    for file, result in zip(files, results):
        name, module = os.path.basename(file), read_module(file)
        errors = [
            finding for finding in result["findings"] if outcome_of(finding) == ERROR or finding["id"] == INCOMPLETE
        ]
        is_incomplete = is_incomplete or any(finding["id"] == INCOMPLETE for finding in errors)
        problems += [f"{name}: [{finding['id']}] {finding['message']}" for finding in errors]
        if module.vermagic != kernel.vermagic():
            problems.append(f"{name}: [vermagic] is {module.vermagic!r}, the kernel's {kernel.vermagic()!r}")
        imports = any(symbol.startswith("nvidia_p2p_") for symbol in module.imports)
        if request.ahead and tree.flavour == "proprietary" and module.name == "nvidia_fs" and imports:
            # The audit itself finds this only with an installed driver.
            text = "[gpl-proprietary] links the proprietary driver's symbols; nvidia-fs needs the open modules"
            problems.append(text)
    if problems:
        message = f"{what} was built for kernel {kernel.release} against {tree.path}, but its audit says"
        kind = BuildError if is_incomplete else UnbuildableError
        raise kind(f"{message}: {'; '.join(problems)}", f"the log is {log.path}")
    return results


def place(files: Sequence[Tuple[str, str, Dict[str, Any]]]) -> List[Built]:
    """Put each (built file, target, audit result) into place atomically; raises BuildError."""
    try:
        with contextlib.ExitStack() as targets:
            for built, output, _result in files:
                target = targets.enter_context(atomic.replacing(output, make=False))
                with open(built, "rb") as file:
                    shutil.copyfileobj(file, target)
    except OSError as error:
        raise BuildError(f"cannot write {error.filename or output}: {error.strerror}") from None
    for _built, output, result in files:
        result["file"] = output
    return [Built(output, read_module(output), result) for _built, output, result in files]
