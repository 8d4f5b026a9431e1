"""What the loaded NVIDIA modules and the RDMA core say of themselves, in /proc/driver, /sys and /dev."""

from __future__ import annotations

import os

from ..io.inspect import opened
from ..paths import BUILD_ID, HOLDERS, LEGACY_SERVICE, NVFS, NVFS_DEVICE, NVIDIA, PEERS, SERVICE_FOLDERS, UVM_NO_HMM
from .recorder import Recorder
from .wanted import Wanted

MODULES = (
    "nvidia",
    "nvidia_fs",
    "nvidia_peermem",
    "nv_peer_mem",
    "nvidia_uvm",
    "nouveau",
    "nvme",
    "nvme_core",
    "rpcrdma",
)


def collect(recorder: Recorder, _wanted: Wanted) -> None:
    for name in MODULES:
        folder = "/sys/module/" + name
        for item in ("version", "srcversion", "taint", "initstate", "refcnt"):
            recorder.text(folder + "/" + item)
        recorder.binary(folder + BUILD_ID)
    for item in ("version", "params"):
        recorder.text(NVIDIA + "/" + item)
    for name in recorder.names(NVIDIA + "/gpus"):
        recorder.text(NVIDIA + "/gpus/" + name + "/information")
    recorder.names("/dev", "nvidia*")
    for item in ("version", "stats", "devcount", "bridges", "peer_distance", "peer_affinity"):
        recorder.text(NVFS + "/" + item)
    _registered(recorder)
    recorder.names("/sys/class/infiniband")
    for name in recorder.names(PEERS):
        recorder.text(PEERS + "/" + name + "/version")

    recorder.text(UVM_NO_HMM)
    for folder in HOLDERS:
        recorder.names(folder)
    for folder in SERVICE_FOLDERS:
        recorder.names(folder, LEGACY_SERVICE)


def _registered(recorder: Recorder) -> None:
    """nvidia-fs looks for storage drivers at its first open and forgets them at its last close (nvfs_open)."""
    recorder.value("opens", NVFS_DEVICE, opened)
    try:
        held = os.open(NVFS_DEVICE, os.O_RDONLY)
    except OSError:
        recorder.text(NVFS + "/modules")
        return
    try:
        recorder.text(NVFS + "/modules")
    finally:
        os.close(held)
