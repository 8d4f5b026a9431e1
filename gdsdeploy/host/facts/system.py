"""The operating system and the kernel that runs."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Dict, FrozenSet, Mapping, Optional, Tuple

from ..model.system import system_name, without_minor
from ..paths import EFI, SECURE_BOOT, SETUP_MODE, SHIM_STATE
from ..secure_boot.firmware import NO_EFI, ON, state_of
from .alike import once_for_alike
from .document import Document
from .kernel_log import KernelLog, any_messages, kernel_log
from .unknown import Maybe, Unknown, if_present, when_known, why_not


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
            return _options(lines)
        reasons.append(why_not(lines, "there is no " + path).reason)
    return Unknown("the kernel's configuration can't be read: " + "; ".join(reasons))


@once_for_alike
def _options(lines: Tuple[str, ...]) -> Dict[str, str]:
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


def _lockdown(document: Document) -> Maybe[str]:
    text = document.text("/sys/kernel/security/lockdown")
    if isinstance(text, Unknown):
        return text
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
