"""The operating system and its kernel: identity, command line, configuration, loaded modules, symbols, messages."""

from __future__ import annotations

import re
from typing import Tuple

from ..boot.identity import machine_digest
from ..paths import EFI, SECURE_BOOT, SETUP_MODE, SHIM_STATE, parameter_path
from .recorder import Recorder
from .request import EvidenceRequest

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


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
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
