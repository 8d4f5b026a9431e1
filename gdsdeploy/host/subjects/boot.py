"""The next boot: the kernel that it starts, the arguments, and the modules that it loads or keeps out."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from ..errors import HostError
from ..facts.document import Document, Ran, collected, once_for_alike
from ..facts.unknown import Facts, UndecidedError, fact, given, if_known
from ..model.expectation import Expectation
from ..paths import (
    ENTRY_FOLDERS,
    ENTRY_LINES,
    GRUB2_FILES,
    GRUB_ENVIRONMENTS,
    GRUB_FILES,
    IMEX_NODES,
    LOAD_FOLDERS,
    PARTITIONS,
    PROBE_FOLDERS,
    UNIFIED_FOLDERS,
    parameter_path,
)
from ..process import Output
from ..rootdir import Files
from .register import Answer, check, collector, failed, passed, unknown
from .types import EvidenceRequest, HostFacts, Recorder

#: Only the lines that decide which entry is the default, and which kernel an entry starts.
GRUB = (
    r"^[ \t]*(set default=|menuentry |submenu |linux\S*[ \t]|\}|load_env|if |fi\b|else\b|set saved_entry"
    r"|(insmod )?blscfg)"
)
UNITS = (
    "systemd-modules-load.service",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "dkms.service",
    "openibd.service",
    "gds-gate.service",
    "gds-peermem.service",
)
PROPERTIES = "Id,LoadState,ActiveState,SubState,Result,UnitFileState,ExecMainStatus"


@collector("boot")
def collect_boot(recorder: Recorder, _request: EvidenceRequest) -> None:
    fragments = recorder.paths(*LOAD_FOLDERS, *PROBE_FOLDERS)
    recorder.texts((*(path for path in fragments if path.endswith(".conf")), "/etc/modules", IMEX_NODES))
    from ..boot.sdboot import VARIABLES, variable

    recorder.excerpts(dict.fromkeys((*GRUB_FILES, *GRUB2_FILES)), GRUB)
    for name in VARIABLES:
        recorder.binary(variable(name))
    recorder.texts(f"{partition}/loader/loader.conf" for partition in PARTITIONS)
    recorder.texts((*GRUB_ENVIRONMENTS, "/etc/default/grub", *recorder.paths("/etc/default/grub.d")))
    recorder.excerpts(recorder.paths(*ENTRY_FOLDERS), ENTRY_LINES)
    recorder.paths(*LOADER_FOLDERS[len(ENTRY_FOLDERS) :])
    for pattern in ("vmlinuz-*", "initrd.img-*", "initramfs-*.img"):
        recorder.names("/boot", pattern)
    recorder.link("/vmlinuz")
    if recorder.exists("/run/systemd/system"):
        state = recorder.command("systemctl-state", ["systemctl", "is-system-running"])
        recorder.command("systemctl-units", ["systemctl", "show", "--property", PROPERTIES, *UNITS])
        # That state is the one of a system without failed units.
        none = Output(0, "", "") if state.stdout.strip() == "running" else None
        failed_units = ["systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager"]
        recorder.command("systemctl-failed", failed_units, output=none)


def shown_parameters(document: Document, names: Iterable[str]) -> Mapping[str, Optional[str]]:
    """``MODULE.PARAMETER`` → its value; None: sysfs doesn't have it.  Raises UndecidedError."""
    return {name: document.line(collected(parameter_path(name) or None, f"{name} is no parameter")) for name in names}


