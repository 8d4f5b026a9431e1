"""The kernel that runs: its build, its state, and its messages about the stack's modules.

The log is that of the journal and of dmesg, as one.  What its messages mean: data/kernel_messages.json.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Container, Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import data
from ..facts.document import Document, collected, group_of, once_for_alike, there
from ..facts.unknown import Facts, UndecidedError, Unknown, fact, follows, given, if_known, known, require
from ..kmod.flavour import flavour_of
from ..model.causes import Link, is_after
from ..model.expectation import Expectation
from ..paths import EFI, SECURE_BOOT, SETUP_MODE, SHIM_STATE, parameter_path
from ..secure_boot.firmware import NO_EFI, ON, state_of
from . import filesystem, quote
from .condition import NOTES, Cause, Condition, listed_cause, required, rule
from .cufile_json import requests_p2pdma
from .register import Answer, Words, capitalized, check, collector, failed, not_applicable, passed
from .types import EvidenceRequest, HostFacts, Mount, Recorder

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_FILES = (
    "/etc/os-release",
    "/proc/version",
    "/proc/cmdline",
    "/proc/uptime",
    "/proc/sys/kernel/osrelease",
    BOOT_ID,
    "/proc/sys/kernel/tainted",
    "/proc/modules",
    "/sys/kernel/security/lockdown",
    "/sys/module/module/parameters/sig_enforce",
    "/sys/module/nvme_core/parameters/multipath",
)

#: Options that decide whether a path exists, or whether modules fit.
CONFIG = (
    r"^(# )?CONFIG_(PCI_P2PDMA|ZONE_DEVICE|MODVERSIONS|ASM_MODVERSIONS|MODULE_SIG|MODULE_SIG_FORCE|MODULE_COMPRESS_\w+"
    r"|DMABUF_MOVE_NOTIFY|NVME_MULTIPATH|BLK_DEV_NVME|NVME_RDMA|INFINIBAND|IKCONFIG_PROC|PREEMPT_RT|MODULES"
    r"|DMA_SHARED_BUFFER|INFINIBAND_ON_DEMAND_PAGING|INFINIBAND_USER_MAD"
    r"|LOCALVERSION|CC_VERSION_TEXT|DEBUG_INFO_BTF_MODULES)[= ]"
)

#: The hooks that storage drivers export for nvidia-fs, PeerDirect, DMA-BUF in the RDMA core and in adapters' drivers,
#: and what libcufile looks for in P2PDMA mode.
SYMBOLS = (
    r"register_(nvfs_dma|dma_scsi)_ops\b|register_peer_memory_client\b|p2pdma"
    r"|ib_umem_dmabuf_get\b|reg_user_mr_dmabuf\b"
)

#: The processor's vendor and family: the kernel lets peers through the host bridges of some only.  On Arm, its
#: implementer and part, which show a Grace.
CPU = r"^(vendor_id|cpu family|CPU implementer|CPU part)[ \t]*:"

#: Messages about this stack; the kernel's first one, which tells whether the log reaches back to the boot; and lines
#: that stand for others that were left out.
MESSAGES = (
    r"NVRM|nvidia|Xid|nvfs|nouveau|peermem|peer_mem|module verification|[Ll]oading of unsigned module"
    r"|[Ll]oading of .* is rejected|Lockdown: .*module|Key was rejected|disagrees about version|no symbol version"
    r"|Unknown symbol|GPL-only symbols|Linux version |\bnv\w*: \d+ callbacks suppressed"
    r"|conflicting memory types|non-GPLONLY symbol"
)
#: The kernel's messages of this boot with the kernel's own times; dmesg's ring loses old ones sooner.
JOURNAL = ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--all", "--output=short-monotonic")

#: Name, size, state and place of a loaded module, without how often it is in use.
_LOADED = re.compile(r"^(\S+ \d+) \d+ \S+ (\w+ 0x\w+)", re.MULTILINE)


@collector("kernel")
def collect_kernel(recorder: Recorder, request: EvidenceRequest) -> None:
    expected = request.expectation.module_parameters if request.expectation is not None else {}
    recorder.texts((*_FILES, *filter(None, map(parameter_path, sorted(expected)))))
    from ..boot.present import machine_digest

    recorder.document["host"]["machine_id"] = machine_digest(recorder.root)
    configuration(recorder)
    recorder.excerpt("/proc/kallsyms", SYMBOLS, _symbols_of(recorder))
    recorder.excerpt("/proc/cpuinfo", CPU)
    recorder.names("/lib/modules")
    if recorder.names(EFI):
        for variable in (SECURE_BOOT, SETUP_MODE, SHIM_STATE):
            recorder.binary(variable)
    for path in ("/", "/boot", "/lib/modules", "/var"):
        recorder.space(path)
    shown = recorder.command("dmesg", ["dmesg"], pattern=MESSAGES)
    # With the kernel's first message, the buffer has all that the journal can have of this boot.
    if not any(map(_BANNER.match, _plain(shown.stdout[:256]))):
        recorder.command("journal", JOURNAL, timeout=20.0, pattern=MESSAGES)


def configuration(recorder: Recorder) -> None:
    """Record the options of the kernel's build: those in files, and those that the running kernel itself gives."""
    release = recorder.document["host"]["uname"]["release"]
    recorder.excerpts(("/boot/config-" + release, "/lib/modules/" + release + "/config"), CONFIG)
    # A part of the kernel: no other comes before the next boot.
    recorder.excerpt("/proc/config.gz", CONFIG, tuple(filter(None, [recorder.text(BOOT_ID)])))


