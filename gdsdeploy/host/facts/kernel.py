"""The operating system and the kernel that runs, its messages, arguments and audit; and the kernel of the next boot.

What the kernel's messages mean is data/kernel_messages.json.  The log is that of the journal and of dmesg, as one.

The kernel's messages about faults, with their meanings: data/kernel_messages.json.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Tuple

from .. import data
from ..boot import bls
from ..boot.bls import environment as variables_of
from ..boot.bls import menu_choice, menu_entries
from ..kmod.module import outcome_of
from ..model.system import family_of, profile_name
from ..paths import (
    EFI,
    ENTRY_FOLDERS,
    GRUB_ENVIRONMENTS,
    GRUB_FILES,
    IMEX_NODES,
    LOAD_FOLDERS,
    PROBE_FOLDERS,
    SECURE_BOOT,
    SETUP_MODE,
    SHIM_STATE,
    parameter_path,
)
from ..secure_boot.firmware import NO_EFI, ON, state_of
from .document import Document, Ran, collected, group_of, once_for_alike, recorded_lines, there
from .unknown import Facts, UndecidedError, Unknown, fact, given, if_known, known

#: Program in the evidence → its name in messages and quotes.
SOURCES = {"journal": "journalctl -k -b", "dmesg": "dmesg"}
#: A line of journalctl's format short-monotonic: the time as dmesg writes it, then host and identifier.
_JOURNAL = re.compile(r"^(\[ *\d+\.\d+\]) \S+ kernel: ")
_TIME = re.compile(r"^\[ *(\d{1,12}\.\d+)\] ")
#: start_kernel() prints it before everything else (linux_banner), so it is the first line that a full ring drops.
_BANNER = re.compile(r"^(\[ *0\.0+\] )?Linux version ")
#: The kernel's rate limit (lib/ratelimit.c): lines of one of NVIDIA's functions were left out.
_SUPPRESSED = re.compile(r"\bnv\w*: \d+ callbacks suppressed")


class KernelLog(Facts):
    """Lines as dmesg prints them.

    Of both sources together: one may have lines that the other lost, and one that reaches back to the boot suffices.
    """

    @fact
    def lines(self) -> Tuple[str, ...]:
        """The oldest first."""
        return tuple(line for line in self._all if not _SUPPRESSED.search(line))

    #: the program that printed the most of them, e.g. ``dmesg``
    source = given(lambda document: SOURCES[max(SOURCES, key=lambda program: len(_lines(document, program)))])

    @fact
    def since_boot(self) -> bool:
        """True, or undecided with the reason why messages since the boot may be missing."""
        complete = [known(partial(_reaches_boot, self.document, program)) for program in SOURCES]
        if True not in complete:
            reasons = "; ".join(answer.reason for answer in complete if isinstance(answer, Unknown))
            raise UndecidedError(f"messages since the boot may be missing: {reasons}")
        return True

    @fact
    def suppressed(self) -> Tuple[str, ...]:
        """Lines with which the kernel says that it left out repeated ones."""
        return tuple(line for line in self._all if _SUPPRESSED.search(line))

    @property
    def _all(self) -> List[str]:
        return _merged(tuple(line for program in SOURCES for line in _lines(self.document, program)))


def any_messages(document: Document) -> bool:
    """True where a source could be read at all, however far back it reaches; else undecided."""
    results = [known(partial(document.ran, program)) for program in SOURCES]
    if any(not isinstance(result, Unknown) and result.status == 0 for result in results):
        return True
    texts = [result.reason if isinstance(result, Unknown) else result.stderr.strip() for result in results]
    raise UndecidedError("; ".join(filter(None, texts)) or "the kernel's messages could not be read")


def _lines(document: Document, program: str) -> List[str]:
    return [_JOURNAL.sub(r"\1 ", line) for line in document.printed(program).splitlines()]


def _reaches_boot(document: Document, program: str) -> bool:
    run = document.ran(program)
    if run.status != 0:
        raise UndecidedError(f"{SOURCES[program]}: {run.stderr.strip() or 'exit status ' + str(run.status)}")
    if any(map(_BANNER.match, _lines(document, program))):
        return True
    raise UndecidedError(f"{SOURCES[program]} doesn't show the kernel's first message")


@once_for_alike
def _merged(lines: Tuple[str, ...]) -> List[str]:
    """Each line once, by time; a line without a time follows the one before it."""
    times: Dict[str, float] = {}
    last = 0.0
    for line in lines:
        match = _TIME.match(line)
        last = float(match.group(1)) if match else last
        times.setdefault(line, last)
    return sorted(times, key=lambda line: times[line])


class OsFacts(Facts):
    """The operating system and the kind of machine."""

    @fact
    def name(self) -> str:
        """Its id and version as a fleet file writes them, e.g. ``debian-13``."""
        return profile_name(self._named)

    @property
    def family(self) -> str:
        """By which compatibility rules speak about it: ``debian``, ``ubuntu``, ``rhel`` …"""
        return family_of(self._named)

    @fact
    def pretty_name(self) -> str:
        return collected(self._release.get("PRETTY_NAME") or None, "/etc/os-release has no PRETTY_NAME")

    #: as ``uname -m``
    machine = given(lambda document: document.host("uname", "machine"))

    @fact
    def core(self) -> Optional[Tuple[int, int]]:
        """Implementer and part of an Arm processor; None: the kernel names none, as on x86."""
        lines = there(self.document.lines("/proc/cpuinfo"), "/proc/cpuinfo")
        if not self.document.looked_for("/proc/cpuinfo", "CPU part"):
            raise UndecidedError("the processor's part was not collected")
        pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
        shown = [dict(pairs).get(key) for key in ("CPU implementer", "CPU part")]
        if not any(shown):
            return None
        if not all(re.match(r"0x[0-9a-f]{1,8}$", value or "") for value in shown):
            raise UndecidedError(f"/proc/cpuinfo is not understood: implementer {shown[0]}, part {shown[1]}")
        return int(str(shown[0]), 16), int(str(shown[1]), 16)

    @property
    def _release(self) -> Dict[str, str]:
        return _os_release(there(self.document.text("/etc/os-release"), "/etc/os-release"))

    @property
    def _named(self) -> Dict[str, str]:
        release = self._release
        if not (release.get("ID") and release.get("VERSION_ID")):
            raise UndecidedError("/etc/os-release has no ID and VERSION_ID")
        return release


class KernelFacts(Facts):
    """The running kernel."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.log = KernelLog(document)

    #: as ``uname -r``
    release = given(lambda document: document.host("uname", "release"))

    @fact
    def boot_id(self) -> str:
        return collected(self.document.line("/proc/sys/kernel/random/boot_id") or None, "there is no boot id")

    #: its words
    command_line = given(lambda document: tuple(there(document.text("/proc/cmdline"), "/proc/cmdline").split()))

    @fact
    def config(self) -> Mapping[str, str]:
        """Option without CONFIG_ → ``y``, ``m``, ``n`` or its text; those of interest only."""
        paths = (f"/boot/config-{self.release}", f"/lib/modules/{self.release}/config", "/proc/config.gz")
        reasons = []
        for path in paths:
            lines = known(partial(_lines_of, self.document, path))
            if not isinstance(lines, Unknown):
                return _config_options(lines)
            reasons.append(lines.reason)
        raise UndecidedError("the kernel's configuration can't be read: " + "; ".join(reasons))

    @fact
    def modules(self) -> FrozenSet[str]:
        """In-kernel names of loaded modules; a kernel without loadable modules has no such file, and so none loaded."""
        return _first_words(self.document.text("/proc/modules") or "")

    @fact
    def symbols(self) -> Mapping[str, str]:
        """Exported names of interest → module that has them, empty for the kernel itself."""
        rows = [line.split() for line in _lines_of(self.document, "/proc/kallsyms")]
        return {row[2]: row[3].strip("[]") if len(row) == 4 else "" for row in rows if len(row) in (3, 4)}

    @fact
    def messages(self) -> Tuple[str, ...]:
        """Messages about the modules of this stack, oldest first; some may be missing."""
        return self.log.lines if any_messages(self.document) else ()

    @fact
    def secure_boot_state(self) -> str:
        """One of :data:`secure_boot.firmware.WORDS`, but ``unknown``."""
        if self.document.names(EFI) is None:
            return NO_EFI
        # Four bytes of attributes, then the value; without the variable the firmware has no Secure Boot.
        value = self.document.binary(SECURE_BOOT)
        # Evidence of an older gdsdeploy lacks them, and a firmware or shim may.
        others = [if_known(partial(self.document.binary, path), None) for path in (SETUP_MODE, SHIM_STATE)]
        return state_of(_is_set(value), setup_mode=_is_set(others[0]), shim_off=_is_set(others[1]))

    @fact
    def lockdown(self) -> str:
        """``none``, ``integrity`` or ``confidentiality``."""
        text = self.document.text("/sys/kernel/security/lockdown")
        mode = re.search(r"\[(\w+)\]", text or "[none]")
        return group_of(mode, f"/sys/kernel/security/lockdown says {text!r}")

    @fact
    def tainted(self) -> int:
        """Bits of /proc/sys/kernel/tainted."""
        text = self.document.line("/proc/sys/kernel/tainted")
        if text is None or not re.match(r"\d{1,10}$", text):
            raise UndecidedError(f"/proc/sys/kernel/tainted says {text!r}")
        return int(text)

    @fact
    def nvme_multipath(self) -> Optional[bool]:
        """The parameter ``multipath`` of nvme_core; None: not loaded, or built without it."""
        text = self.document.line(NVME_MULTIPATH)
        if text not in ("Y", "N", None):
            raise UndecidedError(f"{NVME_MULTIPATH} says {text!r}")
        return None if text is None else text == "Y"

    @property
    def secure_boot(self) -> bool:
        """Whether the kernel takes Secure Boot as on."""
        return self.secure_boot_state == ON

    def option(self, name: str) -> str:
        """A configuration option; one that the configuration does not mention is off."""
        return self.config.get(name, "n")


