"""What programs in a container see of the host: device nodes, the udev database, sysfs."""

from __future__ import annotations

from typing import List, Tuple

from ..facts import HostFacts, known
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

Lack = Tuple[str, str]


@check(
    "container.view",
    "in a container, programs see of the host what cuFile needs",
    expects="device nodes of the GPUs and of nvidia-fs, /run/udev, sysfs, and RDMA devices where the fleet has RDMA",
    prevents="a host that is fine and jobs in containers that all go through CPU memory, or fail with 5027",
    of_running=True,
)
def view(facts: HostFacts, expectation: Expectation) -> Answer:
    manager = known(facts.environment.container)
    if manager is None:
        return passed("not in a container", expected="only in containers")
    lacking = [*_devices(facts, expectation), *_metadata(facts), *_rdma(facts, expectation)]
    if not lacking:
        return passed(f"{manager}: everything is there")
    words = "{}: no {}".format(manager, ", no ".join(name for name, _ in lacking))
    fixes = list(dict.fromkeys(fix for _, fix in lacking))
    return failed(
        words, "; ".join(fixes)[0].upper() + "; ".join(fixes)[1:], ["{}: {}".format(*item) for item in lacking]
    )


def _devices(facts: HostFacts, expectation: Expectation) -> List[Lack]:
    names = known(facts.environment.devices)
    gpus = "give the container its GPUs: NVIDIA's container runtime and --gpus all; Enroot's 98-nvidia.sh hook"
    found: List[Lack] = []
    if "nvidiactl" not in names or not any(name[len("nvidia") :].isdigit() for name in names):
        found.append(("/dev/nvidia0 or /dev/nvidiactl", gpus))
    if "nvidia-uvm" not in names:
        found.append(("/dev/nvidia-uvm", gpus))
    if expectation.nvidia_fs_version and not any(name.startswith("nvidia-fs") for name in names):
        found.append(("/dev/nvidia-fs*", "map every /dev/nvidia-fs* of the host into the container (--device)"))
    return found


def _metadata(facts: HostFacts) -> List[Lack]:
    found: List[Lack] = []
    if "data" not in known(facts.environment.udev):
        found.append(("/run/udev/data", "mount the host's udev database, read-only: --volume /run/udev:/run/udev:ro"))
    if not known(facts.pci.functions):
        found.append(("/sys/bus/pci/devices", "mount the host's /sys, read-only"))
    return found


def _rdma(facts: HostFacts, expectation: Expectation) -> List[Lack]:
    if expectation.rdma == "none":
        return []
    names = known(facts.environment.infiniband)
    fix = "map /dev/infiniband into the container (--device /dev/infiniband); Enroot's 99-mellanox.sh hook"
    lacking = [] if "rdma_cm" in names else [("/dev/infiniband/rdma_cm", fix)]
    return lacking if any(name.startswith("uverbs") for name in names) else [*lacking, ("/dev/infiniband/uverbs*", fix)]