def _symbols_of(recorder: Recorder) -> Tuple[str, ...]:
    """What decides about the symbols of the running kernel: its boot, and which modules it has loaded where.

    Empty where one of them can't be read.
    """
    boot = recorder.text(BOOT_ID)
    modules = recorder.text("/proc/modules")
    if recorder.document["files"]["/proc/modules"] == {"error": "ENOENT"}:
        # This kernel can't load any.
        modules = ""
    if boot is None or modules is None:
        return ()
    return (boot, *map(" ".join, _LOADED.findall(modules)))


#: Program in the evidence → its name in messages and quotes.
SOURCES = {"journal": "journalctl -k -b", "dmesg": "dmesg"}
#: What stands between the time and the message: host and identifier in journalctl's format short-monotonic; the thread
#: or processor that printed it where the kernel has CONFIG_PRINTK_CALLER (print_prefix in kernel/printk/printk.c).
_BETWEEN = re.compile(r"^(\[ *\d+\.\d+\])(?: \S+ kernel:| ?\[ *[CT]\d+\]) ")
_TIME = re.compile(r"^\[ *(\d{1,12}\.\d+)\] ")
#: start_kernel() prints it before everything else (linux_banner), so it is the first line that a full ring drops.
_BANNER = re.compile(r"^(\[ *0\.0+\] )?Linux version ")
#: The kernel's rate limit (lib/ratelimit.c): lines of one of NVIDIA's functions were left out.
_SUPPRESSED = re.compile(r"\bnv\w*: \d+ callbacks suppressed")


class KernelLog(Facts):
    """Lines as dmesg prints them.

    Of both sources together: one may have lines that the other lost, and one that reaches back to the boot suffices.
    """

    #: the oldest first
    lines: Tuple[str, ...] = follows(lambda self: tuple(line for line in self._all if not _SUPPRESSED.search(line)))

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

    #: lines with which the kernel says that it left out repeated ones
    suppressed: Tuple[str, ...] = follows(lambda self: tuple(line for line in self._all if _SUPPRESSED.search(line)))

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
    return _plain(document.printed(program))


def _plain(text: str) -> List[str]:
    """The lines without what stands between time and message."""
    return [_BETWEEN.sub(r"\1 ", line) for line in text.splitlines()]


def _reaches_boot(document: Document, program: str) -> bool:
    document.output(program, SOURCES[program])
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