def _lines_of(document: Document, path: str) -> Tuple[str, ...]:
    return there(document.lines(path), path)


@once_for_alike
def _config_options(lines: Tuple[str, ...]) -> Dict[str, str]:
    options: Dict[str, str] = {}
    for line in lines:
        on, off = _ON.match(line), _OFF.match(line)
        if on:
            options[on.group(1)] = on.group(2).strip('"')
        elif off:
            options[off.group(1)] = "n"
    return options


_ON, _OFF = re.compile(r"CONFIG_(\w+)=(.*)$"), re.compile(r"# CONFIG_(\w+) is not set$")
NVME_MULTIPATH = "/sys/module/nvme_core/parameters/multipath"


@once_for_alike
def _os_release(text: str) -> Dict[str, str]:
    values: Dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and re.match(r"[A-Z0-9_]+$", key):
            try:
                values[key] = "".join(shlex.split(value)[:1])
            except ValueError:
                continue
    return values


@once_for_alike
def _first_words(text: str) -> FrozenSet[str]:
    return frozenset(line.split()[0] for line in text.splitlines() if line.split())


def _is_set(value: Optional[str]) -> bool:
    return value is not None and value[8:] == "01"


#: The arguments of each entry.
Entries = Tuple[Tuple[str, ...], ...]


