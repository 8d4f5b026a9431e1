"""The operating system and its kernel: identity, command line, configuration, loaded modules, symbols, messages.

Also the module files that modprobe would load, with their content, what the next boot will do (boot loader, autoloaded
and forbidden modules, services), and the audit of the modules of both kernels.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import Any, Dict, List, Optional, Tuple

from ..audit.audit import audit_expected
from ..boot import grub
from ..boot.present import machine_digest
from ..errors import HostError
from ..io import cache
from ..kmod.files import find_trees
from ..kmod.kernel import Kernel
from ..kmod.module import files_to_load, read_once, substitute_of
from ..paths import (
    EFI,
    ENTRY_FOLDERS,
    ENTRY_LINES,
    GRUB_ENVIRONMENTS,
    GRUB_FILES,
    IMEX_NODES,
    LOAD_FOLDERS,
    MODPROBE,
    PROBE_FOLDERS,
    SECURE_BOOT,
    SETUP_MODE,
    SHIM_STATE,
    SOURCES,
    parameter_path,
)
from ..subjects.register import collector
from .recorder import EvidenceRequest, Recorder, failure

BOOT_ID = "/proc/sys/kernel/random/boot_id"
FILES = (
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
    r"|DMA_SHARED_BUFFER|INFINIBAND_ON_DEMAND_PAGING"
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
    for path in FILES:
        recorder.text(path)
    expected = request.expectation.module_parameters if request.expectation is not None else {}
    for path in filter(None, map(parameter_path, sorted(expected))):
        recorder.text(path)
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
    recorder.command("journal", JOURNAL, timeout=20.0, pattern=MESSAGES)
    recorder.command("dmesg", ["dmesg"], pattern=MESSAGES)


def configuration(recorder: Recorder) -> None:
    """Record the options of the kernel's build: those in files, and those that the running kernel itself gives."""
    release = recorder.document["host"]["uname"]["release"]
    for path in ("/boot/config-" + release, "/lib/modules/" + release + "/config"):
        recorder.excerpt(path, CONFIG)
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


MODULES = ("nvidia", "nvidia-fs", "nvidia-peermem")
#: Imports kept: those of the driver, of peer memory, of storage hooks, and the two that tie a module to its kernel.
IMPORTS = re.compile(r"nvidia_|^nv[A-Z_]|peer_memory|nvfs|^module_layout$|^_printk$|^printk$")
EXPORTS = re.compile(r"^nvidia_p2p_|peer_memory|nvfs")


@collector("modules")
def collect_modules(recorder: Recorder, _request: EvidenceRequest) -> None:
    inputs = kmod_inputs(recorder)
    for name in MODULES:
        output = recorder.command(MODPROBE + name, ["modprobe", "--show-depends", name], inputs=inputs).stdout
        replacement_name = substitute_of(output)
        if replacement_name:
            argv = ["modprobe", "--show-depends", "--ignore-install", replacement_name]
            output = recorder.command(MODPROBE + replacement_name, argv, inputs=inputs).stdout
        for path in files_to_load(output):
            if path.rpartition("/")[2].startswith("nv") and path not in recorder.document["modules"]:
                recorder.document["modules"][path] = digest(path)
        recorder.command("modinfo:" + name, ["modinfo", "-n", name], inputs=inputs)
    _trees(recorder)


def kmod_inputs(recorder: Recorder) -> Optional[cache.Inputs]:
    """What decides about modprobe's and modinfo's answers; None where a part of it can't be read.

    The lists of depmod lie directly in the kernel's folder.  modprobe reads the kernel's command line, too.
    """
    arguments = recorder.text("/proc/cmdline")
    if arguments is None:
        return None
    release = recorder.document["host"]["uname"]["release"]
    paths = ("/sbin/modprobe", "/lib/modules/" + release, *PROBE_FOLDERS)
    words = (release, arguments, os.environ.get("MODPROBE_OPTIONS", ""))
    return cache.Inputs(tuple(map(recorder.at, paths)), words, _module_files)