class KernelFacts(Facts):
    """The running kernel."""

    log = given(KernelLog)

    #: as ``uname -r``
    release = given(lambda document: document.host("uname", "release"))

    boot_id = given(lambda document: collected(document.line(BOOT_ID) or None, "there is no boot id"))

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

    #: in-kernel names of loaded modules; a kernel without loadable modules has no such file, and so none loaded
    modules: FrozenSet[str] = given(
        lambda document: frozenset(re.findall(r"(?m)^\S+", document.text("/proc/modules") or ""))
    )

    @fact
    def symbols(self) -> Mapping[str, str]:
        """Exported names of interest → module that has them, empty for the kernel itself."""
        rows = [line.split() for line in _lines_of(self.document, "/proc/kallsyms")]
        return {row[2]: row[3].strip("[]") if len(row) == 4 else "" for row in rows if len(row) in (3, 4)}

    #: messages about the modules of this stack, oldest first; some may be missing
    messages: Tuple[str, ...] = follows(lambda self: self.log.lines if any_messages(self.document) else ())

    @fact
    def secure_boot_state(self) -> str:
        """One of :data:`secure_boot.firmware.WORDS`, but ``unknown``."""
        if self.document.names(EFI) is None:
            return NO_EFI
        # Four bytes of attributes, then the value; without the variable the firmware has no Secure Boot.
        value = self.document.text(SECURE_BOOT, "binaries")
        # Evidence of an older gdsdeploy lacks them, and a firmware or shim may.
        others = [if_known(partial(self.document.text, path, "binaries"), None) for path in (SETUP_MODE, SHIM_STATE)]
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
        path = "/proc/sys/kernel/tainted"
        return there(self.document.decimal(path, 10), path)

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


def _is_set(value: Optional[str]) -> bool:
    return value is not None and value[8:] == "01"


NVIDIA, NVIDIA_FS, PEERMEM, NOUVEAU = "nvidia", "nvidia-fs", "nvidia-peermem", "nouveau"
#: Of a GPU's error: the GPU's PCI address and the number.
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,18})")
#: What the two modules' lines contain, and the kernel's about them.
_ABOUT = {
    NVIDIA: re.compile("NVRM"),
    NVIDIA_FS: re.compile("nvidia[-_]fs|nvfs"),
    PEERMEM: re.compile("peermem|nv_mem"),
}
#: What a module prints first whenever it is loaded.
_LOADS = {NVIDIA: "NVRM: loading NVIDIA UNIX", NVIDIA_FS: "nvidia_fs: Initializing nvfs driver module"}
#: With it the driver says that a GPU has recovered; not after a reset, for which it forgets the GPU (gpu.c of the open
#: kernel modules 595.45.04, _gpuRefreshRecoveryActionInLock).
_RECOVERED = re.compile(r": 154\b.* to 0x0\b")
#: How a message can end before the next boot: ``Meaning.over``.
LOADED, RECOVERY, BOOT = "loaded", "recovery", "boot"


class Meaning(NamedTuple):
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
    over: str = ""
    follows: Tuple[str, ...] = ()


#: Of an Xid that the table doesn't have.
UNLISTED = Meaning(
    id="xid-unlisted",
    module=NVIDIA,
    pattern="",
    sample="",
    what="a number that gdsdeploy's table of NVIDIA's catalog doesn't have",
    cause="hardware",
    fault=False,
    fix="look the number up in NVIDIA's catalog of Xid errors, which says what to do about it",
    source="",
)


#: Domain, bus and device of a GPU, without leading zeros.
Address = Tuple[str, ...]


def address(text: str) -> Address:
    """What several forms of an address have in common: ``0000:3b:00`` and ``00000000:3B:00.0`` are one."""
    return tuple(part.lstrip("0") for part in re.findall("[0-9a-f]+", text.lower())[:3])


class Message(NamedTuple):
    """A line about a fault, or about something that looks like one."""

    line: str
    meaning: Meaning
    #: ``Xid 79 on 0000:3b:00``; empty for other messages
    xid: str = ""

    @property
    def link(self) -> Link:
        return f"kernel.{self.meaning.id}", self.meaning.follows

    @property
    def what(self) -> str:
        return f"{self.xid}: {self.meaning.what}" if self.xid else self.meaning.what


@lru_cache(maxsize=1)
def meanings() -> Tuple[Meaning, ...]:
    return data.rows("kernel_messages", Meaning)