class Recorded(Files):
    """What boot loaders read, in evidence.  Older evidence lacks LoaderInfo and the grub.cfg of EL 8: none is there."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document

    def text(self, path: str) -> str:
        if self._document.recorded("excerpts", path):
            return "\n".join(self._document.lines(path) or ())
        return "" if path in GRUB2_FILES[1:] else self._document.text(path) or ""

    def content(self, path: str) -> bytes:
        if "LoaderInfo" in path and not self._document.recorded("binaries", path):
            return b""
        try:
            return bytes.fromhex(self._document.text(path, "binaries") or "")
        except ValueError:
            raise UndecidedError(f"the record of {path} is malformed") from None

    def names(self, folder: str) -> List[str]:
        return list(self._document.names(folder) or ())

    def exists(self, path: str) -> bool:
        return bool(self.text(path))


#: Folders of what boot loaders start, whichever they are, and a name of such a file.
LOADER_FOLDERS = (*ENTRY_FOLDERS, *UNIFIED_FOLDERS, "/boot/extlinux", "/boot/syslinux")
_IS_ENTRY = re.compile(r"(?i)\.(conf|cfg|efi)\Z")


class BootFacts(Facts):
    """The next boot."""

    @fact
    def default_kernel(self) -> Optional[str]:
        """Kernel release that the boot loader starts next; None: this host has no boot loader."""
        # Only a check asks: other readers of facts needn't import every boot loader.
        from ..boot.loader import loader

        files = Recorded(self.document)
        try:
            release = loader(files=files).kernels()["next"]
        except HostError:
            others = [folder for folder in LOADER_FOLDERS if any(map(_IS_ENTRY.search, self.document.existing(folder)))]
            if others:
                raise UndecidedError(
                    f"no boot loader is recognised, but there are entries of one: {others[0]}"
                ) from None
            tuple(map(self.document.lines, GRUB_FILES))
            return None
        return collected(release or None, "what the boot loader starts next is decided while it boots, or is no Linux")

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


def blocking(document: Document, module: str) -> Dict[str, str]:
    """``FILE:LINE`` → the line of modprobe.d that keeps a module out, by its in-kernel name."""
    pattern = re.compile(r"\s*(blacklist|install)\s+{}\b".format(module.replace("_", "[-_]")))
    return {
        f"{path}:{number}": line.strip()
        for path, text in _fragments(document, PROBE_FOLDERS)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.match(line)
    }


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
        # Only dracut reads rd.driver.blacklist, in the initramfs.  Newer releases leave a file in /run/modprobe.d, too.
        if key in ("modprobe.blacklist", "module_blacklist"):
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


_AGAIN = "Provision the host again: it sets them in the boot loader and in modprobe.d; let it reboot the host"
_PENDING = "The boot loader has them for the next boot: drain the host and reboot it"
#: Without this option nvme_core has no parameter of this name, and no multipath.
_MULTIPATH = "nvme_core.multipath"


@check(
    "boot.arguments",
    "this boot has the kernel arguments and module parameters of the profile",
    expects="those of boot in the fleet file, and of mode p2pdma",
    prevents="an IOMMU or NVMe multipath that is on again, because another program wrote the boot loader's arguments",
    of_running=True,
    unless=lambda _, fleet: (
        "" if _values(fleet) else "the profile sets no kernel arguments and no parameters of modules"
    ),
    expected=lambda _, fleet: _values(fleet),
)
def arguments(facts: HostFacts, expectation: Expectation) -> Answer:
    from ..boot.arguments import differing, name as name_of, unmet
    from ..boot.loader import loader

    expected = expectation.module_parameters
    words = facts.kernel.command_line
    names = {name_of(word) for word in expectation.boot_arguments}
    lines = ["/proc/cmdline: {}".format(" ".join(w for w in words if name_of(w) in names) or "none of them")]
    missing = unmet(words, expectation.boot_arguments)
    if missing:
        text = "this boot is without {}".format(", ".join(missing))
        entries = if_known(lambda: loader(files=Recorded(facts.document)).words(expectation.kernel_release), [])
        if entries and not any(unmet(entry, missing) for entry in entries):
            return failed(f"reboot pending: {text}, which the next boot has", _PENDING, lines)
        return failed(text, _AGAIN, lines)
    shown = shown_parameters(facts.document, expected)
    lines += [f"{parameter_path(key)}: {value}" for key, value in shown.items() if value is not None]
    wrong = differing(shown, expected)
    if wrong:
        text = ", ".join(f"{key} is {shown[key]}" for key in wrong)
        return failed(text, _hint_of_argument(facts, wrong[0], expected[wrong[0]]), lines)
    hidden = _hidden(facts, shown)
    if hidden:
        words_hidden = "the kernel doesn't show {}".format(", ".join(hidden))
        return unknown(words_hidden, "Check the names with modinfo --parameters")
    return passed("all of them", lines)


def _values(expectation: Expectation) -> str:
    parameters = [f"{key}={value}" for key, value in sorted(expectation.module_parameters.items())]
    return ", ".join([*expectation.boot_arguments, *parameters])


def _hint_of_argument(facts: HostFacts, key: str, value: str) -> str:
    module = key.partition(".")[0]
    if module not in facts.kernel.modules:
        return f'It is built into the kernel: write boot: {{arguments: {{{key}: "{value}"}}}} in the profile'
    search = f"grep -r {module} /etc/modprobe.d /usr/lib/modprobe.d /proc/cmdline"
    return f"Look for another value: {search}. If the host was provisioned since its boot, drain it and reboot it"


def _hidden(facts: HostFacts, shown: Mapping[str, object]) -> List[str]:
    """Parameters of loaded modules that sysfs doesn't have."""
    modules = facts.kernel.modules
    hidden = [key for key, value in shown.items() if value is None and key.partition(".")[0] in modules]
    if _MULTIPATH in hidden and facts.kernel.option("NVME_MULTIPATH") == "n":
        hidden.remove(_MULTIPATH)
    return hidden