def configured(document: Document, release: str) -> Entries:
    """The arguments of each entry of kernel ``release``; without such, of every kernel's.  Raises UndecidedError."""
    # Only a check asks: other readers of facts needn't import every boot loader.
    from ..boot import arguments
    from ..boot.arguments import grub_lines

    for path in GRUB_FILES:
        grub = grub_lines("\n".join(recorded_lines(document, path)), release)
        if grub:
            return tuple(map(tuple, grub))
    entries: Dict[str, List[str]] = {}
    own: List[str] = []
    for folder in ENTRY_FOLDERS:
        names = document.names(folder) or ()
        for path in (f"{folder}/{name}" for name in names if name.endswith(".conf") and "-0-rescue" not in name):
            text = "\n".join(document.lines(path) or ())
            if "linux" in text:
                entries[path] = arguments.words_of(path, text)
                own += [path] if release in text else []
    if not entries:
        raise UndecidedError("the boot loader's entries aren't in the evidence")
    return tuple(tuple(entries[path]) for path in own or entries)


def shown_parameters(document: Document, names: Iterable[str]) -> Mapping[str, Optional[str]]:
    """``MODULE.PARAMETER`` → its value; None: sysfs doesn't have it.  Raises UndecidedError."""
    return {name: document.line(collected(parameter_path(name) or None, f"{name} is no parameter")) for name in names}