def messages(lines: Iterable[str], module: str, recovered: Container[Address] = ()) -> Iterator[Message]:
    """The lines about faults that ``module`` printed and that aren't over, in their order.

    recovered: GPUs that need nothing, as the driver says now.
    """
    lines, loads = list(lines), _LOADS.get(module)
    loaded = max((place for place, line in enumerate(lines) if loads and loads in line), default=0)
    told = _recoveries(lines)
    table = [(re.compile(row.pattern), row) for row in meanings() if row.module == module]
    for place, line in enumerate(lines):
        if not _ABOUT[module].search(line):
            continue
        xid = XID.search(line) if module == NVIDIA else None
        meaning = next((row for pattern, row in table if pattern.search(line)), UNLISTED if xid else None)
        if meaning is None:
            continue
        if xid:
            gpu = address(xid.group(1))
            over = place < told.get(gpu, 0) or (meaning.over == RECOVERY and gpu in recovered)
        else:
            over = not meaning.over and place < loaded
        if not over:
            yield Message(line, meaning, f"Xid {xid.group(2)} on {xid.group(1)}" if xid else "")


def _recoveries(lines: Sequence[str]) -> Dict[Address, int]:
    """GPU → the place of the line with which the driver last said that it needs nothing any more."""
    pairs = ((XID.search(line), place) for place, line in enumerate(lines) if _RECOVERED.search(line))
    return {address(xid.group(1)): place for xid, place in pairs if xid}


def reported(facts: HostFacts, module: str) -> List[Message]:
    """The module's messages that aren't over."""
    actions = if_known(lambda: facts.driver.recovery, {})
    recovered = {address(gpu) for gpu, action in actions.items() if action == "None"}
    # A module that is loaded now has no failure to load any more.
    loaded = module == PEERMEM and if_known(lambda: facts.peermem.module.loaded, False)
    found = messages(facts.kernel.log.lines, module, recovered)
    return [message for message in found if not (loaded and message.meaning.over == LOADED)]


#: Rows after which no transfer of nvidia-fs works → the cause.  After a bug it can't be unloaded either.
STOPPING = {"nvidia-fs-bug": "nvidia-fs.stopped", "nvidia-fs-access": "nvidia-fs.access-ok"}


