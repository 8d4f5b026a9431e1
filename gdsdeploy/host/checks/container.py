"""The parts of the host that programs in a container see: device nodes, the udev database, sysfs."""

from __future__ import annotations

from typing import Iterator, Tuple

from ..facts import HostFacts, require
from ..model.expectation import Expectation
from .registry import Answer, capitalized, check, failed, not_applicable, passed, subject

subject("container", after="os")

GPUS = "give the container its GPUs: NVIDIA's container runtime and --gpus all; Enroot's 98-nvidia.sh hook"
INFINIBAND = "map /dev/infiniband into the container (--device /dev/infiniband); Enroot's 99-mellanox.sh hook"


@check(
    "container.view",
    "in a container, programs see the parts of the host that cuFile needs",
    expects="device nodes of the GPUs and of nvidia-fs, /run/udev, sysfs, and RDMA devices where the fleet has RDMA",
    prevents="a healthy host with jobs in containers that all go through CPU memory, or fail with 5027",
    of_running=True,
)
def view(facts: HostFacts, expectation: Expectation) -> Answer:
    manager = require(facts.environment.container)
    if manager is None:
        return not_applicable("not in a container")
    missing = list(_missing(facts, expectation))
    if not missing:
        return passed(f"{manager}: everything is visible")
    words = "{}: no {}".format(manager, ", no ".join(name for name, _ in missing))
    fixes = "; ".join(dict.fromkeys(fix for _, fix in missing))
    return failed(words, capitalized(fixes), ["{}: {}".format(*gap) for gap in missing])


def _missing(facts: HostFacts, expectation: Expectation) -> Iterator[Tuple[str, str]]:
    """(what is missing, its fix)"""
    names = require(facts.environment.devices)
    if "nvidiactl" not in names or not any(name[len("nvidia") :].isdigit() for name in names):
        yield "/dev/nvidia0 or /dev/nvidiactl", GPUS
    if "nvidia-uvm" not in names:
        yield "/dev/nvidia-uvm", GPUS
    if expectation.nvidia_fs_version and not any(name.startswith("nvidia-fs") for name in names):
        yield "/dev/nvidia-fs*", "map every /dev/nvidia-fs* of the host into the container (--device)"
    if "data" not in require(facts.environment.udev):
        yield "/run/udev/data", "mount the host's udev database, read-only: --volume /run/udev:/run/udev:ro"
    if not require(facts.pci.functions):
        yield "/sys/bus/pci/devices", "mount the host's /sys, read-only"
    if expectation.rdma != "none":
        names = require(facts.environment.infiniband)
        if "rdma_cm" not in names:
            yield "/dev/infiniband/rdma_cm", INFINIBAND
        if not any(name.startswith("uverbs") for name in names):
            yield "/dev/infiniband/uverbs*", INFINIBAND
