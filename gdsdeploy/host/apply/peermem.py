"""nvidia-peermem: loaded after the RDMA core and before its users, and its predecessor nv_peer_mem kept out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, List, Sequence

from . import driver_options, services
from .files import FOLDER, File
from .model import Change, Rdma, Refusal
from .program import COMMAND

UNIT = "gds-peermem.service"
LEGACY = "nv_peer_mem.service"
DROP_IN = f"{services.FOLDER}/{LEGACY}.d/gdsdeploy.conf"
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


class Peermem(services.UnitResource[Desired]):
    """The unit with ``rdma: peermem``, the drop-in with any ``rdma`` but none."""

    name = "peermem"
    desired_type = Desired
    removal_rank = 30
    unit = UNIT
    places = (DROP_IN,)
    read = (LEGACY,)
    module = "/sys/module/nvidia_peermem"

    def unit_text(self, desired: Desired) -> str:
        return unit(desired) if desired.rdma == "peermem" else ""

    def desired_files(self, desired: Desired) -> List[File]:
        folder = File(os.path.dirname(DROP_IN), FOLDER, mode=0o755)
        files = [] if desired.rdma == "none" else [folder, File.of(DROP_IN, _DROP_IN_TEXT)]
        return [*files, *super().desired_files(desired)]

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        return super().refusals(desired, observed) + services.names_refused(desired.before)

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        changes = super().changes(desired, observed, pending)
        is_new = observed["booted"] and any(change.subject == DROP_IN for change in changes)
        return changes + services.reload_changes(outdated=is_new, changes=changes, reason="drop-in")


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
