"""GPUs, the driver and what lies around them: loaded modules, libraries, firmware, PCI functions, RDMA interfaces.

PCI functions are those that take part in a direct path: GPUs, NVMe, network adapters, and the bridges between them.
Trials read and write through cuFile, and register GPU memory with RDMA adapters, where the fleet names mounts for it.
"""

from __future__ import annotations

import contextlib
import os

from ..io.reading import try_open
from ..paths import (
    BUILD_ID,
    HOLDERS,
    LEGACY_SERVICE,
    NVFS,
    NVFS_DEVICE,
    NVIDIA,
    PEERS,
    SERVICE_FOLDERS,
)
from ..subjects.register import collector
from .recorder import EvidenceRequest, Recorder

MODULES = (
    "nvidia", "nvidia_fs", "nvidia_peermem", "nv_peer_mem", "nvidia_uvm", "nouveau", "nvme", "nvme_core", "rpcrdma",
)  # fmt: skip


@collector("gpu")
def collect_gpu(recorder: Recorder, _request: EvidenceRequest) -> None:
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