UNIT = "systemd-modules-load.service"
PEERMEM, PEERMEM_UNIT = "nvidia_peermem", "gds-peermem.service"


@check(
    "boot.autoload",
    "the modules are loaded at boot, the driver before what links against it",
    expects="nvidia first, then the rest of the stack, in modules-load.d",
    prevents="a host that works until its first reboot because nothing loads nvidia-fs",
    of_provision=True,
    expected=lambda _, fleet: (
        f"{' before '.join(_autoloads(fleet))} in modules-load.d"
        + (f", nvidia-peermem by {PEERMEM_UNIT}" if fleet.rdma == "peermem" else "")
    ),
)
def autoload(facts: HostFacts, expectation: Expectation) -> Answer:
    hint = "Provision the host again: it writes /etc/modules-load.d/gdsdeploy.conf"
    names, listed, forbidden = _autoloads(expectation), facts.boot.autoloaded, facts.boot.forbidden
    missing = [name for name in names if name not in listed]
    if missing:
        return failed("modules-load.d lacks {}".format(", ".join(missing)), hint)
    order = [name for name in listed if name in names]
    if order[0] != "nvidia":
        return failed("the order is {}".format(", ".join(order)), hint)
    denied = [name for name in names if name in forbidden]
    if denied:
        where = next(iter(blocking(facts.document, denied[0])), "the kernel's command line")
        return failed(f"{where} forbids {', '.join(denied)}", f"Remove it from {where}, and rebuild the initramfs")
    if expectation.own_kernel and _unit(facts, UNIT).get("ActiveState") == "failed":
        return failed(f"{UNIT} failed at this boot", f"Read why: systemctl status {UNIT}")
    # In modules-load.d nvidia-peermem comes too early for OFED, but it comes.
    needs_unit = expectation.rdma == "peermem" and PEERMEM not in listed
    if needs_unit and _unit(facts, PEERMEM_UNIT).get("UnitFileState") != "enabled":
        return failed(f"nothing loads nvidia-peermem: {PEERMEM_UNIT} is not enabled", hint)
    return passed(", ".join(order))


def _autoloads(expectation: Expectation) -> List[str]:
    """Without nvidia-peermem, which needs the RDMA core first, so that a unit loads it."""
    return [name for name in expectation.modules() if name != PEERMEM]


def _unit(facts: HostFacts, name: str) -> Mapping[str, str]:
    """The properties of a unit; raises UndecidedError where systemd doesn't know it."""
    units = facts.boot.units
    if name not in units:
        raise UndecidedError(f"systemd doesn't know {name}")
    return units[name]
