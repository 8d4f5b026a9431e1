"""The operating system and the kernel that runs, its messages, arguments and audit; and the kernel of the next boot.

What the kernel's messages mean is data/kernel_messages.json.  The log is that of the journal and of dmesg, as one.

The kernel's messages about faults, with their meanings: data/kernel_messages.json.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from .. import data
from ..boot import bls
from ..boot.bls import environment as variables_of
from ..boot.bls import menu_choice, menu_entries
from ..kmod.module import outcome_of
from ..model.system import system_name, without_minor
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
from .document import Document, Ran, once_for_alike
from .unknown import Maybe, Unknown, decided, if_present, require, when_known, why_not

#: Program in the evidence → its name in messages and quotes.
SOURCES = {"journal": "journalctl -k -b", "dmesg": "dmesg"}
#: A line of journalctl's format short-monotonic: the time as dmesg writes it, then host and identifier.
_JOURNAL = re.compile(r"^(\[ *\d+\.\d+\]) \S+ kernel: ")
_TIME = re.compile(r"^\[ *(\d{1,12}\.\d+)\] ")
#: start_kernel() prints it before everything else (linux_banner), so it is the first line that a full ring drops.
_BANNER = re.compile(r"^(\[ *0\.0+\] )?Linux version ")
#: The kernel's rate limit (lib/ratelimit.c): lines of one of NVIDIA's functions were left out.
_SUPPRESSED = re.compile(r"\bnv\w*: \d+ callbacks suppressed")


@dataclass(frozen=True)
class KernelLog:
    """Lines as dmesg prints them, oldest first."""

    lines: Tuple[str, ...]
    #: the program that printed the most of them, e.g. ``dmesg``
    source: str
    #: True, or unknown with the reason why messages since the boot may be missing
    since_boot: Maybe[bool]
    #: lines with which the kernel says that it left out repeated ones
    suppressed: Tuple[str, ...] = ()


def kernel_log(document: Document) -> KernelLog:
    """Both sources together: one may have lines that the other lost, and one that reaches back to the boot suffices."""
    logs = {program: _lines(document.printed(program)) for program in SOURCES}
    complete = [_reaches_boot(document, program, lines) for program, lines in logs.items()]
    reasons = "; ".join(answer.reason for answer in complete if isinstance(answer, Unknown))
    incomplete = Unknown(f"messages since the boot may be missing: {reasons}")
    lines = _merged([line for lines in logs.values() for line in lines])
    return KernelLog(
        lines=tuple(line for line in lines if not _SUPPRESSED.search(line)),
        source=SOURCES[max(logs, key=lambda program: len(logs[program]))],
        since_boot=True if True in complete else incomplete,
        suppressed=tuple(line for line in lines if _SUPPRESSED.search(line)),
    )


def any_messages(document: Document) -> Maybe[bool]:
    """True where a source could be read at all, however far back it reaches."""
    results = [document.ran(program) for program in SOURCES]
    if any(not isinstance(result, Unknown) and result.status == 0 for result in results):
        return True
    texts = [result.reason if isinstance(result, Unknown) else result.stderr.strip() for result in results]
    return Unknown("; ".join(filter(None, texts)) or "the kernel's messages could not be read")


def _lines(text: str) -> List[str]:
    return [_JOURNAL.sub(r"\1 ", line) for line in text.splitlines()]


@decided
def _reaches_boot(document: Document, program: str, lines: Sequence[str]) -> Maybe[bool]:
    run = require(document.ran(program))
    if run.status != 0:
        return Unknown(f"{SOURCES[program]}: {run.stderr.strip() or 'exit status ' + str(run.status)}")
    if any(map(_BANNER.match, lines)):
        return True
    return Unknown(f"{SOURCES[program]} doesn't show the kernel's first message")


def _merged(lines: Sequence[str]) -> List[str]:
    """Each line once, by time; a line without a time follows the one before it."""
    times: Dict[str, float] = {}
    last = 0.0
    for line in lines:
        match = _TIME.match(line)
        last = float(match.group(1)) if match else last
        times.setdefault(line, last)
    return sorted(times, key=lambda line: times[line])


@dataclass(frozen=True)
class OsFacts:
    """``name``: id and version as a fleet file writes them, e.g. ``debian-13``; ``machine`` as ``uname -m``."""

    name: Maybe[str]
    pretty_name: Maybe[str]
    machine: Maybe[str]
    #: implementer and part of an Arm processor; None: the kernel names none, as on x86
    core: Maybe[Optional[Tuple[int, int]]]


@dataclass(frozen=True)
class KernelFacts:
    """The running kernel."""

    #: as ``uname -r``
    release: Maybe[str]
    boot_id: Maybe[str]
    #: words of the command line
    command_line: Maybe[Tuple[str, ...]]
    #: option without CONFIG_ → ``y``, ``m``, ``n`` or its text; those of interest only
    config: Maybe[Mapping[str, str]]
    #: in-kernel names of loaded modules
    modules: Maybe[FrozenSet[str]]
    #: exported names of interest → module that has them, empty for the kernel itself
    symbols: Maybe[Mapping[str, str]]
    #: messages about the modules of this stack, oldest first; some may be missing
    messages: Maybe[Tuple[str, ...]]
    log: KernelLog
    #: one of :data:`secure_boot.firmware.WORDS`, but ``unknown``
    secure_boot_state: Maybe[str]
    #: ``none``, ``integrity`` or ``confidentiality``
    lockdown: Maybe[str]
    #: bits of /proc/sys/kernel/tainted
    tainted: Maybe[int]
    #: the parameter ``multipath`` of nvme_core; None: not loaded, or built without it
    nvme_multipath: Maybe[Optional[bool]]

    @property
    def secure_boot(self) -> Maybe[bool]:
        """Whether the kernel takes Secure Boot as on."""
        return when_known(self.secure_boot_state, lambda state: state == ON)

    def option(self, name: str) -> Maybe[str]:
        """A configuration option; one that the configuration does not mention is off."""
        return self.config if isinstance(self.config, Unknown) else self.config.get(name, "n")


_ON, _OFF = re.compile(r"CONFIG_(\w+)=(.*)$"), re.compile(r"# CONFIG_(\w+) is not set$")
NVME_MULTIPATH = "/sys/module/nvme_core/parameters/multipath"


def os_facts(document: Document) -> OsFacts:
    text = document.text("/etc/os-release")
    machine, core = document.host("uname", "machine"), _core(document)
    if not isinstance(text, str):
        reason = why_not(text, "there is no /etc/os-release")
        return OsFacts(reason, reason, machine, core)
    values = _os_release(text)
    name: Maybe[str] = Unknown("/etc/os-release has no ID and VERSION_ID")
    if values.get("ID") and values.get("VERSION_ID"):
        name = without_minor(system_name(values["ID"], values["VERSION_ID"]))
    return OsFacts(name, values.get("PRETTY_NAME") or Unknown("/etc/os-release has no PRETTY_NAME"), machine, core)


def _core(document: Document) -> Maybe[Optional[Tuple[int, int]]]:
    lines = document.lines("/proc/cpuinfo")
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no /proc/cpuinfo")
    if not document.looked_for("/proc/cpuinfo", "CPU part"):
        return Unknown("the processor's part was not collected")
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
    shown = [dict(pairs).get(key) for key in ("CPU implementer", "CPU part")]
    if not any(shown):
        return None
    if not all(re.match(r"0x[0-9a-f]{1,8}$", value or "") for value in shown):
        return Unknown(f"/proc/cpuinfo is not understood: implementer {shown[0]}, part {shown[1]}")
    return int(str(shown[0]), 16), int(str(shown[1]), 16)


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


def kernel_facts(document: Document) -> KernelFacts:
    release = document.host("uname", "release")
    boot_id = document.line("/proc/sys/kernel/random/boot_id")
    command_line = document.text("/proc/cmdline")
    log = kernel_log(document)
    no_command_line = why_not(command_line, "there is no /proc/cmdline")
    return KernelFacts(
        release=release,
        boot_id=boot_id if isinstance(boot_id, str) and boot_id else why_not(boot_id, "there is no boot id"),
        command_line=tuple(command_line.split()) if isinstance(command_line, str) else no_command_line,
        config=when_known(release, lambda name: _config(document, name)),
        modules=loaded_modules(document),
        symbols=_symbols(document),
        messages=when_known(any_messages(document), lambda _: log.lines),
        log=log,
        secure_boot_state=_secure_boot(document),
        lockdown=_lockdown(document),
        tainted=_tainted(document),
        nvme_multipath=if_present(document.line(NVME_MULTIPATH), _yes_or_no),
    )


def loaded_modules(document: Document) -> Maybe[FrozenSet[str]]:
    """In-kernel names; a kernel without loadable modules has no such file, and so none loaded."""
    return when_known(document.text("/proc/modules"), lambda text: _first_words(text or ""))


@once_for_alike
def _first_words(text: str) -> FrozenSet[str]:
    return frozenset(line.split()[0] for line in text.splitlines() if line.split())


def _config(document: Document, release: str) -> Maybe[Mapping[str, str]]:
    reasons = []
    for path in ("/boot/config-" + release, "/lib/modules/" + release + "/config", "/proc/config.gz"):
        lines = document.lines(path)
        if isinstance(lines, tuple):
            return _mount_options(lines)
        reasons.append(why_not(lines, "there is no " + path).reason)
    return Unknown("the kernel's configuration can't be read: " + "; ".join(reasons))


@once_for_alike
def _mount_options(lines: Tuple[str, ...]) -> Dict[str, str]:
    options: Dict[str, str] = {}
    for line in lines:
        on, off = _ON.match(line), _OFF.match(line)
        if on:
            options[on.group(1)] = on.group(2).strip('"')
        elif off:
            options[off.group(1)] = "n"
    return options


def _symbols(document: Document) -> Maybe[Mapping[str, str]]:
    lines = document.lines("/proc/kallsyms")
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no /proc/kallsyms")
    rows = [line.split() for line in lines]
    return {row[2]: row[3].strip("[]") if len(row) == 4 else "" for row in rows if len(row) in (3, 4)}


def _secure_boot(document: Document) -> Maybe[str]:
    efi = document.names(EFI)
    if efi is None:
        return NO_EFI
    # Four bytes of attributes, then the value; without the variable the firmware has no Secure Boot.
    variable = efi if isinstance(efi, Unknown) else document.binary(SECURE_BOOT)
    # Evidence of an older gdsdeploy lacks them, and a firmware or shim may.
    setup_mode, shim_off = (_is_set(document.binary(path)) for path in (SETUP_MODE, SHIM_STATE))
    return when_known(variable, lambda value: state_of(_is_set(value), setup_mode=setup_mode, shim_off=shim_off))


def _is_set(value: Maybe[Optional[str]]) -> bool:
    return isinstance(value, str) and value[8:] == "01"


@decided
def _lockdown(document: Document) -> Maybe[str]:
    text = require(document.text("/sys/kernel/security/lockdown"))
    mode = re.search(r"\[(\w+)\]", text or "[none]")
    return mode.group(1) if mode else Unknown(f"/sys/kernel/security/lockdown says {text!r}")


def _yes_or_no(text: str) -> Maybe[bool]:
    return text == "Y" if text in ("Y", "N") else Unknown(f"{NVME_MULTIPATH} says {text!r}")


def _tainted(document: Document) -> Maybe[int]:
    path = "/proc/sys/kernel/tainted"
    text = document.line(path)
    if isinstance(text, str) and re.match(r"\d{1,10}$", text):
        return int(text)
    return why_not(text, f"{path} says {text!r}")


#: The arguments of each entry.
Entries = Tuple[Tuple[str, ...], ...]


@decided
def configured(document: Document, release: str) -> Maybe[Entries]:
    """The arguments of each entry of kernel ``release``; without such, of every kernel's."""
    # Only a check asks: other readers of facts needn't import every boot loader.
    from ..boot import arguments
    from ..boot.arguments import grub_lines

    for path in GRUB_FILES:
        lines = document.lines(path)
        if isinstance(lines, tuple):
            entry_words = grub_lines("\n".join(lines), release)
            if entry_words:
                return tuple(map(tuple, entry_words))
    entries: Dict[str, List[str]] = {}
    own: List[str] = []
    for folder in ENTRY_FOLDERS:
        names = require(document.names(folder))
        for path in (f"{folder}/{name}" for name in names or () if name.endswith(".conf") and "-0-rescue" not in name):
            lines = require(document.lines(path))
            text = "\n".join(lines or ())
            if "linux" in text:
                entries[path] = arguments.words_of(path, text)
                own += [path] if release in text else []
    if not entries:
        return Unknown("the boot loader's entries aren't in the evidence")
    return tuple(tuple(entries[path]) for path in own or entries)


