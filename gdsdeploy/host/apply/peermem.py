"""nvidia-peermem: loaded after the RDMA core and before its users, and its predecessor nv_peer_mem kept out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, List, Sequence

from . import driver_options, services
from .file_resource import FileResource, restoration_changes
from .files import FOLDER, File
from .host import ManagedHost
from .model import NONE, RELOAD, Change, Rdma, Refusal, Words
from .program import COMMAND

UNIT = "gds-peermem.service"
LEGACY = "nv_peer_mem.service"
DROP_IN = f"{services.FOLDER}/{LEGACY}.d/gdsdeploy.conf"
_LOADED = "/sys/module/nvidia_peermem"
_BEFORE = ("gds-gate.service", "slurmd.service", "kubelet.service")
#: A drop-in and no mask: what the administrator had enabled is as it was when this file goes.
_DROP_IN_TEXT = f"""\
# Rendered by gdsdeploy; changes here are overwritten.
# nvidia-peermem or DMA-BUF has its place; the same file of modprobe.d that is named here keeps its module out.
[Unit]
ConditionPathExists=!{driver_options.MODPROBE}
"""


@dataclass(frozen=True)
class Desired:
    """Whether nvidia-peermem is loaded, and before what."""

    #: How adapters reach GPU memory.
    rdma: Rdma = "none"
    #: Units that start after nvidia-peermem is loaded.
    before: List[str] = field(default_factory=list)


class Peermem(FileResource[Desired]):
    """The unit with ``rdma: peermem``, the drop-in with any ``rdma`` but none."""

    name = "peermem"
    desired_type = Desired
    removal_rank = 30
    kinds: ClassVar[Words] = services.KINDS
    reasons: ClassVar[Words] = services.REASONS

    def desired_files(self, desired: Desired) -> List[File]:
        folder = File(os.path.dirname(DROP_IN), FOLDER, mode=0o755)
        files = [] if desired.rdma == "none" else [folder, File.of(DROP_IN, _DROP_IN_TEXT)]
        return [*files, File.of(services.path(UNIT), unit(desired))] if desired.rdma == "peermem" else files

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        observed = super().observe(host, desired)
        paths = {file.path for file in self.desired_files(desired)}
        observed["unit"] = services.observe(host, UNIT)
        observed["back"] = restoration_changes(
            host, [path for path in (services.path(UNIT), DROP_IN) if path not in paths]
        )
        observed["booted"] = services.is_booted(host)
        observed["outdated"] = services.is_outdated(host, [LEGACY, *([UNIT] if desired.rdma == "peermem" else [])])
        observed["loaded"] = host.exists(_LOADED)
        return observed

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        return super().refusals(desired, observed) + services.names_refused(desired.before)

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        changes = super().changes(desired, observed, pending)
        if desired.rdma == "peermem":
            written = any(change.subject == services.path(UNIT) for change in changes)
            changes += services.enable_changes(UNIT, unit(desired), observed["unit"], written=written)
        else:
            changes += services.dismiss_changes(UNIT, observed["unit"], RELOAD if observed["loaded"] else NONE)
        changes += observed["back"]
        drop_in = any(change.subject == DROP_IN for change in changes)
        # Enabling makes systemd read every file again.
        if observed["booted"] and (drop_in or observed["outdated"]) and not any(c.kind == "enable" for c in changes):
            changes.append(Change("reload", "systemd", "", "", "drop-in" if drop_in else "outdated"))
        return changes

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if not services.apply(host, change, stop=True):
            super().apply(host, desired, change)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Unload nvidia-peermem, forget its unit, and leave nv_peer_mem's service alone."""
        return services.dismiss(host, UNIT, (DROP_IN,), RELOAD if host.exists(_LOADED) else NONE)


def unit(desired: Desired) -> str:
    """The text of gds-peermem.service."""
    before = [*_BEFORE, *dict.fromkeys(name for name in desired.before if name not in _BEFORE)]
    return f"""\
# Rendered by gdsdeploy; changes here are overwritten. See: systemctl edit {UNIT}
[Unit]
Description=NVIDIA peer memory (nvidia-peermem): after the RDMA core, before its users
ConditionPathExists=/usr/lib/gdsdeploy/gdsdeploy-host.pyz
After=systemd-modules-load.service openibd.service
After=rdma-load-modules@rdma.service rdma-load-modules@infiniband.service rdma-load-modules@roce.service
# OFED's service takes the RDMA core away when it stops, and cannot while a client of it is loaded.
PartOf=openibd.service
Before={" ".join(before)}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={COMMAND} peermem load
ExecStop={COMMAND} peermem unload
TimeoutStartSec=300

[Install]
# Where OFED's service is started by itself, as after its stop, this comes with it.
WantedBy=multi-user.target openibd.service
"""