class BootFacts(Facts):
    """The next boot."""

    @fact
    def default_kernel(self) -> Optional[str]:
        """Kernel release of the boot loader's default entry; None: no supported boot loader is installed."""
        for path, environment in zip(GRUB_FILES, GRUB_ENVIRONMENTS):
            lines = self.document.lines(path)
            if lines is not None:
                variables = self.document.text(environment) or ""
                return _grub_default(lines, variables, self._bls_menu() if path == GRUB_FILES[-1] else None)
        return None

    def _bls_menu(self) -> Optional[Tuple[bls.BlsEntry, ...]]:
        """The menu where it consists of Boot Loader Specification entries; None where there are none."""
        names, texts = self.document.existing(bls.ENTRIES), []
        for name in names:
            lines = self.document.lines(f"{bls.ENTRIES}/{name}") if name.endswith(".conf") else None
            texts.append((name, "\n".join(lines or ())))
        return tuple(bls.parse(texts)) or None

    #: in-kernel names in the order in which systemd-modules-load takes them
    autoloaded = given(lambda document: _autoloaded(_fragments(document, LOAD_FOLDERS)))

    @fact
    def forbidden(self) -> Tuple[str, ...]:
        """In-kernel names that may not be loaded by alias, or that an install rule keeps out."""
        return _forbidden(_fragments(self.document, PROBE_FOLDERS), self.document.text("/proc/cmdline") or "")

    @fact
    def units(self) -> Mapping[str, Mapping[str, str]]:
        """Service → property → value; empty where there is no systemd."""
        return _units(self.document.ran("systemctl-units"))

    @fact
    def options(self) -> Mapping[str, Tuple[Tuple[str, str], ...]]:
        """In-kernel name → (options, file) as modprobe.d has them for the module, in the order in which they count."""
        return _modprobe_options(_fragments(self.document, PROBE_FOLDERS))

    #: the addresses in IMEX's nodes file
    imex_nodes = given(lambda document: tuple((document.text(IMEX_NODES) or "").split()))


#: (path, text) of configuration fragments
Fragments = Tuple[Tuple[str, str], ...]


def _fragments(document: Document, folders: Tuple[str, ...]) -> Fragments:
    """(path, text) of configuration fragments in their order; a name in an earlier folder hides later ones."""
    chosen: Dict[str, str] = {}
    for folder in folders:
        for name in document.names(folder) or ():
            if name.endswith(".conf"):
                chosen.setdefault(name, folder + "/" + name)
    return tuple((chosen[name], document.text(chosen[name]) or "") for name in sorted(chosen))


def _autoloaded(fragments: Fragments) -> Tuple[str, ...]:
    names: List[str] = []
    for _, text in fragments:
        lines = (line.strip() for line in text.splitlines())
        names += [line.replace("-", "_") for line in lines if line and line[0] not in "#;"]
    return tuple(dict.fromkeys(names))