def shown_parameters(document: Document, names: Iterable[str]) -> Mapping[str, Maybe[Optional[str]]]:
    """``MODULE.PARAMETER`` → its value; None: sysfs doesn't have it."""
    paths = ((name, parameter_path(name)) for name in names)
    return {name: document.line(path) if path else Unknown(f"{name} is no parameter") for name, path in paths}


@dataclass(frozen=True)
class BootFacts:
    """The next boot."""

    #: kernel release of the boot loader's default entry; None: no supported boot loader is installed
    default_kernel: Maybe[Optional[str]]
    #: in-kernel names in the order in which systemd-modules-load takes them
    autoloaded: Maybe[Tuple[str, ...]]
    #: in-kernel names that may not be loaded by alias, or that an install rule keeps out
    forbidden: Maybe[Tuple[str, ...]]
    #: service → property → value; empty where there is no systemd
    units: Maybe[Mapping[str, Mapping[str, str]]]
    #: in-kernel name → (options, file) as modprobe.d has them for that module, in the order in which they count
    options: Maybe[Mapping[str, Tuple[Tuple[str, str], ...]]]
    #: the addresses in IMEX's nodes file
    imex_nodes: Maybe[Tuple[str, ...]] = ()


#: (path, text) of configuration fragments
Fragments = Tuple[Tuple[str, str], ...]