def _module_files(output: str) -> List[str]:
    return files_to_load(output) or [line for line in output.splitlines() if line.startswith("/")]


def _trees(recorder: Recorder) -> None:
    """The driver sources on this host, with their digests; hosts that receive modules from a builder have none."""
    recorder.names(SOURCES, "nvidia*")
    for tree in find_trees(SOURCES):
        try:
            recorder.document["trees"][tree.path] = tree.as_dict()
        except HostError as error:
            recorder.document["trees"][tree.path] = failure(error)


def digest(path: str) -> Dict[str, Any]:
    """The relevant parts of a module file, as JSON; ``{"error"}`` if it can't be read."""
    try:
        module = read_once(path)
    except HostError as error:
        return {"error": str(error)}
    value = asdict(module)
    value["imports"] = _some(module.imports, IMPORTS)
    value["imports_total"] = len(module.imports)
    value["exports"] = {name: list(symbol) for name, symbol in _some(module.exports, EXPORTS).items()}
    value["exports_total"] = len(module.exports)
    value["weak"] = [name for name in module.weak if IMPORTS.search(name)]
    value["parms"] = {}
    return value


def _some(symbols: Dict[str, Any], pattern: re.Pattern[str]) -> Dict[str, Any]:
    return {name: symbols[name] for name in sorted(symbols) if pattern.search(name)}


#: Only the lines that decide which entry is the default, and which kernel an entry starts.
GRUB = r"^[ \t]*(set default=|menuentry |submenu |linux\S*[ \t]|\}|load_env|if |fi\b|else\b|set saved_entry)"
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
    for folder in LOAD_FOLDERS + PROBE_FOLDERS:
        recorder.texts(folder, [name for name in recorder.names(folder) if name.endswith(".conf")])
    recorder.text("/etc/modules")
    recorder.text(IMEX_NODES)
    for path in GRUB_FILES:
        recorder.excerpt(path, GRUB)
    for path in (*GRUB_ENVIRONMENTS, "/etc/default/grub"):
        recorder.text(path)
    recorder.texts("/etc/default/grub.d", recorder.names("/etc/default/grub.d"))
    for folder in ENTRY_FOLDERS:
        for name in recorder.names(folder):
            recorder.excerpt(f"{folder}/{name}", ENTRY_LINES)
    recorder.names("/boot", "vmlinuz-*")
    for pattern in ("initrd.img-*", "initramfs-*.img"):
        recorder.names("/boot", pattern)
    recorder.link("/vmlinuz")
    if recorder.exists("/run/systemd/system"):
        recorder.command("systemctl-state", ["systemctl", "is-system-running"])
        recorder.command("systemctl-units", ["systemctl", "show", "--property", PROPERTIES, *UNITS])
        failed_units = ["systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager"]
        recorder.command("systemctl-failed", failed_units)


@collector("audits")
def collect_audits(recorder: Recorder, request: EvidenceRequest) -> None:
    section = recorder.document["audits"]
    if request.expectation is not None and not request.expectation.own_kernel:
        # The host's machine chooses the kernel, and there it is the lock's.
        section["running"] = {"error": "the kernel that runs is not this host's to choose"}
        section["next"] = _audit(request.expectation.kernel_release, request)
        return
    running = recorder.document["host"]["uname"]["release"]
    section["running"] = _audit(running, request)
    try:
        following = grub.default_kernel()["next"]
    except HostError as error:
        section["next"] = {"error": error.message}
        return
    if not following:
        section["next"] = {"error": "the boot loader does not say which kernel is next"}
    else:
        section["next"] = section["running"] if following == running else _audit(following, request)


def _audit(release: str, request: EvidenceRequest) -> Dict[str, Any]:
    try:
        return {"release": release, "results": audit_expected(Kernel(release), request.expectation)}
    except HostError as error:
        return {"error": error.message}
