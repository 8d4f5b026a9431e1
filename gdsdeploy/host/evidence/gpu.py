"""GPUs, the driver and what lies around them: loaded modules, libraries, firmware, PCI functions, RDMA interfaces.

PCI functions are those that take part in a direct path: GPUs, NVMe, network adapters, and the bridges between them.
Trials read and write through cuFile, and register GPU memory with RDMA adapters, where the fleet names mounts for it.
"""

from __future__ import annotations

import contextlib
import os
import re

from ..io.reading import mount_of, try_open
from ..paths import (
    BUILD_ID,
    FIRMWARE,
    FIRMWARE_PATH,
    HOLDERS,
    LEGACY_SERVICE,
    MOUNTINFO,
    NVFS,
    NVFS_DEVICE,
    NVIDIA,
    PEERS,
    SERVICE_FOLDERS,
)
from ..proof import proof
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


LIBRARIES = r"libcufile|libcuda\.so|libnvidia-ml\.so|libnuma|libmount\.so|libudev\.so|libibverbs\.so"
#: The driver's libraries as ``ldconfig -p`` lists them; the first line of each is the one that programs get.
LIBRARY_LINE = r"^\s*({})\s.*=>\s*(/\S+)$"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


@collector("userland")
def collect_userland(recorder: Recorder, _request: EvidenceRequest) -> None:
    output = recorder.command("ldconfig", ["ldconfig", "-p"], pattern=LIBRARIES)
    for name in NAMES:
        match = re.search(LIBRARY_LINE.format(re.escape(name)), output.stdout, re.MULTILINE)
        if match:
            # Debian's alternatives make a chain; the name at its end has the version.
            recorder.value("links", match.group(2), os.path.realpath)
    firmware_path = recorder.text(FIRMWARE_PATH)
    for folder in filter(None, ((firmware_path or "").strip(), FIRMWARE)):
        for version in recorder.names(folder + "/nvidia", "[0-9]*"):
            recorder.names(folder + "/nvidia/" + version, "gsp*.bin*")


@collector("proof")
def collect_proof(recorder: Recorder, request: EvidenceRequest) -> None:
    if not request.scratch:
        return
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    # Where direct I/O couldn't even be tried, the server may be gone: don't wait for it twice.
    audits = recorder.document["odirect"]
    folders = [path for path in request.scratch if mount_of(path, text) == path and "trials" in audits.get(path, {})]
    if folders and recorder.names(NVIDIA + "/gpus"):
        config = recorder.text(request.cufile_path, limit=256 * 1024) or ""
        proof.prove(recorder.command, folders, proof.configuration(config, request.cufile_path))