@rule(NVIDIA_FS, 40)
def stopped(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """An error in nvidia-fs that the kernel stopped, or one that every transfer meets, leaves it loaded without use."""
    stops = [message for message in reported(facts, NVIDIA_FS) if message.meaning.id in STOPPING]
    if stops:
        message = stops[-1]
        evidence = quote.with_source(facts.kernel.log.source, [message.line])
        yield required(False, STOPPING[message.meaning.id], evidence, message.what)
    else:
        yield Condition(lambda: isinstance(facts.kernel.messages, tuple))


@rule(NOTES, 80)
def fault_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Faults that don't rule the path out, though they may end a transfer on it."""
    modules = {NVIDIA: "driver.reported-fault"}
    if not if_known(lambda: requests_p2pdma(facts, lambda: filesystem.storage_of(facts, mount)), False):
        modules[NVIDIA_FS] = "nvidia-fs.reported-fault"
    for module, ident in modules.items():
        for message in _roots(reported(facts, module)):
            if message.meaning.fault or message.meaning is UNLISTED:
                yield _cause(ident, facts, message)


def _roots(found: Sequence[Message]) -> List[Message]:
    """Those that don't follow from another one, whose fix is the one to begin with."""
    return [message for message in found if not any(is_after(message.link, other.link) for other in found)]


def _cause(ident: str, facts: HostFacts, message: Message) -> Cause:
    evidence = quote.with_source(facts.kernel.log.source, [message.line])
    cause = listed_cause(ident, evidence, message.what, message.meaning.fix)
    return cause._replace(reference="NVIDIA Xid Errors") if message.xid else cause


#: Bits of /proc/sys/kernel/tainted that mean damage (Documentation/admin-guide/tainted-kernels.rst).
DAMAGE = {
    1: "a module was loaded by force",
    3: "a module was unloaded by force",
    4: "the processor reported a machine check",
    5: "a bad page was met",
    7: "the kernel had an oops",
    14: "a soft lockup happened",
}
#: Bits that the finding mentions.  Every driver outside the kernel's tree taints it.
REMARKABLE = {
    0: "a proprietary module is loaded",
    9: "the kernel warned",
    13: "an unsigned module is loaded",
    15: "the kernel was live-patched",
}


@check(
    "kernel.taints",
    "the kernel has not been damaged since it booted",
    expects="no oops, no machine check, nothing loaded by force",
    prevents="jobs on a host whose kernel has already failed once",
    of_running=True,
)
def taints(facts: HostFacts, _expectation: Expectation) -> Answer:
    value = facts.kernel.tainted
    wrong = [words for bit, words in DAMAGE.items() if value >> bit & 1]
    if wrong:
        hint = "Read the cause (journalctl -k -b); after a machine check, have the hardware tested"
        hint += "; then drain the host and reboot it"
        return failed("; ".join(wrong), hint, [f"/proc/sys/kernel/tainted is {value}"])
    remarks = [words for bit, words in REMARKABLE.items() if value >> bit & 1]
    return passed("; ".join(remarks) or ("tainted by modules outside its tree only" if value else "not tainted"))


@check(
    "kernel.running",
    "the running kernel is the locked one",
    expects="{kernel_release}",
    prevents="modules that are missing or have another version because the host booted another installed kernel",
    of_running=True,
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    release = facts.kernel.release
    if release == expectation.kernel_release:
        return passed(release)
    runs, locked = flavour_of(release), flavour_of(expectation.kernel_release)
    if runs and locked and runs.vendor == locked.vendor and runs.name != locked.name:
        keep = f"write `kernel: {{flavour: {runs.name}}}` in profile {expectation.profile}, then gdsdeploy lock"
        return failed(
            f"{release}, of another flavour ({runs.name}, not {locked.name})",
            f"To keep this flavour, {keep}; to change it, provision the host",
        )
    return failed(release, "Provision the host again: it sets the default kernel; let it reboot the host")


@check(
    "kernel.boot-default",
    "the boot loader's default is the locked kernel",
    expects="{kernel_release}",
    prevents="a host that passes today and comes back from its next reboot with another kernel",
    unknown_hint="See what boots next (bootctl list, efibootmgr); docs/fleet.md has the boot loaders that are known",
    of_running=True,
)
def boot_default(facts: HostFacts, expectation: Expectation) -> Answer:
    default = facts.boot.default_kernel
    if default == expectation.kernel_release:
        return passed(default)
    if default is None:
        return not_applicable("no supported boot loader, as in a guest whose kernel comes from outside")
    return failed(default, "Provision the host again, which makes the locked kernel the default of its boot loader")


#: Different fixes that one hint names.
FIXES_NAMED = 3
#: Where nvidia-smi doesn't show its "GPU Recovery Action", as before the driver 565.
UNTOLD = ". This driver doesn't tell when a GPU has recovered: the check fails until the next boot"
UNKNOWN_HINT = (
    "Keep a persistent journal (mkdir -p /var/log/journal; systemctl restart systemd-journald), and run this as root; "
    "after the next boot the check can decide"
)


def check_messages(
    ident: str, title: str, *, module: str, expects: str, prevents: str, unless: Words = lambda _facts, _fleet: ""
) -> None:
    """Register the check ``ident``: ``module`` has reported no fault."""
    check(
        ident,
        title,
        expects=expects,
        prevents=prevents,
        unknown_hint=UNKNOWN_HINT,
        of_running=True,
        unless=unless,
    )(lambda facts, _: _judge_messages(facts, module))


def _judge_messages(facts: HostFacts, module: str) -> Answer:
    log, found = facts.kernel.log, reported(facts, module)
    faults = [message for message in found if message.meaning.fault]
    if faults:
        fixes = list(dict.fromkeys(message.meaning.fix for message in _roots(faults)))
        hint = ". ".join(capitalized(fix) for fix in fixes[:FIXES_NAMED])
        told = known(lambda: facts.driver.recovery)
        if isinstance(told, Unknown) and any(message.meaning.over == RECOVERY for message in faults):
            hint += UNTOLD
        return failed(_kinds(faults), hint, [message.line for message in faults])
    unlisted = [message for message in found if message.meaning is UNLISTED]
    if unlisted:
        raise UndecidedError(_kinds(unlisted), capitalized(UNLISTED.fix))
    require(log.since_boot)
    lines = [message.line for message in found] + list(log.suppressed)
    note = "; the kernel left out repeated messages" if log.suppressed else ""
    words = f"no fault of this host: {_kinds(found)}" if found else "none in the kernel's messages"
    return passed(words + note, lines)


def _kinds(found: List[Message]) -> str:
    return "; ".join(sorted({message.what for message in found}))