@once_for_alike
def _forbidden(fragments: Fragments, command_line: str) -> Tuple[str, ...]:
    names: List[str] = []
    for words in (line.split() for _, text in fragments for line in text.splitlines()):
        disabled = len(words) > 2 and words[0] == "install" and re.match(r"(/usr)?/bin/(false|true)$", words[2])
        if len(words) > 1 and (words[0] == "blacklist" or disabled):
            names.append(words[1])
    for word in command_line.split():
        key, _, value = word.partition("=")
        if key in ("modprobe.blacklist", "module_blacklist", "rd.driver.blacklist"):
            names += filter(None, value.split(","))
    return tuple(dict.fromkeys(name.replace("-", "_") for name in names))


@once_for_alike
def _modprobe_options(fragments: Fragments) -> Mapping[str, Tuple[Tuple[str, str], ...]]:
    options: Dict[str, Tuple[Tuple[str, str], ...]] = {}
    for path, text in fragments:
        for line in text.replace("\\\n", " ").splitlines():
            words = line.split(None, 2)
            if len(words) == 3 and words[0] == "options":
                name = words[1].replace("-", "_")
                options[name] = (*options.get(name, ()), (words[2], path))
    return options


@once_for_alike
def _units(run: Ran) -> Mapping[str, Mapping[str, str]]:
    rows = [[line.partition("=") for line in block.splitlines()] for block in run.stdout.split("\n\n")]
    units = [{key: value for key, separator, value in row if separator} for row in rows]
    return {unit["Id"]: unit for unit in units if "Id" in unit}


@once_for_alike
def _grub_default(
    lines: Tuple[str, ...], environment: str, bls_menu: Optional[Tuple[bls.BlsEntry, ...]]
) -> Optional[str]:
    """Follow GRUB's own rules: ``next_entry`` once, else ``default``; a path of indices, ids or titles."""
    variables = variables_of(environment)
    matches = (re.match(r'\s*set default="?([^"]*)"?\s*$', line) for line in lines)
    defaults = [match.group(1) for match in matches if match and match.group(1) != "${next_entry}"]
    if not defaults:
        raise UndecidedError("grub.cfg sets no default")
    chosen = variables.get("next_entry") or defaults[-1]
    if chosen == "${saved_entry}":
        chosen = variables.get("saved_entry") or "0"
    if "$" in chosen:
        raise UndecidedError(f"grub.cfg has the default {chosen!r}, which is decided while booting")
    if bls_menu:
        first = bls.resolve(bls_menu, chosen)
        return first.release if first is not None else None
    menu = menu_entries("\n".join(lines))
    if not menu:
        raise UndecidedError("grub.cfg has no menu entries of its own")
    entry = collected(menu_choice(menu, chosen), f"grub.cfg has no entry {chosen!r}")
    return collected(entry.release or None, "the default entry of grub.cfg names no kernel")


@dataclass(frozen=True)
class AuditFinding:
    """``severity`` is ``error``, ``warning`` or ``note``, ``outcome`` as in kmod/findings.py."""

    id: str
    severity: str
    message: str
    hint: str
    outcome: str


@dataclass(frozen=True)
class ModuleAudit:
    """One module; ``ok`` is None where no finding is an error, but one is undecided."""

    #: in-kernel name
    module: str
    file: str
    ok: Optional[bool]
    findings: Tuple[AuditFinding, ...]
    #: NAME VERSION of the locked package that brings it, who signed it, and where the kernel has that key
    package: str = ""
    signer: str = ""
    keyring: str = ""


@dataclass(frozen=True)
class KernelAudit:
    release: str
    modules: Tuple[ModuleAudit, ...]


class AuditFacts(Facts):
    """What the audit found of the modules of the running kernel, and of the one that boots next."""

    running = given(lambda document: _kernel(document, "running"))
    next = given(lambda document: _kernel(document, "next"))


