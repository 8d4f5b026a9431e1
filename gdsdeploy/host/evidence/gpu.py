"""What the loaded NVIDIA modules and the RDMA core say of themselves, in /proc/driver, /sys and /dev."""

from __future__ import annotations

import os

from ..places import BUILD_ID, NVFS, NVFS_DEVICE, NVIDIA, PEERS
from .inspect import opened
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
    for item in ("version", "stats", "devcount", "bridges"):
        recorder.text(NVFS + "/" + item)
    _registered(recorder)
    recorder.names("/sys/class/infiniband")
    for name in recorder.names(PEERS):
        recorder.text(PEERS + "/" + name + "/version")


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