def boot_facts(document: Document) -> BootFacts:
    probes = _fragments(document, PROBE_FOLDERS)
    return BootFacts(
        default_kernel=_default_kernel(document),
        autoloaded=when_known(_fragments(document, LOAD_FOLDERS), _autoloaded),
        forbidden=when_known(probes, lambda fragments: _forbidden(fragments, document.text("/proc/cmdline"))),
        units=when_known(document.ran("systemctl-units"), _units),
        options=when_known(probes, _modprobe_options),
        imex_nodes=when_known(document.text(IMEX_NODES), lambda text: tuple((text or "").split())),
    )


@decided
def _fragments(document: Document, folders: Tuple[str, ...]) -> Maybe[Fragments]:
    """(path, text) of configuration fragments in their order; a name in an earlier folder hides later ones."""
    chosen: Dict[str, str] = {}
    for folder in folders:
        names = require(document.names(folder))
        for name in names or ():
            if name.endswith(".conf"):
                chosen.setdefault(name, folder + "/" + name)
    fragments = []
    for name in sorted(chosen):
        text = require(document.text(chosen[name]))
        fragments.append((chosen[name], text or ""))
    return tuple(fragments)


def _autoloaded(fragments: Fragments) -> Tuple[str, ...]:
    names: List[str] = []
    for _, text in fragments:
        lines = (line.strip() for line in text.splitlines())
        names += [line.replace("-", "_") for line in lines if line and line[0] not in "#;"]
    return tuple(dict.fromkeys(names))