def _kernel(document: Document, which: str) -> KernelAudit:
    record = document.record("audits", which)
    if record is None:
        raise UndecidedError(f"the modules of the {which} kernel were not audited")
    release, results = record.get("release"), record.get("results")
    if not isinstance(release, str) or not isinstance(results, list):
        raise UndecidedError(f"the record of the audit of the {which} kernel is no such record")
    return KernelAudit(release, tuple(_module(result) for result in results))


def _module(value: Any) -> ModuleAudit:
    record = value if isinstance(value, dict) else {}
    ok, findings = record.get("ok"), record.get("findings")
    entries = findings if isinstance(findings, list) else []
    return ModuleAudit(
        module=str(record.get("module", "")),
        file=str(record.get("file", "")),
        ok=ok if isinstance(ok, bool) and isinstance(findings, list) else None,
        findings=tuple(_finding(entry) for entry in entries if isinstance(entry, dict)),
        **{key: str(record.get(key, "")) for key in ("package", "signer", "keyring")},
    )


def _finding(entry: Mapping[str, Any]) -> AuditFinding:
    ident, severity, message, hint = (str(entry.get(key, "")) for key in ("id", "severity", "message", "hint"))
    return AuditFinding(ident, severity, message, hint, outcome_of(entry))


NVIDIA, NVIDIA_FS, PEERMEM = "nvidia", "nvidia-fs", "nvidia-peermem"
#: Of a GPU's error: the GPU's PCI address and the number.
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,18})")
#: What the two modules' lines contain, and the kernel's about them.
_ABOUT = {
    NVIDIA: re.compile("NVRM"),
    NVIDIA_FS: re.compile("nvidia[-_]fs|nvfs"),
    PEERMEM: re.compile("peermem|nv_mem"),
}
#: nvidia-fs prints it first whenever it is loaded: what it printed before is over.
_LOADED_AGAIN = "nvidia_fs: Initializing nvfs driver module"


@dataclass(frozen=True)
class Meaning:
    """A row of the table; its schema describes the fields."""

    id: str
    module: str
    pattern: str
    sample: str
    what: str
    cause: str
    fault: bool
    fix: str
    source: str
    loading: bool = False


#: Of an Xid that the table doesn't have.
UNLISTED = Meaning(
    id="xid-unlisted",
    module=NVIDIA,
    pattern="",
    sample="",
    what="a number without an entry in gdsdeploy's table",
    cause="hardware",
    fault=True,
    fix="look the number up in NVIDIA's catalog of Xid errors; until then treat the GPU as faulty",
    source="",
)


@dataclass(frozen=True)
class Message:
    """A line about a fault, or about something that looks like one."""

    line: str
    meaning: Meaning
    #: ``Xid 79 on 0000:3b:00``; empty for other messages
    xid: str = ""

    @property
    def what(self) -> str:
        return f"{self.xid}: {self.meaning.what}" if self.xid else self.meaning.what


@lru_cache(maxsize=1)
def meanings() -> Tuple[Meaning, ...]:
    return data.rows("kernel_messages", Meaning)


def messages(lines: Iterable[str], module: str) -> Iterator[Message]:
    """The lines about faults that ``module`` printed, in their order; nvidia-fs's since it was last loaded."""
    lines = list(lines)
    if module == NVIDIA_FS:
        loads = [place for place, line in enumerate(lines) if _LOADED_AGAIN in line]
        lines = lines[loads[-1] :] if loads else lines
    table = [(re.compile(row.pattern), row) for row in meanings() if row.module == module]
    for line in filter(_ABOUT[module].search, lines):
        xid = XID.search(line) if module == NVIDIA else None
        label = f"Xid {xid.group(2)} on {xid.group(1)}" if xid else ""
        meaning = next((row for pattern, row in table if pattern.search(line)), UNLISTED if xid else None)
        if meaning is not None:
            yield Message(line, meaning, label)
