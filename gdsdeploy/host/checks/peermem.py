"""GPU memory for RDMA adapters: nvidia-peermem or DMA-BUF."""

from __future__ import annotations

import re

from ..expectation import Expectation
from ..facts import HostFacts, Unknown, known
from .driver import messages
from .registry import Answer, check, failed, passed

#: First kernel whose RDMA core takes DMA-BUF memory.
DMABUF_KERNEL = (5, 12)
OFED = "install MLNX_OFED or DOCA first and build the driver after it, or use DMA-BUF (rdma: dmabuf), which needs none"


@check(
    "peermem.usable",
    "RDMA adapters can reach GPU memory in the way the fleet asks for",
    expects="rdma: {rdma}",
    prevents="a peermem that cannot be loaded ('Invalid argument') because the driver was built without OFED",
)
def usable(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return passed("not needed: the fleet asks for no RDMA; {}".format(_state(facts)))
    if expectation.rdma == "dmabuf":
        return _dmabuf(facts)
    if known(facts.peermem.module.loaded):
        if "nv_mem" in known(facts.peermem.peers):
            return passed("nvidia-peermem is loaded and registered with the RDMA core")
        return failed(
            "nvidia-peermem is loaded, but not registered with the RDMA core", "Load it again after OFED's ib_core"
        )
    if known(facts.peermem.stub):
        words = "the installed nvidia-peermem is a stub: it was built without OFED's peer memory symbols"
        return failed(words, OFED[0].upper() + OFED[1:], messages(facts, "peermem", "peer_mem"))
    if known(facts.peermem.module.file) is None:
        return failed("there is no nvidia-peermem for this kernel", "Provision the host again")
    return failed("nvidia-peermem is not loaded", "Load it: modprobe nvidia-peermem", messages(facts, "peermem"))


def _state(facts: HostFacts) -> str:
    loaded, stub = facts.peermem.module.loaded, facts.peermem.stub
    if loaded is True:
        return "nvidia-peermem is loaded"
    if isinstance(stub, Unknown):
        return "nvidia-peermem was not looked into"
    if stub is None:
        return "nvidia-peermem is not installed"
    return "the installed nvidia-peermem is " + ("a stub, built without OFED" if stub else "complete")


def _dmabuf(facts: HostFacts) -> Answer:
    flavour, release = known(facts.driver.flavour), known(facts.kernel.release)
    if flavour != "open":
        found = "the driver is {}".format(flavour or "not loaded")
        return failed(found, "Use the open flavour: only its modules export GPU memory as DMA-BUF")
    numbers = tuple(int(item) for item in re.findall(r"\d+", release)[:2])
    if numbers < DMABUF_KERNEL:
        return failed("kernel {} is older than 5.12".format(release), "Use a newer kernel, or nvidia-peermem")
    return passed("the open driver and kernel {} offer DMA-BUF; peermem is not needed".format(release))