@once_for_alike
def _forbidden(fragments: Fragments, command_line: Union[str, Unknown, None]) -> Maybe[Tuple[str, ...]]:
    if isinstance(command_line, Unknown):
        return command_line
    names: List[str] = []
    for words in (line.split() for _, text in fragments for line in text.splitlines()):
        disabled = len(words) > 2 and words[0] == "install" and re.match(r"(/usr)?/bin/(false|true)$", words[2])
        if len(words) > 1 and (words[0] == "blacklist" or disabled):
            names.append(words[1])
    for word in (command_line or "").split():
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


@decided
def _default_kernel(document: Document) -> Maybe[Optional[str]]:
    for path, environment in zip(GRUB_FILES, GRUB_ENVIRONMENTS):
        lines = document.lines(path)
        if lines is None:
            continue
        if isinstance(lines, Unknown):
            return lines
        variables = require(document.text(environment))
        menu = require(_bls_entries(document) if path == GRUB_FILES[-1] else None)
        return _grub_default(lines, variables or "", menu)
    return None


@decided
def _bls_entries(document: Document) -> Maybe[Optional[Tuple[bls.BlsEntry, ...]]]:
    """The menu where it consists of Boot Loader Specification entries; None where there are none."""
    texts = []
    for name in document.existing(bls.ENTRIES):
        lines = require(document.lines(f"{bls.ENTRIES}/{name}") if name.endswith(".conf") else None)
        texts.append((name, "\n".join(lines or ())))
    return tuple(bls.parse(texts)) or None


