"""The loaded NVIDIA modules and the RDMA core, as /proc/driver, /sys and /dev show them."""

from __future__ import annotations

import contextlib
import os

from ..io.reading import try_open
from ..paths import BUILD_ID, HOLDERS, LEGACY_SERVICE, NVFS, NVFS_DEVICE, NVIDIA, PEERS, SERVICE_FOLDERS
from .recorder import Recorder
from .request import EvidenceRequest

MODULES = (
    "nvidia", "nvidia_fs", "nvidia_peermem", "nv_peer_mem", "nvidia_uvm", "nouveau", "nvme", "nvme_core", "rpcrdma",
)  # fmt: skip


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    for name in MODULES:
        folder = "/sys/module/" + name
        recorder.texts(folder, ("version", "srcversion", "taint", "initstate", "refcnt"))
        recorder.binary(folder + BUILD_ID)
    recorder.texts(NVIDIA, ("version", "params"))
    recorder.texts(NVIDIA + "/gpus", [name + "/information" for name in recorder.names(NVIDIA + "/gpus")])
    recorder.names("/dev", "nvidia*")
    recorder.texts(NVFS, ("version", "stats", "devcount", "bridges", "peer_distance", "peer_affinity"))
    _collect_registrations(recorder)
    recorder.names("/sys/class/infiniband")
    recorder.texts(PEERS, [name + "/version" for name in recorder.names(PEERS)])
    for folder in HOLDERS:
        recorder.names(folder)
    for folder in SERVICE_FOLDERS:
        recorder.names(folder, LEGACY_SERVICE)


def _collect_registrations(recorder: Recorder) -> None:
    """nvidia-fs looks for storage drivers at its first open and forgets them at its last close (nvfs_open)."""
    recorder.value("opens", NVFS_DEVICE, try_open)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.callback(os.close, os.open(NVFS_DEVICE, os.O_RDONLY))
        recorder.text(NVFS + "/modules")
