"""What the next boot will do: boot loader, autoloaded and forbidden modules, services."""

from __future__ import annotations

from ..paths import (
    ENTRY_FOLDERS,
    ENTRY_LINES,
    GRUB_ENVIRONMENTS,
    GRUB_FILES,
    IMEX_NODES,
    LOAD_FOLDERS,
    PROBE_FOLDERS,
)
from .recorder import Recorder
from .request import EvidenceRequest

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


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
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