@once_for_alike
def _grub_default(
    lines: Tuple[str, ...], environment: str, bls_menu: Optional[Tuple[bls.BlsEntry, ...]]
) -> Maybe[Optional[str]]:
    """Follow GRUB's own rules: ``next_entry`` once, else ``default``; a path of indices, ids or titles."""
    variables = variables_of(environment)
    matches = (re.match(r'\s*set default="?([^"]*)"?\s*$', line) for line in lines)
    defaults = [match.group(1) for match in matches if match and match.group(1) != "${next_entry}"]
    if not defaults:
        return Unknown("grub.cfg sets no default")
    chosen = variables.get("next_entry") or defaults[-1]
    if chosen == "${saved_entry}":
        chosen = variables.get("saved_entry") or "0"
    if "$" in chosen:
        return Unknown(f"grub.cfg has the default {chosen!r}, which is decided while booting")
    if bls_menu:
        first = bls.resolve(bls_menu, chosen)
        return first.release if first is not None else None
    menu = menu_entries("\n".join(lines))
    if not menu:
        return Unknown("grub.cfg has no menu entries of its own")
    entry = menu_choice(menu, chosen)
    if entry is None:
        return Unknown(f"grub.cfg has no entry {chosen!r}")
    return entry.release or Unknown("the default entry of grub.cfg names no kernel")


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


@dataclass(frozen=True)
class AuditFacts:
    running: Maybe[KernelAudit]
    next: Maybe[KernelAudit]


def audit_facts(document: Document) -> AuditFacts:
    return AuditFacts(_kernel(document, "running"), _kernel(document, "next"))


@decided
def _kernel(document: Document, which: str) -> Maybe[KernelAudit]:
    record = require(document.record("audits", which))
    if record is None:
        return Unknown(f"the modules of the {which} kernel were not audited")
    release, results = record.get("release"), record.get("results")
    if not isinstance(release, str) or not isinstance(results, list):
        return Unknown(f"the record of the audit of the {which} kernel is no such record")
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
